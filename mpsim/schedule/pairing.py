"""Warm-up, then one forward and one backward in turn, then the rest: what most schedules share.

Shapes: P ranks, K actions of one direction a rank = virtual stages x microbatches.

On rank r with w warm-up forwards, forward k is action ``k + max(0, k - w)`` of the rank and backward k is
action ``k + min(K, w + k + 1)``; GPipe is w = K, 1F1B is w = P - 1 - r. A schedule says w and the
sequence of (chunk, microbatch) in each direction; nothing here loops over actions.
"""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import NDArray

from mpsim.errors import ScheduleError
from mpsim.schedule.orders import Action, Orders

__all__ = [
    "check_counts",
    "check_even",
    "check_one_chunk",
    "check_two_chunks",
    "loop_orders",
    "on_loop",
]


def check_counts(schedule: str, *, pp: int, microbatches: int, virtual_stages: int) -> None:
    """Refuse a pipeline of less than one rank, microbatch or virtual stage.

    Raises
    ------
    ScheduleError
    """
    given = {"pp": pp, "microbatches": microbatches, "virtual_stages": virtual_stages}
    for name, value in given.items():
        if value < 1:
            raise ScheduleError(
                f"{schedule}: got {name} = {value}; needed at least 1; set {name} to 1 or more"
            )


def check_one_chunk(schedule: str, virtual_stages: int, *, instead: str) -> None:
    """Refuse virtual stages where a schedule has one chunk a rank.

    Raises
    ------
    ScheduleError
    """
    if virtual_stages != 1:
        raise ScheduleError(
            f"{schedule}: got virtual_stages = {virtual_stages}; needed 1; set virtual_stages to 1, or "
            f"use {instead}"
        )


def check_two_chunks(schedule: str, virtual_stages: int) -> None:
    """Refuse other than two chunks a rank, which a V has: one on the way down, one on the way up.

    Raises
    ------
    ScheduleError
    """
    if virtual_stages != 2:
        raise ScheduleError(
            f"{schedule}: got virtual_stages = {virtual_stages}; needed 2, since each rank holds a stage on "
            "the way down and one on the way up; set virtual_stages to 2"
        )


def check_even(schedule: str, name: str, value: int, *, why: str) -> None:
    """Refuse an odd number.

    Raises
    ------
    ScheduleError
    """
    if value % 2:
        raise ScheduleError(
            f"{schedule}: got {name} = {value}; needed an even number, since {why}; set {name} to "
            f"{value + 1}"
        )


def loop_orders(
    schedule: str,
    *,
    pp: int,
    warmup_P: NDArray[np.int64],
    forward_chunk_K: NDArray[np.int64],
    forward_microbatch_K: NDArray[np.int64],
    backward_chunk_K: NDArray[np.int64],
    backward_microbatch_K: NDArray[np.int64],
    exchanges: bool = False,
) -> Orders:
    """Pair the two sequences on every rank of a loop (stage s on rank s mod P).

    Parameters
    ----------
    schedule : str
        Name the orders carry.
    pp : int
        Ranks.
    warmup_P : int64[P]
        Forwards before the first backward, beyond the one of the first pair; 0 to K.
    forward_chunk_K, forward_microbatch_K, backward_chunk_K, backward_microbatch_K : int64[K]
        What the k-th action of each direction works on, the same on every rank.
    exchanges : bool
        As in `Orders`.

    Returns
    -------
    Orders
    """
    count = len(forward_chunk_K)
    rank_P = np.arange(pp)[:, None]
    k_K = np.arange(count)
    warmup = warmup_P[:, None]
    forward_at = k_K + np.maximum(0, k_K - warmup)
    backward_at = k_K + np.minimum(count, warmup + k_K + 1)

    kind = np.empty((pp, 2 * count), dtype=np.int8)
    stage = np.empty((pp, 2 * count), dtype=np.int32)
    microbatch = np.empty((pp, 2 * count), dtype=np.int32)
    for action, at, chunk_K, microbatch_K in (
        (Action.F, forward_at, forward_chunk_K, forward_microbatch_K),
        (Action.B, backward_at, backward_chunk_K, backward_microbatch_K),
    ):
        kind[rank_P, at] = action
        stage[rank_P, at] = chunk_K * pp + rank_P
        microbatch[rank_P, at] = microbatch_K
    virtual_stages = int(forward_chunk_K.max()) + 1
    orders = on_loop(schedule, kind, stage, microbatch, virtual_stages=virtual_stages)
    return dataclasses.replace(orders, exchanges=exchanges)


def on_loop(
    schedule: str,
    kind_PA: NDArray[np.int8],
    stage_PA: NDArray[np.int32],
    microbatch_PA: NDArray[np.int32],
    *,
    virtual_stages: int,
) -> Orders:
    """Orders of equally many actions a rank on a loop (stage s on rank s mod P).

    Parameters
    ----------
    schedule : str
        Name the orders carry.
    kind_PA, stage_PA, microbatch_PA : [P, A]
        The A actions of every rank, in order.
    virtual_stages : int

    Returns
    -------
    Orders
    """
    pp, actions = kind_PA.shape
    forwards = int((kind_PA[0] == Action.F).sum())
    return Orders(
        schedule=schedule,
        pp=pp,
        microbatches=forwards // virtual_stages,
        virtual_stages=virtual_stages,
        stage_rank=np.tile(np.arange(pp, dtype=np.int32), virtual_stages),
        rank_ptr=np.arange(pp + 1, dtype=np.int64) * actions,
        kind=kind_PA.ravel(),
        stage=stage_PA.ravel(),
        microbatch=microbatch_PA.ravel(),
    )
