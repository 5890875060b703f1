"""Six schedules of the same work, drawn under each other.

Covers: compare_schedules, Times, timeline_chart on given axes.
Question: what do chunks, a split backward, a V and two directions buy, and what do they hold for it?
"""

import sys
from pathlib import Path

from matplotlib.figure import Figure

from mpsim.plot import timeline_chart
from mpsim.study import Times, compare_schedules

OUT = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent

PP, MICROBATCHES = 4, 8
TIMES = Times.of(4, 4, 4)  # forward, input gradient, weight gradient of a rank's whole share
NAMES = ("gpipe", "1f1b", "interleaved-1f1b", "zb-h1", "zb-v", "dualpipe")

found = {
    choice.name: choice
    for choice in compare_schedules(pp=PP, microbatches=MICROBATCHES, times=TIMES, names=NAMES)
}
figure = Figure(figsize=(12, 13), dpi=150, layout="constrained")
axes = figure.subplots(len(NAMES), 1, sharex=True)
for ax, name in zip(axes, NAMES, strict=True):
    choice = found[name]
    assert choice.timed is not None
    timed = choice.timed
    display = timeline_chart(
        timed.timeline, tick=1 / timed.scale, unit="quarters of a forward", communication=False
    )
    display.plot(ax)
    copies = ", weights twice" if choice.weight_copies == 2 else ""
    bubble = f"bubble {timed.bubble_fraction:.0%}, holds {choice.activations:g} activations{copies}"
    ax.set_title(f"{name}: {bubble}", loc="right")
    ax.set_xlim(0, max(one.timed.makespan for one in found.values() if one.timed is not None))
    ax.label_outer()
figure.savefig(OUT / "six_schedules.png", metadata={"Software": None})
