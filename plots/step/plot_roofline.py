"""One simulated step: roofline.

Covers: mpsim.load, mpsim.simulate, result.plot.roofline.
Question: which kernels are bound by matrix units, which by memory, and which take the time?
"""

import sys
from pathlib import Path

import mpsim

OUT = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent
SCENARIO = Path(__file__).parents[2] / "scenarios" / "mixtral-8x7b-h100.yaml"

result = mpsim.simulate(mpsim.load(SCENARIO))
result.plot.roofline().save(OUT / "roofline.png")
