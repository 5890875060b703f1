"""Pipeline messages against gradient reductions on one NIC.

Covers: scenarios/what-if/pp-dp.yaml, network: analytic and flow, answer_chart.
Question: how much do pipeline messages and gradient reductions lose when they meet on one NIC?
"""

import sys
from pathlib import Path

import mpsim
from mpsim.plot import answer_chart

OUT = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent
SCENARIOS = Path(__file__).parents[2] / "scenarios" / "what-if"

RATES = ("25 Gb/s", "50 Gb/s", "100 Gb/s", "200 Gb/s", "400 Gb/s")

base = mpsim.load(SCENARIOS / "pp-dp.yaml")
series = {
    name: [
        mpsim.simulate(
            base.with_values({"simulation.network": network, "cluster.nic": rate})
        ).summary["step_time_s"]
        for rate in RATES
    ]
    for name, network in {"each by itself": "analytic", "sharing the NIC": "flow"}.items()
}
alone, shared = series.values()
lost = [two / one - 1 for one, two in zip(alone, shared, strict=True)]
worst = max(range(len(RATES)), key=lambda one: lost[one])
answer = (
    f"Meeting on the NIC makes the step {lost[-1]:.1%} longer at {RATES[-1]} and at most {lost[worst]:.1%}, at "
    f"{RATES[worst]}: time that a model which lets each transfer have the NIC to itself leaves out."
)
answer_chart(RATES, series, ylabel="step time (s)", xlabel="one NIC a GPU", answer=answer).save(
    OUT / "pp_dp.png"
)
