"""The pictures of one result, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from mpsim.engine import Timeline
from mpsim.plot import service, step
from mpsim.plot.chart import Chart
from mpsim.plot.pen import Display
from mpsim.plot.timeline import timeline_chart
from mpsim.result import Result
from mpsim.result.result import JobResult
from mpsim.serving import ServiceResult
from mpsim.table import plural
from mpsim.units import Dimension, format_quantity

if TYPE_CHECKING:
    from matplotlib.axes import Axes

R = TypeVar("R", bound=JobResult)


def _picture(what: str, chart: Callable[..., Chart]) -> Callable[..., Display]:
    """A method that draws the chart of a result, with its options, under `what` it shows."""

    def draw(self: _Pictures[Any], ax: Axes | None = None, **options: object) -> Display:
        result = self._result
        title = f"{result.scenario.name}: {what}\n{self._headline()}"
        return Display(chart(result, **options).titled(title)).plot(ax)

    draw.__doc__ = f"""Draw on axes or a figure of its own; returns a Display. {chart.__doc__}"""
    return draw


class _Pictures(Generic[R]):
    """Pictures of any job: each under its headline, all written into a folder."""

    def __init__(self, result: R) -> None:
        self._result = result

    def _headline(self) -> str:
        """The figures that stand under every title."""
        raise NotImplementedError

    def _names(self) -> list[str]:
        """The pictures that there are, in the order of the class."""
        return [name for name in vars(type(self)) if not name.startswith("_")]

    def save(self, folder: str | Path) -> list[Path]:
        """Draw every picture into `folder` as PNG, which is made if need be; return the files."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        return [getattr(self, name)().save(folder / f"{name}.png") for name in self._names()]


class Plots(_Pictures[Result]):
    """Pictures that ``result.plot`` offers; every method draws and returns a Display."""

    timeline = _picture("timeline", timeline_chart)
    bubbles = _picture("bubble by cause", step.bubble_chart)
    attribution = _picture("where the time goes", step.attribution_chart)
    utilisation = _picture("use of compute and links", step.utilisation_chart)
    heat = _picture("kernels by rank", step.heat_chart)
    roofline = _picture("roofline of its kernels", step.roofline_chart)
    links = _picture("use of links by tier", step.links_chart)
    memory = _picture("memory at its fullest", step.memory_chart)
    memory_over_time = _picture("memory over time", step.memory_curve_chart)
    memory_by_kind = _picture("memory by kind", step.memory_kinds_chart)
    blame = _picture("who waited for whom", lambda result: step.blame_chart(result.variation.blame))

    def _headline(self) -> str:
        summary, memory = self._result.summary, self._result.summary["memory"]
        return (
            f"{format_quantity(summary['step_time_s'], Dimension.TIME)} a step on"
            f" {plural(summary['accelerators'], 'accelerator')},"
            f" {summary['tokens_per_s_per_accelerator']:,.0f} tokens/s each, MFU"
            f" {summary['mfu']:.1%}, bubble {summary['bubble_fraction']:.1%}, memory"
            f" {memory['total'] / 1e9:.1f} of {memory['capacity'] / 1e9:.1f} GB"
        )

    def _names(self) -> list[str]:
        varies, used = self._result.scenario.variation is not None, self._result.links.busiest(1)
        empty = {"blame": not varies, "links": not used.size}
        return [name for name in super()._names() if not empty.get(name)]


class ServicePlots(_Pictures[ServiceResult]):
    """Pictures of ``plot`` of a service's result; every method draws and returns a Display."""

    ttft = _picture("TTFT over requests", lambda result: service.latency_chart(result, "ttft"))
    tpot = _picture("TPOT over requests", lambda result: service.latency_chart(result, "tpot"))
    itl = _picture("gaps between tokens", service.itl_chart)
    batch = _picture("batch over time", service.batch_chart)
    cache = _picture("cache over time", service.cache_chart)
    lives = _picture("lives of requests", service.lives_chart)

    def _headline(self) -> str:
        summary = self._result.summary
        return (
            f"{summary['request_rate_per_s']:.3g} requests/s on"
            f" {plural(summary['accelerators'], 'accelerator')},"
            f" {summary['output_tokens_per_s_per_accelerator']:,.0f} output tokens/s each, median"
            f" TTFT {1e3 * summary['ttft_s']['p50']:,.0f} ms, TPOT"
            f" {1e3 * summary['tpot_s']['p50']:,.1f} ms"
        )


def draw_timeline(timeline: Timeline, labels: Mapping[str, str] | None = None) -> Display:
    """Draw any timeline, communication under kernels; `labels` are words of the legend."""
    return Display(timeline_chart(timeline, labels=labels)).plot()
