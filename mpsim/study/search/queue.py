"""The queue of a search: which layouts come next, so that one cut short has seen the best.

Families of layouts are their degrees (tp, cp, pp, ep) on one machine. Some scattered over the whole
space come first; from these a score is foreseen for every other, as a product of one factor for
each degree. Then the most promising goes first, foreseen or looked at. The forecast decides only
the order: a search that runs to its end has looked at everything.

Shapes: F families that were looked at, E effects.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import numpy as np

from mpsim.study.search.given import defaults

Family = tuple[object, ...]
Look = Callable[["Waiting", Sequence[Any]], float]
_MISSES: Final = 2.0  # a family in which nothing fits counts as so many times the slowest that does
_RIDGE: Final = 0.1  # of an effect, against one observation of its family


class Waiting:
    """A frame of what is searched: it waits to be bounded, in parts one after the other.

    `family`: frames of one family are alike: the first of them says how promising all are. `parts`:
    in the order in which they are looked at.
    """

    def __init__(self, family: Family, parts: Sequence[Sequence[Any]]) -> None:
        self.family, self.size = family, sum(map(len, parts))
        self._parts: list[Sequence[Any]] = list(reversed(parts))

    def look(self, look: Look) -> float | None:
        """Look at the next part; the least that `look` said of it, or None where none is left."""
        return look(self, self._parts.pop()) if self._parts else None


class Queue:
    """Frames in the order in which they are looked at."""

    def __init__(self, frames: Sequence[Waiting]) -> None:
        families: dict[Family, list[Waiting]] = {}
        for frame in frames:
            families.setdefault(frame.family, []).append(frame)
        usual = defaults("search")
        first = max(int(usual["scattered_at_least"]), int(usual["scattered_share"] * len(families)))
        self._again = int(usual["foreseen_every"])
        self._scattered = list(_scattered(list(families)))[:first][::-1]
        self._new = families  # families that nobody has looked at
        self._known: list[tuple[float, int, Waiting]] = []  # heap of the others' frames
        self._scores: dict[Family, float] = {}
        self._foreseen: list[tuple[float, Family]] = []  # the most promising last
        self._number = itertools.count()
        self._siblings: list[Waiting] = []  # of the frame that is looked at

    def next(self) -> Waiting | None:
        """The frame to look at next; None when there are none."""
        while self._scattered:
            family = self._scattered.pop()
            if family in self._new:
                return self._open(family)
        if self._new and (not self._foreseen or not len(self._scores) % self._again):
            self._foresee()
        while self._foreseen and self._foreseen[-1][1] not in self._new:
            self._foreseen.pop()
        if self._foreseen and (not self._known or self._foreseen[-1][0] <= self._known[0][0]):
            return self._open(self._foreseen.pop()[1])
        return heapq.heappop(self._known)[2] if self._known else None

    def back(self, frame: Waiting, score: float | None) -> None:
        """Take back a frame and the least of its layouts; it goes again unless that is None."""
        if score is None:
            return
        if frame.family not in self._scores:
            self._scores[frame.family] = score
            for other in self._siblings:  # look where their schedules are better, too
                heapq.heappush(self._known, (score, next(self._number), other))
            self._siblings = []
        heapq.heappush(self._known, (score, next(self._number), frame))

    def _open(self, family: Family) -> Waiting:
        frame, *self._siblings = self._new.pop(family)
        return frame

    def _foresee(self) -> None:
        """Foresee the score of every family that is left, from those that were looked at.

        Notes
        -----
        log(score) is a sum of effects of the values of the family's key, by ridge regression.
        """
        fits = [score for score in self._scores.values() if score < math.inf]
        if not fits:
            self._foreseen = [(math.inf, family) for family in reversed(self._new)]
            return
        most = _MISSES * max(fits)
        values = dict.fromkeys(
            (place, value)
            for family in (*self._scores, *self._new)
            for place, value in enumerate(family)
        )
        effects = {value: column for column, value in enumerate(values)}

        def columns(family: Family) -> list[int]:
            return [effects[value] for value in enumerate(family)]

        seen = np.zeros((len(self._scores), len(effects)))  # [F, E]
        for row, family in enumerate(self._scores):
            seen[row, columns(family)] = 1.0
        logs = np.log([min(score, most) for score in self._scores.values()])
        mean = logs.mean()
        square = seen.T @ seen + _RIDGE * np.eye(len(effects))
        effect = np.linalg.solve(square, seen.T @ (logs - mean))
        foreseen = [
            (math.exp(mean + effect[columns(family)].sum()), place, family)
            for place, family in enumerate(self._new)
        ]
        foreseen.sort(reverse=True, key=lambda entry: entry[:2])
        self._foreseen = [(score, family) for score, _, family in foreseen]


def _scattered(families: Sequence[Family]) -> Iterator[Family]:
    """Families so that any first few lie all over the space: by reversed bits of numbers."""
    width = max(1, (len(families) - 1).bit_length())
    for place in sorted(range(len(families)), key=lambda n: int(f"{n:0{width}b}"[::-1], 2)):
        yield families[place]
