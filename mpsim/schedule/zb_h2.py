"""ZB-H2: no bubble inside a rank's own step when tF = tB = tW, for twice the activations of ZB-H1.

Rank r runs 2(p - r) - 1 forwards before its first input gradient, and its weight gradients lag 2r
rounds behind. With enough microbatches (m >= 2p - 1) and tF = tB = tW every rank is busy from its
first action to its last; the ranks start and end at different times, so the gain needs an optimizer
step that does not wait for all ranks. At most 2p - 1 microbatches are held until W; rank r holds
2(p - r) - 1 until I, and 2r more of what only W needs.

References
----------
Qi et al., Zero Bubble Pipeline Parallelism, 2023, section 2.1, Figure 3 (bottom) and Table 2.
"""

from __future__ import annotations

import numpy as np

from mpsim.schedule.facts import Schedule, check_counts, check_one_chunk
from mpsim.schedule.loop import split_loop_orders
from mpsim.schedule.orders import Orders


def zb_h2(*, pp: int, microbatches: int, virtual_stages: int = 1) -> Orders:
    """Orders of ZB-H2. `microbatches`: per optimizer step, at least 1; the pipeline is full from 2
    pp - 1 on. `virtual_stages`: 1.

    Examples
    --------
    >>> zb_h2(pp=2, microbatches=3).tokens()
    [['0F0', '0F1', '0F2', '0I0', '0W0', '0I1', '0W1', '0I2', '0W2'], \
['1F0', '1I0', '1F1', '1I1', '1F2', '1I2', '1W0', '1W1', '1W2']]
    """
    check_counts("zb-h2", pp=pp, microbatches=microbatches, virtual_stages=virtual_stages)
    check_one_chunk("zb-h2", virtual_stages, instead="interleaved-zb")
    rank_P = np.arange(pp)
    microbatch_K = np.arange(microbatches)
    chunk_K = np.zeros_like(microbatch_K)
    return split_loop_orders(
        "zb-h2",
        pp=pp,
        warmup_P=np.minimum(2 * rank_P[::-1], microbatches),
        lag_P=2 * rank_P,
        forward_chunk_K=chunk_K,
        backward_chunk_K=chunk_K,
        microbatch_K=microbatch_K,
    )


ZB_H2 = Schedule("zb-h2", zb_h2, splits=True)
