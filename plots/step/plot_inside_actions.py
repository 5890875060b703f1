"""One simulated step: communication inside actions.

Covers: mpsim.load, mpsim.simulate, result.plot.timeline.
Question: which collectives of which layer do kernels wait for, and which run beside them?
"""

import sys
from pathlib import Path

import mpsim

OUT = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent
SCENARIO = Path(__file__).parents[2] / "scenarios" / "mixtral-8x7b-h100.yaml"

result = mpsim.simulate(mpsim.load(SCENARIO))
result.plot.timeline(ranks=[0, 3], window=(0.31, 0.34)).save(OUT / "inside_actions.png")
