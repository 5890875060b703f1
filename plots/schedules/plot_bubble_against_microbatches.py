"""The bubble of interleaved 1F1B against the number of microbatches.

Covers: make_orders, from_orders, line_chart from plain arrays.
Question: how many microbatches, or chunks, buy how much of the bubble?
"""

import sys
from pathlib import Path

import numpy as np

from mpsim.engine import run
from mpsim.plot import line_chart
from mpsim.schedule import make_orders
from mpsim.training import from_orders

OUT = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent

PP = 8
MICROBATCHES = (8, 16, 32, 64, 128)
CHUNKS = (1, 2, 4)


def bubble(microbatches: int, chunks: int) -> float:
    """Bubble over the makespan, with equal times of F, I and W and no communication."""
    name = "1f1b" if chunks == 1 else "interleaved-1f1b"
    orders = make_orders(name, pp=PP, microbatches=microbatches, virtual_stages=chunks)
    timeline = run(from_orders(orders, forward=1, backward=1, weight=1))
    return 1 - 3 * microbatches * chunks / timeline.makespan


lines = {f"chunks a rank: {v}": np.array([bubble(m, v) for m in MICROBATCHES]) for v in CHUNKS}
line_chart(
    f"microbatches, {PP} pipeline ranks",
    [str(m) for m in MICROBATCHES],
    lines,
    metric="bubble_fraction",
).save(OUT / "bubble_against_microbatches.png")
