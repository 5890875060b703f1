"""Memory of each rank by component, against its capacity.

Shapes: R ranks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from mpsim.errors import ScenarioError
from mpsim.plot.display import Display, legend_above, short_number, thin
from mpsim.plot.palette import EVENTS, MEMORY
from mpsim.plot.timeline import time_unit
from mpsim.units import Dimension, parse_quantity

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from mpsim.result import MemoryCurve, Result

__all__ = ["MemoryCurveDisplay", "MemoryDisplay", "MemoryKindsDisplay"]

_MOST_LABELLED = 24
_NARROW = 8.0  # width under which the legend takes two rows [inch]
_MOST_MOMENTS = 2000
_CLEAR = 2  # between a line and the words over it [point]
_GB = parse_quantity("1 GB", Dimension.BYTES)


class MemoryDisplay(Display):
    """One bar a rank, stacked from its components; a line at the capacity, totals above it in red.

    Parameters
    ----------
    names : sequence of str
        One a bar.
    components : mapping of str to float64[R]
        Component to its size [B].
    capacity : float
        Of one accelerator [B].
    """

    def __init__(
        self,
        names: Sequence[str],
        components: Mapping[str, NDArray[np.float64]],
        capacity: float,
    ) -> None:
        self.names = tuple(names)
        self.components = {name: np.asarray(amounts, float) for name, amounts in components.items()}
        self.capacity = capacity
        for name, sizes in self.components.items():
            if len(sizes) != len(self.names):
                raise ScenarioError(
                    f"{name}: got {len(sizes)} sizes; needed one for each of {len(self.names)} bars"
                )

    @classmethod
    def from_result(cls, result: Result) -> MemoryDisplay:
        """Memory of every pipeline rank of a result."""
        memory = result.memory
        return cls(result.program.rank_name, memory.components, memory.capacity)

    @property
    def total(self) -> NDArray[np.float64]:
        """All components of each rank [B], float64[R]."""
        total: NDArray[np.float64] = np.sum(list(self.components.values()), axis=0)
        return total

    def _size(self) -> tuple[float, float]:
        return float(np.clip(2.5 + 0.4 * len(self.names), 6.0, 12.0)), 4.0

    def _draw(self, ax: Axes) -> None:
        from matplotlib.patches import Patch

        place, bottom = np.arange(len(self.names)), np.zeros(len(self.names))
        handles = []
        for name, size in self.components.items():
            colour = MEMORY.get(name, EVENTS["other"])
            ax.bar(place, size / _GB, bottom=bottom, color=colour, edgecolor="white", linewidth=0.3)
            bottom = bottom + size / _GB
            handles.append(Patch(color=colour, label=name))
        self._draw_totals(ax)
        legend_above(ax, handles, columns=7 if self._size()[0] > _NARROW else 4)
        named = thin(len(self.names), 16)
        ax.set_xticks(named, [self.names[rank] for rank in named])
        ax.set_xlabel("rank")
        ax.set_ylabel("memory at its fullest (GB)")
        ax.set_xlim(-0.6, len(self.names) - 0.4)
        ax.set_ylim(0.0, 1.12 * max(self.capacity / _GB, float(bottom.max(initial=0.0))))
        ax.grid(axis="y")

    def _draw_totals(self, ax: Axes) -> None:
        _capacity_line(ax, self.capacity)
        if len(self.names) > _MOST_LABELLED:
            return
        for rank, total in enumerate(self.total.tolist()):
            full = total > self.capacity
            ax.text(
                rank,
                total / _GB,
                short_number(total / _GB),
                ha="center",
                va="bottom",
                fontsize=7,
                color="#B00000" if full else "black",
                weight="bold" if full else "normal",
            )


def _capacity_line(ax: Axes, capacity: float) -> None:
    """A dashed line at what an accelerator has, with its name at the right end."""
    ax.axhline(capacity / _GB, color=EVENTS["tp"], linestyle="--", linewidth=1.2)
    ax.annotate(
        f"capacity {capacity / _GB:.1f} GB",
        (0.995, capacity / _GB),
        xycoords=ax.get_yaxis_transform(),
        xytext=(0, _CLEAR),
        textcoords="offset points",
        ha="right",
        va="bottom",
        fontsize=7,
        color=EVENTS["tp"],
    )


class MemoryCurveDisplay(Display):
    """One line a rank: what it holds over time, against what there is.

    Parameters
    ----------
    curves : mapping of str to MemoryCurve
        Name of a rank to what it holds.
    capacity : float
        Of one accelerator [B].
    """

    def __init__(self, curves: Mapping[str, MemoryCurve], capacity: float) -> None:
        self.curves = dict(curves)
        self.capacity = capacity

    @classmethod
    def from_result(cls, result: Result) -> MemoryCurveDisplay:
        """The first, the fullest and the last pipeline rank of a result."""
        memory, last = result.memory, len(result.memory.total) - 1
        chosen = sorted({0, memory.fullest, last})
        return cls({f"pp {rank}": result.memory_curve(rank) for rank in chosen}, memory.capacity)

    def _size(self) -> tuple[float, float]:
        return 9.0, 4.0

    def _draw(self, ax: Axes) -> None:
        from matplotlib.lines import Line2D

        colours = [EVENTS["forward"], EVENTS["backward"], EVENTS["weight_gradient"]]
        handles = []
        for (name, curve), colour in zip(self.curves.items(), colours, strict=False):
            ax.plot(
                curve.time_s, curve.held / _GB, drawstyle="steps-post", color=colour, linewidth=0.9
            )
            ax.axhline(curve.standing / _GB, color=colour, linewidth=0.6, alpha=0.5)
            handles.append(Line2D([], [], color=colour, label=name))
        label = "thin: there all the time"
        handles.append(Line2D([], [], color="black", linewidth=0.6, alpha=0.5, label=label))
        legend_above(ax, handles, columns=7)
        _capacity_line(ax, self.capacity)
        ax.set_xlabel("time (s)")
        ax.set_ylabel("memory held (GB)")
        ax.set_xlim(0.0, max(float(curve.time_s[-1]) for curve in self.curves.values()))
        most = max(self.capacity, *(float(curve.held.max()) for curve in self.curves.values()))
        ax.set_ylim(0.0, 1.08 * most / _GB)
        ax.grid(axis="y")


class MemoryKindsDisplay(Display):
    """Memory of one rank over time, stacked by kind, under the capacity.

    Parameters
    ----------
    name : str
        Of the rank.
    curve : MemoryCurve
    capacity : float
        Of its accelerator [B].

    Raises
    ------
    ScenarioError
        If the curve does not say what it consists of.
    """

    def __init__(self, name: str, curve: MemoryCurve, capacity: float) -> None:
        if not curve.components:
            raise ScenarioError("this memory is not known by kind; simulate the scenario again")
        self.name, self.curve, self.capacity = name, curve, capacity

    @classmethod
    def from_result(cls, result: Result, *, rank: int | None = None) -> MemoryKindsDisplay:
        """A rank class of a result; the fullest when left out."""
        memory = result.memory
        rank = memory.fullest if rank is None else rank
        name, capacity = result.program.rank_name[rank], float(memory.capacities[rank])
        return cls(name, result.memory_curve(rank), capacity)

    def _size(self) -> tuple[float, float]:
        return 9.0, 4.0

    def _draw(self, ax: Axes) -> None:
        from matplotlib.patches import Patch

        curve = self.curve
        chosen = _fullest_moments(curve.held)
        time = curve.time_s[chosen]
        unit, length = time_unit(float(curve.time_s[-1]))
        base, handles = np.zeros(len(time)), []
        # what changes stands on top, where its edge is the sum
        kinds = sorted(curve.components, key=lambda kind: float(np.ptp(curve.components[kind])))
        for kind in kinds:
            held = curve.components[kind][chosen] / _GB
            if not held.any():
                continue
            colour = MEMORY.get(kind, EVENTS["other"])
            ax.fill_between(
                time / length,
                base,
                base + held,
                step="post",
                color=colour,
                linewidth=0,
                rasterized=True,
            )
            base = base + held
            handles.append(Patch(color=colour, label=kind))
        legend_above(ax, handles, columns=7)
        _capacity_line(ax, self.capacity)
        ax.set_xlabel(f"time ({unit})")
        ax.set_ylabel(f"memory held by {self.name} (GB)")
        ax.set_xlim(0.0, float(curve.time_s[-1]) / length)
        ax.set_ylim(0.0, 1.08 * max(self.capacity / _GB, float(base.max(initial=0.0))))
        ax.grid(axis="y")


def _fullest_moments(held: NDArray[np.float64]) -> NDArray[np.int64]:
    """Moments to draw: all, or of many the fullest of each of so many spans."""
    moments = np.arange(len(held))
    if len(held) <= _MOST_MOMENTS:
        return moments
    return np.array(
        [span[np.argmax(held[span])] for span in np.array_split(moments, _MOST_MOMENTS)]
    )
