"""A case: one thing to measure, and how to set it up."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from mpsim import dataclasses
from mpsim.measured.records import Words

if TYPE_CHECKING:
    from mpsim.measure.recorder import Recorder
    from mpsim.measure.world import World


@dataclasses.dataclass(slots=True)
class Work:
    """A case that is set up on this rank."""

    run: Callable[[], object]  # one execution
    before: Callable[[], object] | None = None  # called before each sample, not timed
    most_calls: int = 0  # executions in one sample at most; 0 for as many as the timer likes
    # what one execution is divided by, such as 2 for a message that goes and comes back
    divide: float = 1.0
    check: str = ""
    capturable: bool = False  # whether a CUDA graph may hold it
    warm: bool = False
    host: bool = False  # whether it is the host's time that counts, even on a GPU
    recorder: Recorder | None = None  # where the execution notes its actions
    close: Callable[[], object] | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Case:
    """One thing to measure; the fields are those of `Measurement`."""

    family: str
    op: str
    shape: Mapping[str, int]
    variant: Words
    dtype: str
    group: tuple[int, ...]
    # sets it up on this rank, checks it once, and returns the `Work`
    prepare: Callable[[World], Work]
    synchronous: bool = False
    phase: str = "burst"
    flops: float = 0.0
    bytes: float = 0.0
    memory: float = 0.0  # what it needs on one rank, about [B]

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
