"""One simulated step: memory by kind.

Covers: mpsim.load, mpsim.simulate, result.plot.memory_by_kind.
Question: what does the fullest rank hold when?
"""

import sys
from pathlib import Path

import mpsim

OUT = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent
SCENARIO = Path(__file__).parents[2] / "scenarios" / "mixtral-8x7b-h100.yaml"

result = mpsim.simulate(mpsim.load(SCENARIO))
result.plot.memory_by_kind().save(OUT / "memory_by_kind.png")
