"""Eager 1F1B: 1F1B with twice the warm-up, so that a latency between stages is hidden.

Rank r runs min(2(p - 1 - r), m) forwards first and holds min(m, 2(p - 1 - r) + 1) microbatches.
Without communication it takes as long as 1F1B. With a latency c between stages it pays 2(p - 1)c
once, 1F1B 2c(p - 1)/p per microbatch. PyTorch's interleaved 1F1B does it with one chunk.

References
----------
PyTorch 2.13, torch.distributed.pipelining.ScheduleInterleaved1F1B with one stage a rank.
"""

from __future__ import annotations

import numpy as np

from mpsim.schedule.facts import Schedule, check_counts, check_one_chunk
from mpsim.schedule.loop import loop_orders
from mpsim.schedule.orders import Orders


def eager_1f1b(*, pp: int, microbatches: int, virtual_stages: int = 1) -> Orders:
    """Orders of eager 1F1B. `virtual_stages`: 1; interleaved-1f1b has several chunks a rank.

    Examples
    --------
    >>> eager_1f1b(pp=2, microbatches=4).tokens()[0]
    ['0F0', '0F1', '0F2', '0B0', '0F3', '0B1', '0B2', '0B3']
    """
    check_counts("eager-1f1b", pp=pp, microbatches=microbatches, virtual_stages=virtual_stages)
    check_one_chunk("eager-1f1b", virtual_stages, instead="interleaved-1f1b")
    microbatch_K = np.arange(microbatches)
    chunk_K = np.zeros_like(microbatch_K)
    return loop_orders(
        "eager-1f1b",
        pp=pp,
        warmup_P=np.minimum(2 * np.arange(pp)[::-1], microbatches),
        forward_chunk_K=chunk_K,
        forward_microbatch_K=microbatch_K,
        backward_chunk_K=chunk_K,
        backward_microbatch_K=microbatch_K,
    )


EAGER_1F1B = Schedule("eager-1f1b", eager_1f1b)
