"""One slow GPU among 1,024.

Covers: scenarios/what-if/slow-gpu.yaml, variation, result.variation, answer_chart.
Question: what does one slow GPU among 1,024 cost, and who waits for it?
"""

import sys
from pathlib import Path

import mpsim
from mpsim.plot import answer_chart

OUT = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent
SCENARIOS = Path(__file__).parents[2] / "scenarios" / "what-if"

SPEEDS = (1.0, 0.95, 0.9, 0.8, 0.7, 0.5)
RANK = 333

base = mpsim.load(SCENARIOS / "slow-gpu.yaml")
runs = [
    mpsim.simulate(
        base.with_values({"variation.slow": [{"ranks": [RANK], "speed": speed}]})
    ).variation
    for speed in SPEEDS
]
times = [one.mean_s for one in runs]
chosen = SPEEDS.index(0.8)
lost = 1 - times[0] / times[chosen]
guilty, waited = runs[chosen].blame.worst(1)[0]
answer = (
    f"One GPU at 80 % of its speed makes the step {times[chosen] / times[0] - 1:.1%} longer, as if "
    f"{lost * base.world_size:.0f} of {base.world_size:,} GPUs were missing; the others wait {waited:.0f} GPU-seconds a "
    f"step for {guilty}."
)
answer_chart(
    [f"{speed:.0%}" for speed in SPEEDS],
    {"": times},
    ylabel="step time (s)",
    xlabel="speed of one GPU",
    answer=answer,
).save(OUT / "slow_gpu.png")
