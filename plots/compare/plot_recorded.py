"""A recorded step of torch.profiler above the same schedule simulated with the median times of its actions.

Covers: mpsim.read with spans, recorded_step, from_orders, timelines_chart.
Question: how much of a recorded step is its schedule, and how much is waiting that no schedule asks for?
"""

import sys
from pathlib import Path

import numpy as np

import mpsim
from mpsim.engine import run
from mpsim.formats.recorded_step import recorded_step
from mpsim.plot import timelines_chart
from mpsim.program import TICK
from mpsim.schedule import make_orders
from mpsim.training.pipeline import from_orders

OUT = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent
TRACES = Path(__file__).parents[2] / "tests" / "imports" / "samples" / "torch"
STAGES, MICROBATCHES = 4, 4

files = [TRACES / f"pp_interleaved_rank{rank}.json" for rank in (0, 1)]
step = recorded_step([mpsim.read(file, spans=True) for file in files])
recorded = step.timeline
program, kinds = recorded.program, recorded.program.vocabulary.kinds


def medians(kind: str) -> np.ndarray:
    """Median time of an action of each stage, in ticks: one slow start of a process is no property of the stage."""
    chosen = program.kind == kinds.index(kind)
    times = [program.duration[chosen & (program.stage == stage)] for stage in range(STAGES)]
    return np.array([np.median(each) for each in times])


orders = make_orders("interleaved-1f1b", pp=2, microbatches=MICROBATCHES, virtual_stages=2)
bare = from_orders(orders, forward=medians("forward"), backward=medians("backward"))
simulated = run(bare)
milliseconds = [f"{timeline.makespan * TICK * 1e3:.1f} ms" for timeline in (recorded, simulated)]
titles = (
    f"recorded: torch.profiler on two CPU ranks, {milliseconds[0]}",
    f"simulated: interleaved 1F1B with the recorded median of each stage, {milliseconds[1]}",
)
timelines_chart(titles, (recorded, simulated)).save(OUT / "recorded.png")
