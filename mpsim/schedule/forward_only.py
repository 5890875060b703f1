"""Forward only: an evaluation step, without backwards.

Without communication the makespan is (vm + p - 1)tF with tF of one chunk. Nothing has to be held.

References
----------
NVIDIA/Megatron-LM, megatron/core/pipeline_parallel/schedules.py (``forward_only``), d98e8a64.
"""

from __future__ import annotations

import numpy as np

from mpsim.schedule.interleaved import chunk_table, microbatch_group
from mpsim.schedule.orders import Action, Orders
from mpsim.schedule.registry import Schedule, check_counts
from mpsim.schedule.stages import loop_map

_NAME = "forward-only"


def forward_only(*, pp: int, microbatches: int, virtual_stages: int = 1) -> Orders:
    """Orders of an evaluation step.

    `microbatches`: of the evaluation, at least 1. `virtual_stages`: chunks a rank, at least 1; more
    than one are taken in the groups of interleaved-1f1b.

    Examples
    --------
    >>> forward_only(pp=2, microbatches=3).tokens()
    [['0F0', '0F1', '0F2'], ['1F0', '1F1', '1F2']]
    """
    check_counts(_NAME, pp=pp, microbatches=microbatches, virtual_stages=virtual_stages)
    group = microbatches
    if virtual_stages > 1:
        group = microbatch_group(pp=pp, microbatches=microbatches, schedule=_NAME)
    chunk_K, microbatch_K = chunk_table(microbatches, virtual_stages, group)
    rank_P = np.arange(pp)[:, None]
    count = len(chunk_K)
    return Orders(
        schedule=_NAME,
        pp=pp,
        microbatches=microbatches,
        virtual_stages=virtual_stages,
        stage_rank=loop_map(pp, virtual_stages),
        rank_ptr=np.arange(pp + 1, dtype=np.int64) * count,
        kind=np.full(pp * count, Action.F, dtype=np.int8),
        stage=(chunk_K * pp + rank_P).astype(np.int32).ravel(),
        microbatch=np.tile(microbatch_K.astype(np.int32), pp),
        forward_only=True,
    )


FORWARD_ONLY = Schedule(_NAME, forward_only, trains=False)
