"""ZB-H1: the memory of 1F1B and a third of its bubble, by putting weight gradients off.

Rank r runs p - 1 - r forwards first, then rounds of F and I, with W lagging r rounds behind. For tW
<= tB the makespan without communication is mS + (p - 1)(tB + max(tF - tW, 0)), S = tF + tB + tW.
Every rank holds min(m, p) microbatches until W, and p - r until I. It is interleaved-zb with one
chunk a rank, for any number of microbatches.

References
----------
Qi et al., Zero Bubble Pipeline Parallelism, 2023, section 2.1, Figure 3 (top).
PyTorch 2.13, torch.distributed.pipelining.ScheduleInterleavedZeroBubble with one stage a rank.
"""

from __future__ import annotations

import numpy as np

from mpsim.schedule.facts import Schedule, check_counts, check_one_chunk
from mpsim.schedule.loop import split_loop_orders
from mpsim.schedule.orders import Orders


def zb_h1(*, pp: int, microbatches: int, virtual_stages: int = 1) -> Orders:
    """Orders of ZB-H1. `virtual_stages`: 1; interleaved-zb is ZB-H1 over several chunks a rank.

    Examples
    --------
    >>> zb_h1(pp=2, microbatches=3).tokens()[1]
    ['1F0', '1I0', '1F1', '1I1', '1W0', '1F2', '1I2', '1W1', '1W2']
    """
    check_counts("zb-h1", pp=pp, microbatches=microbatches, virtual_stages=virtual_stages)
    check_one_chunk("zb-h1", virtual_stages, instead="interleaved-zb")
    rank_P = np.arange(pp)
    microbatch_K = np.arange(microbatches)
    chunk_K = np.zeros_like(microbatch_K)
    return split_loop_orders(
        "zb-h1",
        pp=pp,
        warmup_P=np.minimum(rank_P[::-1], microbatches),
        lag_P=rank_P,
        forward_chunk_K=chunk_K,
        backward_chunk_K=chunk_K,
        microbatch_K=microbatch_K,
    )


ZB_H1 = Schedule("zb-h1", zb_h1, interleaved="interleaved-zb", splits=True)
