"""Shapes of a torus.

Covers: scenarios/what-if/torus.yaml, fabric.shape, answer_chart.
Question: which shape should a torus have for a mixture of experts that exchanges over all of it?
"""

import sys
from pathlib import Path

import mpsim
from mpsim.plot import answer_chart

OUT = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent
SCENARIOS = Path(__file__).parents[2] / "scenarios" / "what-if"

SHAPES = ([4, 4, 2], [8, 4], [16, 2], [32])

base = mpsim.load(SCENARIOS / "torus.yaml")
runs = [
    mpsim.simulate(base.with_values({"cluster.fabric.shape": shape})).summary for shape in SHAPES
]
times = [one["step_time_s"] for one in runs]
names = ["x".join(map(str, shape)) for shape in SHAPES]
best, worst = (choose(range(len(times)), key=lambda one: times[one]) for choose in (min, max))
answer = (
    f"{names[best]}: a step on {names[worst]} takes {times[worst] / times[best]:.1f} times as long, because exchanges "
    "travel further over fewer links; the same NICs are in every node."
)
answer_chart(
    names,
    {
        "step": times,
        "of it exchanges of experts": [one["breakdown_s"]["exposed_ep"] for one in runs],
    },
    ylabel="time (s)",
    xlabel="torus of 32 nodes",
    answer=answer,
).save(OUT / "torus.png")
