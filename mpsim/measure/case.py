"""A case: one thing to measure, and how to set it up."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from mpsim.measured.records import Words

if TYPE_CHECKING:
    from mpsim.measure.recorder import Recorder
    from mpsim.measure.world import World

__all__ = ["Case", "Work"]


@dataclasses.dataclass(slots=True)
class Work:
    """A case that is set up on this rank.

    Parameters
    ----------
    run : callable
        One execution.
    before : callable, optional
        Called before each sample, not timed.
    most_calls : int
        Executions in one sample at most; 0 for as many as the timer likes.
    divide : float
        What one execution is divided by, such as 2 for a message that goes and comes back.
    capturable : bool
        Whether a CUDA graph may hold it.
    host : bool
        Whether it is the host's time that counts, even on a GPU.
    recorder : Recorder, optional
        Where the execution notes its actions.
    """

    run: Callable[[], object]
    before: Callable[[], object] | None = None
    most_calls: int = 0
    divide: float = 1.0
    check: str = ""
    capturable: bool = False
    warm: bool = False
    host: bool = False
    recorder: Recorder | None = None
    close: Callable[[], object] | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Case:
    """One thing to measure; the fields are those of `Measurement`.

    Parameters
    ----------
    prepare : callable
        Sets it up on this rank, checks it once, and returns the `Work`.
    memory : float
        What it needs on one rank, about [B].
    """

    family: str
    op: str
    shape: Mapping[str, int]
    variant: Words
    dtype: str
    group: tuple[int, ...]
    prepare: Callable[[World], Work]
    synchronous: bool = False
    phase: str = "burst"
    flops: float = 0.0
    bytes: float = 0.0
    memory: float = 0.0

    @property
    def id(self) -> str:
        """The same for the same case in every file."""
        shape = ",".join(f"{key}={value}" for key, value in self.shape.items())
        variant = ",".join(f"{key}={value}" for key, value in self.variant.items())
        ranks = ",".join(map(str, self.group))
        return f"{self.op}/{variant or '-'}/{self.dtype}/{shape or '-'}/{self.phase}/{ranks}"

    @property
    def series(self) -> str:
        """The name that it shares with cases of other sizes."""
        return (
            f"{self.op}/{sorted(self.variant.items())}/{self.dtype}/{self.phase}/{len(self.group)}"
        )

    @property
    def size(self) -> float:
        """The amount that its time grows with, within its series."""
        return self.flops or self.bytes or 1.0
