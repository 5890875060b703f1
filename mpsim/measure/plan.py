"""The plan of a run: its grid, its order and its budget; nothing of torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias, TypeVar

from mpsim import dataclasses
from mpsim.memo import remembered
from mpsim.shipped import read_shipped

T = TypeVar("T")
Grid: TypeAlias = Mapping[str, Any]
"""A part of the shipped file, whose comments say what its numbers are."""
PASSES: Final = ("forward", "backward")


@remembered(1)
def load_grid() -> Grid:
    """The shipped choice of sizes and repetitions."""
    grid: Grid = read_shipped(__package__ or "", "grid.yaml")
    return grid


@dataclasses.dataclass(frozen=True, slots=True)
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
