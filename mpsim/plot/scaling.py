"""A figure of scaling: throughput against accelerators beside the straight line, and the parts of the step at each size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from mpsim.errors import ScenarioError
from mpsim.plot.display import Display, event_patches
from mpsim.plot.palette import EVENTS, MARKERS, SERIES, event_of_part

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["ScalingDisplay"]


class _Scaled(Protocol):
    """The part of a `mpsim.study.scaling.Scaled` that a picture reads."""

    @property
    def mode(self) -> str: ...
    @property
    def accelerators(self) -> int: ...
    @property
    def shares(self) -> Mapping[str, float]: ...
    def figure(self, name: str) -> float: ...


class _Scale(Protocol):
    """The part of a `mpsim.study.scaling.Scale` that a picture reads."""

    @property
    def rows(self) -> Sequence[_Scaled]: ...
    def of(self, mode: str) -> Sequence[Any]: ...


class ScalingDisplay(Display):
    """Throughput over the number of accelerators, and the share of the step by part, one panel a mode, with the efficiency as a line.

    Parameters
    ----------
    accelerators : mapping of str to int64[N]
        Sizes by mode.
    shares : mapping of str to mapping of str to float64[N]
        Share of the step by mode and part.
    efficiency : mapping of str to float64[N]
        Tokens a second and accelerator over those of the smallest size.
    rate : mapping of str to float64[N], optional
        Tokens a second by mode, drawn against the straight line from the smallest size.

    Raises
    ------
    ScenarioError
        If nothing could run.
    """

    def __init__(
        self,
        accelerators: Mapping[str, NDArray[np.int64]],
        shares: Mapping[str, Mapping[str, NDArray[np.float64]]],
        efficiency: Mapping[str, NDArray[np.float64]],
        rate: Mapping[str, NDArray[np.float64]] | None = None,
    ) -> None:
        if not accelerators:
            raise ScenarioError("no size could run: nothing to draw")
        self.accelerators, self.shares, self.efficiency = accelerators, shares, efficiency
        self.rate = dict(rate or {})

    @classmethod
    def from_scale(cls, scale: _Scale) -> ScalingDisplay:
        """Draw the sizes that could run."""
        sizes, shares, efficiency, rates = {}, {}, {}, {}
        for mode in dict.fromkeys(row.mode for row in scale.rows):
            rows = scale.of(mode)
            if not rows:
                continue
            sizes[mode] = np.array([row.accelerators for row in rows])
            rate = np.array([row.figure("tokens_per_s_per_accelerator") for row in rows])
            efficiency[mode] = rate / rate[0]
            rates[mode] = rate * sizes[mode]
            shares[mode] = {
                part: np.array([row.shares[part] for row in rows]) for part in rows[0].shares
            }
        return cls(sizes, shares, efficiency, rates)

    @property
    def _panels(self) -> int:
        return len(self.accelerators) + bool(self.rate)

    def _size(self) -> tuple[float, float]:
        return 4.6 * self._panels + 2.0, 4.5

    def _draw(self, ax: Axes) -> None:
        from matplotlib.ticker import PercentFormatter

        modes = list(self.accelerators)
        ax.set_axis_off()
        width = 1.0 / self._panels
        first = int(bool(self.rate))
        if self.rate:
            self._draw_rate(ax.inset_axes((0.02, 0.0, width - 0.06, 0.86)))
        for number, mode in enumerate(modes):
            panel = ax.inset_axes(((number + first) * width + 0.03, 0.0, width - 0.05, 0.86))
            self._draw_mode(panel, mode)
            panel.yaxis.set_major_formatter(PercentFormatter(1.0))
            if number:
                panel.set_yticklabels([])
            else:
                panel.set_ylabel("share of the step; efficiency")
        events = dict.fromkeys(
            event_of_part(part)
            for mode in modes
            for part, share in self.shares[mode].items()
            if share.max() > 0.001
        )
        handles = event_patches(events)
        ax.legend(
            handles=handles, loc="upper center", ncols=6, bbox_to_anchor=(0.5, 1.06), frameon=False
        )

    def _draw_rate(self, panel: Axes) -> None:
        """Tokens a second against accelerators, both on scales of powers, with the straight line dashed."""
        from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator

        sizes = np.unique(np.concatenate([*self.accelerators.values()]))
        base = max(float(rate[0] / self.accelerators[mode][0]) for mode, rate in self.rate.items())
        panel.plot(
            sizes,
            base * sizes,
            label="straight line",
            color=EVENTS["other"],
            linestyle="--",
            linewidth=1.0,
        )
        for number, (mode, rate) in enumerate(self.rate.items()):
            panel.plot(
                self.accelerators[mode],
                rate,
                color=SERIES[number],
                marker=MARKERS[number],
                label=f"{mode} scaling",
            )
        panel.set_xscale("log", base=2)
        panel.set_yscale("log", base=10)
        panel.xaxis.set_major_locator(FixedLocator(sizes.tolist()))
        panel.xaxis.set_minor_locator(NullLocator())
        panel.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        panel.yaxis.set_minor_locator(NullLocator())
        for axis in (panel.xaxis, panel.yaxis):
            axis.set_major_formatter(FuncFormatter(lambda number, _: f"{number:,.0f}"))
        panel.tick_params(axis="x", rotation=45)
        panel.set_xlabel("accelerators")
        panel.set_ylabel("tokens/s")
        panel.set_title("throughput", fontsize=9)
        panel.grid()
        panel.legend(loc="upper left")

    def _draw_mode(self, panel: Axes, mode: str) -> None:
        sizes = self.accelerators[mode]
        places = np.arange(len(sizes))
        base = np.zeros(len(sizes))
        for part, share in self.shares[mode].items():
            panel.bar(places, share, bottom=base, width=0.8, color=EVENTS[event_of_part(part)])
            base = base + share
        panel.plot(places, self.efficiency[mode], color="black", marker="o", linewidth=1.4)
        for place, value in zip(places.tolist(), self.efficiency[mode].tolist(), strict=True):
            panel.annotate(
                f"{value:.0%}",
                (place, value),
                xytext=(0, 6),
                textcoords="offset points",
                ha="center",
                fontsize=8,
                bbox={"boxstyle": "round,pad=0.15", "facecolor": "white", "edgecolor": "none"},
            )
        panel.set_xticks(places, [f"{size:,}" for size in sizes.tolist()], rotation=45)
        panel.set_xlabel("accelerators")
        panel.set_title(f"{mode} scaling, line: tokens a second and accelerator", fontsize=9)
        panel.set_ylim(0.0, 1.15)
