"""The pictures of one result, by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from mpsim.plot.attribution import AttributionDisplay
from mpsim.plot.blame import BlameDisplay
from mpsim.plot.bubbles import BubbleDisplay
from mpsim.plot.display import Display
from mpsim.plot.heat import HeatDisplay
from mpsim.plot.links import LinksDisplay
from mpsim.plot.memory import MemoryCurveDisplay, MemoryDisplay, MemoryKindsDisplay
from mpsim.plot.roofline import RooflineDisplay
from mpsim.plot.timeline import TimelineDisplay
from mpsim.plot.utilisation import UtilisationDisplay
from mpsim.table import plural

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from mpsim.result import Result

__all__ = ["Plots"]

Shown = TypeVar("Shown", bound=Display)


def headline(result: Result) -> str:
    """The figures of a step that every one of its pictures says."""
    summary = result.summary
    memory = summary["memory"]
    return (
        f"{summary['step_time_s']:.4g} s a step on {plural(summary['accelerators'], 'accelerator')}, "
        f"{summary['tokens_per_s_per_accelerator']:,.0f} tokens/s each, MFU {summary['mfu']:.1%}, "
        f"bubble {summary['bubble_fraction']:.1%}, memory {memory['total'] / 1e9:.1f} of {memory['capacity'] / 1e9:.1f} GB"
    )


class Plots:
    """Pictures that ``result.plot`` offers; every method draws and returns a Display.

    Parameters
    ----------
    result : Result
    """

    def __init__(self, result: Result) -> None:
        self._result = result

    def _titled(self, display: Shown, what: str) -> Shown:
        """A display under the scenario, what the picture shows, and the headline of the step."""
        return display.titled(f"{self._result.scenario.name}: {what}\n{headline(self._result)}")

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
            display = TimelineDisplay.from_timeline(timeline, communication=False)
        else:
            display = TimelineDisplay.from_result(self._result, ranks=ranks, window=window)
        return self._titled(display, "timeline").plot(ax)

    def bubbles(self, ax: Axes | None = None) -> BubbleDisplay:
        """Draw the bubble of each rank in percent of the step."""
        display = BubbleDisplay.from_result(self._result)
        return self._titled(display, "bubble by cause").plot(ax)

    def attribution(self, ax: Axes | None = None, *, ranks: bool = True) -> AttributionDisplay:
        """Draw where the time goes: the mean and, with `ranks`, each rank."""
        display = AttributionDisplay.from_result(self._result, ranks=ranks)
        return self._titled(display, "where the time goes").plot(ax)

    def utilisation(self, ax: Axes | None = None) -> UtilisationDisplay:
        """Draw how busy compute and links are over time."""
        display = UtilisationDisplay.from_result(self._result)
        return self._titled(display, "use of compute and links").plot(ax)

    def heat(self, ax: Axes | None = None) -> HeatDisplay:
        """Draw on which ranks kernels run when."""
        return self._titled(HeatDisplay.from_result(self._result), "kernels by rank").plot(ax)

    def roofline(self, ax: Axes | None = None) -> RooflineDisplay:
        """Draw what kernels achieve under the peaks of matrix units and memory."""
        display = RooflineDisplay.from_result(self._result)
        return self._titled(display, "roofline of its kernels").plot(ax)

    def links(self, ax: Axes | None = None, *, most: int = 12) -> LinksDisplay:
        """Draw how busy the `most` busiest links are over time."""
        display = LinksDisplay.from_result(self._result, most=most)
        return self._titled(display, "use of links by tier").plot(ax)

    def memory(self, ax: Axes | None = None) -> MemoryDisplay:
        """Draw what fills the memory of each rank."""
        display = MemoryDisplay.from_result(self._result)
        return self._titled(display, "memory at its fullest").plot(ax)

    def memory_over_time(self, ax: Axes | None = None) -> MemoryCurveDisplay:
        """Draw what the first, the fullest and the last rank hold over time."""
        display = MemoryCurveDisplay.from_result(self._result)
        return self._titled(display, "memory over time").plot(ax)

    def memory_by_kind(
        self, ax: Axes | None = None, *, rank: int | None = None
    ) -> MemoryKindsDisplay:
        """Draw what one rank holds over time by kind, the fullest when left out."""
        display = MemoryKindsDisplay.from_result(self._result, rank=rank)
        return self._titled(display, "memory by kind").plot(ax)

    def blame(self, ax: Axes | None = None) -> BlameDisplay:
        """Draw who waited for whom because of it, under the scenario's ``variation:``."""
        blame = self._result.variation.blame
        display = BlameDisplay.with_most(blame.causes, blame.names, blame.matrix)
        return self._titled(display, "who waited for whom").plot(ax)

    def save(self, folder: str | Path) -> list[Path]:
        """Draw every picture into `folder` as PNG, which is made if need be; return the files."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        pictures: dict[str, Callable[[], Display]] = {
            "timeline": self.timeline,
            "bubbles": self.bubbles,
            "attribution": self.attribution,
            "utilisation": self.utilisation,
            "heat": self.heat,
            "roofline": self.roofline,
            "links": self.links,
            "memory": self.memory,
            "memory_over_time": self.memory_over_time,
            "memory_by_kind": self.memory_by_kind,
        }
        if self._result.scenario.variation is not None:
            pictures["blame"] = self.blame
        return [draw().save(folder / f"{name}.png") for name, draw in pictures.items()]
