"""One simulated step: kernels by rank and time.

Covers: mpsim.load, mpsim.simulate, result.plot.heat.
Question: on which ranks do kernels run when?
"""

import sys
from pathlib import Path

import mpsim

OUT = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent
SCENARIO = Path(__file__).parents[2] / "scenarios" / "gpt3-175b-a100.yaml"

result = mpsim.simulate(mpsim.load(SCENARIO))
result.plot.heat().save(OUT / "heat.png")
