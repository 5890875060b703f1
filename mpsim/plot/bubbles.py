"""Pipeline bubbles of every rank by cause, in percent of the step.

Shapes: R ranks, C causes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mpsim.plot.display import Display, legend_above, thin
from mpsim.plot.palette import BUBBLE, EVENTS
from mpsim.training.account import idle_waits
from mpsim.training.bubbles import CAUSES, bubble_causes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from mpsim.engine import Timeline
    from mpsim.result import Result, Waits

__all__ = ["BubbleDisplay"]

_MOST_LABELLED = 24
_VISIBLE = 1e-3  # share of the step whose bar has any height
_NARROW = 7.0  # width under which the legend takes two rows [inch]


class BubbleDisplay(Display):
    """One bar a rank class: its bubble in percent of the step, stacked by cause, and the mean over ranks as a line.

    Parameters
    ----------
    names : sequence of str
        One a bar.
    fraction : float64[R]
        Bubble over step time, in [0, 1].
    class_size : int64[R], optional
        Ranks each bar stands for; left out, one each.
    causes : mapping of str to float64[R], optional
        Cause (`mpsim.training.bubbles.CAUSES`) to its share of the step; they sum to `fraction`. Left out, bars are not divided.
    """

    def __init__(
        self,
        names: Sequence[str],
        fraction: NDArray[np.float64],
        class_size: NDArray[np.int64] | None = None,
        *,
        causes: Mapping[str, NDArray[np.float64]] | None = None,
    ) -> None:
        self.names = tuple(names)
        self.fraction = np.asarray(fraction, dtype=np.float64)
        self.causes = dict(causes or {"bubble": self.fraction})
        self.mean = float(np.average(self.fraction, weights=class_size))

    @classmethod
    def from_result(cls, result: Result) -> BubbleDisplay:
        """Bubbles of a result."""
        return cls._from_waits(result.timeline, result.idle)

    @classmethod
    def from_timeline(cls, timeline: Timeline) -> BubbleDisplay:
        """Bubbles of a timeline."""
        return cls._from_waits(timeline, idle_waits(timeline))

    @classmethod
    def _from_waits(cls, timeline: Timeline, idle: Waits) -> BubbleDisplay:
        program, ticks = timeline.program, bubble_causes(timeline, idle).ticks
        causes = dict(zip(CAUSES, ticks.T / timeline.makespan, strict=True))
        share = ticks.sum(axis=1) / timeline.makespan
        return cls(program.rank_name, share, program.class_size, causes=causes)

    def _size(self) -> tuple[float, float]:
        return float(np.clip(2.0 + 0.35 * len(self.names), 6.0, 12.0)), 3.6

    def _draw(self, ax: Axes) -> None:
        from matplotlib.lines import Line2D
        from matplotlib.patches import Patch

        place, base = np.arange(len(self.names)), np.zeros(len(self.names))
        handles: list[Any] = []
        for name, share in self.causes.items():
            if not share.any():
                continue
            colour = BUBBLE.get(name, EVENTS["bubble"])
            ax.bar(
                place,
                100 * share,
                bottom=base,
                color=colour,
                edgecolor="white",
                linewidth=0.3,
            )
            if share.max() > _VISIBLE:
                handles.append(Patch(facecolor=colour, label=name))
            base = base + 100 * share
        if len(base) <= _MOST_LABELLED:
            for x, height in zip(place.tolist(), base.tolist(), strict=True):
                ax.text(x, height, f"{height:.1f}", ha="center", va="bottom", fontsize=7)
        mean = 100 * self.mean
        ax.axhline(mean, color=EVENTS["forward"], linestyle="--", linewidth=1.2)
        words = f"mean over ranks {mean:.1f} %"
        handles.append(Line2D([], [], color=EVENTS["forward"], linestyle="--", label=words))
        legend_above(ax, handles, columns=len(handles) if self._size()[0] > _NARROW else 3)
        named = thin(len(self.names), 16)
        ax.set_xticks(named, [self.names[rank] for rank in named])
        ax.set_xlabel("rank")
        ax.set_ylabel("bubble (% of the step)")
        ax.set_xlim(-0.6, len(base) - 0.4)
        ax.set_ylim(0.0, 1.12 * max(float(base.max(initial=0.0)), mean) or 1.0)
        ax.grid(axis="y")
