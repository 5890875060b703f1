"""Where stages lie on pipeline ranks: a loop, a V, or two pipelines in opposite directions."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mpsim import structs
from mpsim.errors import ScheduleError
from mpsim.shipped import say


def loop_map(pp: int, virtual_stages: int) -> NDArray[np.int32]:
    """Rank of each stage on a loop: stage s on rank s mod pp.

    Examples
    --------
    >>> loop_map(2, 2).tolist()
    [0, 1, 0, 1]
    """
    return np.tile(np.arange(pp, dtype=np.int32), virtual_stages)


def v_map(pp: int, virtual_stages: int = 2) -> NDArray[np.int32]:
    """Rank of each stage on a V, down through the ranks and up again: rank r holds stages r and 2
    pp - 1 - r. ScheduleError if there are not two chunks a rank.

    Examples
    --------
    >>> v_map(2).tolist()
    [0, 1, 1, 0]
    """
    if virtual_stages != len("Ff"):
        raise ScheduleError(say("schedule.chunks_of_v", virtual_stages=virtual_stages))
    down = np.arange(pp, dtype=np.int32)
    return np.concatenate([down, down[::-1]])


@structs.dataclass(frozen=True, slots=True)
class TwoWay:
    """Stages 0 to P - 1 on ranks 0 to P - 1, the next P on ranks P - 1 to 0: two whole models."""

    pp: int  # p, ranks
    # over both directions, even: the first half goes down the ranks, the second half up
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
