"""A figure of plans of one training: days against dollars, and those that no other beats in both."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from mpsim.errors import ScenarioError
from mpsim.plot.display import Display, legend_above
from mpsim.plot.palette import EVENTS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["PlanDisplay"]

_MILLION = 1e6


class _Training(Protocol):
    """The part of a `mpsim.study.plan.Training` that a picture reads."""

    @property
    def days(self) -> float: ...
    @property
    def cost(self) -> float | None: ...
    @property
    def accelerators(self) -> int: ...


class _Plans(Protocol):
    """The part of a `mpsim.study.plan.Plans` that a picture reads."""

    @property
    def rows(self) -> Sequence[_Training]: ...
    @property
    def front(self) -> Sequence[_Training]: ...
    @property
    def deadline(self) -> float | None: ...


class PlanDisplay(Display):
    """Plans by their days and dollars, the front of those that no other beats in both, and the deadline.

    Parameters
    ----------
    days, cost : float64[N]
        [d], [USD].
    front : int64[F]
        Places of the front, by days.
    names : sequence of str
        What to write beside each plan of the front.
    deadline : float, optional
        [d]

    Raises
    ------
    ScenarioError
        If no plan has a price.
    """

    def __init__(
        self,
        days: NDArray[np.float64],
        cost: NDArray[np.float64],
        front: NDArray[np.int64],
        names: Sequence[str] = (),
        deadline: float | None = None,
    ) -> None:
        if not len(days):
            raise ScenarioError("no plan has a price: nothing to draw; give --prices FILE")
        self.days, self.cost = np.asarray(days), np.asarray(cost)
        self.front, self.names, self.deadline = np.asarray(front), tuple(names), deadline

    @classmethod
    def from_plans(cls, plans: _Plans) -> PlanDisplay:
        """Draw the plans that have a price."""
        rows = [row for row in plans.rows if row.cost is not None]
        front = [next(i for i, row in enumerate(rows) if row is best) for best in plans.front]
        return cls(
            np.array([row.days for row in rows]),
            np.array([row.cost for row in rows], dtype=np.float64),
            np.array(front, dtype=np.int64),
            [f"{rows[i].accelerators:,} accelerators" for i in front],
            plans.deadline,
        )

    def _size(self) -> tuple[float, float]:
        return 8.0, 4.5

    def _draw(self, ax: Axes) -> None:
        cost = self.cost / _MILLION
        marks = [ax.scatter(self.days, cost, s=18, color=EVENTS["other"], label="plan")]
        (line,) = ax.plot(
            self.days[self.front],
            cost[self.front],
            marker="o",
            color=EVENTS["forward"],
            linewidth=1.3,
            drawstyle="steps-post",
            label="Pareto front: no other is better in both",
        )
        for number, (place, name) in enumerate(zip(self.front.tolist(), self.names, strict=False)):
            ax.annotate(
                name,
                (float(self.days[place]), float(cost[place])),
                xytext=(6, 8 if number % 2 else -14),
                textcoords="offset points",
                fontsize=8,
            )
        lines = [line]
        if self.deadline is not None:
            lines.append(
                ax.axvline(
                    self.deadline, color=EVENTS["backward"], linestyle="--", label="deadline"
                )
            )
        ax.set_xlabel("days of training, failures and checkpoints included")
        ax.set_ylabel("price (million USD)")
        ax.set_xlim(left=0.0, right=1.2 * float(max(self.days.max(), self.deadline or 0.0)))
        ax.set_ylim(0.0, 1.2 * float(cost.max()))
        ax.grid()
        legend_above(ax, [*marks, *lines], columns=3)
