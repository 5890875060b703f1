"""Display: numbers in, a picture out; and the one style of all pictures.

Figures are built without pyplot, so nothing here keeps state, opens a window or needs a display.
"""

from __future__ import annotations

import abc
import io
import math
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Self

from mpsim.errors import ScenarioError
from mpsim.output import whole
from mpsim.plot.palette import COMMUNICATION, EVENTS, LABELS

if TYPE_CHECKING:
    from matplotlib.axes import Axes as Axes  # noqa: PLC0414 # studies name it too
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

__all__ = [
    "FORMATS",
    "STYLE",
    "Display",
    "event_patches",
    "legend_above",
    "short_number",
    "thin",
]

STYLE = Path(__file__).with_name("mpsim.mplstyle")
"""Settings of matplotlib under which every Display draws and saves."""
FORMATS = (".png", ".svg", ".pdf")
"""Suffixes of the pictures that `Display.save` writes."""

_TITLE_POINTS, _LETTERS_PER_INCH = 10, 13.5
_NO_DATES: Mapping[str, Mapping[str, None]] = MappingProxyType(
    {
        ".png": {"Software": None},
        ".svg": {"Date": None},
        ".pdf": {"CreationDate": None, "Producer": None, "Creator": None},
    }
)


class Display(abc.ABC):
    """A picture that knows its data: `plot` draws it, `save` writes it.

    Attributes
    ----------
    figure_, ax_ : Figure, Axes
        What `plot` drew on last.
    title : str
        Written over a figure of its own: what is shown, and its headline. On axes of others nothing is.
    """

    title: str = ""
    figure_: Figure | None = None
    ax_: Axes | None = None

    def plot(self, ax: Axes | None = None) -> Self:
        """Draw.

        Parameters
        ----------
        ax : Axes, optional
            Where; left out, a figure of a size that suits the data.

        Returns
        -------
        Self
            With `figure_` and `ax_` set.
        """
        import matplotlib as mpl
        from matplotlib.figure import Figure

        with mpl.rc_context(fname=STYLE):
            if ax is None:
                figure = Figure(figsize=self._size(), layout="constrained")
                ax = figure.add_subplot()
                if self.title:
                    title = _wrapped(self.title, self._size()[0])
                    figure.suptitle(title, x=0.008, ha="left", fontsize=_TITLE_POINTS)
            self.ax_, self.figure_ = ax, ax.get_figure(root=True)
            self._draw(ax)
        return self

    def save(self, path: str | Path) -> Path:
        """Write the picture, drawn first if it was not; the same data give the same bytes.

        Parameters
        ----------
        path : str or Path
            The suffix chooses the format: ``.png``, ``.svg``, ``.pdf``.

        Raises
        ------
        ScenarioError
            If it is another.
        """
        import matplotlib as mpl

        path = Path(path)
        suffix = path.suffix.lower()
        if suffix not in FORMATS:
            raise ScenarioError(
                f"got {str(path)!r}; needed the name of a picture that ends in {', '.join(FORMATS)}"
            )
        if self.figure_ is None:
            self.plot()
        assert self.figure_ is not None
        with mpl.rc_context(fname=STYLE), whole(path) as beside:
            self.figure_.savefig(beside, format=suffix[1:], metadata=dict(_NO_DATES[suffix]))
        return path

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: plot() draws it, save(path) writes it>"

    def _repr_png_(self) -> bytes:
        """The picture, as notebooks show it."""
        import matplotlib as mpl

        if self.figure_ is None:
            self.plot()
        assert self.figure_ is not None
        picture = io.BytesIO()
        with mpl.rc_context(fname=STYLE):
            self.figure_.savefig(picture, format="png", metadata=dict(_NO_DATES[".png"]))
        return picture.getvalue()

    def titled(self, title: str) -> Self:
        """The same display with a title."""
        self.title = title
        return self

    @abc.abstractmethod
    def _size(self) -> tuple[float, float]:
        """Width and height of a figure that suits the data [inch]."""

    @abc.abstractmethod
    def _draw(self, ax: Axes) -> None:
        """Draw on `ax`, labels included."""


def _wrapped(title: str, width: float) -> str:
    """A title whose lines fit a figure of so many inches."""
    letters = int(_LETTERS_PER_INCH * width)
    return "\n".join(part for line in title.splitlines() for part in textwrap.wrap(line, letters))


def event_patches(
    events: Iterable[str], *, hatched: bool = False, labels: Mapping[str, str] | None = None
) -> list[Patch]:
    """Legend entries of kinds of event, in the order of the palette; `labels` are words that count instead of its own."""
    from matplotlib.patches import Patch

    present = set(events)
    words = {**LABELS, **(labels or {})}
    return [
        Patch(
            facecolor=colour,
            edgecolor="white" if hatched and event in COMMUNICATION else colour,
            hatch="////" if hatched and event in COMMUNICATION else None,
            label=words.get(event, event),
        )
        for event, colour in EVENTS.items()
        if event in present
    ]


def legend_above(ax: Axes, handles: Sequence[Any], *, columns: int, lift: float = 2.0) -> None:
    """Put a legend above the axes, outside, where it hides nothing; `lift` in points over the axes."""
    from matplotlib.transforms import ScaledTranslation

    if not handles:
        return
    figure = ax.get_figure(root=True)
    assert figure is not None
    up = ScaledTranslation(0.0, lift / 72, figure.dpi_scale_trans)
    ax.legend(
        handles=handles,
        loc="lower left",
        bbox_to_anchor=(0.0, 1.0),
        bbox_transform=ax.transAxes + up,
        ncols=math.ceil(len(handles) / math.ceil(len(handles) / columns)),
        borderaxespad=0.0,
        handlelength=1.4,
        columnspacing=1.2,
    )


def thin(count: int, most: int) -> list[int]:
    """Which of `count` positions to label so that at most `most` are: every one, or every 2nd, 4th, 8th...

    Examples
    --------
    >>> thin(8, 4)
    [0, 2, 4, 6]
    """
    step = 2 ** max(0, math.ceil(math.log2(count / most))) if count else 1
    return list(range(0, count, step))


def short_number(value: float) -> str:
    """Three significant digits, without an exponent where that is readable.

    Examples
    --------
    >>> short_number(1234.5), short_number(0.01234)
    ('1234', '0.0123')
    """
    digits = 0 if abs(value) >= 100 else 3
    return f"{value:.{digits}f}" if digits == 0 else f"{value:.{digits}g}"
