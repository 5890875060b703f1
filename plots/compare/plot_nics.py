"""Half the network cards: the same step on nodes with four and with eight.

Covers: mpsim.compare, comparison_chart.
Question: which part of the step pays for it when a node has half the NICs?
"""

import sys
from pathlib import Path

import mpsim
from mpsim.plot import comparison_chart

OUT = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent
SCENARIOS = Path(__file__).parents[2] / "scenarios"

few, many = (mpsim.simulate(mpsim.load(SCENARIOS / f"nics-{count}.yaml")) for count in (4, 8))
comparison_chart(mpsim.compare(few, many)).save(OUT / "nics.png")
