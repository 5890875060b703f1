"""Nodes of eight or a rack of 72 for a mixture of experts, each with the best layout of its own.

Covers: scenarios/what-if/hgx.yaml and nvl72.yaml, mpsim.search, answer_chart.
Question: what does one NVLink domain for all experts buy over nodes of eight, each with its best layout?
"""

import sys
from pathlib import Path

import mpsim
from mpsim.plot import answer_chart

OUT = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent
SCENARIOS = Path(__file__).parents[2] / "scenarios" / "what-if"
MACHINES = {"hgx": "DGX B200, 8 nodes of 8", "nvl72": "GB200 NVL72, 16 trays of 4"}

# the rest of what `mpsim search` tries by itself does not win on either machine
OVER = {
    "parallelism.tp": [1],
    "parallelism.cp": [1],
    "parallelism.pp": [1, 2],
    "parallelism.ep": [8, 64],
    "parallelism.zero": [1],
    "training.micro_batch": [2, 4],
    "training.recompute": ["full"],
    "schedule.virtual_stages": [1, 2],
}

names, times, exchange = [], [], []
for scenario, machine in MACHINES.items():
    base = mpsim.load(SCENARIOS / f"{scenario}.yaml")
    best = mpsim.search(base, OVER, top=1).leaders[0]
    for layout, summary in (
        ("experts over 64 ranks", mpsim.simulate(base).summary),
        (
            f"best: ep {best.values['parallelism.ep']}, pp {best.values['parallelism.pp']}",
            best.summary,
        ),
    ):
        names.append(f"{machine}\n{layout}")
        times.append(summary["step_time_s"])
        exchange.append(summary["breakdown_s"]["exposed_ep"])
answer = (
    f"Each with its best layout, the rack is {times[1] / times[3]:.1f} times as fast; with experts over 64 ranks on both it is "
    f"{times[0] / times[2]:.1f} times, because nodes of eight then exchange over their NICs, which nobody has to."
)
answer_chart(
    names,
    {"step": times, "of it exchanges of experts": exchange},
    ylabel="time (s)",
    answer=answer,
).save(OUT / "hgx_nvl72.png")
