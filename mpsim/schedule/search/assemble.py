"""From lists of actions, as searches write them, to Orders."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from mpsim.errors import ScheduleError
from mpsim.schedule.orders import Orders

__all__ = ["Step", "assemble", "loop_map", "steps_of", "v_map"]

Step = tuple[int, int, int]
"""An action as (`Action` value, stage, microbatch)."""


def loop_map(pp: int, virtual_stages: int) -> NDArray[np.int32]:
    """Rank of each stage on a loop: stage s on rank s mod pp.

    Examples
    --------
    >>> loop_map(2, 2).tolist()
    [0, 1, 0, 1]
    """
    return np.tile(np.arange(pp, dtype=np.int32), virtual_stages)


def v_map(pp: int, virtual_stages: int) -> NDArray[np.int32]:
    """Rank of each stage on a V: down through the ranks, then up again.

    Raises
    ------
    ScheduleError
        If there are not two chunks a rank.

    Examples
    --------
    >>> v_map(2, 2).tolist()
    [0, 1, 1, 0]
    """
    if virtual_stages != len("Ff"):
        raise ScheduleError(
            f"got virtual_stages = {virtual_stages} on a V; needed 2, one chunk on the way down and one "
            "on the way up; set virtual_stages to 2"
        )
    down = np.arange(pp, dtype=np.int32)
    return np.concatenate([down, down[::-1]])


def assemble(
    schedule: str,
    steps: Sequence[Sequence[Step]],
    *,
    microbatches: int,
    stage_rank: NDArray[np.int32],
) -> Orders:
    """Orders whose rank r runs ``steps[r]``, validated.

    Parameters
    ----------
    schedule : str
        Name the orders carry.
    steps : sequence of sequences of Step
        One a rank.
    microbatches : int
        Per optimizer step.
    stage_rank : int32[S]
        Rank of each stage.

    Returns
    -------
    Orders
    """
    flat = np.array([step for rank in steps for step in rank], dtype=np.int32).reshape(-1, 3)
    return Orders(
        schedule=schedule,
        pp=len(steps),
        microbatches=microbatches,
        virtual_stages=len(stage_rank) // len(steps),
        stage_rank=stage_rank,
        rank_ptr=np.cumsum([0, *map(len, steps)]).astype(np.int64),
        kind=flat[:, 0].astype(np.int8),
        stage=flat[:, 1].copy(),
        microbatch=flat[:, 2].copy(),
    ).validate()


def steps_of(orders: Orders) -> list[list[Step]]:
    """The actions of every rank as lists of Step: the reverse of `assemble`."""
    rows = zip(orders.kind.tolist(), orders.stage.tolist(), orders.microbatch.tolist(), strict=True)
    flat = list(rows)
    ends = orders.rank_ptr.tolist()
    return [flat[ends[rank] : ends[rank + 1]] for rank in range(orders.pp)]
