"""The matplotlib pen: charts drawn in the one style of all pictures.

Figures are built without pyplot, so nothing here keeps state, opens a window or needs a display.
Importing this module does not import matplotlib.
"""

from __future__ import annotations

import io
import math
import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from mpsim.errors import ScenarioError
from mpsim.output import whole
from mpsim.plot.chart import Bars, Chart, Heat, Lines, Panels
from mpsim.plot.timeline import Timeline

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

STYLE = Path(__file__).with_name("mpsim.mplstyle")
"""Settings of matplotlib under which everything is drawn and saved."""
FORMATS = (".png", ".svg", ".pdf")
"""Suffixes of the pictures that `Display.save` writes."""

_TITLE_POINTS, _LETTERS_PER_INCH, _NOTE_LETTERS_PER_INCH = 10, 13.5, 15.0
_NOTES_BELOW = 36.0  # points under the axes, below the name of the axis
_NO_DATES: Mapping[str, Sequence[str]] = {
    ".png": ["Software"],
    ".svg": ["Date"],
    ".pdf": ["CreationDate", "Producer", "Creator"],
}


class Display:
    """A chart as a picture: `plot` draws it, `save` writes it.

    Attributes
    ----------
    figure_, ax_ : Figure, Axes
        What `plot` drew on last.
    """

    figure_: Figure | None = None
    ax_: Axes | None = None

    def __init__(self, chart: Chart) -> None:
        self.chart = chart

    def plot(self, ax: Axes | None = None) -> Self:
        """Draw. `ax`: where, without a title; else a figure of a size that suits the numbers."""
        import matplotlib as mpl
        from matplotlib.figure import Figure

        with mpl.rc_context(fname=STYLE):
            if ax is None:
                figure = Figure(figsize=self.chart.size, layout="constrained")
                if self.chart.title:
                    title = _wrapped(self.chart.title, _LETTERS_PER_INCH * self.chart.size[0])
                    figure.suptitle(title, x=0.008, ha="left", fontsize=_TITLE_POINTS)
                self.ax_ = _on_figure(figure, self.chart)
            else:
                self.ax_ = ax
                draw(ax, self.chart)
            self.figure_ = self.ax_.get_figure(root=True)
        return self

    def save(self, path: str | Path) -> Path:
        """Write the picture, drawn first if it was not; the same numbers give the same bytes.

        `path`: the suffix chooses the format: ``.png``, ``.svg``, ``.pdf``. ScenarioError if it is
        another.
        """
        path = Path(path)
        if path.suffix.lower() not in FORMATS:
            raise ScenarioError(
                f"got {str(path)!r}; needed the name of a picture that ends in {', '.join(FORMATS)}"
            )
        with whole(path) as beside:
            self._write(beside, path.suffix.lower())
        return path

    def _write(self, where: Any, suffix: str) -> None:
        import matplotlib as mpl

        figure = self.figure_ or self.plot().figure_
        assert figure is not None
        with mpl.rc_context(fname=STYLE):
            figure.savefig(where, format=suffix[1:], metadata=dict.fromkeys(_NO_DATES[suffix]))

    def __repr__(self) -> str:
        return f"<{type(self.chart).__name__}: plot() draws it, save(path) writes it>"

    def _repr_png_(self) -> bytes:
        """The picture, as notebooks show it."""
        picture = io.BytesIO()
        self._write(picture, ".png")
        return picture.getvalue()


def draw(ax: Axes, chart: Chart) -> None:
    """Draw a chart on axes, labels and legend included."""
    from mpsim.plot.drawing import draw_bars, draw_heat, draw_lines
    from mpsim.plot.timeline_pen import draw_timeline

    pens: Mapping[type[Chart], Callable[[Axes, Any], None]] = {
        Bars: draw_bars,
        Lines: draw_lines,
        Heat: draw_heat,
        Panels: _draw_inside,
        Timeline: draw_timeline,
    }
    pens[type(chart)](ax, chart)
    if chart.notes and not isinstance(chart, Panels):
        _write_notes(ax, chart)


def _on_figure(figure: Figure, chart: Chart) -> Axes:
    """Draw on a figure of its own; the first axes of several."""
    if not isinstance(chart, Panels):
        ax = figure.add_subplot()
        draw(ax, chart)
        return ax
    rows = math.ceil(len(chart.charts) / chart.columns)
    grid = figure.subplots(
        rows, chart.columns, squeeze=False, height_ratios=chart.ratios or None,
        sharex=chart.same, sharey=chart.same,
    )  # fmt: skip
    axes: list[Axes] = list(grid.ravel())
    handles: Sequence[Artist] = ()
    for ax, inner in zip(axes, chart.charts, strict=False):
        shown = _draw_panel(ax, inner, legend=not chart.same)
        handles = max(handles, shown, key=len)
        if chart.same:
            ax.label_outer()
    for ax in axes[len(chart.charts) :]:
        ax.set_axis_off()
    if chart.same and handles:
        from mpsim.plot.drawing import columns_of

        labels = [str(handle.get_label()) for handle in handles]
        columns = columns_of(labels, chart.size[0])
        figure.legend(handles=handles, loc="outside lower center", ncols=columns)
    if chart.notes:
        figure.supxlabel("\n".join(chart.notes), fontsize=8)
    return axes[0]


def _draw_inside(ax: Axes, chart: Panels) -> None:
    """Draw panels in the place of given axes."""
    ax.set_axis_off()
    rows = math.ceil(len(chart.charts) / chart.columns)
    wide, high = 1.0 / chart.columns, 1.0 / rows
    for number, inner in enumerate(chart.charts):
        down, across = divmod(number, chart.columns)
        place = (across * wide + 0.01, 1.0 - (down + 0.75) * high, wide - 0.03, 0.6 * high)
        _draw_panel(ax.inset_axes(place), inner, legend=number == 0 or not chart.same)


def _draw_panel(ax: Axes, chart: Chart, *, legend: bool) -> Sequence[Artist]:
    """Draw one of several charts, its title over its legend, which may be drawn elsewhere."""
    draw(ax, chart)
    own = ax.get_legend()
    if own is not None and not legend:
        own.remove()
    above = own.get_window_extent().height * 72 / ax.figure.dpi if own and legend else 0.0
    ax.set_title(chart.title, loc="left", fontsize=9, pad=above + 5.0)
    handles = own.legend_handles if own is not None and not legend else []
    return [handle for handle in handles if handle is not None]


def _wrapped(text: str, letters: float) -> str:
    """A text whose lines have at most so many letters."""
    return "\n".join(part for row in text.splitlines() for part in textwrap.wrap(row, int(letters)))


def _write_notes(ax: Axes, chart: Chart) -> None:
    letters = _NOTE_LETTERS_PER_INCH * chart.size[0]
    ax.annotate(
        _wrapped("\n".join(chart.notes), letters),
        (0.0, 0.0),
        xycoords="axes fraction",
        xytext=(0.0, -_NOTES_BELOW),
        textcoords="offset points",
        va="top",
        fontsize=8,
        linespacing=1.3,
    )
