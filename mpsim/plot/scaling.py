"""A figure of scaling: throughput against accelerators beside the straight line, and the parts of the step at each size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from mpsim.errors import ScenarioError
from mpsim.plot.display import Display, event_patches
from mpsim.plot.palette import EVENTS, event_of_part

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
    """Share of the step by part over the number of accelerators, one panel a mode, with the efficiency as a line.

    Parameters
    ----------
    accelerators : mapping of str to int64[N]
        Sizes by mode.
    shares : mapping of str to mapping of str to float64[N]
        Share of the step by mode and part.
    efficiency : mapping of str to float64[N]
        Tokens a second and accelerator over those of the smallest size.

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
    ) -> None:
        if not accelerators:
            raise ScenarioError("no size could run: nothing to draw")
        self.accelerators, self.shares, self.efficiency = accelerators, shares, efficiency

    @classmethod
    def from_scale(cls, scale: _Scale) -> ScalingDisplay:
        """Draw the sizes that could run."""
        sizes, shares, efficiency = {}, {}, {}
        for mode in dict.fromkeys(row.mode for row in scale.rows):
            rows = scale.of(mode)
            if not rows:
                continue
            sizes[mode] = np.array([row.accelerators for row in rows])
            rate = np.array([row.figure("tokens_per_s_per_accelerator") for row in rows])
            efficiency[mode] = rate / rate[0]
            shares[mode] = {
                part: np.array([row.shares[part] for row in rows]) for part in rows[0].shares
            }
        return cls(sizes, shares, efficiency)

    def _size(self) -> tuple[float, float]:
        return 5.0 * len(self.accelerators) + 2.0, 4.5

    def _draw(self, ax: Axes) -> None:
        from matplotlib.ticker import PercentFormatter

        modes = list(self.accelerators)
        ax.set_axis_off()
        width = 1.0 / len(modes)
        for number, mode in enumerate(modes):
            panel = ax.inset_axes((number * width + 0.03, 0.0, width - 0.05, 0.86))
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
