"""Two pipelines in opposite directions on the same ranks: where their stages are and which microbatches they take."""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import NDArray

__all__ = ["TwoWay"]


@dataclasses.dataclass(frozen=True, slots=True)
class TwoWay:
    """Stages 0 to P - 1 lie on ranks 0 to P - 1, stages P to 2P - 1 on ranks P - 1 to 0; both are the whole model.

    Parameters
    ----------
    pp : int
        P, ranks.
    microbatches : int
        Over both directions, even: the first half goes down the ranks, the second half up.
    """

    pp: int
    microbatches: int

    @property
    def stage_rank(self) -> NDArray[np.int32]:
        """Rank of each stage, int32[2P]."""
        down = np.arange(self.pp, dtype=np.int32)
        return np.concatenate([down, down[::-1]])

    @property
    def model_stage(self) -> NDArray[np.int32]:
        """Part of the model that each stage is a copy of, int32[2P]."""
        return np.tile(np.arange(self.pp, dtype=np.int32), 2)

    @property
    def first_microbatch(self) -> NDArray[np.int32]:
        """First microbatch of each stage's direction, int32[2P]."""
        return np.repeat(np.array([0, self.microbatches // 2], dtype=np.int32), self.pp)

    def stages_of(self, rank: int) -> tuple[int, int]:
        """Stage of the direction down the ranks, and of the one up."""
        return rank, 2 * self.pp - 1 - rank
