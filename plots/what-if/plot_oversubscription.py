"""Thinner networks: neighbours against dealt nodes.

Covers: scenarios/what-if/oversubscription.yaml, cluster.placement, network: flow, answer_chart.
Question: how thin may the network above the leaf switches be, and what does it take from a job whose nodes are scattered?
"""

import sys
from pathlib import Path

import mpsim
from mpsim.plot import answer_chart

OUT = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent
SCENARIOS = Path(__file__).parents[2] / "scenarios" / "what-if"

THINNER = (1, 2, 3, 5, 7)
PLACEMENTS = {"neighbours together": "packed", "dealt to the racks": "by-rack"}
BEARABLE = 0.05  # of the step

base = mpsim.load(SCENARIOS / "oversubscription.yaml")
series = {}
for name, placement in PLACEMENTS.items():
    values = {"cluster.placement": placement, "cluster.fabric.oversubscription": 1}
    series[name] = [
        mpsim.simulate(
            base.with_values({**values, "cluster.fabric.oversubscription": thinner})
        ).summary["step_time_s"]
        for thinner in THINNER
    ]
lost = {name: [one / times[0] - 1 for one in times] for name, times in series.items()}
bearable = {
    name: max(t for t, share in zip(THINNER, shares, strict=True) if share <= BEARABLE)
    for name, shares in lost.items()
}
together, dealt = PLACEMENTS
answer = (
    f"At 7:1 the step takes {lost[together][-1]:.0%} longer with neighbours together and {lost[dealt][-1]:.0%} "
    f"with nodes dealt to the racks; to lose at most {BEARABLE:.0%} the network may be "
    f"{bearable[together]}:1 and {bearable[dealt]}:1."
)
answer_chart(
    [f"{one}:1" for one in THINNER],
    series,
    ylabel="step time (s)",
    xlabel="oversubscription of the leaves",
    answer=answer,
).save(OUT / "oversubscription.png")
