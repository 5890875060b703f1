"""Looped BFS: breadth first, all microbatches through one chunk before the rank turns to the next.

Backwards take the chunks in reverse and, as PyTorch runs them, the microbatches in reverse too. It
is GPipe over several chunks a rank: without communication the makespan is (vm + p - 1)(tF + tB)
with tF, tB of one chunk, as short as that of interleaved 1F1B, while all vm chunks are held at
once. In return a latency between stages is paid only 2(p - 1) times, and the weights of a chunk are
needed in one stretch, which spares fully sharded data parallelism most of its gathers.

References
----------
Lamy-Poirier, Breadth-First Pipeline Parallelism, 2022.
PyTorch 2.13, torch.distributed.pipelining.ScheduleLoopedBFS (reverse order of the backwards).
"""

from __future__ import annotations

import numpy as np

from mpsim.schedule.facts import Schedule, check_counts
from mpsim.schedule.interleaved import chunk_table
from mpsim.schedule.loop import loop_orders
from mpsim.schedule.orders import Orders


def looped_bfs(*, pp: int, microbatches: int, virtual_stages: int = 1) -> Orders:
    """Orders of Looped BFS. `virtual_stages`: chunks a rank, at least 1.

    Examples
    --------
    >>> looped_bfs(pp=1, microbatches=2, virtual_stages=2).tokens()
    [['0F0', '0F1', '1F0', '1F1', '1B1', '1B0', '0B1', '0B0']]
    """
    check_counts("looped-bfs", pp=pp, microbatches=microbatches, virtual_stages=virtual_stages)
    chunk_K, microbatch_K = chunk_table(microbatches, virtual_stages, group=microbatches)
    return loop_orders(
        "looped-bfs",
        pp=pp,
        warmup_P=np.full(pp, len(chunk_K)),
        forward_chunk_K=chunk_K,
        forward_microbatch_K=microbatch_K,
        backward_chunk_K=chunk_K[::-1],
        backward_microbatch_K=microbatch_K[::-1],
    )


LOOPED_BFS = Schedule("looped-bfs", looped_bfs, chunks=None, interleaves=True)
