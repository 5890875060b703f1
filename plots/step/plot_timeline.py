"""One simulated step: timeline.

Covers: mpsim.load, mpsim.simulate, result.plot.timeline.
Question: when does each rank compute, send and wait in the step of the quickstart?
"""

import sys
from pathlib import Path

import mpsim

OUT = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent
SCENARIO = Path(__file__).parents[2] / "scenarios" / "quickstart.yaml"

result = mpsim.simulate(mpsim.load(SCENARIO))
result.plot.timeline().save(OUT / "timeline.png")
