"""Pictures of many services: speed for users against throughput of accelerators, and latency and goodput against the rate of requests.

Shapes: N services, R rates.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from mpsim.errors import ScenarioError
from mpsim.plot.display import Display, legend_above
from mpsim.plot.palette import EVENTS, SERIES

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["ServiceFrontDisplay", "ServiceRateDisplay"]

Floats = NDArray[np.float64]

_MILLI = 1e-3
_ROOM = 1.18  # above the highest point, for its name
_RATE = "serving.workload.rate"
_LONGEST = 50.0  # times the least latency: an overloaded service is cut off there


class _Found(Protocol):
    """The part of a `mpsim.study.FoundService` that a picture reads."""

    @property
    def per_user(self) -> float: ...
    @property
    def per_accelerator(self) -> float: ...
    @property
    def meets_slo(self) -> bool: ...
    @property
    def name(self) -> str: ...


class _Search(Protocol):
    """The part of a `mpsim.study.ServiceSearch` that a picture reads."""

    @property
    def rows(self) -> Sequence[_Found]: ...
    @property
    def front(self) -> Sequence[_Found]: ...


class _Row(Protocol):
    """The part of a `mpsim.study.Row` that a picture reads."""

    @property
    def values(self) -> Mapping[str, object]: ...
    @property
    def summary(self) -> Mapping[str, Any] | None: ...


class _Sweep(Protocol):
    """The part of a `mpsim.study.Sweep` that a picture reads."""

    @property
    def scenario(self) -> str: ...
    def __iter__(self) -> Iterator[_Row]: ...


class ServiceFrontDisplay(Display):
    """Output tokens/s of a user against those of an accelerator, and the services that no other beats in both.

    Parameters
    ----------
    per_user, per_accelerator : float64[N]
        Output tokens/s.
    front : sequence of int
        Services on the front, the fastest for users first.
    names : sequence of str
        Of those.
    kept : bool[N]
        Which keep the limits.

    Raises
    ------
    ScenarioError
        If there is nothing to draw.
    """

    def __init__(
        self,
        per_user: Floats,
        per_accelerator: Floats,
        front: Sequence[int],
        names: Sequence[str],
        kept: NDArray[np.bool_] | None = None,
    ) -> None:
        if not len(per_user):
            raise ScenarioError("no service was simulated: nothing to draw")
        self.per_user, self.per_accelerator = np.asarray(per_user), np.asarray(per_accelerator)
        self.front, self.names = np.asarray(front, dtype=np.int64), tuple(names)
        self.kept = np.ones(len(self.per_user), dtype=bool) if kept is None else np.asarray(kept)

    @classmethod
    def from_search(cls, search: _Search) -> ServiceFrontDisplay:
        """Draw what a search of services found."""
        rows = list(search.rows)
        front = [next(i for i, row in enumerate(rows) if row is best) for best in search.front]
        return cls(
            np.array([row.per_user for row in rows]),
            np.array([row.per_accelerator for row in rows]),
            front,
            [rows[place].name for place in front],
            np.array([row.meets_slo for row in rows]),
        )

    def _size(self) -> tuple[float, float]:
        return 8.0, 4.8

    def _draw(self, ax: Axes) -> None:
        x, y = self.per_user, self.per_accelerator
        handles: list[Any] = []
        for kept, label, face in (
            (True, "keeps the limits", EVENTS["other"]),
            (False, "misses the limits", "none"),
        ):
            mine = self.kept == kept
            if mine.any():
                handles.append(
                    ax.scatter(
                        x[mine],
                        y[mine],
                        s=16,
                        facecolors=face,
                        edgecolors=EVENTS["other"],
                        label=label,
                    )
                )
        (line,) = ax.plot(
            x[self.front],
            y[self.front],
            color=EVENTS["forward"],
            marker="o",
            markersize=5,
            linewidth=1.3,
            label="Pareto front: no other is better in both",
        )
        for number, (place, name) in enumerate(
            zip(self.front.tolist(), self.names, strict=True), 1
        ):
            ax.annotate(
                f"{number}",
                (x[place], y[place]),
                xytext=(4, 4),
                textcoords="offset points",
                fontsize=8,
            )
            ax.text(
                1.01,
                1.0 - 0.055 * (number - 1),
                f"{number}  {name}",
                transform=ax.transAxes,
                va="top",
                fontsize=7,
            )
        ax.set_xlabel("output tokens/s of a user")
        ax.set_ylabel("output tokens/s of an accelerator")
        ax.set_xlim(0, _ROOM * float(x.max()))
        ax.set_ylim(0, _ROOM * float(y.max()))
        ax.grid()
        legend_above(ax, [*handles, line], columns=len(handles) + 1)


class ServiceRateDisplay(Display):
    """Figures of a service against the rate of its requests.

    Parameters
    ----------
    rates : float64[R]
        Requests a second.
    series : mapping of str to float64[R]
        Name of each line to its values.
    label : str
        What the vertical axis says.
    limit : float, optional
        What was promised, in the unit of the values.
    ideal : bool
        Whether to draw the line on which as many are served as come.
    """

    def __init__(
        self,
        rates: Floats,
        series: Mapping[str, Floats],
        label: str,
        *,
        limit: float | None = None,
        ideal: bool = False,
    ) -> None:
        if not len(rates):
            raise ScenarioError("no rate was simulated: nothing to draw")
        self.rates, self.series = np.asarray(rates), dict(series)
        self.label, self.limit, self.ideal = label, limit, ideal

    @classmethod
    def latency(cls, sweep: _Sweep, name: str = "ttft") -> ServiceRateDisplay:
        """Percentiles of a latency (``ttft``, ``tpot``, ``itl``, ``e2e``) against the rate, of a sweep over it."""
        rates, summaries = _by_rate(sweep)
        series = {
            which: np.array([summary[f"{name}_s"][which] for summary in summaries]) / _MILLI
            for which in ("p50", "p90", "p99")
        }
        limit = summaries[0]["slo"].get(f"{name}_s")
        return cls(
            rates,
            series,
            f"{name.upper()} (ms)",
            limit=None if limit is None else float(limit) / _MILLI,
        )

    @classmethod
    def goodput(cls, sweeps: Mapping[str, _Sweep]) -> ServiceRateDisplay:
        """Requests a second within the limits against the rate, a line for each sweep; all over the same rates."""
        known = {name: _by_rate(sweep) for name, sweep in sweeps.items()}
        rates = next(iter(known.values()))[0]
        series = {
            name: np.array([summary["goodput_per_s"] or 0.0 for summary in summaries])
            for name, (_, summaries) in known.items()
        }
        return cls(rates, series, "requests/s within the limits", ideal=True)

    def _size(self) -> tuple[float, float]:
        return 6.4, 4.0

    def _draw(self, ax: Axes) -> None:
        from matplotlib.lines import Line2D

        handles = []
        for place, (name, values) in enumerate(self.series.items()):
            colour = SERIES[place % len(SERIES)]
            ax.plot(self.rates, values, color=colour, marker="o", markersize=3, linewidth=1.4)
            handles.append(Line2D([], [], color=colour, marker="o", markersize=3, label=name))
        if self.ideal:
            ax.plot(self.rates, self.rates, color=EVENTS["other"], linestyle=":", linewidth=1.2)
            handles.append(Line2D([], [], color=EVENTS["other"], linestyle=":", label="all"))
        if self.limit is not None:
            ax.axhline(self.limit, color=EVENTS["other"], linestyle="--", linewidth=1.2)
            handles.append(Line2D([], [], color=EVENTS["other"], linestyle="--", label="limit"))
        values = np.concatenate(list(self.series.values()))
        if not self.ideal and values.max() > _LONGEST * max(float(values.min()), 1e-9):
            ax.set_yscale("log")
        else:
            ax.set_ylim(bottom=0)
        ax.set_xlim(left=0)
        ax.set_xlabel("requests/s")
        ax.set_ylabel(self.label)
        ax.grid()
        legend_above(ax, handles, columns=len(handles))


def _by_rate(sweep: _Sweep) -> tuple[Floats, list[Mapping[str, Any]]]:
    """Rates that were simulated, ascending, and their summaries."""
    pairs = [
        (float(str(row.values[_RATE])), row.summary)
        for row in sweep
        if row.summary is not None and _RATE in row.values
    ]
    if not pairs:
        raise ScenarioError(f"{sweep.scenario}: no row has a rate; sweep over {_RATE}")
    pairs.sort(key=lambda pair: pair[0])
    return np.array([rate for rate, _ in pairs]), [summary for _, summary in pairs]
