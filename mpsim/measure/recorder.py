"""A recorder: when actions of a step began and ended, on a CPU's clock or by GPU events."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any, NamedTuple, ParamSpec, TypeVar

import torch

from mpsim.measured.records import Actions

P = ParamSpec("P")
R = TypeVar("R")
cuda: Any = torch.cuda  # its functions have no types


class Noted(NamedTuple):
    """One action: its token, start and end on the first rank's clock [s]."""

    token: str
    start: float
    end: float


class StepRows(NamedTuple):
    """When a rank began a step [s], and its actions."""

    began: float
    rows: list[Noted]


class Recorder:
    """Notes actions while it runs; one step at a time. `events`: whether times are those of the
    GPU's stream rather than the host's. `offset`: added to this host's clock [s].
    """

    def __init__(self, events: bool, offset: float) -> None:
        self.events = events
        self.offset = offset
        self.began = 0.0
        self._first: float | torch.cuda.Event = 0.0
        self._marks: list[tuple[str, float | torch.cuda.Event, float | torch.cuda.Event]] = []

    def begin(self) -> None:
        """A step begins; what was noted before is forgotten."""
        self._marks = []
        self.began = perf_counter()
        self._first = self._mark() if self.events else self.began

    def wrap(self, token: Callable[P, str], call: Callable[P, R]) -> Callable[P, R]:
        """`call`, noted under what `token` makes of its arguments."""

        def noted(*args: P.args, **kwargs: P.kwargs) -> R:
            start = self._mark()
            result = call(*args, **kwargs)
            self._marks.append((token(*args, **kwargs), start, self._mark()))
            return result

        return noted

    def extend(self, call: Callable[P, R]) -> Callable[P, R]:
        """`call`, noted as the end of the action before it."""

        def noted(*args: P.args, **kwargs: P.kwargs) -> R:
            result = call(*args, **kwargs)
            if self._marks:
                self._marks[-1] = (*self._marks[-1][:2], self._mark())
            return result

        return noted

    def note(self, token: str, call: Callable[[], R]) -> R:
        """Run `call` as the action `token`."""
        return self.wrap(lambda: token, call)()

    def step(self) -> StepRows:
        """The step that has ended."""
        if self.events:
            torch.cuda.synchronize()
        rows = [Noted(token, self._at(a), self._at(b)) for token, a, b in self._marks]
        return StepRows(self.began + self.offset, rows)

    def _mark(self) -> float | torch.cuda.Event:
        if not self.events:
            return perf_counter()
        event: torch.cuda.Event = cuda.Event(enable_timing=True)
        event.record()
        return event

    def _at(self, mark: float | torch.cuda.Event) -> float:
        """A mark on the first rank's clock [s]."""
        if isinstance(mark, float):
            return mark + self.offset
        assert not isinstance(self._first, float), "an event is counted from the first one"
        return self.began + self.offset + self._first.elapsed_time(mark) / 1e3


def join_actions(steps: Sequence[Sequence[tuple[int, StepRows]]]) -> Actions:
    """Actions of every rank and step, each step from its first rank's start; `steps`: one clock."""
    table: list[tuple[int, int, str, float, float]] = []
    for number, ranks in enumerate(steps):
        zero = min(step.began for _, step in ranks)
        for rank, step in ranks:
            table += [
                (number, rank, token, _written(a - zero), _written(b - zero))
                for token, a, b in step.rows
            ]
    columns = tuple(zip(*table, strict=True)) or ((), (), (), (), ())
    return Actions(*columns)


def _written(seconds: float) -> float:
    """To a tenth of a microsecond; another host's clock that is behind begins at 0."""
    return max(round(seconds, 7), 0.0)
