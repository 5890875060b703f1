"""Effective time against the interval between checkpoints.

Shapes: I intervals.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from mpsim.plot.display import Display, legend_above
from mpsim.plot.palette import EVENTS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["GoodputDisplay"]

_MINUTE = 60.0
_ALIKE = 0.03  # share of an interval within which two lines look like one
_LINE_INCHES = 0.17


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
    notes : sequence of str
        What curve and point rest on, written under the picture.
    """

    def __init__(
        self,
        interval_s: NDArray[np.float64],
        expected: NDArray[np.float64],
        marks: Mapping[str, float],
        simulated: tuple[float, float, float, float],
        *,
        notes: Sequence[str] = (),
    ) -> None:
        self.interval_s, self.expected = interval_s, expected
        self.marks = dict(marks)
        self.simulated, self.notes = simulated, tuple(notes)

    def _size(self) -> tuple[float, float]:
        return 8.0, 4.2 + _LINE_INCHES * len(self.notes)

    def _lines(self) -> list[tuple[str, float]]:
        """Marks with their words, those that nobody could tell apart as one."""
        lines: list[tuple[str, float]] = []
        for name, at in self.marks.items():
            text = f"{name} {at / _MINUTE:.3g} min"
            if lines and abs(at / lines[-1][1] - 1.0) < _ALIKE:
                lines[-1] = (f"{lines[-1][0]}, {text}", lines[-1][1])
            else:
                lines.append((f"best interval by {text}", at))
        return lines

    def _draw(self, ax: Axes) -> None:
        from matplotlib.ticker import FuncFormatter

        colours = (EVENTS["backward"], EVENTS["tp"], EVENTS["weight_gradient"])
        curve = ax.plot(
            self.interval_s / _MINUTE,
            100 * self.expected,
            color=EVENTS["forward"],
            label="expected by formula",
        )
        handles = list(curve)
        for (names, at), colour in zip(self._lines(), colours, strict=False):
            handles.append(ax.axvline(at / _MINUTE, color=colour, linestyle="--", label=names))
        at, mean, low, high = self.simulated
        bars = ax.errorbar(
            [at / _MINUTE],
            [100 * mean],
            yerr=[[100 * (mean - low)], [100 * (high - mean)]],
            fmt="o",
            color="black",
            capsize=3,
            label="simulated, 95 % confidence",
        )
        legend_above(ax, [*handles, bars], columns=2)
        ax.text(
            0.0,
            -0.17,
            "\n".join(self.notes),
            transform=ax.transAxes,
            va="top",
            fontsize=7.5,
            linespacing=1.3,
        )
        ax.set_xscale("log")
        ax.xaxis.set_major_formatter(FuncFormatter(lambda minutes, _: f"{minutes:g}"))
        ax.set_xlabel("work between checkpoints (min)")
        ax.set_ylabel("progress (% of the time)")
        ax.grid(axis="y")
