"""Residuals of a calibration: how far each fitted and each held-out point is from its form."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from mpsim.plot.display import Display
from mpsim.plot.palette import EVENTS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["ResidualDisplay"]

_BAND = 0.1
_ROW = 0.24  # inch
_MOST = 200.0  # per cent that is drawn


class _Score(Protocol):
    """The part of a `mpsim.calibrate.Score` that a picture reads."""

    @property
    def what(self) -> str: ...
    @property
    def measured(self) -> tuple[float, ...]: ...
    @property
    def predicted(self) -> tuple[float, ...]: ...
    @property
    def held_out(self) -> tuple[bool, ...]: ...


class ResidualDisplay(Display):
    """One line a series: a dot for every fitted point, a ring for every one that was held out.

    Parameters
    ----------
    names : sequence of str
        Of the series.
    errors : sequence of array
        ``predicted / measured - 1`` of the points of each.
    held_out : sequence of array of bool
    """

    def __init__(
        self,
        names: Sequence[str],
        errors: Sequence[NDArray[np.float64]],
        held_out: Sequence[NDArray[np.bool_]],
    ) -> None:
        self.names = tuple(names)
        self.errors = tuple(errors)
        self.held_out = tuple(held_out)

    @classmethod
    def from_scores(cls, scores: Iterable[_Score]) -> Self:
        """Collect the points of fits."""
        drawn = list(scores)
        return cls(
            [residual.what for residual in drawn],
            [
                np.array(residual.predicted) / np.array(residual.measured) - 1.0
                for residual in drawn
            ],
            [np.array(residual.held_out, dtype=bool) for residual in drawn],
        )

    def _size(self) -> tuple[float, float]:
        return 7.0, 1.2 + _ROW * len(self.names)

    def _draw(self, ax: Axes) -> None:
        rows = range(len(self.names))
        for row, errors, held in zip(rows, self.errors, self.held_out, strict=True):
            percent = np.clip(100 * errors, -_MOST, _MOST)
            level = np.full(len(percent), float(row))
            ax.plot(percent[~held], level[~held], ".", color=EVENTS["forward"], markersize=5)
            ax.plot(
                percent[held],
                level[held],
                "o",
                color=EVENTS["backward"],
                markersize=5,
                markerfacecolor="none",
            )
        ax.axvspan(-100 * _BAND, 100 * _BAND, color=EVENTS["bubble"], zorder=0)
        ax.axvline(0.0, color=EVENTS["optimizer"], linewidth=0.8)
        ax.set_yticks(list(rows), self.names)
        ax.invert_yaxis()
        ax.set_xlabel("fitted / measured - 1 (%); rings were held out")
        ax.grid(axis="x")
