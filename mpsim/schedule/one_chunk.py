"""Schedules of one chunk a rank: GPipe, 1F1B, eager 1F1B, Seq1F1B, ZB-H1 and ZB-H2.

A schedule says how many forwards a rank runs before it takes forwards and backwards in turn; see
`loop`. Times of the docstrings leave communication out: m microbatches on p ranks, tF, tB and tW of
a forward, a backward (of its input alone where it is split) and a weight gradient, S their sum.

References
----------
Huang et al., GPipe: Efficient Training of Giant Neural Networks using Pipeline Parallelism, 2019,
Figure 2. Narayanan et al., Memory-Efficient Pipeline-Parallel DNN Training, 2021 (PipeDream-flush).
Fan et al., DAPPLE: A Pipelined Data Parallel Approach for Large Models, 2021. Sun et al., Seq1F1B:
Efficient Sequence-Level Pipeline Parallelism for LLM Training, 2024. Qi et al., Zero Bubble
Pipeline Parallelism, 2023, section 2.1, Figure 3 (ZB-H1 top, ZB-H2 bottom) and Table 2.
PyTorch 2.13, torch.distributed.pipelining: ScheduleGPipe and Schedule1F1B (order as executed; the
print of 1F1B's last rank is off by one), ScheduleInterleaved1F1B (eager 1F1B) and
ScheduleInterleavedZeroBubble (ZB-H1) with one stage a rank.
"""

from __future__ import annotations

import numpy as np

from mpsim.arrays import Ints
from mpsim.errors import ScheduleError
from mpsim.schedule.loop import loop_orders, split_loop_orders
from mpsim.schedule.orders import Orders
from mpsim.schedule.registry import Schedule, check_counts, check_one_chunk

_SEGMENTS = 2  # the fewest that make Seq1F1B another schedule than 1F1B


def gpipe(*, pp: int, microbatches: int, virtual_stages: int = 1, lifo: bool = False) -> Orders:
    """Orders of GPipe: all forwards, then all backwards; looped-bfs is it over several chunks.

    The paper draws the backwards last in, first out (`lifo`); PyTorch executes them first in, first
    out. Either way the makespan is (m + p - 1)(tF + tB), and all m microbatches are held at once.

    Examples
    --------
    >>> gpipe(pp=2, microbatches=2).tokens()[1]
    ['1F0', '1F1', '1B0', '1B1']
    """
    after_P = _ranks_after("gpipe", pp, microbatches, virtual_stages, instead="looped-bfs")
    order_K = np.arange(microbatches)[:: -1 if lifo else 1]
    return _whole("gpipe", np.full_like(after_P, microbatches), order_K, exchanges=True)


def one_f_one_b(*, pp: int, microbatches: int, virtual_stages: int = 1) -> Orders:
    """Orders of 1F1B, also called PipeDream-flush or DAPPLE: as few warm-up forwards as fill the
    pipeline, then one forward and one backward in turn; interleaved-1f1b is it over several chunks.

    Rank r runs min(p - 1 - r, m) forwards first, so it holds at most min(m, p - r) microbatches. It
    takes as long as GPipe; with a latency between stages it takes longer, because only p - r
    microbatches are there to hide it.

    Examples
    --------
    >>> one_f_one_b(pp=2, microbatches=3).tokens()[0]
    ['0F0', '0F1', '0B0', '0F2', '0B1', '0B2']
    """
    after_P = _ranks_after("1f1b", pp, microbatches, virtual_stages)
    return _whole("1f1b", after_P, np.arange(microbatches), exchanges=True)


def eager_1f1b(*, pp: int, microbatches: int, virtual_stages: int = 1) -> Orders:
    """Orders of eager 1F1B: twice the warm-up of 1F1B, so that a latency between stages is hidden.

    Rank r runs min(2(p - 1 - r), m) forwards first and holds min(m, 2(p - 1 - r) + 1) microbatches.
    It takes as long as 1F1B. With a latency c between stages it pays 2(p - 1)c once, 1F1B
    2c(p - 1)/p per microbatch. PyTorch's interleaved 1F1B does it with one chunk.

    Examples
    --------
    >>> eager_1f1b(pp=2, microbatches=4).tokens()[0]
    ['0F0', '0F1', '0F2', '0B0', '0F3', '0B1', '0B2', '0B3']
    """
    after_P = _ranks_after("eager-1f1b", pp, microbatches, virtual_stages)
    return _whole("eager-1f1b", 2 * after_P, np.arange(microbatches))


def seq_1f1b(
    *, pp: int, microbatches: int, virtual_stages: int = 1, segments: int = _SEGMENTS
) -> Orders:
    """Orders of Seq1F1B: 1F1B whose unit is one of k `segments` of a sequence, at least 1.

    Forwards take the segments in order, backwards in reverse, because a segment attends to those
    before it. The pipeline fills with segments, so it fills k times faster: with equal segments the
    makespan is mS + (p - 1)S/k. Rank r runs p - r - 2 + k forwards first and holds p - 1 - r + k
    segments. A unit is numbered microbatch x k + segment: there are m x k in place of m.

    Examples
    --------
    >>> seq_1f1b(pp=1, microbatches=2, segments=2).tokens()
    [['0F0', '0F1', '0B1', '0F2', '0B0', '0F3', '0B3', '0B2']]
    """
    after_P = _ranks_after("seq-1f1b", pp, microbatches, virtual_stages)
    if segments < 1:
        raise ScheduleError(
            f"seq-1f1b: got segments = {segments}; needed at least 1; set segments to 2 or more"
        )
    unit_KS = np.arange(microbatches * segments).reshape(microbatches, segments)
    return _whole("seq-1f1b", after_P + segments - 1, unit_KS[:, ::-1].ravel())


def zb_h1(*, pp: int, microbatches: int, virtual_stages: int = 1) -> Orders:
    """Orders of ZB-H1: the memory of 1F1B and a third of its bubble, by putting weight gradients
    off; it is interleaved-zb with one chunk a rank, for any number of microbatches.

    Rank r runs p - 1 - r forwards first, then rounds of F and I, with W lagging r rounds behind.
    For tW <= tB the makespan is mS + (p - 1)(tB + max(tF - tW, 0)). Every rank holds min(m, p)
    microbatches until W, and p - r until I.

    Examples
    --------
    >>> zb_h1(pp=2, microbatches=3).tokens()[1]
    ['1F0', '1I0', '1F1', '1I1', '1W0', '1F2', '1I2', '1W1', '1W2']
    """
    after_P = _ranks_after("zb-h1", pp, microbatches, virtual_stages, instead="interleaved-zb")
    return _split("zb-h1", after_P, microbatches)


def zb_h2(*, pp: int, microbatches: int, virtual_stages: int = 1) -> Orders:
    """Orders of ZB-H2: no bubble inside a rank's own step when tF = tB = tW, for twice the
    activations of ZB-H1.

    Rank r runs 2(p - r) - 1 forwards before its first input gradient, and its weight gradients lag
    2r rounds behind. With enough microbatches (m >= 2p - 1) and tF = tB = tW every rank is busy
    from its first action to its last; the ranks start and end at different times, so the gain needs
    an optimizer step that does not wait for all ranks. At most 2p - 1 microbatches are held until
    W; rank r holds 2(p - r) - 1 until I, and 2r more of what only W needs.

    Examples
    --------
    >>> zb_h2(pp=2, microbatches=3).tokens()[1]
    ['1F0', '1I0', '1F1', '1I1', '1F2', '1I2', '1W0', '1W1', '1W2']
    """
    after_P = _ranks_after("zb-h2", pp, microbatches, virtual_stages, instead="interleaved-zb")
    return _split("zb-h2", 2 * after_P, microbatches)


def _ranks_after(
    name: str, pp: int, microbatches: int, virtual_stages: int, instead: str = "interleaved-1f1b"
) -> Ints:
    """Ranks after each rank, once the sizes are checked: forwards that fill the pipeline."""
    check_counts(name, pp=pp, microbatches=microbatches, virtual_stages=virtual_stages)
    check_one_chunk(name, virtual_stages, instead=instead)
    return np.arange(pp)[::-1]


def _whole(name: str, warmup_P: Ints, backward_K: Ints, *, exchanges: bool = False) -> Orders:
    """Orders of whole backwards, in this order of their units."""
    chunk_K = np.zeros_like(backward_K)
    return loop_orders(
        name,
        pp=len(warmup_P),
        warmup_P=np.minimum(warmup_P, len(backward_K)),
        forward_chunk_K=chunk_K,
        forward_microbatch_K=np.arange(len(backward_K)),
        backward_chunk_K=chunk_K,
        backward_microbatch_K=backward_K,
        exchanges=exchanges,
    )


def _split(name: str, warmup_P: Ints, microbatches: int) -> Orders:
    """Orders of split backwards; a W lags by the warm-up of the rank as far from the other end."""
    chunk_K = np.zeros(microbatches, dtype=np.int64)
    return split_loop_orders(
        name,
        pp=len(warmup_P),
        warmup_P=np.minimum(warmup_P, microbatches),
        lag_P=warmup_P[::-1],
        forward_chunk_K=chunk_K,
        backward_chunk_K=chunk_K,
        microbatch_K=np.arange(microbatches),
    )


GPIPE = Schedule("gpipe", gpipe, interleaved="looped-bfs")
ONE_F_ONE_B = Schedule(
    "1f1b", one_f_one_b, interleaved="interleaved-1f1b", fuses_alone=True, rounds=2
)
EAGER_1F1B = Schedule("eager-1f1b", eager_1f1b)
SEQ_1F1B = Schedule("seq-1f1b", seq_1f1b)
ZB_H1 = Schedule("zb-h1", zb_h1, interleaved="interleaved-zb", splits=True)
ZB_H2 = Schedule("zb-h2", zb_h2, splits=True)
