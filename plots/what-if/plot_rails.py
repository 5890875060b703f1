"""Rails against a fat tree for the all-to-all of experts.

Covers: scenarios/what-if/rails.yaml, fabrics, network: flow, answer_chart.
Question: are rails worth it for the all-to-all of experts?
"""

import sys
from pathlib import Path

import mpsim
from mpsim.plot import answer_chart

OUT = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent
SCENARIOS = Path(__file__).parents[2] / "scenarios" / "what-if"

THINNER = (1, 2, 4, 8)
KINDS = {"rails": "rail-optimized", "fat tree": "fat-tree"}

base = mpsim.load(SCENARIOS / "rails.yaml")
series = {
    name: [
        mpsim.simulate(
            base.with_values(
                {"cluster.fabric.kind": kind, "cluster.fabric.oversubscription": thinner}
            )
        ).summary["step_time_s"]
        for thinner in THINNER
    ]
    for name, kind in KINDS.items()
}
rails, tree = series.values()
answer = (
    f"At full bisection the fat tree is {tree[0] / rails[0] - 1:.1%} slower than rails, at 2:1 {tree[1] / rails[1] - 1:.0%} "
    f"and at 8:1 {tree[-1] / rails[-1] - 1:.0%}; rails themselves lose {rails[-1] / rails[0] - 1:.0%} from 1:1 to 8:1, "
    "because exchanges stay below one leaf of each rail."
)
answer_chart(
    [f"{one}:1" for one in THINNER],
    series,
    ylabel="step time (s)",
    xlabel="oversubscription of the leaves",
    answer=answer,
).save(OUT / "rails.png")
