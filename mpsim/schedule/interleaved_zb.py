"""Interleaved zero bubble: interleaved chunks with half the warm-up and a split backward.

A backward is split into the gradient of the input (I), which the stage before waits for, and of the
weights (W), which nobody waits for. Rank r runs min(p - 1 - r + (v - 1)g, vm) forwards first, g
being the group of interleaved 1F1B; its W lag r rounds behind its I. For tW <= tB the makespan
without communication is vmS + (p - 1)(tB + max(tF - tW, 0)), S = tF + tB + tW of one chunk. Every
rank holds (v - 1)g + p chunks until W, (v - 1)g + p - r until I. One chunk is ZB-H1.

References
----------
Qi et al., Zero Bubble Pipeline Parallelism, 2023, section 2 (ZB-H1).
PyTorch 2.13, torch.distributed.pipelining.ScheduleInterleavedZeroBubble.
"""

from __future__ import annotations

import numpy as np

from mpsim.schedule.facts import Schedule, check_counts
from mpsim.schedule.interleaved import chunk_table, microbatch_group
from mpsim.schedule.loop import split_loop_orders
from mpsim.schedule.orders import Orders

_NAME = "interleaved-zb"


def interleaved_zb(*, pp: int, microbatches: int, virtual_stages: int = 1) -> Orders:
    """Orders of interleaved zero bubble. `microbatches`: per optimizer step, at least 1; m // pp
    equal groups, or one. `virtual_stages`: chunks a rank, at least 1.

    Examples
    --------
    >>> interleaved_zb(pp=2, microbatches=2, virtual_stages=2).tokens()[1]
    ['1F0', '1F1', '3F0', '3I0', '3F1', '3I1', '3W0', '1I0', '3W1', '1I1', '1W0', '1W1']
    """
    check_counts(_NAME, pp=pp, microbatches=microbatches, virtual_stages=virtual_stages)
    group = microbatch_group(pp=pp, microbatches=microbatches, schedule=_NAME)
    chunk_K, microbatch_K = chunk_table(microbatches, virtual_stages, group)
    rank_P = np.arange(pp)
    return split_loop_orders(
        _NAME,
        pp=pp,
        warmup_P=np.minimum(rank_P[::-1] + (virtual_stages - 1) * group, len(chunk_K)),
        lag_P=rank_P,
        forward_chunk_K=chunk_K,
        backward_chunk_K=virtual_stages - 1 - chunk_K,
        microbatch_K=microbatch_K,
    )


INTERLEAVED_ZB = Schedule(
    _NAME, interleaved_zb, chunks=None, interleaves=True, groups=True, splits=True
)
