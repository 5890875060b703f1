"""The pictures of one result, by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mpsim.plot.attribution import AttributionDisplay
from mpsim.plot.blame import BlameDisplay
from mpsim.plot.bubbles import BubbleDisplay
from mpsim.plot.display import Display
from mpsim.plot.links import LinksDisplay
from mpsim.plot.memory import MemoryCurveDisplay, MemoryDisplay
from mpsim.plot.timeline import TimelineDisplay
from mpsim.plot.utilisation import UtilisationDisplay

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from mpsim.result import Result

__all__ = ["Plots"]


class Plots:
    """Pictures that ``result.plot`` offers; every method draws and returns a Display.

    Parameters
    ----------
    result : Result
    """

    def __init__(self, result: Result) -> None:
        self._result = result

    def timeline(
        self,
        ax: Axes | None = None,
        *,
        communication: bool = True,
        ranks: Sequence[int] | None = None,
        window: tuple[float, float] | None = None,
    ) -> TimelineDisplay:
        """Draw ranks by time, a bar an action, and under it what they communicate, hatched where kernels wait for it.

        Parameters
        ----------
        ax : Axes, optional
        communication : bool
            Whether to draw communication; without it, all ranks and the whole step.
        ranks : sequence of int, optional
            Rank classes from top to bottom; all when left out.
        window : tuple of float, optional
            Part of the step to draw [s]; a short one shows layers.
        """
        if not communication:
            timeline = self._result.timeline
            return TimelineDisplay.from_timeline(timeline, communication=False).plot(ax)
        return TimelineDisplay.from_result(self._result, ranks=ranks, window=window).plot(ax)

    def bubbles(self, ax: Axes | None = None) -> BubbleDisplay:
        """Draw the bubble of each rank in percent of the step."""
        return BubbleDisplay.from_result(self._result).plot(ax)

    def attribution(self, ax: Axes | None = None, *, ranks: bool = True) -> AttributionDisplay:
        """Draw where the time goes: the mean and, with `ranks`, each rank."""
        return AttributionDisplay.from_result(self._result, ranks=ranks).plot(ax)

    def utilisation(self, ax: Axes | None = None) -> UtilisationDisplay:
        """Draw how busy compute and links are over time."""
        return UtilisationDisplay.from_result(self._result).plot(ax)

    def links(self, ax: Axes | None = None, *, most: int = 12) -> LinksDisplay:
        """Draw how busy the `most` busiest links are over time."""
        return LinksDisplay.from_result(self._result, most=most).plot(ax)

    def memory(self, ax: Axes | None = None) -> MemoryDisplay:
        """Draw what fills the memory of each rank."""
        return MemoryDisplay.from_result(self._result).plot(ax)

    def memory_over_time(self, ax: Axes | None = None) -> MemoryCurveDisplay:
        """Draw what the first, the fullest and the last rank hold over time."""
        return MemoryCurveDisplay.from_result(self._result).plot(ax)

    def blame(self, ax: Axes | None = None) -> BlameDisplay:
        """Draw who waited for whom because of it, under the scenario's ``variation:``."""
        blame = self._result.variation.blame
        return BlameDisplay.with_most(blame.causes, blame.names, blame.matrix).plot(ax)

    def save(self, folder: str | Path) -> list[Path]:
        """Draw every picture into `folder` as PNG, which is made if need be; return the files."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        pictures: dict[str, Callable[[], Display]] = {
            "timeline": self.timeline,
            "bubbles": self.bubbles,
            "attribution": self.attribution,
            "utilisation": self.utilisation,
            "links": self.links,
            "memory": self.memory,
            "memory_over_time": self.memory_over_time,
        }
        if self._result.scenario.variation is not None:
            pictures["blame"] = self.blame
        return [draw().save(folder / f"{name}.png") for name, draw in pictures.items()]
