"""Three schedules of one pipeline, drawn under each other.

Covers: make_orders, from_orders, timeline_chart on given axes.
Question: where do the bubbles of GPipe, 1F1B and interleaved 1F1B sit, and what does a chunk change?
"""

import sys
from pathlib import Path

from matplotlib.figure import Figure

from mpsim.engine import run
from mpsim.plot import timeline_chart
from mpsim.schedule import make_orders
from mpsim.training import from_orders

OUT = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent

PP, MICROBATCHES = 4, 8
FORWARD, BACKWARD, WEIGHT = 4, 4, 4  # of a whole stage, any unit; a chunk of two takes half
CASES = (("gpipe", 1), ("1f1b", 1), ("interleaved-1f1b", 2))

figure = Figure(figsize=(12, 7), dpi=150, layout="constrained")
axes = figure.subplots(len(CASES), 1, sharex=True)
for ax, (name, chunks) in zip(axes, CASES, strict=True):
    orders = make_orders(name, pp=PP, microbatches=MICROBATCHES, virtual_stages=chunks)
    times = [whole / chunks for whole in (FORWARD, BACKWARD, WEIGHT)]
    timeline = run(from_orders(orders, forward=times[0], backward=times[1], weight=times[2]))
    display = timeline_chart(timeline, tick=1, unit="stage slots", communication=False)
    display.plot(ax)
    ax.set_title(
        f"{name}, holds {max(orders.peak_inflight()) / chunks:g} microbatches", loc="right"
    )
    ax.label_outer()
figure.savefig(OUT / "three_schedules.png", metadata={"Software": None})
