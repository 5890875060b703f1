"""A figure of a search: step time against memory, and the layouts that no other beats in both."""

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

__all__ = ["SearchDisplay"]

_GB = 1e9
_LABELLED = 3  # leaders whose layout is written beside their mark
_LETTERS = "ABCDEFGH"
_LETTERED, _LINE_INCHES = (
    len(_LETTERS),
    0.16,
)  # of the front, and what the line of each adds to the height
_ROOM = 1.25  # over the largest memory shown
_BEFORE = 0.97  # of the shortest step, where the axis begins
_REACH = 2.5  # times the shortest step, where it ends


class _Found(Protocol):
    """The part of a `mpsim.study.Found` that a picture reads."""

    @property
    def step_time_s(self) -> float: ...
    @property
    def memory_bytes(self) -> float: ...
    @property
    def name(self) -> str: ...


class _Search(Protocol):
    """The part of a `mpsim.study.Search` that a picture reads."""

    @property
    def rows(self) -> Sequence[_Found]: ...
    @property
    def leaders(self) -> Sequence[_Found]: ...
    @property
    def front(self) -> Sequence[_Found]: ...


class SearchDisplay(Display):
    """Simulated layouts, the best ones, and the front, up to 2.5 times the shortest step.

    Parameters
    ----------
    step_time, memory : float64[N]
        Of simulated layouts [s], [B].
    front : int64[F]
        Those that no other beats in both, by step time.
    leaders : int64[L]
        The best ones, best first.
    names : sequence of str
        Layouts of the first leaders, which are listed in a corner.
    front_names : sequence of str
        Layouts of the front; the most telling ones have a letter, and a line under the picture.

    Raises
    ------
    ScenarioError
        If there is nothing to draw.
    """

    def __init__(
        self,
        step_time: NDArray[np.float64],
        memory: NDArray[np.float64],
        front: NDArray[np.int64],
        leaders: NDArray[np.int64],
        names: Sequence[str] = (),
        front_names: Sequence[str] = (),
    ) -> None:
        if not len(step_time):
            raise ScenarioError("no layout was simulated: nothing to draw")
        self.step_time, self.memory = np.asarray(step_time), np.asarray(memory)
        self.front, self.leaders = np.asarray(front), np.asarray(leaders)
        self.names, self.front_names = tuple(names), tuple(front_names)

    @classmethod
    def from_search(cls, search: _Search) -> SearchDisplay:
        """Draw what a search found."""
        rows = list(search.rows)

        def places(chosen: Sequence[object]) -> NDArray[np.int64]:
            """Places of `chosen` among all rows: equal rows are not the same."""
            indices = [next(i for i, row in enumerate(rows) if row is item) for item in chosen]
            return np.array(indices, dtype=np.int64)

        return cls(
            np.array([row.step_time_s for row in rows]),
            np.array([row.memory_bytes for row in rows]),
            places(search.front),
            places(search.leaders),
            [row.name for row in search.leaders],
            [row.name for row in search.front],
        )

    @property
    def lettered(self) -> list[int]:
        """Places in the front that have a letter: both ends, and between them where memory falls most, by step time."""
        if not self.front_names:
            return []
        memory = self.memory[self.front]
        falls = np.concatenate([[0.0], memory[:-1] - memory[1:]])
        between = [
            place for place in np.argsort(-falls, kind="stable").tolist() if falls[place] > 0
        ]
        last = len(memory) - 1
        chosen = dict.fromkeys([0, last, *between])
        return sorted(list(chosen)[:_LETTERED])

    def _size(self) -> tuple[float, float]:
        return 8.0, 4.5 + _LINE_INCHES * len(self.lettered)

    def _draw(self, ax: Axes) -> None:
        memory = self.memory / _GB
        shortest = float(self.step_time.min())
        edge = min(_REACH * shortest, float(self.step_time.max()) / _BEFORE)
        beyond = int((self.step_time > edge).sum())
        left_out = f" ({beyond} slower one{'s' * (beyond != 1)} not shown)" if beyond else ""
        others = ax.scatter(
            self.step_time, memory, s=12, color=EVENTS["other"], label=f"simulated{left_out}"
        )
        (line,) = ax.plot(
            self.step_time[self.front],
            memory[self.front],
            color=EVENTS["backward"],
            linewidth=1.3,
            drawstyle="steps-post",
            label="Pareto front: no other is better in both",
        )
        best = ax.scatter(
            self.step_time[self.leaders],
            memory[self.leaders],
            s=28,
            color=EVENTS["forward"],
            zorder=3,
            label=f"the best {len(self.leaders)}",
        )
        lines = [
            f"{rank}  {self.step_time[at]:.4g} s  {name}"
            for rank, (at, name) in enumerate(
                zip(self.leaders[:_LABELLED].tolist(), self.names, strict=False), start=1
            )
        ]
        ax.text(
            0.99, 0.97, "\n".join(lines), transform=ax.transAxes, ha="right", va="top", fontsize=8
        )
        self._add_letters(ax, edge)
        ax.set_xlim(_BEFORE * shortest, edge)
        ax.set_xlabel("step time (s)")
        ax.set_ylabel("memory of the fullest rank (GB)")
        ax.set_ylim(0.0, _ROOM * float(memory.max()))
        ax.grid()
        legend_above(ax, [others, line, best], columns=3)

    def _add_letters(self, ax: Axes, edge: float) -> None:
        """Write a letter beside marks of the front, and under the picture which layouts they are."""
        lines = []
        for letter, place in zip(_LETTERS, self.lettered, strict=False):
            at = int(self.front[place])
            time, memory = float(self.step_time[at]), float(self.memory[at]) / _GB
            lines.append(f"{letter}  {time:.4g} s, {memory:.3g} GB: {self.front_names[place]}")
            if time <= edge:
                ax.annotate(
                    letter,
                    (time, memory),
                    xytext=(-3, -5),
                    textcoords="offset points",
                    ha="right",
                    va="top",
                    fontsize=8,
                    weight="bold",
                )
        text = "\n".join(lines)
        ax.text(0.0, -0.14, text, transform=ax.transAxes, va="top", fontsize=7.5, linespacing=1.3)
