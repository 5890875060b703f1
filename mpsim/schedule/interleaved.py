"""Interleaved 1F1B: a rank holds several chunks, and the pipeline fills that much faster.

Microbatches go in groups of g: all chunks in turn for one group, then the next group. Backwards
follow the same table with the chunks reversed. Rank r runs w = min(2(p - 1 - r) + (v - 1)g, vm)
forwards first. Without communication the makespan is (vm + p - 1)(tF + tB) with tF, tB of one
chunk; at most min(vm, 2(p - 1 - r) + (v - 1)g + 1) chunks are held.

With one chunk a rank this is not 1F1B: the warm-up is twice as long and holds 2(p - 1 - r) + 1
microbatches, which hides the latency between stages. PyTorch's class does the same; `eager-1f1b` is
that schedule for any number of microbatches.

References
----------
Narayanan et al., Efficient Large-Scale Language Model Training on GPU Clusters, 2021, section 2.2.
NVIDIA/Megatron-LM, megatron/core/pipeline_parallel/schedules.py (groups, warm-up), d98e8a64.
PyTorch 2.13, torch.distributed.pipelining.ScheduleInterleaved1F1B (size of a group).
"""

from __future__ import annotations

import numpy as np

from mpsim.arrays import Ints
from mpsim.errors import ScheduleError
from mpsim.schedule.facts import Schedule, check_counts
from mpsim.schedule.loop import loop_orders
from mpsim.schedule.orders import Orders

_NAME = "interleaved-1f1b"


def interleaved_1f1b(
    *,
    pp: int,
    microbatches: int,
    virtual_stages: int = 1,
    group_size: int | None = None,
    extra_warmup: int = 0,
) -> Orders:
    """Orders of interleaved 1F1B.

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
        raise ScheduleError(
            f"{_NAME}: got extra_warmup = {extra_warmup}; needed at least 0; set extra_warmup to 0"
            " or 1"
        )
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
