"""1F1B: as few warm-up forwards as fill the pipeline, then one forward and one backward in turn.

Also called PipeDream-flush or DAPPLE. Rank r runs min(p - 1 - r, m) forwards first, so it holds at
most min(m, p - r) microbatches. Without communication it takes as long as GPipe; with a latency
between stages it takes longer, because only p - r microbatches are there to hide it.

References
----------
Narayanan et al., Memory-Efficient Pipeline-Parallel DNN Training, 2021 (PipeDream-flush). Fan et
al., DAPPLE: A Pipelined Data Parallel Approach for Large Models, 2021. PyTorch 2.13,
torch.distributed.pipelining.Schedule1F1B (as executed; its last rank's print is off by one).
"""

from __future__ import annotations

import numpy as np

from mpsim.schedule.facts import Schedule, check_counts, check_one_chunk
from mpsim.schedule.loop import loop_orders
from mpsim.schedule.orders import Orders


def one_f_one_b(*, pp: int, microbatches: int, virtual_stages: int = 1) -> Orders:
    """Orders of 1F1B. `virtual_stages`: 1; interleaved-1f1b is 1F1B over several chunks a rank.

    Examples
    --------
    >>> one_f_one_b(pp=2, microbatches=3).tokens()[0]
    ['0F0', '0F1', '0B0', '0F2', '0B1', '0B2']
    """
    check_counts("1f1b", pp=pp, microbatches=microbatches, virtual_stages=virtual_stages)
    check_one_chunk("1f1b", virtual_stages, instead="interleaved-1f1b")
    microbatch_K = np.arange(microbatches)
    chunk_K = np.zeros_like(microbatch_K)
    return loop_orders(
        "1f1b",
        pp=pp,
        warmup_P=np.minimum(np.arange(pp)[::-1], microbatches),
        forward_chunk_K=chunk_K,
        forward_microbatch_K=microbatch_K,
        backward_chunk_K=chunk_K,
        backward_microbatch_K=microbatch_K,
        exchanges=True,
    )


ONE_F_ONE_B = Schedule(
    "1f1b", one_f_one_b, interleaved="interleaved-1f1b", fuses_alone=True, rounds=2
)
