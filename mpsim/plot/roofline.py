"""Roofline of the kernels of a step: work per byte against what they achieve, below the peaks of the accelerator.

Shapes: K kernels.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from mpsim.plot.display import Display, legend_above
from mpsim.plot.palette import EVENTS, LABELS, event_of_part

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from mpsim.result import Result
    from mpsim.training.roofline import Roofline

__all__ = ["RooflineDisplay"]

_TERA = 1e12
_NAMED = 6  # kernels that take most of the time are named
_LARGEST, _SMALLEST = 420.0, 14.0  # marks [points^2]
_FLOOR, _STEP = 0.09, 0.055  # of the height: where names stand
_ROOM = 3.0  # times the highest roof
_MARKERS = {"forward": "o", "backward": "s", "weight_gradient": "^", "recompute": "D"}


class RooflineDisplay(Display):
    """One mark a kernel and part of the step, its area the time that it takes, under the roofs of memory and matrix units.

    Kernels that only move data have no place in it; a note says how much of the time they take.

    Parameters
    ----------
    kernels : Roofline
    """

    def __init__(self, kernels: Roofline) -> None:
        self.kernels = kernels

    @classmethod
    def from_result(cls, result: Result) -> RooflineDisplay:
        """Kernels of the forwards and backwards of a result."""
        from mpsim.training.job import plan_of
        from mpsim.training.roofline import roofline

        return cls(roofline(plan_of(result)))

    @property
    def moving_share(self) -> float:
        """Share of kernel time in kernels that only move data, in [0, 1]."""
        kernels = self.kernels
        return float(kernels.seconds[kernels.flops == 0].sum() / kernels.seconds.sum())

    def _size(self) -> tuple[float, float]:
        return 8.0, 5.0

    def _draw(self, ax: Axes) -> None:
        kernels = self.kernels
        works = kernels.flops > 0
        ridge = max(kernels.peaks.values()) / kernels.bandwidth
        least = float(kernels.intensity[works].min(initial=ridge))
        most = float(kernels.intensity[works].max(initial=ridge))
        reach = np.geomspace(min(least, ridge) / 4, max(most, ridge) * 4, 200)
        handles = self._draw_roofs(ax, reach)
        handles += self._draw_kernels(ax)
        legend_above(ax, handles, columns=4)
        moves = self.moving_share
        if moves:
            ax.text(
                0.99,
                0.02,
                f"{moves:.0%} of the kernel time only moves data: no FLOPs, not shown",
                transform=ax.transAxes,
                ha="right",
                fontsize=8,
            )
        ax.set_xscale("log")
        ax.set_yscale("log")
        ax.set_xlim(reach[0], reach[-1])
        top = max(kernels.peaks.values()) / _TERA
        lowest = float(kernels.achieved[works].min(initial=top * _TERA)) / _TERA
        ax.set_ylim(min(lowest / 5, reach[0] * kernels.bandwidth / _TERA), _ROOM * top)
        ax.set_xlabel("work per byte of device memory (FLOP/B)")
        ax.set_ylabel("achieved (TFLOP/s)")
        ax.grid(which="major")

    def _draw_roofs(self, ax: Axes, reach: Any) -> list[Any]:
        """Lines of the peaks and of memory."""
        kernels, handles = self.kernels, []
        for number, (name, peak) in enumerate(kernels.peaks.items()):
            roof = np.minimum(peak, reach * kernels.bandwidth) / _TERA
            label = (
                f"{name} {peak / _TERA:,.0f} TFLOP/s, memory {kernels.bandwidth / _TERA:.3g} TB/s"
            )
            style: Any = ("-", "--", ":")[number % 3]
            handles += ax.plot(
                reach, roof, color=EVENTS["optimizer"], linestyle=style, linewidth=1.2, label=label
            )
        return handles

    def _draw_kernels(self, ax: Axes) -> list[Any]:
        """Marks, largest first so that none is covered, and the names of those that take longest."""
        from matplotlib.lines import Line2D

        kernels = self.kernels
        works = np.flatnonzero(kernels.flops > 0)
        size = np.maximum(_LARGEST * kernels.seconds / kernels.seconds.max(), _SMALLEST)
        events = {part: event_of_part(part) for part in dict.fromkeys(kernels.parts)}
        marks = list(_MARKERS)
        # circles last: they are smaller than what else may lie in the same place
        order = sorted(
            works.tolist(),
            key=lambda point: (-marks.index(events[kernels.parts[point]]), -size[point]),
        )
        for point in order:
            event = events[kernels.parts[point]]
            ax.scatter(
                kernels.intensity[point],
                kernels.achieved[point] / _TERA,
                s=size[point],
                marker=_MARKERS.get(event, "o"),
                color=EVENTS[event],
                edgecolor="white",
                linewidth=0.6,
                alpha=0.85,
                zorder=3,
            )
        self._name(ax, works)
        drawn = dict.fromkeys(events[kernels.parts[point]] for point in works.tolist())
        return [
            Line2D(
                [],
                [],
                color=EVENTS[event],
                marker=_MARKERS.get(event, "o"),
                linestyle="none",
                label=LABELS.get(event, event),
            )
            for event in drawn
        ]

    def _name(self, ax: Axes, works: Any) -> None:
        """Write the names of the kernels that take most of the time, once each, under their slowest part."""
        kernels = self.kernels
        total: dict[str, float] = {}
        lowest: dict[str, int] = {}
        for point in works.tolist():
            name = kernels.names[point]
            total[name] = total.get(name, 0.0) + float(kernels.seconds[point])
            if name not in lowest or kernels.achieved[point] < kernels.achieved[lowest[name]]:
                lowest[name] = point
        whole = float(kernels.seconds.sum())
        named = sorted(total, key=lambda each: -total[each])[:_NAMED]
        # one line each, the leftmost mark's on top: words stand left of their leader, so no leader crosses them
        named.sort(key=lambda each: -kernels.intensity[lowest[each]])
        for level, name in enumerate(named):
            point = lowest[name]
            ax.annotate(
                f"{name.replace('_', ' ')}, {total[name] / whole:.0%} of the time",
                (kernels.intensity[point], kernels.achieved[point] / _TERA),
                xytext=(float(kernels.intensity[point]), _FLOOR + _STEP * level),
                textcoords=("data", "axes fraction"),
                ha="right",
                fontsize=8,
                arrowprops={
                    "arrowstyle": "-",
                    "relpos": (1.0, 0.5),
                    "linewidth": 0.5,
                    "color": EVENTS["other"],
                },
            )
