"""Effective time against the interval between checkpoints.

Shapes: I intervals.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from mpsim.plot.display import Display, legend_above
from mpsim.plot.palette import EVENTS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["GoodputDisplay"]

_MINUTE = 60.0


class GoodputDisplay(Display):
    """The expected goodput over checkpoint intervals, named intervals on that curve, and the simulated one.

    Parameters
    ----------
    interval_s, expected : float64[I]
        Work between checkpoints [s] and the share of time that is progress.
    marks : mapping of str to float
        Named intervals [s].
    simulated : tuple of float
        Interval [s], mean share, and the ends of its confidence interval.
    """

    def __init__(
        self,
        interval_s: NDArray[np.float64],
        expected: NDArray[np.float64],
        marks: Mapping[str, float],
        simulated: tuple[float, float, float, float],
    ) -> None:
        self.interval_s, self.expected = interval_s, expected
        self.marks = dict(marks)
        self.simulated = simulated

    def _size(self) -> tuple[float, float]:
        return 7.0, 4.0

    def _draw(self, ax: Axes) -> None:
        colours = (EVENTS["backward"], EVENTS["tp"], EVENTS["weight_gradient"])
        curve = ax.plot(
            self.interval_s / _MINUTE,
            100 * self.expected,
            color=EVENTS["forward"],
            label="expected",
        )
        handles = list(curve)
        for (name, at), colour in zip(self.marks.items(), colours, strict=False):
            text = f"{name}: {at / _MINUTE:.3g} min"
            handles.append(ax.axvline(at / _MINUTE, color=colour, linestyle="--", label=text))
        at, mean, low, high = self.simulated
        bars = ax.errorbar(
            [at / _MINUTE],
            [100 * mean],
            yerr=[[100 * (mean - low)], [100 * (high - mean)]],
            fmt="o",
            color="black",
            capsize=3,
            label="simulated",
        )
        legend_above(ax, [*handles, bars], columns=4)
        ax.set_xscale("log")
        ax.set_xlabel("work between checkpoints (min)")
        ax.set_ylabel("progress (% of the time)")
        ax.grid(axis="y")
