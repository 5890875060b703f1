"""Attribution: stacked bars of the parts of a step.

Shapes: B bars.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mpsim.errors import ScenarioError
from mpsim.plot.display import Display, event_patches, legend_above, thin
from mpsim.plot.palette import COMMUNICATION, DARK, EVENTS, LUMINANCE, event_of_part, rgb
from mpsim.plot.timeline import time_unit
from mpsim.program import TICK
from mpsim.training.vocabulary import PARTS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from mpsim.engine import Timeline
    from mpsim.result import Result

__all__ = ["AttributionDisplay", "stack_parts"]

_NARROWEST_LABELLED = 0.035  # of the axis
_MOST_LABELLED = 24
_ABOVE_PERCENT = 38.0  # points, over the labels of the upper axis


class AttributionDisplay(Display):
    """One horizontal bar a rank class, cut into the parts of the step, in seconds and percent.

    Parameters
    ----------
    names : sequence of str
        One a bar, drawn from top to bottom.
    seconds : mapping of str to float64[B]
        Parts (`mpsim.training.vocabulary.PARTS`) to time [s].
    """

    def __init__(self, names: Sequence[str], seconds: Mapping[str, NDArray[np.float64]]) -> None:
        self.names = tuple(names)
        self.seconds = {
            part: np.atleast_1d(np.asarray(times, float)) for part, times in seconds.items()
        }
        for part, values in self.seconds.items():
            if len(values) != len(self.names):
                raise ScenarioError(
                    f"{part}: got {len(values)} values; needed one for each of {len(self.names)} bars"
                )

    @classmethod
    def from_result(cls, result: Result, *, ranks: bool = True) -> AttributionDisplay:
        """Mean over ranks and, with `ranks`, every rank class of a result."""
        return cls._from_ticks(result.timeline, result.parts, ranks=ranks)

    @classmethod
    def from_timeline(cls, timeline: Timeline, *, ranks: bool = True) -> AttributionDisplay:
        """Mean over ranks and, with `ranks`, every rank class of a timeline."""
        from mpsim.training.account import attribute

        return cls._from_ticks(timeline, attribute(timeline), ranks=ranks)

    @classmethod
    def _from_ticks(
        cls, timeline: Timeline, parts: NDArray[np.float64], *, ranks: bool
    ) -> AttributionDisplay:
        size = timeline.program.class_size
        mean = (size / size.sum()) @ parts
        each = parts if ranks and len(parts) > 1 else parts[:0]
        table = np.vstack([mean, each]) * TICK
        names = ["mean", *timeline.program.rank_name[: len(each)]]
        return cls(names, dict(zip(PARTS, table.T, strict=True)))

    def _size(self) -> tuple[float, float]:
        return 10.0, min(1.7 + 0.3 * len(self.names), 13.0)

    def _draw(self, ax: Axes) -> None:
        unit, length = time_unit(float(sum(self.seconds.values(), np.zeros(1)).max()))
        values = {part: times / length for part, times in self.seconds.items()}
        total = stack_parts(ax, values)
        named = thin(len(self.names), 32)
        ax.set_yticks(named, [self.names[bar] for bar in named])
        ax.set_ylim(len(self.names) - 0.4, -0.6)
        ax.set_xlabel(f"time ({unit})")
        whole = float(total.max())
        if whole:
            _percent_axis(ax, whole)
        present = [event_of_part(part) for part, times in values.items() if times.any()]
        legend_above(ax, event_patches(present, hatched=True), columns=6, lift=_ABOVE_PERCENT)


def _percent_axis(ax: Axes, whole: float) -> None:
    """Say at the top what share of `whole` the bottom axis means."""

    def to_percent(value: Any) -> Any:
        return np.asarray(value) / whole * 100

    def from_percent(value: Any) -> Any:
        return np.asarray(value) * whole / 100

    top = ax.secondary_xaxis("top", functions=(to_percent, from_percent))
    top.set_xlabel("share of the step (%)")


def stack_parts(ax: Axes, values: Mapping[str, NDArray[np.float64]]) -> NDArray[np.float64]:
    """Stack horizontal bars of parts, communication hatched, wide ones with their share of the bar.

    Parameters
    ----------
    ax : Axes
    values : mapping of str to float64[B]
        Parts to lengths, in the order they are stacked.

    Returns
    -------
    float64[B]
        Total of each bar.
    """
    total: NDArray[np.float64] = np.sum(list(values.values()), axis=0)
    left, place = np.zeros_like(total), np.arange(len(total))
    for part, width in values.items():
        event = event_of_part(part)
        ax.barh(
            place,
            width,
            left=left,
            height=0.8,
            color=EVENTS[event],
            edgecolor="white",
            linewidth=0.3,
            hatch="////" if event in COMMUNICATION else None,
        )
        if len(total) <= _MOST_LABELLED:
            _write_shares(ax, event, left + width / 2, width, total)
        left = left + width
    ax.set_xlim(0.0, float(total.max()) or 1.0)
    return total


def _write_shares(
    ax: Axes,
    event: str,
    middle: NDArray[np.float64],
    width: NDArray[np.float64],
    total: NDArray[np.float64],
) -> None:
    """Write what share of its bar each segment is, where the segment is wide enough."""
    dark = float(rgb(EVENTS[event]) @ LUMINANCE) < DARK
    for bar in np.flatnonzero(width > _NARROWEST_LABELLED * total.max()).tolist():
        ax.text(
            middle[bar],
            bar,
            f"{100 * width[bar] / total[bar]:.1f} %",
            ha="center",
            va="center_baseline",
            fontsize=7,
            color="white" if dark else "black",
            bbox={"facecolor": EVENTS[event], "edgecolor": "none", "pad": 0.8},
        )
