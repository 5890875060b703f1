"""Predictions against measurements: how well they agree, and how the error goes with size."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from mpsim.plot.display import Display, legend_above
from mpsim.plot.palette import EVENTS, MARKERS, SERIES
from mpsim.units import Dimension, parse_quantity

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.lines import Line2D

__all__ = ["AgreementDisplay", "ErrorDisplay"]

_MOST_NAMED = 12  # families that get a mark of their own
_REST = "other families"
_MOST_TICKS = 8  # sizes that get a tick each
_MARGIN = 1.3  # beyond the first and the last of them
_FEW_DECADES = 0.4  # below which every second of ten ticks between powers is named
_BAND = 0.1  # error that the shaded band shows
_SIZES: Mapping[str, str] = MappingProxyType(
    {
        "training": "accelerators",
        "memory": "accelerators",
        "collective": "message (B)",
        "kernel": "work (FLOP, or B where memory-bound)",
        "schedule": "ranks x microbatches",
    }
)


class _Record(Protocol):
    """The part of a `mpsim.validate.Record` that a picture reads."""

    @property
    def family(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def unit(self) -> str: ...
    @property
    def measured(self) -> float | None: ...
    @property
    def predicted(self) -> float | None: ...
    @property
    def size(self) -> float | None: ...


class _Points(Display):
    """Points of families: one mark each, the largest families named.

    Parameters
    ----------
    families : sequence of str
        Of each point.
    kind : str
    unit : str
        Of measured and predicted.
    measured, predicted, size : float64[N]
        Above 0; a point without size is not drawn against size.
    """

    def __init__(
        self,
        families: Sequence[str],
        *,
        kind: str,
        unit: str,
        measured: NDArray[np.float64],
        predicted: NDArray[np.float64],
        size: NDArray[np.float64],
    ) -> None:
        self.families = tuple(families)
        self.kind = kind
        self.unit = unit
        self.measured = measured
        self.predicted = predicted
        self.size = size

    @classmethod
    def from_records(cls, records: Iterable[_Record]) -> Self:
        """Collect what was both measured and predicted; one kind only."""
        scored = [record for record in records if record.measured and record.predicted]
        units = list(dict.fromkeys(record.unit for record in scored))
        scale = parse_quantity("1 GB", Dimension.BYTES) if units == ["B"] else 1.0
        return cls(
            [record.family for record in scored],
            kind=scored[0].kind if scored else "",
            unit="GB" if units == ["B"] else ", ".join(units),
            measured=np.array([record.measured for record in scored], dtype=np.float64) / scale,
            predicted=np.array([record.predicted for record in scored], dtype=np.float64) / scale,
            size=np.array([record.size or np.nan for record in scored], dtype=np.float64),
        )

    def _size(self) -> tuple[float, float]:
        return 7.0, 5.0

    def _scatter(self, ax: Axes, x: NDArray[np.float64], y: NDArray[np.float64]) -> None:
        """Draw the points, and a legend of the families."""
        from matplotlib.lines import Line2D

        names = np.array([self._named().get(family, _REST) for family in self.families])
        handles: list[Line2D] = []
        for number, name in enumerate(dict.fromkeys(names.tolist())):
            rest = name == _REST
            colour = EVENTS["other"] if rest else SERIES[number % len(SERIES)]
            marker = "." if rest else MARKERS[(number // len(SERIES) + number) % len(MARKERS)]
            chosen = names == name
            ax.plot(
                x[chosen],
                y[chosen],
                marker,
                color=colour,
                alpha=0.6,
                markersize=4,
                linestyle="none",
            )
            handles.append(
                Line2D([], [], color=colour, marker=marker, linestyle="none", label=name)
            )
        legend_above(ax, handles, columns=3)

    def _named(self) -> dict[str, str]:
        """Families with most points, under their own names."""
        names, counts = np.unique(np.array(self.families), return_counts=True)
        order = np.argsort(-counts, kind="stable")[:_MOST_NAMED]
        return {str(names[index]): str(names[index]) for index in order}


class AgreementDisplay(_Points):
    """Predicted against measured, with the diagonal and a band of 10 % around it."""

    def _draw(self, ax: Axes) -> None:
        self._scatter(ax, self.measured, self.predicted)
        both = np.concatenate([self.measured, self.predicted])
        ends = np.array([both.min() / 1.3, both.max() * 1.3]) if both.size else np.array([1.0, 10])
        ax.plot(ends, ends, color=EVENTS["optimizer"], linewidth=0.8)
        ax.fill_between(
            ends, ends * (1 - _BAND), ends * (1 + _BAND), color=EVENTS["bubble"], zorder=0
        )
        ax.set_xscale("log")
        ax.set_yscale("log")
        _plain_numbers(ax.xaxis, ax.yaxis)
        ax.set_xlim(*ends)
        ax.set_ylim(*ends)
        ax.set_xlabel(f"measured ({self.unit})")
        ax.set_ylabel(f"predicted ({self.unit})")
        ax.grid()


class ErrorDisplay(_Points):
    """Error against size, with a band of 10 %."""

    def _draw(self, ax: Axes) -> None:
        self._scatter(ax, self.size, 100 * (self.predicted / self.measured - 1))
        ax.axhspan(-100 * _BAND, 100 * _BAND, color=EVENTS["bubble"], zorder=0)
        ax.axhline(0.0, color=EVENTS["optimizer"], linewidth=0.8)
        if np.isfinite(self.size).any():
            ax.set_xscale("log")
            self._mark_sizes(ax)
        ax.set_xlabel(_SIZES.get(self.kind, "size"))
        ax.set_ylabel("error of the prediction (%)")
        ax.grid()

    def _mark_sizes(self, ax: Axes) -> None:
        """Ticks at the sizes themselves where they are few, else where an axis has them."""
        sizes = np.unique(self.size[np.isfinite(self.size)])
        if len(sizes) > _MOST_TICKS:
            _plain_numbers(ax.xaxis)
            return
        ax.set_xticks(sizes, [f"{size:g}" for size in sizes.tolist()])
        ax.set_xticks([], minor=True)
        ax.set_xlim(sizes[0] / _MARGIN, sizes[-1] * _MARGIN)


def _plain_numbers(*axes: Axis) -> None:
    """Write 0.1, 100 and 300 on logarithmic axes, not powers."""
    from matplotlib.ticker import FuncFormatter, LogFormatter

    for axis in axes:
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_minor_formatter(LogFormatter(minor_thresholds=(1, _FEW_DECADES)))
