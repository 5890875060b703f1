"""Two results side by side, part by part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from mpsim.plot.attribution import stack_parts
from mpsim.plot.display import Display, event_patches, legend_above, short_number
from mpsim.plot.palette import EVENTS, event_of_part
from mpsim.plot.timeline import time_unit

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["ComparisonDisplay"]


class _Difference(Protocol):
    """The part of a `mpsim.study.Difference` that a picture reads."""

    @property
    def name(self) -> str: ...
    @property
    def a(self) -> float | None: ...
    @property
    def b(self) -> float | None: ...


class _Comparison(Protocol):
    """The part of a `mpsim.study.Comparison` that a picture reads."""

    @property
    def a(self) -> str: ...
    @property
    def b(self) -> str: ...
    @property
    def parts(self) -> Sequence[_Difference]: ...


class ComparisonDisplay(Display):
    """Stacked parts of two or more step times on one axis, equal parts joined by thin lines.

    Parameters
    ----------
    names : sequence of str
        One a bar, drawn from top to bottom.
    seconds : mapping of str to float64[bars]
        Parts (`mpsim.training.vocabulary.PARTS`) to time [s].
    """

    def __init__(self, names: Sequence[str], seconds: Mapping[str, NDArray[np.float64]]) -> None:
        self.names = tuple(names)
        self.seconds = {
            part: np.asarray(times, dtype=np.float64) for part, times in seconds.items()
        }

    @classmethod
    def from_comparison(cls, comparison: _Comparison) -> ComparisonDisplay:
        """Draw a comparison of two results, the parts in the order of the palette."""
        order = list(EVENTS)
        parts = sorted(comparison.parts, key=lambda part: order.index(event_of_part(part.name)))
        seconds = {part.name: np.array([part.a or 0.0, part.b or 0.0]) for part in parts}
        return cls([comparison.a, comparison.b], seconds)

    def _size(self) -> tuple[float, float]:
        return 10.0, 1.6 + 0.7 * len(self.names)

    def _draw(self, ax: Axes) -> None:
        longest = np.sum(list(self.seconds.values()), axis=0).max()
        unit, length = time_unit(float(longest))
        values = {part: times / length for part, times in self.seconds.items()}
        total = stack_parts(ax, values)
        edges = np.cumsum(list(values.values()), axis=0)
        for edge in edges[:-1]:
            for bar in range(len(self.names) - 1):
                ax.plot(edge[bar : bar + 2], [bar + 0.4, bar + 0.6], color="#636363", linewidth=0.6)
        for bar, value in enumerate(total.tolist()):
            ax.text(value, bar, f" {short_number(value)} {unit}", va="center_baseline", fontsize=8)
        ax.set_yticks(range(len(self.names)), self.names)
        ax.set_ylim(len(self.names) - 0.4, -0.6)
        ax.set_xlim(0.0, 1.09 * float(total.max()) or 1.0)
        ax.set_xlabel(f"time ({unit}), mean over ranks")
        present = [event_of_part(part) for part, times in values.items() if times.any()]
        legend_above(ax, event_patches(present, hatched=True), columns=5)
