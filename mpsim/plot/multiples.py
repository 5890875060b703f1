"""Small multiples of a sweep: a panel for each value of further keys, with the same axes and the same lines in all.

Shapes: X values of the horizontal key, L lines, P panels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from mpsim.errors import ScenarioError, nearest
from mpsim.plot.display import Display, legend_above
from mpsim.plot.palette import SERIES
from mpsim.plot.sweep import METRICS, SweepDisplay

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D

    from mpsim.plot.sweep import Swept, SweptRow

__all__ = ["SweepMultiplesDisplay", "draw_sweep"]

_MOST_LINES, _MOST_PANELS = len(SERIES), 6  # lines of a panel, and panels along each side
_GAP, _HEAD = 0.02, 0.09  # share of the figure between panels, and of a row that its titles take
_LESS_IS_BETTER = frozenset(
    {
        "step_time_s",
        "bubble_fraction",
        "peak_memory_bytes",
        "energy_j_per_step",
        "cost_per_step",
        "accelerators",
        "ttft_s.p99",
        "tpot_s.p99",
        "cost_per_million_output_tokens",
    }
)


class SweepMultiplesDisplay(Display):
    """Panels of a sweep of three keys or more.

    The first key is the horizontal axis. Of the others the one with most values tells lines apart, the next two panels: columns, then rows. Of all
    further keys every point shows the best value, of those that fit into memory if any does.

    Parameters
    ----------
    panels : sequence of SweepDisplay
        Row by row, all with the same choices and lines.
    titles : sequence of str
        One a panel.
    columns : int
    line_key : str
        Key that tells lines apart.
    best_over : sequence of str
        Keys whose best value each point shows.
    """

    def __init__(
        self,
        panels: Sequence[SweepDisplay],
        titles: Sequence[str],
        columns: int,
        *,
        line_key: str,
        best_over: Sequence[str] = (),
    ) -> None:
        self.panels, self.titles = tuple(panels), tuple(titles)
        self.columns, self.line_key, self.best_over = columns, line_key, tuple(best_over)

    @classmethod
    def from_sweep(
        cls,
        sweep: Swept,
        *,
        metric: str = "tokens_per_s_per_accelerator",
        key: str | None = None,
    ) -> SweepMultiplesDisplay:
        """Collect the points of a sweep of at least three keys.

        Parameters
        ----------
        sweep : Sweep
        metric : str
            One of `mpsim.plot.sweep.METRICS`.
        key : str, optional
            Key of the horizontal axis; left out, the first that was varied.

        Raises
        ------
        ScenarioError
            If fewer keys were varied, the key was not, or the metric is unknown.
        """
        if metric not in METRICS:
            raise ScenarioError(f"got metric {metric!r}; {nearest(metric, METRICS)}")
        key = sweep.keys[0] if key is None else key
        if key not in sweep.keys or len(sweep.keys) < _LEAST:
            raise ScenarioError(
                f"got key {key!r} of {len(sweep.keys)} that were varied; needed one of them, and three at least"
            )
        rows = list(sweep)
        values = {
            name: list(dict.fromkeys(str(row.values[name]) for row in rows)) for name in sweep.keys
        }
        line_key, panel_keys, rest = _roles([name for name in sweep.keys if name != key], values)
        table = _table(rows, (key, line_key, *panel_keys), values, metric)
        column_key, *row_key = panel_keys
        panels, titles = [], []
        for down in range(len(values[row_key[0]]) if row_key else 1):
            for across, column in enumerate(values[column_key]):
                # axes of the table: horizontal key, lines, columns, and rows if there are any
                figures, usable = (
                    part[:, :, across, down] if row_key else part[:, :, across] for part in table
                )
                named = [f"{_short(line_key)} {value}" for value in values[line_key]]
                panels.append(
                    SweepDisplay(
                        key,
                        values[key],
                        dict(zip(named, figures.T, strict=True)),
                        dict(zip(named, usable.T, strict=True)),
                        metric=metric,
                    )
                )
                words = [f"{_short(column_key)} {column}"]
                words += [f"{_short(name)} {values[name][down]}" for name in row_key]
                titles.append(", ".join(words))
        return cls(panels, titles, len(values[column_key]), line_key=line_key, best_over=rest)

    @property
    def rows(self) -> int:
        """Rows of panels."""
        return math.ceil(len(self.panels) / self.columns)

    def _size(self) -> tuple[float, float]:
        width = max(
            6.0, 0.9 + self.columns * float(np.clip(0.5 * len(self.panels[0].choices), 1.9, 4.0))
        )
        return min(width, 15.0), 1.5 + 1.9 * self.rows

    def _draw(self, ax: Axes) -> None:
        ax.set_axis_off()
        label, factor = METRICS[self.panels[0].metric]
        most = max(self._highest(panel) for panel in self.panels) * factor
        wide, high = 1.0 / self.columns, 1.0 / self.rows
        handles: dict[str, Line2D] = {}
        for number, (panel, title) in enumerate(zip(self.panels, self.titles, strict=True)):
            down, across = divmod(number, self.columns)
            bounds = (
                across * wide + _GAP / 2,
                1.0 - (down + 1) * high + _GAP / 2,
                wide - _GAP,
                high * (1.0 - _HEAD) - _GAP - 0.02,
            )
            inset = ax.inset_axes(bounds)
            handles |= {str(handle.get_label()): handle for handle in panel.draw_into(inset)}
            inset.set_title(title, fontsize=8, pad=3)
            inset.set_ylim(0.0, 1.08 * most or 1.0)
            if across:
                inset.set_yticklabels([])
            if down < self.rows - 1:
                inset.set_xticklabels([])
        words = self.panels[0].key
        if self.best_over:
            words += f"\n(each point: the best over {', '.join(self.best_over)})"
        ax.text(0.5, -0.13 / self.rows, words, transform=ax.transAxes, ha="center", va="top")
        ax.text(-0.09, 0.5, label, transform=ax.transAxes, rotation=90, ha="right", va="center")
        legend_above(ax, [*handles.values()], columns=max(2, int(self._size()[0] / 1.8)))

    @staticmethod
    def _highest(panel: SweepDisplay) -> float:
        values = np.concatenate([*panel.lines.values()])
        return float(np.nanmax(values, initial=0.0)) if np.isfinite(values).any() else 0.0


_LEAST = 3


def draw_sweep(sweep: Swept, *, metric: str = "tokens_per_s_per_accelerator") -> Display:
    """The picture that suits a sweep: lines of one panel for one or two keys, panels for more."""
    kind = SweepDisplay if len(sweep.keys) < _LEAST else SweepMultiplesDisplay
    return kind.from_sweep(sweep, metric=metric)


def _short(key: str) -> str:
    return key.rpartition(".")[2].replace("_", " ")


def _roles(
    keys: Sequence[str], values: dict[str, list[str]]
) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
    """Key of the lines, keys of the panels, and those whose best value counts; most values first, as far as there is room."""
    # sorted() is stable: of keys with as many values the first stays first
    ordered = sorted(keys, key=lambda name: -len(values[name]))
    lines = next((name for name in ordered if len(values[name]) <= _MOST_LINES), ordered[-1])
    left = [name for name in ordered if name != lines]
    panels = [name for name in left if len(values[name]) <= _MOST_PANELS][:2] or left[-1:]
    return lines, tuple(panels), tuple(name for name in left if name not in panels)


def _table(
    rows: Sequence[SweptRow], keys: Sequence[str], values: dict[str, list[str]], metric: str
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """The metric and whether it fits, by the values of `keys`; of several rows at one place the best that fits."""
    shape = tuple(len(values[name]) for name in keys)
    figures, usable = np.full(shape, np.nan), np.zeros(shape, dtype=bool)
    sign = -1.0 if metric in _LESS_IS_BETTER else 1.0
    for row in rows:
        place = tuple(values[name].index(str(row.values[name])) for name in keys)
        number = row.number(metric)
        if not math.isfinite(number):
            continue
        before = (
            usable[place],
            sign * figures[place] if np.isfinite(figures[place]) else -math.inf,
        )
        if (row.usable, sign * number) > before:
            figures[place], usable[place] = number, row.usable
    return figures, usable
