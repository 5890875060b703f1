"""Seq1F1B: 1F1B whose unit is a segment of a sequence instead of a whole microbatch.

A microbatch is cut into k segments along its sequence. Forwards take the segments in order,
backwards in reverse, because a segment attends to those before it. The pipeline fills with
segments, so it fills k times faster: with equal segments and without communication the makespan is
mS + (p - 1)S/k, where S is the time of a whole microbatch. Rank r runs p - r - 2 + k forwards first
and holds p - 1 - r + k segments.

A unit is numbered microbatch x k + segment: orders have m x k units in place of m microbatches.

References
----------
Sun et al., Seq1F1B: Efficient Sequence-Level Pipeline Parallelism for LLM Training, 2024.
"""

from __future__ import annotations

import numpy as np

from mpsim.errors import ScheduleError
from mpsim.schedule.facts import Schedule, check_counts, check_one_chunk
from mpsim.schedule.loop import loop_orders
from mpsim.schedule.orders import Orders

_NAME = "seq-1f1b"
_SEGMENTS = 2  # the fewest that make it another schedule than 1f1b


def seq_1f1b(
    *, pp: int, microbatches: int, virtual_stages: int = 1, segments: int = _SEGMENTS
) -> Orders:
    """Orders of Seq1F1B, with ``microbatches x segments`` units. `virtual_stages`: 1. `segments`:
    of each sequence, at least 1.

    Examples
    --------
    >>> seq_1f1b(pp=1, microbatches=2, segments=2).tokens()
    [['0F0', '0F1', '0B1', '0F2', '0B0', '0F3', '0B3', '0B2']]
    """
    check_counts(_NAME, pp=pp, microbatches=microbatches, virtual_stages=virtual_stages)
    check_one_chunk(_NAME, virtual_stages, instead="interleaved-1f1b")
    if segments < 1:
        raise ScheduleError(
            f"{_NAME}: got segments = {segments}; needed at least 1; set segments to 2 or more"
        )
    unit_K = np.arange(microbatches * segments)
    chunk_K = np.zeros_like(unit_K)
    return loop_orders(
        _NAME,
        pp=pp,
        warmup_P=np.minimum(np.arange(pp)[::-1] + segments - 1, len(unit_K)),
        forward_chunk_K=chunk_K,
        forward_microbatch_K=unit_K,
        backward_chunk_K=chunk_K,
        backward_microbatch_K=unit_K.reshape(microbatches, segments)[:, ::-1].ravel(),
    )


SEQ_1F1B = Schedule(_NAME, seq_1f1b)
