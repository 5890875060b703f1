"""The pictures of one result, by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar

from mpsim.engine import Timeline
from mpsim.plot.chart import Chart
from mpsim.plot.pen import Display
from mpsim.plot.service import batch_chart, cache_chart, itl_chart, latency_chart
from mpsim.plot.step import (
    attribution_chart,
    blame_chart,
    bubble_chart,
    heat_chart,
    links_chart,
    memory_chart,
    memory_curve_chart,
    memory_kinds_chart,
    roofline_chart,
    utilisation_chart,
)
from mpsim.plot.timeline import timeline_chart
from mpsim.result import Result
from mpsim.result.result import JobResult
from mpsim.serving import ServiceResult
from mpsim.table import plural
from mpsim.units import Dimension, format_quantity

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["Plots", "ServicePlots", "draw_timeline"]


R = TypeVar("R", bound=JobResult)


class _Pictures(Generic[R]):
    """Pictures of any job: a title with the headline, and a folder to be written to."""

    _names: Sequence[str] = ()

    def __init__(self, result: R) -> None:
        self._result = result

    def _headline(self) -> str:
        """The figures that stand under every title."""
        raise NotImplementedError

    def _drawn(self, chart: Chart, what: str, ax: Axes | None) -> Display:
        """A chart under the scenario, what it shows, and the headline of the job."""
        return Display(
            chart.titled(f"{self._result.scenario.name}: {what}\n{self._headline()}")
        ).plot(ax)

    def save(self, folder: str | Path) -> list[Path]:
        """Draw every picture into `folder` as PNG, which is made if need be; return the files."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        return [getattr(self, name)().save(folder / f"{name}.png") for name in self._names]


class Plots(_Pictures[Result]):
    """Pictures that ``result.plot`` offers; every method draws and returns a Display."""

    _names: Sequence[str] = (
        *("timeline", "bubbles", "attribution", "utilisation", "heat", "roofline", "links"),
        *("memory", "memory_over_time", "memory_by_kind"),
    )

    def _headline(self) -> str:
        summary, memory = self._result.summary, self._result.summary["memory"]
        return (
            f"{format_quantity(summary['step_time_s'], Dimension.TIME)} a step on {plural(summary['accelerators'], 'accelerator')}, "
            f"{summary['tokens_per_s_per_accelerator']:,.0f} tokens/s each, MFU {summary['mfu']:.1%}, "
            f"bubble {summary['bubble_fraction']:.1%}, memory {memory['total'] / 1e9:.1f} of {memory['capacity'] / 1e9:.1f} GB"
        )

    def save(self, folder: str | Path) -> list[Path]:
        """Draw every picture into `folder` as PNG, which is made if need be; return the files."""
        if self._result.scenario.variation is not None:
            self._names = (*Plots._names, "blame")
        return super().save(folder)

    def timeline(
        self,
        ax: Axes | None = None,
        *,
        communication: bool = True,
        ranks: Sequence[int] | None = None,
        window: tuple[float, float] | None = None,
    ) -> Display:
        """Draw ranks by time, a bar an action, and under it what they communicate, hatched where kernels wait for it.

        Parameters
        ----------
        communication : bool
            Whether to draw communication; without it, all ranks and the whole step.
        ranks : sequence of int, optional
            Rank classes from top to bottom; all when left out.
        window : tuple of float, optional
            Part of the step to draw [s]; a short one shows layers.
        """
        chart = timeline_chart(
            self._result, communication=communication, ranks=ranks, window=window
        )
        return self._drawn(chart, "timeline", ax)

    def bubbles(self, ax: Axes | None = None) -> Display:
        """Draw the bubble of each rank in percent of the step."""
        return self._drawn(bubble_chart(self._result), "bubble by cause", ax)

    def attribution(self, ax: Axes | None = None, *, ranks: bool = True) -> Display:
        """Draw where the time goes: the mean and, with `ranks`, each rank."""
        return self._drawn(attribution_chart(self._result, ranks=ranks), "where the time goes", ax)

    def utilisation(self, ax: Axes | None = None) -> Display:
        """Draw how busy compute and links are over time."""
        return self._drawn(utilisation_chart(self._result), "use of compute and links", ax)

    def heat(self, ax: Axes | None = None) -> Display:
        """Draw on which ranks kernels run when."""
        return self._drawn(heat_chart(self._result), "kernels by rank", ax)

    def roofline(self, ax: Axes | None = None) -> Display:
        """Draw the kernels below the peaks of the accelerator."""
        return self._drawn(roofline_chart(self._result), "roofline of its kernels", ax)

    def links(self, ax: Axes | None = None, *, most: int = 12) -> Display:
        """Draw how busy the `most` busiest links are over time."""
        return self._drawn(links_chart(self._result, most=most), "use of links by tier", ax)

    def memory(self, ax: Axes | None = None) -> Display:
        """Draw what fills the memory of each rank."""
        return self._drawn(memory_chart(self._result), "memory at its fullest", ax)

    def memory_over_time(self, ax: Axes | None = None) -> Display:
        """Draw what the first, the fullest and the last rank hold over time."""
        return self._drawn(memory_curve_chart(self._result), "memory over time", ax)

    def memory_by_kind(self, ax: Axes | None = None, *, rank: int | None = None) -> Display:
        """Draw what one rank holds over time by kind, the fullest when left out."""
        return self._drawn(memory_kinds_chart(self._result, rank=rank), "memory by kind", ax)

    def blame(self, ax: Axes | None = None) -> Display:
        """Draw who waited for whom because of it, under the scenario's ``variation:``."""
        blame = self._result.variation.blame
        chart = blame_chart(blame.causes, blame.names, blame.matrix)
        return self._drawn(chart, "who waited for whom", ax)


class ServicePlots(_Pictures[ServiceResult]):
    """Pictures that ``plot`` of a service's result offers; every method draws and returns a Display."""

    _names = ("ttft", "tpot", "itl", "batch", "cache")

    def _headline(self) -> str:
        summary = self._result.summary
        return (
            f"{summary['request_rate_per_s']:.3g} requests/s on {plural(summary['accelerators'], 'accelerator')}, "
            f"{summary['output_tokens_per_s_per_accelerator']:,.0f} output tokens/s each, "
            f"median TTFT {1e3 * summary['ttft_s']['p50']:,.0f} ms, TPOT {1e3 * summary['tpot_s']['p50']:,.1f} ms"
        )

    def ttft(self, ax: Axes | None = None) -> Display:
        """Draw how the time to the first token spreads over requests."""
        return self._drawn(latency_chart(self._result, "ttft"), "TTFT over requests", ax)

    def tpot(self, ax: Axes | None = None) -> Display:
        """Draw how the time of each further token spreads over requests."""
        return self._drawn(latency_chart(self._result, "tpot"), "TPOT over requests", ax)

    def itl(self, ax: Axes | None = None) -> Display:
        """Draw how the gaps between tokens spread over tokens."""
        return self._drawn(itl_chart(self._result), "gaps between tokens", ax)

    def batch(self, ax: Axes | None = None) -> Display:
        """Draw how many sequences decode over time."""
        return self._drawn(batch_chart(self._result), "batch over time", ax)

    def cache(self, ax: Axes | None = None) -> Display:
        """Draw how full the cache is over time."""
        return self._drawn(cache_chart(self._result), "cache over time", ax)


def draw_timeline(timeline: Timeline, labels: Mapping[str, str] | None = None) -> Display:
    """Draw any timeline, with communication under the kernels; `labels` are words of the legend for kinds of event."""
    return Display(timeline_chart(timeline, labels=labels)).plot()
