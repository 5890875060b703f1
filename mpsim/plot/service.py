"""Pictures of a service: how its latencies spread, and how full its batches and its cache are over time.

Shapes: N requests, S iterations or jumps over equal ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import NDArray

from mpsim.plot.display import Display, legend_above
from mpsim.plot.palette import SERIES
from mpsim.serving.summary import itl, latencies
from mpsim.table import plural

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from mpsim.serving import ServiceResult

Titled = TypeVar("Titled", bound=Display)

__all__ = ["LatencyDisplay", "OccupancyDisplay", "ServicePlots"]

Floats = NDArray[np.float64]
_MILLI = 1e-3


class LatencyDisplay(Display):
    """Share of the requests that had a latency within so much, and the limit they were promised.

    Parameters
    ----------
    name : str
        Such as TTFT.
    seconds : float64[N]
        Latency of each request [s]; NaN for those without one.
    limit : float, optional
        What was promised [s].
    weights : float64[N], optional
        How often each counts; once by default.
    what : str
        Things that had it.
    """

    def __init__(
        self,
        name: str,
        seconds: Floats,
        limit: float | None = None,
        *,
        weights: Floats | None = None,
        what: str = "requests",
    ) -> None:
        self.name, self.limit, self.what = name, limit, what
        known = ~np.isnan(seconds)
        order = np.argsort(seconds[known], kind="stable")
        self.seconds = seconds[known][order]
        self.weights = np.ones(len(order)) if weights is None else weights[known][order]

    def _size(self) -> tuple[float, float]:
        return 6.0, 3.6

    def _draw(self, ax: Axes) -> None:
        from matplotlib.lines import Line2D

        count = len(self.seconds)
        reach = np.cumsum(self.weights)
        share = 100.0 * reach / (reach[-1] if count else 1.0)
        ax.step(self.seconds / _MILLI, share, where="post", color=SERIES[0], linewidth=1.5)
        handles = [
            Line2D([], [], color=SERIES[0], label=f"{round(self.weights.sum()):,} {self.what}")
        ]
        if self.limit is not None:
            ax.axvline(self.limit / _MILLI, color=SERIES[1], linestyle="--", linewidth=1.2)
            handles.append(Line2D([], [], color=SERIES[1], linestyle="--", label="limit"))
        if count and self.seconds[-1] > 20 * max(float(self.seconds[0]), 1e-9):
            ax.set_xscale("log")
        legend_above(ax, handles, columns=len(handles))
        ax.set_xlabel(f"{self.name} (ms)")
        ax.set_ylabel(f"{self.what} within (%)")
        ax.set_ylim(0, 101)
        ax.grid()


class OccupancyDisplay(Display):
    """Sequences that decode, or the share of the cache in use, over time, a line for each engine.

    Parameters
    ----------
    label : str
        What the values are.
    series : mapping of str to (float64[S], float64[S])
        Engine to start of its iterations [s] and value from then on.
    """

    def __init__(self, label: str, series: Mapping[str, tuple[Floats, Floats]]) -> None:
        self.label, self.series = label, dict(series)

    @classmethod
    def of(
        cls, result: ServiceResult, column: str, label: str, scales: Sequence[float]
    ) -> OccupancyDisplay:
        """A column of the iterations of a result, times the scale of each pool; a pool whose scale is 0 is left out."""
        steps, served = result.served.steps, result.served
        series = {}
        scale_of = [
            scale for scale, count in zip(scales, served.pools, strict=True) for _ in range(count)
        ]
        for number, (name, scale) in enumerate(zip(served.engine_names, scale_of, strict=True)):
            mine = steps["engine"] == number
            if mine.any() and scale:
                series[name] = steps["start"][mine], steps[column][mine] * scale
        return cls(label, series)

    def _size(self) -> tuple[float, float]:
        return 10.0, 3.2

    def _draw(self, ax: Axes) -> None:
        from matplotlib.lines import Line2D

        handles = []
        for place, (name, (times, values)) in enumerate(self.series.items()):
            colour = SERIES[place % len(SERIES)]
            ax.step(times, values, where="post", color=colour, linewidth=0.8)
            handles.append(Line2D([], [], color=colour, label=name))
        if 1 < len(handles) <= len(SERIES):
            legend_above(ax, handles, columns=max(1, len(handles)))
        ax.set_xlabel("time (s)")
        ax.set_ylabel(self.label)
        ax.set_ylim(bottom=0)
        ax.grid()


class ServicePlots:
    """Pictures that ``plot`` of a service's result offers; every method draws and returns a Display.

    Parameters
    ----------
    result : ServiceResult
    """

    def __init__(self, result: ServiceResult) -> None:
        self._result = result

    def ttft(self, ax: Axes | None = None) -> LatencyDisplay:
        """Draw how the time to the first token spreads over requests."""
        return self._latency("ttft", self._result.plan.slo.ttft, ax)

    def tpot(self, ax: Axes | None = None) -> LatencyDisplay:
        """Draw how the time of each further token spreads over requests."""
        return self._latency("tpot", self._result.plan.slo.tpot, ax)

    def itl(self, ax: Axes | None = None) -> LatencyDisplay:
        """Draw how the gaps between tokens spread over tokens."""
        gaps, weights = itl(self._result.served)
        display = LatencyDisplay("ITL", gaps, weights=weights, what="tokens")
        return self._titled(display, "gaps between tokens").plot(ax)

    def batch(self, ax: Axes | None = None) -> OccupancyDisplay:
        """Draw how many sequences decode over time."""
        return self._titled(self.batch_display(), "batch over time").plot(ax)

    def batch_display(self) -> OccupancyDisplay:
        """The picture that `batch` draws."""
        scales = [float(name != "prefill") for name in self._result.plan.pools]
        return OccupancyDisplay.of(self._result, "decodes", "sequences that decode", scales)

    def cache(self, ax: Axes | None = None) -> OccupancyDisplay:
        """Draw how full the cache is over time."""
        return self._titled(self.cache_display(), "cache over time").plot(ax)

    def cache_display(self) -> OccupancyDisplay:
        """The picture that `cache` draws."""
        pools = self._result.plan.pools.values()
        scales = [100.0 / max(1, pool.blocks // pool.pp) for pool in pools]
        return OccupancyDisplay.of(self._result, "used", "cache in use (%)", scales)

    def save(self, folder: str | Path) -> list[Path]:
        """Draw every picture into `folder` as PNG, which is made if need be; return the files."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        names = ("ttft", "tpot", "itl", "batch", "cache")
        draws = {name: getattr(self, name) for name in names}
        return [draw().save(folder / f"{name}.png") for name, draw in draws.items()]

    def _latency(self, name: str, limit: float | None, ax: Axes | None) -> LatencyDisplay:
        result = self._result
        times = latencies(result.served, result.requests, result.plan.first_token_time)
        display = LatencyDisplay(name.upper(), times[name], limit)
        return self._titled(display, f"{name.upper()} over requests").plot(ax)

    def _titled(self, display: Titled, what: str) -> Titled:
        """A display under the scenario, what the picture shows, and the headline of the service."""
        result, summary = self._result, self._result.summary
        headline = (
            f"{summary['request_rate_per_s']:.3g} requests/s on {plural(summary['accelerators'], 'accelerator')}, "
            f"{summary['output_tokens_per_s_per_accelerator']:,.0f} output tokens/s each, "
            f"median TTFT {1e3 * summary['ttft_s']['p50']:,.0f} ms, TPOT {1e3 * summary['tpot_s']['p50']:,.1f} ms"
        )
        return display.titled(f"{result.scenario.name}: {what}\n{headline}")
