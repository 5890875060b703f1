"""Four NICs a node or eight.

Covers: scenarios/what-if/nics.yaml, network: flow, answer_chart.
Question: what do eight NICs a node buy over four when all traffic of a node shares them?
"""

import sys
from pathlib import Path

import mpsim
from mpsim.plot import answer_chart

OUT = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent
SCENARIOS = Path(__file__).parents[2] / "scenarios" / "what-if"

COUNTS = (2, 4, 8)

base = mpsim.load(SCENARIOS / "nics.yaml")
times = [
    mpsim.simulate(base.with_values({"cluster.nics_per_node": count})).summary["step_time_s"]
    for count in COUNTS
]
saved = 1 - times[2] / times[1]
answer = (
    f"Eight NICs make the step {saved:.1%} shorter than four, "
    f"four {1 - times[1] / times[0]:.1%} shorter than two: "
    f"{'worth it only if they cost less than that share of the node' if saved > 0 else 'for nothing'}."
)
answer_chart(
    [f"{count} NICs" for count in COUNTS], {"": times}, ylabel="step time (s)", answer=answer
).save(OUT / "nics.png")
