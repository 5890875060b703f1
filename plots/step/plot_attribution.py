"""One simulated step: attribution.

Covers: mpsim.load, mpsim.simulate, result.plot.attribution.
Question: where does the time of a step go, on each rank?
"""

import sys
from pathlib import Path

import mpsim

OUT = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent
SCENARIO = Path(__file__).parents[2] / "scenarios" / "gpt3-175b-a100.yaml"

result = mpsim.simulate(mpsim.load(SCENARIO))
result.plot.attribution().save(OUT / "attribution.png")
