"""Pipeline bubbles of every rank, in percent of the step.

Shapes: R ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from mpsim.plot.display import Display, thin
from mpsim.plot.palette import EVENTS
from mpsim.training.vocabulary import PARTS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from mpsim.engine import Timeline
    from mpsim.result import Result

__all__ = ["BubbleDisplay"]

_BUBBLE = PARTS.index("bubble")
_MOST_LABELLED = 24


class BubbleDisplay(Display):
    """One bar a rank class: its bubble in percent of the step, and the mean over ranks as a line.

    Parameters
    ----------
    names : sequence of str
        One a bar.
    fraction : float64[R]
        Bubble over step time, in [0, 1].
    class_size : int64[R], optional
        Ranks each bar stands for; left out, one each.
    """

    def __init__(
        self,
        names: Sequence[str],
        fraction: NDArray[np.float64],
        class_size: NDArray[np.int64] | None = None,
    ) -> None:
        self.names = tuple(names)
        self.fraction = np.asarray(fraction, dtype=np.float64)
        self.mean = float(np.average(self.fraction, weights=class_size))

    @classmethod
    def from_result(cls, result: Result) -> BubbleDisplay:
        """Bubbles of a result."""
        return cls._from_ticks(result.timeline, result.parts)

    @classmethod
    def from_timeline(cls, timeline: Timeline) -> BubbleDisplay:
        """Bubbles of a timeline."""
        from mpsim.training.account import attribute

        return cls._from_ticks(timeline, attribute(timeline))

    @classmethod
    def _from_ticks(cls, timeline: Timeline, parts: NDArray[np.float64]) -> BubbleDisplay:
        program = timeline.program
        return cls(program.rank_name, parts[:, _BUBBLE] / timeline.makespan, program.class_size)

    def _size(self) -> tuple[float, float]:
        return float(np.clip(2.0 + 0.35 * len(self.names), 5.0, 12.0)), 3.2

    def _draw(self, ax: Axes) -> None:
        percent = 100 * self.fraction
        place = np.arange(len(percent))
        ax.bar(place, percent, color=EVENTS["bubble"], edgecolor=EVENTS["other"], linewidth=0.8)
        if len(percent) <= _MOST_LABELLED:
            for x, height in zip(place.tolist(), percent.tolist(), strict=True):
                ax.text(x, height, f"{height:.1f}", ha="center", va="bottom", fontsize=7)
        mean = 100 * self.mean
        ax.axhline(mean, color=EVENTS["forward"], linestyle="--", linewidth=1.2)
        ax.set_title(f"mean over ranks {mean:.1f} %", color=EVENTS["forward"])
        named = thin(len(self.names), 16)
        ax.set_xticks(named, [self.names[rank] for rank in named])
        ax.set_xlabel("rank")
        ax.set_ylabel("bubble (% of the step)")
        ax.set_xlim(-0.6, len(percent) - 0.4)
        ax.set_ylim(0.0, 1.12 * max(float(percent.max(initial=0.0)), mean) or 1.0)
        ax.grid(axis="y")
