"""The Structure of a Program: its graph without its durations, ordered once and replayed for many.

Shapes: K duration vectors, N rows, C classes of rows of equal duration.

Many vectors, or a wide program, are evaluated level by level, all vectors at once. One vector of a narrow program is walked node by
node: an array operation costs as much as some tens of steps of Python.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from mpsim.engine.chains import Chains
from mpsim.engine.graph import deadlock, precedence
from mpsim.engine.levels import Levels
from mpsim.engine.timeline import Timeline
from mpsim.program.csr import Lists
from mpsim.program.program import Program

__all__ = ["Structure"]

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

_LANES = 128  # vectors evaluated together: a level of all lanes stays in the processor's cache
_WIDE = 16  # from so many values a level arrays beat a loop (measured)


@dataclasses.dataclass(frozen=True, eq=False)
class Structure:
    """What does not change when durations do.

    Parameters
    ----------
    waits : Lists
        Rows that each row waits for, those before it on its streams included.
    level : int64[N]
        Larger than that of every row it waits for; every number from 0 to the largest occurs.
    chains : Chains, optional
        The same graph for walking; without it everything goes by levels.
    """

    waits: Lists
    level: Ints
    chains: Chains | None = None

    @classmethod
    def of(cls, program: Program) -> Structure:
        """Order a program.

        Raises
        ------
        DeadlockError
            If operations wait for each other.
        """
        chains, waits = Chains.of(program), precedence(program)
        ends = chains.run(np.ones(len(program)))
        finished = ends[chains.last] >= 0
        if not finished.all():
            raise deadlock(program, waits, finished)
        return cls(waits, chains.starts(ends).astype(np.int64), chains)

    def __len__(self) -> int:
        return len(self.level)

    @functools.cached_property
    def _levels(self) -> Levels:
        return Levels(self.level, self.waits)

    @property
    def _width(self) -> float:
        """Rows a level."""
        return len(self) / (int(self.level.max(initial=0)) + 1)

    def replay(self, durations: Floats) -> tuple[Floats, Floats]:
        """When every row starts and ends, for each duration vector.

        Parameters
        ----------
        durations : float64[N] or float64[K, N]
            Not negative.

        Returns
        -------
        start, end : float64[N] or float64[K, N]
            Equal, bit for bit, to what the simpy engine gives for each vector.
        """
        if durations.ndim == 1:
            return self._one(durations)
        start, end = np.empty_like(durations), np.empty_like(durations)
        for lanes in _blocks(len(durations)):
            took = durations[lanes].T[self._levels.order]
            began, ended = self._levels.sweep(took)
            start[lanes, self._levels.order] = began.T
            end[lanes, self._levels.order] = ended.T
        return start, end

    def makespans(self, durations: Floats, *, index: Ints | None = None) -> Floats:
        """When the last row ends, for each duration vector, without keeping the rest.

        Parameters
        ----------
        durations : float64[K, N], or float64[K, C] with `index`
            Not negative.
        index : int64[N], optional
            Class of each row; by default each row is its own.

        Returns
        -------
        float64[K]
        """
        column = self._levels.order if index is None else index[self._levels.order]
        result = np.zeros(len(durations))
        for lanes in _blocks(len(durations)):
            took = np.ascontiguousarray(durations[lanes].T).take(column, axis=0)
            _, ended = self._levels.sweep(took)
            result[lanes] = ended.max(axis=0, initial=0.0)
        return result

    def timeline(self, program: Program, durations: Floats | None = None) -> Timeline:
        """Replay `program`, whose structure this is, with its own durations or others."""
        took = program.duration if durations is None else durations
        start, end = self.replay(took)
        if durations is not None:
            program = dataclasses.replace(program, duration=durations)
        return Timeline(program=program, start=start, end=end, engine="replay")

    def _one(self, duration: Floats) -> tuple[Floats, Floats]:
        if self.chains is not None and self._width < _WIDE:
            ends = self.chains.walk(self._sequence, duration)
            return self.chains.starts(ends), ends[self.chains.last]
        order = self._levels.order
        began, ended = self._levels.sweep(duration[order])
        start, end = np.empty_like(began), np.empty_like(ended)
        start[order], end[order] = began, ended
        return start, end

    @functools.cached_property
    def _sequence(self) -> tuple[Ints, list[int], list[int]]:
        """Nodes of the chains by level, as an array and a list, and the gate of each."""
        assert self.chains is not None
        nodes = self.chains.by(self.level)
        return nodes, nodes.tolist(), self.chains.gate[nodes].tolist()


def _blocks(count: int) -> Iterator[slice]:
    return (slice(begin, begin + _LANES) for begin in range(0, count, _LANES))
