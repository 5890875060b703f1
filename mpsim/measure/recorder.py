"""A recorder: when each action of a training step began and ended, on a CPU's clock or by events on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any, TypeAlias

import torch

from mpsim.measured.records import Actions

__all__ = ["Recorder", "join_actions"]

Row: TypeAlias = tuple[str, float, float]


class Recorder:
    """Notes actions while it runs; one step at a time.

    Parameters
    ----------
    cuda : bool
        Whether times are those of the GPU's stream rather than the host's.
    offset : float
        Added to this host's clock [s].
    """

    def __init__(self, cuda: bool, offset: float) -> None:
        self.cuda = cuda
        self.offset = offset
        self.began = 0.0
        self._first: Any = None
        self._marks: list[tuple[str, Any, Any]] = []

    def begin(self) -> None:
        """A step begins; what was noted before is forgotten."""
        self._marks = []
        self.began = perf_counter()
        self._first = self._mark() if self.cuda else self.began

    def wrap(self, token: Callable[..., str], call: Callable[..., Any]) -> Callable[..., Any]:
        """`call`, noted under what `token` makes of its arguments."""

        def noted(*args: Any, **kwargs: Any) -> Any:
            start = self._mark()
            result = call(*args, **kwargs)
            self._marks.append((token(*args, **kwargs), start, self._mark()))
            return result

        return noted

    def extend(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """`call`, noted as the end of the action before it."""

        def noted(*args: Any, **kwargs: Any) -> Any:
            result = call(*args, **kwargs)
            if self._marks:
                token, start, _ = self._marks[-1]
                self._marks[-1] = (token, start, self._mark())
            return result

        return noted

    def note(self, token: str, call: Callable[[], Any]) -> Any:
        """Run `call` as the action `token`."""
        return self.wrap(lambda: token, call)()

    def rows(self) -> list[Row]:
        """Actions of the step that has ended: token, start and end on the first rank's clock [s]."""
        if not self.cuda:
            return [(token, a + self.offset, b + self.offset) for token, a, b in self._marks]
        torch.cuda.synchronize()
        zero = self.began + self.offset
        return [
            (token, zero + self._since_first(a), zero + self._since_first(b))
            for token, a, b in self._marks
        ]

    def _mark(self) -> Any:
        if not self.cuda:
            return perf_counter()
        cuda: Any = torch.cuda
        event = cuda.Event(enable_timing=True)
        event.record()
        return event

    def _since_first(self, event: Any) -> float:
        return float(self._first.elapsed_time(event)) / 1e3


def join_actions(
    steps: Sequence[Sequence[tuple[int, float, Sequence[Row]]]],
) -> Actions:
    """The actions of every rank and step as one table, each step counted from its first rank's start.

    Parameters
    ----------
    steps : sequence of (rank, start [s], rows) for each step
        On one clock.
    """
    table: list[tuple[int, int, str, float, float]] = []
    for step, ranks in enumerate(steps):
        zero = min(began for _, began, _ in ranks)
        for rank, _, rows in ranks:
            table += [
                (step, rank, token, _written(a - zero), _written(b - zero)) for token, a, b in rows
            ]
    columns = tuple(zip(*table, strict=True)) or ((), (), (), (), ())
    return Actions(*columns)


def _written(seconds: float) -> float:
    """To a tenth of a microsecond; a clock of another host that is behind by less than its offset is known begins at 0."""
    return max(round(seconds, 7), 0.0)
