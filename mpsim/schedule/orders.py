"""Orders: what each rank does, one action after the other, and nothing about time."""

from __future__ import annotations

import dataclasses
import enum

import numpy as np
from numpy.typing import NDArray

__all__ = ["Action", "Orders"]


class Action(enum.IntEnum):
    """Kinds of action, with the letter of their token."""

    F = 0  # forward
    B = 1  # full backward: input and weight gradient in one
    I = 2  # noqa: E741 - input gradient alone; the field's own letter
    W = 3  # weight gradient alone


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Orders:
    """The action order of every rank, columnar.

    Shapes: N actions over all ranks, P ranks, S = P x virtual stages.

    Parameters
    ----------
    schedule : str
        Name it was made by.
    pp, microbatches, virtual_stages : int
    stage_rank : int32[S]
        Which rank holds each stage; stage s feeds stage s + 1.
    rank_ptr : int64[P + 1]
        Actions of rank r are rows ``rank_ptr[r]:rank_ptr[r + 1]``, in order.
    kind : int8[N]
        `Action` values.
    stage, microbatch : int32[N]
    """

    schedule: str
    pp: int
    microbatches: int
    virtual_stages: int
    stage_rank: NDArray[np.int32]
    rank_ptr: NDArray[np.int64]
    kind: NDArray[np.int8]
    stage: NDArray[np.int32]
    microbatch: NDArray[np.int32]
