"""Measured and simulated timelines side by side: one pair of lanes for each rank of each step."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Protocol, Self

from mpsim.plot.display import Display, event_patches, legend_above
from mpsim.plot.palette import EVENTS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["BesideDisplay", "Lane"]

_EVENT_OF = {"gradients": "dp"}
_BAR = 0.8
_MS = 1e3
_ROW = 0.22  # inch
_MOST_LANES = 64


class _Slice(Protocol):
    """The part of a `mpsim.validate.Slice` that a picture reads."""

    @property
    def rank(self) -> int: ...
    @property
    def part(self) -> str: ...
    @property
    def token(self) -> str: ...
    @property
    def start(self) -> float: ...
    @property
    def end(self) -> float: ...


class _Step(Protocol):
    """The part of a `mpsim.validate.StepComparison` that a picture reads."""

    @property
    def title(self) -> str: ...
    @property
    def measured_slices(self) -> Sequence[_Slice]: ...
    @property
    def predicted_slices(self) -> Sequence[_Slice]: ...


@dataclasses.dataclass(frozen=True, slots=True)
class Lane:
    """One rank of one step.

    Parameters
    ----------
    name : str
    bars : tuple of (str, float, float)
        Kind of event of the palette, start and length [s].
    first : bool
        Whether a new step begins here.
    """

    name: str
    bars: tuple[tuple[str, float, float], ...]
    first: bool


class BesideDisplay(Display):
    """Lanes of measured and simulated ranks, each pair together.

    Parameters
    ----------
    lanes : sequence of Lane
    """

    def __init__(self, lanes: Sequence[Lane]) -> None:
        self.lanes = tuple(lanes)[:_MOST_LANES]

    @classmethod
    def from_steps(cls, steps: Iterable[_Step]) -> Self:
        """Collect the timelines of compared steps; those without actions are left out."""
        lanes: list[Lane] = []
        for step in steps:
            if not (step.measured_slices and step.predicted_slices):
                continue
            ranks = sorted({part.rank for part in step.measured_slices})
            classes = sorted({part.rank for part in step.predicted_slices})
            for place, rank in enumerate(ranks):
                like = classes[place * len(classes) // len(ranks)]
                title = f"{step.title}: rank {rank}" if not place else f"rank {rank}"
                lanes.append(_lane(f"{title}, measured", step.measured_slices, rank, not place))
                lanes.append(_lane("simulated", step.predicted_slices, like, False))
        return cls(lanes)

    def _size(self) -> tuple[float, float]:
        return 11.0, 1.4 + _ROW * len(self.lanes)

    def _draw(self, ax: Axes) -> None:
        seen: set[str] = set()
        for level, lane in enumerate(self.lanes):
            for event, start, length in lane.bars:
                seen.add(event)
                ax.barh(
                    level,
                    _MS * length,
                    _BAR,
                    left=_MS * start,
                    color=EVENTS[event],
                    edgecolor="white",
                    linewidth=0.3,
                )
            if lane.first and level:
                ax.axhline(level - 0.5, color=EVENTS["other"], linewidth=0.6)
        ax.set_yticks(range(len(self.lanes)), [lane.name for lane in self.lanes])
        ax.invert_yaxis()
        ax.set_xlabel("time since the step began (ms)")
        legend_above(ax, event_patches(seen), columns=6)


def _lane(name: str, slices: Iterable[_Slice], rank: int, first: bool) -> Lane:
    bars = tuple(
        (_event(interval), interval.start, interval.end - interval.start)
        for interval in slices
        if interval.rank == rank
    )
    return Lane(name, bars, first)


def _event(interval: _Slice) -> str:
    """Kind of event of the palette."""
    letters = {"I": "input_gradient", "W": "weight_gradient"}
    split = next((letters[letter] for letter in interval.token if letter in letters), "")
    return split or _EVENT_OF.get(interval.part, interval.part)
