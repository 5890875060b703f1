"""A figure of many simulations against what was varied."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from mpsim.errors import ScenarioError, nearest
from mpsim.plot.display import Display, legend_above
from mpsim.plot.palette import EVENTS, MARKERS, SERIES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D

__all__ = ["METRICS", "SweepDisplay", "Swept", "SweptRow"]

METRICS: Mapping[str, tuple[str, float]] = MappingProxyType(
    {
        "tokens_per_s_per_accelerator": ("tokens/s per accelerator", 1.0),
        "tokens_per_s": ("tokens/s", 1.0),
        "step_time_s": ("step time (s)", 1.0),
        "mfu": ("model FLOP/s utilisation (%)", 100.0),
        "hfu": ("hardware FLOP/s utilisation (%)", 100.0),
        "tensor_utilisation": ("utilisation of matrix units (%)", 100.0),
        "bubble_fraction": ("bubble (% of the step)", 100.0),
        "peak_memory_bytes": ("peak memory (GB)", 1e-9),
        "energy_j_per_step": ("energy (kJ per step)", 1e-3),
        "cost_per_step": ("cost (USD per step)", 1.0),
        "accelerators": ("accelerators", 1.0),
        "output_tokens_per_s_per_accelerator": ("output tokens/s per accelerator", 1.0),
        "output_tokens_per_s": ("output tokens/s", 1.0),
        "output_tokens_per_s_per_user": ("output tokens/s of a user", 1.0),
        "goodput_per_s": ("requests/s within the limits", 1.0),
        "ttft_s.p99": ("p99 of TTFT (ms)", 1e3),
        "tpot_s.p99": ("p99 of TPOT (ms)", 1e3),
        "cost_per_million_output_tokens": ("cost (USD per million output tokens)", 1.0),
    }
)
"""Figures of a summary that can be drawn: what the axis says, and the factor from SI to that."""


class SweptRow(Protocol):
    """The part of a `mpsim.study.Row` that a picture reads."""

    @property
    def values(self) -> Mapping[str, object]:
        """Dotted key to the value it was given."""
        ...

    @property
    def usable(self) -> bool:
        """Whether it could be simulated and fits into memory."""
        ...

    def number(self, column: str) -> float:
        """A figure of the summary; NaN where there is none."""
        ...


class Swept(Protocol):
    """The part of a `mpsim.study.Sweep` that a picture reads."""

    @property
    def keys(self) -> tuple[str, ...]:
        """Dotted keys that were varied."""
        ...

    def __iter__(self) -> Iterator[SweptRow]: ...


class SweepDisplay(Display):
    """A metric against one key, one line for every combination of the other keys.

    Filled marks can be run, hollow ones do not fit into memory, and what could not be simulated has none.

    Parameters
    ----------
    key : str
        What the horizontal axis varies.
    choices : sequence of str
        Its values, evenly spaced in the order given.
    lines : mapping of str to float64[choices]
        Name of each line to the metric in SI units; NaN where there is nothing to draw.
    usable : mapping of str to bool[choices]
        Name of each line to which of its points fit into memory.
    metric : str
        One of `METRICS`.

    Raises
    ------
    ScenarioError
        If the metric is unknown.
    """

    def __init__(
        self,
        key: str,
        choices: Sequence[str],
        lines: Mapping[str, NDArray[np.float64]],
        usable: Mapping[str, NDArray[np.bool_]],
        *,
        metric: str = "tokens_per_s_per_accelerator",
    ) -> None:
        if metric not in METRICS:
            raise ScenarioError(f"got metric {metric!r}; {nearest(metric, METRICS)}")
        self.key = key
        self.choices = tuple(choices)
        self.lines = dict(lines)
        self.usable = dict(usable)
        self.metric = metric

    @classmethod
    def from_sweep(
        cls,
        sweep: Swept,
        *,
        metric: str = "tokens_per_s_per_accelerator",
        key: str | None = None,
    ) -> SweepDisplay:
        """Collect the points of a sweep.

        Parameters
        ----------
        sweep : Sweep
        metric : str
            One of `METRICS`.
        key : str, optional
            Key of the horizontal axis; left out, the first that was varied. The others tell lines apart.

        Raises
        ------
        ScenarioError
            If the key was not varied, or the metric is unknown.
        """
        key = sweep.keys[0] if key is None else key
        if key not in sweep.keys:
            raise ScenarioError(
                f"got key {key!r}, which was not varied; {nearest(key, sweep.keys)}"
            )
        rows = list(sweep)
        choices = list(dict.fromkeys(str(row.values[key]) for row in rows))
        names = list(dict.fromkeys(_line_name(row, key) for row in rows))
        lines = {name: np.full(len(choices), np.nan) for name in names}
        usable = {name: np.zeros(len(choices), dtype=bool) for name in names}
        for row in rows:
            name, at = _line_name(row, key), choices.index(str(row.values[key]))
            lines[name][at], usable[name][at] = row.number(metric), row.usable
        return cls(key, choices, lines, usable, metric=metric)

    def _size(self) -> tuple[float, float]:
        return float(np.clip(3.0 + 0.5 * len(self.choices), 6.0, 12.0)), 4.0

    def _draw(self, ax: Axes) -> None:
        handles = self.draw_into(ax)
        legend_above(ax, handles, columns=3)
        ax.set_xlabel(self.key)
        ax.set_ylabel(METRICS[self.metric][0])

    def draw_into(self, ax: Axes) -> list[Line2D]:
        """Draw lines and ticks without names of the axes; return entries of a legend."""
        _, factor = METRICS[self.metric]
        place = np.arange(len(self.choices))
        handles: list[Line2D] = []
        for number, (name, values) in enumerate(self.lines.items()):
            line = self._draw_line(ax, number, name, factor * values)
            handles += [line] if name else []
        handles += self._note_of_hollow_marks()
        ax.set_xticks(place, self.choices)
        ax.set_xlim(-0.4, len(place) - 0.6)
        ax.set_ylim(bottom=0.0)
        ax.grid()
        return handles

    def _draw_line(self, ax: Axes, number: int, name: str, values: NDArray[np.float64]) -> Line2D:
        """Draw one line with its marks; return its legend entry."""
        from matplotlib.lines import Line2D

        colour = SERIES[number % len(SERIES)]
        marker = MARKERS[number % len(MARKERS)]
        style: Any = "-" if number < len(SERIES) else "--"
        place = np.arange(len(values))
        ax.plot(place, values, color=colour, linestyle=style, linewidth=1.3)
        for fits, face in ((True, colour), (False, "white")):
            shown = np.where(self.usable[name] == fits, values, np.nan)
            ax.plot(place, shown, marker, color=colour, markerfacecolor=face, linestyle="none")
        return Line2D([], [], color=colour, marker=marker, linestyle=style, label=name)

    def _note_of_hollow_marks(self) -> list[Line2D]:
        from matplotlib.lines import Line2D

        hollow = (np.isfinite(self.lines[name]) & ~self.usable[name] for name in self.lines)
        if not any(marks.any() for marks in hollow):
            return []
        mark = Line2D(
            [],
            [],
            color=EVENTS["other"],
            marker="o",
            markerfacecolor="white",
            linestyle="none",
            label="hollow: does not fit into memory",
        )
        return [mark]


def _line_name(row: SweptRow, key: str) -> str:
    """The other keys of a row, by their last word: they tell its line apart."""
    others = {name: value for name, value in row.values.items() if name != key}
    return ", ".join(f"{name.rpartition('.')[2]} {value}" for name, value in others.items())
