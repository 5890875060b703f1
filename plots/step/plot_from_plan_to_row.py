"""One microbatch of the quickstart as rows of the Program, and the inside of one of them.

Covers: prepare, columns and dependencies of a Program, templates, Timeline.
Question: what becomes of one microbatch between the plan and the engine?
"""

import sys
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

import mpsim
from mpsim.plot.palette import EVENTS, event_of_part
from mpsim.program import SEND, TICK
from mpsim.simulate import prepare

OUT = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent
SCENARIO = Path(__file__).parents[2] / "scenarios" / "quickstart.yaml"
MICROBATCH, STAGE, WIDE = 5, 1, 50.0  # WIDE: kernels that get their name [us]

prepared = prepare(mpsim.load(SCENARIO))
program, timeline = prepared.program, prepared.timeline()
words, start, end = program.vocabulary, timeline.start * TICK * 1e3, timeline.end * TICK * 1e3
rows = np.flatnonzero(program.microbatch == MICROBATCH)
sends = program.kind == SEND
height = program.rank + np.where(sends, 0.5 * (program.peer - program.rank), 0.0)

figure = Figure(figsize=(12, 8), dpi=120, layout="constrained")
above, below = figure.subplots(2, 1, height_ratios=(3, 2))
for row in rows.tolist():
    kind = words.kinds[program.kind[row]]
    box = {"left": start[row], "color": EVENTS["pp" if sends[row] else kind]}
    above.barh(height[row], max(end[row] - start[row], 0.8), 0.12 if sends[row] else 0.5, **box)
    style = {"color": "black" if sends[row] else "white", "va": "center", "fontsize": 8}
    above.text(start[row] + 1.2, height[row], f"row {row}:\n{kind}", **style)
    for before in set(program.dep[program.dep_ptr[row] : program.dep_ptr[row + 1]]) & set(rows):
        ends = {"xy": (start[row], height[row]), "xytext": (end[before], height[before])}
        above.annotate("", **ends, arrowprops={"arrowstyle": "->", "color": "0.3"})
above.set(
    yticks=range(program.ranks), yticklabels=program.rank_name, xlabel="time in the step [ms]"
)
above.set_title(f"Microbatch {MICROBATCH}: {len(rows)} rows, and which of them wait for which")
above.invert_yaxis()

chosen = rows[(program.stage[rows] == STAGE) & (program.template[rows] >= 0)][0]
template = program.templates[program.template[chosen]]
for kernel in np.flatnonzero(template.layer == 0).tolist():
    left, width = (x[kernel] * TICK * 1e6 for x in (template.start, template.duration))
    lane = int(
        template.stream[kernel]
    )  # 0: the compute stream, 1: the tensor-parallel communicator
    colour = EVENTS[event_of_part(words.parts[template.part[kernel]])]
    below.barh(lane, width, 0.7, left=left, color=colour, edgecolor="white", lw=0.5)
    name = template.names[template.name_index[kernel]].replace(" ", "\n") if width > WIDE else ""
    middle = {"ha": "center", "va": "center", "rotation": 90, "color": "white", "fontsize": 8}
    below.text(left + width / 2, lane, name, **middle)
below.set(yticks=(0, 1), yticklabels=("compute", "tp"), xlabel="time in row [µs]", ylim=(1.5, -0.5))
below.set_title(f"The first of the {template.name.removeprefix('F of ')} inside row {chosen}")
figure.savefig(OUT / "from_plan_to_row.png", metadata={"Software": None})
