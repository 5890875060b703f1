"""GPipe: all forwards, then all backwards.

The paper draws the backwards last in, first out; PyTorch executes them first in, first out, and so
does this unless ``lifo`` is given. Either way the makespan without communication is (m + p - 1)(tF
+ tB) and all m microbatches are held at once.

References
----------
Huang et al., GPipe: Efficient Training of Giant Neural Networks using Pipeline Parallelism, 2019,
Figure 2. PyTorch 2.13, torch.distributed.pipelining.ScheduleGPipe (order as executed).
"""

from __future__ import annotations

import numpy as np

from mpsim.schedule.facts import Schedule, check_counts, check_one_chunk
from mpsim.schedule.loop import loop_orders
from mpsim.schedule.orders import Orders


def gpipe(*, pp: int, microbatches: int, virtual_stages: int = 1, lifo: bool = False) -> Orders:
    """Orders of GPipe. `virtual_stages`: 1; looped-bfs is GPipe over several chunks a rank. `lifo`:
    whether the backwards run in the reverse order of the microbatches.

    Examples
    --------
    >>> gpipe(pp=2, microbatches=2).tokens()[1]
    ['1F0', '1F1', '1B0', '1B1']
    """
    check_counts("gpipe", pp=pp, microbatches=microbatches, virtual_stages=virtual_stages)
    check_one_chunk("gpipe", virtual_stages, instead="looped-bfs")
    microbatch_K = np.arange(microbatches)
    chunk_K = np.zeros_like(microbatch_K)
    return loop_orders(
        "gpipe",
        pp=pp,
        warmup_P=np.full(pp, microbatches),
        forward_chunk_K=chunk_K,
        forward_microbatch_K=microbatch_K,
        backward_chunk_K=chunk_K,
        backward_microbatch_K=microbatch_K[::-1] if lifo else microbatch_K,
        exchanges=True,
    )


GPIPE = Schedule("gpipe", gpipe, interleaved="looped-bfs")
