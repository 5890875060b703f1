"""Schedules of several chunks on a loop: interleaved 1F1B, interleaved zero bubble, Looped BFS.

Microbatches go in groups of g: all chunks in turn for one group, then the next group. Backwards
follow the same table with the chunks reversed. Times of the docstrings leave communication out: m
microbatches on p ranks of v chunks; tF, tB and tW of a forward, a backward (of its input alone
where it is split) and a weight gradient of one chunk, S their sum.

References
----------
Narayanan et al., Efficient Large-Scale Language Model Training on GPU Clusters, 2021, section 2.2.
NVIDIA/Megatron-LM, megatron/core/pipeline_parallel/schedules.py (groups, warm-up), d98e8a64.
Lamy-Poirier, Breadth-First Pipeline Parallelism, 2022.
Qi et al., Zero Bubble Pipeline Parallelism, 2023, section 2 (ZB-H1).
PyTorch 2.13, torch.distributed.pipelining.ScheduleInterleaved1F1B (size of a group),
ScheduleLoopedBFS (reverse order of the backwards) and ScheduleInterleavedZeroBubble.
"""

from __future__ import annotations

import numpy as np

from mpsim.arrays import Ints
from mpsim.errors import ScheduleError
from mpsim.schedule.loop import loop_orders, split_loop_orders
from mpsim.schedule.orders import Orders
from mpsim.schedule.registry import Schedule, check_counts
from mpsim.shipped import say

_NAME = "interleaved-1f1b"


def interleaved_1f1b(
    *,
    pp: int,
    microbatches: int,
    virtual_stages: int = 1,
    group_size: int | None = None,
    extra_warmup: int = 0,
) -> Orders:
    """Orders of interleaved 1F1B: the pipeline fills as many times faster as a rank has chunks.

    Rank r runs w = min(2(p - 1 - r) + (v - 1)g, vm) forwards first. The makespan is (vm + p - 1)(tF
    + tB); at most min(vm, 2(p - 1 - r) + (v - 1)g + 1) chunks are held. With one chunk a rank this
    is not 1F1B but `eager-1f1b`, as in PyTorch's class.

    `virtual_stages`: chunks a rank, at least 1. `group_size`: microbatches that pass one chunk
    before the rank turns to the next (``microbatch_group_size_per_vp_stage`` of Megatron-LM); see
    `microbatch_group`. `extra_warmup`: forwards of the warm-up beyond the usual, at least 0.
    Megatron-LM's ``overlap_moe_expert_parallel_comm`` runs 1 more, so that the forward and the
    backward of a steady step are independent.

    Examples
    --------
    >>> interleaved_1f1b(pp=2, microbatches=2, virtual_stages=2).tokens()[1]
    ['1F0', '1F1', '3F0', '3B0', '3F1', '3B1', '1B0', '1B1']
    """
    check_counts(_NAME, pp=pp, microbatches=microbatches, virtual_stages=virtual_stages)
    if extra_warmup < 0:
        raise ScheduleError(say("schedule.extra_warmup", name=_NAME, extra_warmup=extra_warmup))
    group = microbatch_group(pp=pp, microbatches=microbatches, group_size=group_size)
    chunk_K, microbatch_K = chunk_table(microbatches, virtual_stages, group)
    full = 2 * np.arange(pp)[::-1] + (virtual_stages - 1) * group + extra_warmup
    return loop_orders(
        _NAME,
        pp=pp,
        warmup_P=np.minimum(full, len(chunk_K)),
        forward_chunk_K=chunk_K,
        forward_microbatch_K=microbatch_K,
        backward_chunk_K=virtual_stages - 1 - chunk_K,
        backward_microbatch_K=microbatch_K,
    )


def interleaved_zb(*, pp: int, microbatches: int, virtual_stages: int = 1) -> Orders:
    """Orders of interleaved zero bubble: half the warm-up of interleaved 1F1B, split backwards.

    `microbatches`: per optimizer step, at least 1; m // pp equal groups, or one. `virtual_stages`:
    chunks a rank, at least 1; one is ZB-H1.

    A backward is split into the gradient of the input (I), which the stage before waits for, and of
    the weights (W), which nobody waits for. Rank r runs min(p - 1 - r + (v - 1)g, vm) forwards
    first; its W lag r rounds behind its I. For tW <= tB the makespan is vmS + (p - 1)(tB + max(tF -
    tW, 0)). Every rank holds (v - 1)g + p chunks until W, (v - 1)g + p - r until I.

    Examples
    --------
    >>> interleaved_zb(pp=2, microbatches=2, virtual_stages=2).tokens()[1]
    ['1F0', '1F1', '3F0', '3I0', '3F1', '3I1', '3W0', '1I0', '3W1', '1I1', '1W0', '1W1']
    """
    name = "interleaved-zb"
    check_counts(name, pp=pp, microbatches=microbatches, virtual_stages=virtual_stages)
    group = microbatch_group(pp=pp, microbatches=microbatches, schedule=name)
    chunk_K, microbatch_K = chunk_table(microbatches, virtual_stages, group)
    rank_P = np.arange(pp)
    return split_loop_orders(
        name,
        pp=pp,
        warmup_P=np.minimum(rank_P[::-1] + (virtual_stages - 1) * group, len(chunk_K)),
        lag_P=rank_P,
        forward_chunk_K=chunk_K,
        backward_chunk_K=virtual_stages - 1 - chunk_K,
        microbatch_K=microbatch_K,
    )


def looped_bfs(*, pp: int, microbatches: int, virtual_stages: int = 1) -> Orders:
    """Orders of Looped BFS: breadth first, all microbatches through one chunk before the rank turns
    to the next. `virtual_stages`: chunks a rank, at least 1.

    Backwards take the chunks in reverse and, as PyTorch runs them, the microbatches in reverse too.
    It is GPipe over several chunks a rank: the makespan is (vm + p - 1)(tF + tB), as short as that
    of interleaved 1F1B, while all vm chunks are held at once. In return a latency between stages is
    paid only 2(p - 1) times, and the weights of a chunk are needed in one stretch, which spares
    fully sharded data parallelism most of its gathers.

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


def chunk_table(microbatches: int, virtual_stages: int, group: int) -> tuple[Ints, Ints]:
    """Chunk and microbatch of every rank's k-th forward: all chunks for one group, then the next.

    Examples
    --------
    >>> chunk_table(4, 2, 2)[0].tolist()
    [0, 0, 1, 1, 0, 0, 1, 1]
    """
    k_K = np.arange(virtual_stages * microbatches)
    group_K, place_K = np.divmod(k_K, group * virtual_stages)
    size_K = np.minimum(group, microbatches - group_K * group)
    return place_K // size_K, group_K * group + place_K % size_K


def microbatch_group(
    *, pp: int, microbatches: int, group_size: int | None = None, schedule: str = _NAME
) -> int:
    """Microbatches in a group.

    `pp` and `microbatches`: at least 1. `group_size`: a given size follows the rule of Megatron-LM:
    pp <= g <= m, and m a multiple of g or at least pp above one. Without it, PyTorch's rule: m /
    max(1, m // pp), which must be whole; it is pp where pp divides m. `schedule`: name for the
    message of a refusal. ScheduleError if the microbatches cannot be grouped.

    Returns: size of a group [count].
    """
    if group_size is None:
        return _even_group(schedule, pp, microbatches)
    if not pp <= group_size <= microbatches:
        raise ScheduleError(
            f"{schedule}: got group_size = {group_size}; needed at least pp = {pp} and at most "
            f"microbatches = {microbatches}; set group_size in that range, or leave it out"
        )
    rest = microbatches % group_size
    if 0 < rest < pp:
        raise ScheduleError(
            f"{schedule}: got microbatches = {microbatches} in groups of {group_size}, which leaves"
            f" a group of {rest}; needed a last group of at least pp = {pp}; set microbatches to"
            f" {microbatches - rest} or {microbatches - rest + pp}"
        )
    return group_size


def _even_group(schedule: str, pp: int, microbatches: int) -> int:
    rounds = max(1, microbatches // pp)
    if microbatches % rounds:
        raise ScheduleError(
            f"{schedule}: got microbatches = {microbatches} with pp = {pp}; needed {rounds} equal"
            " groups of at least pp, as PyTorch has them, or a multiple of pp, as Megatron-LM has;"
            f" set microbatches to {microbatches // pp * pp} or {(microbatches // pp + 1) * pp}"
        )
    return microbatches // rounds


INTERLEAVED_1F1B = Schedule(
    _NAME, interleaved_1f1b, chunks=None, interleaves=True, groups=True, fuses=True, rounds=3
)
INTERLEAVED_ZB = Schedule(
    "interleaved-zb", interleaved_zb, chunks=None, interleaves=True, groups=True, splits=True
)
LOOPED_BFS = Schedule("looped-bfs", looped_bfs, chunks=None, interleaves=True)
