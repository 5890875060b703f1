"""Schedules side by side: the bubble of each against the activations that it holds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from mpsim.errors import ScenarioError
from mpsim.plot.display import Display, legend_above
from mpsim.plot.palette import EVENTS, SERIES

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["SchedulesDisplay"]

_MARKERS = "oDs"
_ALIKE = 1e-9  # share of the largest within which two schedules share a mark
_POINTS = 7.5
_LETTER, _LINE, _BESIDE, _MARK = (
    0.0098,
    0.036,
    0.012,
    0.009,
)  # sizes of names and marks [share of the axes]

Box = tuple[float, float, float, float]


class _Timed(Protocol):
    """The part of a `mpsim.study.TimedSchedule` that a picture reads."""

    @property
    def bubble_fraction(self) -> float: ...


class _Choice(Protocol):
    """The part of a `mpsim.study.ScheduleChoice` that a picture reads."""

    @property
    def name(self) -> str: ...
    @property
    def timed(self) -> _Timed | None: ...
    @property
    def activations(self) -> float: ...
    @property
    def weight_copies(self) -> int: ...
    @property
    def reason(self) -> str: ...


class SchedulesDisplay(Display):
    """One mark a schedule, named; a line through those that no other beats in bubble and memory.

    Hollow marks do not fit the memory that was given; the shape tells copies of the weights.

    Parameters
    ----------
    names : sequence of str
    bubble : float64[N]
        Share of the makespan, in [0, 1].
    activations : float64[N]
        Most that a rank holds, in activations of its whole share of the model.
    copies : sequence of int, optional
        Copies of the weights that each rank holds; left out, one.
    fits : sequence of bool, optional
        Whether each fits; left out, all do.
    memory : float, optional
        Activations that fit.

    Raises
    ------
    ScenarioError
        If there is no schedule.
    """

    def __init__(
        self,
        names: Sequence[str],
        bubble: Sequence[float] | NDArray[np.float64],
        activations: Sequence[float] | NDArray[np.float64],
        *,
        copies: Sequence[int] = (),
        fits: Sequence[bool] = (),
        memory: float | None = None,
    ) -> None:
        if not len(names):
            raise ScenarioError("no schedule could be built: nothing to draw")
        self.names = tuple(names)
        self.bubble = np.asarray(bubble, dtype=np.float64)
        self.activations = np.asarray(activations, dtype=np.float64)
        self.copies = tuple(copies) or (1,) * len(self.names)
        self.fits = np.asarray(fits, dtype=bool) if len(fits) else np.ones(len(self.names), bool)
        self.memory = memory

    @classmethod
    def from_choices(
        cls, choices: Sequence[_Choice], *, memory: float | None = None
    ) -> SchedulesDisplay:
        """Draw the schedules of a comparison that could be built; `memory` as the comparison had it."""
        built = [(choice, choice.timed) for choice in choices if choice.timed is not None]
        return cls(
            [choice.name for choice, _ in built],
            [timed.bubble_fraction for _, timed in built],
            [choice.activations for choice, _ in built],
            copies=[choice.weight_copies for choice, _ in built],
            fits=[not choice.reason for choice, _ in built],
            memory=memory,
        )

    @property
    def front(self) -> NDArray[np.int64]:
        """Schedules that fit and that no other that fits beats in both, the least memory first."""
        order = np.lexsort((self.bubble, self.activations))
        front: list[int] = []
        for place in order[self.fits[order]].tolist():
            if not front or self.bubble[place] < self.bubble[front[-1]]:
                front.append(place)
        return np.array(front, dtype=np.int64)

    def _size(self) -> tuple[float, float]:
        return 9.0, 5.0

    def _draw(self, ax: Axes) -> None:
        from matplotlib.lines import Line2D
        from matplotlib.ticker import FuncFormatter

        front = self.front
        percent = 100 * self.bubble
        positive = self.activations[self.activations > 0]
        ax.set_xscale("log", base=2)
        least, most = (positive.min(), positive.max()) if len(positive) else (1.0, 1.0)
        ax.set_xlim(0.7 * float(least), 1.6 * float(most))
        ax.set_ylim(-0.04 * float(percent.max()), 1.12 * float(percent.max()) or 1.0)
        ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        ax.plot(
            self.activations[front],
            percent[front],
            color=EVENTS["other"],
            linewidth=1.0,
            drawstyle="steps-post",
            zorder=1,
        )
        label = "Pareto front: no other is better in both"
        handles: list[Any] = [Line2D([], [], color=EVENTS["other"], label=label)]
        for number, copies in enumerate(sorted(set(self.copies))):
            marker, colour = _MARKERS[number % len(_MARKERS)], SERIES[number % len(SERIES)]
            for fits in (True, False):
                mine = (np.array(self.copies) == copies) & (self.fits == fits)
                if not mine.any():
                    continue
                words = f"weights x{copies}" + ("" if fits else ", does not fit")
                face = colour if fits else "white"
                style: dict[str, Any] = {"color": colour, "markerfacecolor": face, "marker": marker}
                ax.plot(self.activations[mine], percent[mine], linestyle="none", zorder=3, **style)
                handles.append(Line2D([], [], linestyle="none", label=words, **style))
        if self.memory is not None:
            line = ax.axvline(self.memory, color=EVENTS["tp"], linestyle="--", linewidth=1.2)
            line.set_label(f"memory for {self.memory:g}")
            handles.append(line)
        legend_above(ax, handles, columns=4)
        ax.set_xlabel("activations held at most (of a rank's share of the model)")
        ax.set_ylabel("bubble (% of the makespan)")
        ax.grid()
        self._name(ax)

    def _name(self, ax: Axes) -> None:
        """Write names beside marks; schedules in one place share a mark, neighbours make room for each other."""
        places: dict[tuple[float, float], list[str]] = {}
        scale = np.array([self.activations.max() or 1.0, self.bubble.max() or 1.0])
        for name, x, y in zip(self.names, self.activations, self.bubble, strict=True):
            alike = (
                key for key in places if (np.abs(np.array(key) - (x, y)) <= _ALIKE * scale).all()
            )
            places.setdefault(next(alike, (float(x), float(y))), []).append(name)
        marks = [
            (*ax.transAxes.inverted().transform(ax.transData.transform((x, 100 * y))),)
            for x, y in places
        ]
        taken = [(x - _MARK, y - _MARK, x + _MARK, y + _MARK) for x, y in marks]
        for (x, y), names in zip(marks, places.values(), strict=True):
            text = ", ".join(names)
            left, bottom = _free_place(x, y, len(text), taken)
            taken.append(_box(left, bottom, len(text)))
            ax.annotate(
                text,
                (x, y),
                xycoords="axes fraction",
                xytext=(left, bottom + _LINE / 2),
                textcoords="axes fraction",
                fontsize=_POINTS,
                va="center",
                bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.4},
                arrowprops={
                    "arrowstyle": "-",
                    "linewidth": 0.4,
                    "color": EVENTS["other"],
                    "shrinkB": 3,
                }
                if abs(bottom + _LINE / 2 - y) > _LINE or left < x
                else None,
            )


def _box(left: float, bottom: float, letters: int) -> Box:
    return left, bottom, left + letters * _LETTER, bottom + _LINE


def _free_place(x: float, y: float, letters: int, taken: Sequence[Box]) -> tuple[float, float]:
    """Lower left corner of a name beside a mark, as near as other names and marks leave room; all in shares of the axes."""
    right, left = x + _BESIDE, x - _BESIDE - letters * _LETTER
    places = [
        (side, y - _LINE / 2 + shift * _LINE * sign)
        for shift in range(12)
        for sign in ((1, -1) if shift else (1,))
        for side in (right, left)
    ]
    for place in places:
        box = _box(*place, letters)
        inside = box[0] >= 0 and box[1] >= 0 and box[2] <= 1 and box[3] <= 1
        if inside and not any(_overlap(box, other) for other in taken):
            return place
    return places[0]


def _overlap(a: Box, b: Box) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]
