"""Two timelines one above the other on one scale: a simulated step and a recorded one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from mpsim.plot.display import STYLE, Display
from mpsim.plot.timeline import TimelineDisplay, time_unit
from mpsim.program import TICK

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from mpsim.engine import Timeline

__all__ = ["TimelinesDisplay"]


class TimelinesDisplay(Display):
    """Timelines one above the other, each with a title, time to the same scale.

    Parameters
    ----------
    titles : tuple of str
        One a timeline, from top to bottom.
    timelines : tuple of Timeline
    """

    def __init__(self, titles: tuple[str, ...], timelines: tuple[Timeline, ...]) -> None:
        longest = max(timeline.makespan for timeline in timelines) * TICK
        unit, length = time_unit(longest)
        self.titles = titles
        self.longest = longest / length
        self.displays = tuple(
            TimelineDisplay.from_timeline(timeline, tick=TICK / length, unit=unit)
            for timeline in timelines
        )

    def plot(self, ax: Axes | None = None) -> Self:
        """Draw.

        Parameters
        ----------
        ax : Axes, optional
            Whose place the timelines take; left out, a figure of a size that suits the data.
        """
        import matplotlib as mpl
        from matplotlib.figure import Figure

        with mpl.rc_context(fname=STYLE):
            rows = [max(2, len(display.rank_names)) for display in self.displays]
            if ax is None:
                figure = Figure(figsize=self._size(), layout="constrained")
                axes = list(figure.subplots(len(rows), squeeze=False, height_ratios=rows)[:, 0])
                self.figure_ = figure
            else:
                ax.set_axis_off()
                share = 1.0 / len(rows)
                axes = [
                    ax.inset_axes((0.0, 1.0 - (place + 0.75) * share, 1.0, 0.6 * share))
                    for place in range(len(rows))
                ]
                self.figure_ = ax.get_figure(root=True)
            for place, display, title in zip(axes, self.displays, self.titles, strict=True):
                place.set_xlim(0.0, self.longest)
                display.plot(place)
                place.set_title(title, loc="right", fontsize=9)
            self.ax_ = axes[0]
        return self

    def _size(self) -> tuple[float, float]:
        sizes = [display._size() for display in self.displays]
        return sizes[0][0], sum(height for _, height in sizes) + 0.6

    def _draw(self, ax: Axes) -> None:
        raise NotImplementedError("several axes: see plot")
