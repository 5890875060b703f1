"""The plan of a run: its cases, its grid, its order and its budget; nothing of torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

from mpsim import structs
from mpsim.measured.records import Words
from mpsim.memo import remembered
from mpsim.shipped import read_shipped

if TYPE_CHECKING:
    from mpsim.measure.recorder import Recorder
    from mpsim.measure.world import World


T = TypeVar("T")
Grid: TypeAlias = Mapping[str, Any]
"""A part of the shipped file, whose comments say what its numbers are."""
PASSES: Final = ("forward", "backward")


@remembered(1)
def load_grid() -> Grid:
    """The shipped choice of sizes and repetitions."""
    grid: Grid = read_shipped(__package__ or "", "grid.yaml")
    return grid


@structs.dataclass(frozen=True, slots=True)
class Split:
    """How a training step is divided over the world."""

    dp: int = 1
    tp: int = 1
    pp: int = 1
    virtual: int = 1  # stages a rank
    microbatches: int = 1  # a step of one data-parallel rank
    schedule: str = ""  # of the pipeline; empty without one
    data_parallel: str = "none"  # ``ddp``, ``fsdp2``, ``all-reduce`` or ``none``

    @property
    def ranks(self) -> int:
        """Ranks of the whole mesh."""
        return self.dp * self.tp * self.pp


def degrees(entry: Grid, world: int) -> Split | None:
    """A line of the grid for a world of so many ranks; None where it does not divide.

    Examples
    --------
    >>> degrees({"tp": 2, "pp": "rest", "schedule": "1f1b", "microbatches": 2}, 8)
    Split(dp=1, tp=2, pp=4, virtual=1, microbatches=8, schedule='1f1b', data_parallel='none')
    >>> degrees({"tp": 2, "pp": "rest"}, 2) is None
    True
    """
    axes = ("dp", "tp", "pp")
    fixed = {axis: entry.get(axis, 1) for axis in axes}
    product = 1
    for degree in fixed.values():
        product *= degree if isinstance(degree, int) else 1
    if world % product:
        return None
    open_axes = [axis for axis in axes if not isinstance(fixed[axis], int)]
    for axis in open_axes:
        fixed[axis] = world if entry[axis] == "world" else world // product
        if fixed[axis] < 2:
            return None
    split = Split(
        **fixed,
        virtual=entry.get("virtual", 1),
        microbatches=entry.get("microbatches", 1) * fixed["pp"],
        schedule=entry.get("schedule", ""),
        data_parallel=entry.get("data_parallel", "none"),
    )
    return split if split.ranks in (1, world) else None


def best_first(items: Sequence[T]) -> list[T]:
    """Items that rise in size, reordered so that the first ones cover the range: middle, quarters.

    Examples
    --------
    >>> best_first([1, 2, 3, 4, 5, 6, 7])
    [4, 2, 6, 1, 3, 5, 7]
    """
    spans = [(0, len(items))]
    order = []
    while spans:
        low, high = spans.pop(0)
        if low < high:
            middle = (low + high) // 2
            order.append(items[middle])
            spans += [(low, middle), (middle + 1, high)]
    return order


def round_robin(series: Sequence[Sequence[T]]) -> Iterator[T]:
    """One item of each series in turn, until all are used up.

    Examples
    --------
    >>> list(round_robin(["ab", "c", "def"]))
    ['a', 'c', 'd', 'b', 'e', 'f']
    """
    for place in range(max(map(len, series), default=0)):
        for queue in series:
            if place < len(queue):
                yield queue[place]


@structs.dataclass(slots=True)
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


@structs.dataclass(frozen=True, slots=True)
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
