"""The Structure of a Program: its graph without its durations, ordered once and replayed for many.

Shapes: K duration vectors, N rows, C classes of rows of equal duration, L levels, D most waits of a
row of a level.

Vectors are evaluated level by level, all at once: in the *layout* of `Levels` rows are sorted by
level and K vectors lie side by side, and the place after the last row stands for what has always
ended.
"""

from __future__ import annotations

import hashlib
import itertools
import operator
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from mpsim.arrays import Floats, Ints
from mpsim.engine.chains import Chains, deadlock, precedence
from mpsim.program.csr import Column, Lists, stable_order
from mpsim.program.program import Program
from mpsim.program.unfold import Unfolding

_LANES = 128  # vectors evaluated together: a level of all lanes stays in the processor's cache
_VALUES = 2**22  # most values evaluated together: such arrays are reused, not mapped anew


class Structure:
    """The part of a program that stays when durations change: its graph, ordered."""

    def __init__(self, levels: Levels) -> None:
        self._levels = levels

    @classmethod
    def of(cls, program: Program) -> Structure:
        """Order a program. DeadlockError if operations wait for each other."""
        waits = precedence(program)
        return cls(Levels.of(_level(program, waits), waits))

    @classmethod
    def unfolded(cls, program: Program, unfolding: Unfolding) -> Structure:
        """Order ``unfolding.program()`` from the folded `program`: copies have the row's level."""
        waits = precedence(program)
        level = _level(program, waits)
        folded = stable_order(level)
        count = unfolding.count[folded]
        base = np.cumsum(unfolding.count) - unfolding.count
        offset = base[folded] - (np.cumsum(count) - count)
        order = np.arange(int(count.sum())) + np.repeat(offset, count)
        size = np.bincount(level, weights=unfolding.count).astype(np.int64)
        place = np.empty(len(folded), dtype=np.int32)
        place[folded] = np.arange(len(folded))
        picked = waits.pick(folded)
        return cls(
            Levels(order, size, unfolding.lists(Lists(picked.ptr, place[picked.value]), folded))
        )

    def __len__(self) -> int:
        return len(self._levels.order)

    def replay(self, durations: Floats) -> tuple[Floats, Floats]:
        """When every row starts and ends, for each duration vector. `durations` (float64[N] or
        float64[K, N]): not negative.

        Returns float64[N]: equal, bit for bit, to what the simpy engine gives for each vector.
        """
        if durations.ndim == 1:
            start, end = self.replay(durations[None])
            return start[0], end[0]
        start, end = np.empty_like(durations), np.empty_like(durations)
        for lanes in self._blocks(len(durations)):
            took = durations[lanes].T[self._levels.order]
            began, ended = self._levels.sweep(took)
            start[lanes, self._levels.order] = began.T
            end[lanes, self._levels.order] = ended.T
        return start, end

    def makespans(self, durations: Floats, *, index: Ints | None = None) -> Floats:
        """When the last row ends, for each duration vector, without keeping the rest.

        `durations` (float64[K, N], or float64[K, C] with `index`): not negative. `index` (int64[N],
        optional): class of each row; by default each row is its own.
        """
        column = self._levels.order if index is None else index[self._levels.order]
        result = np.zeros(len(durations))
        for lanes in self._blocks(len(durations)):
            took = np.ascontiguousarray(durations[lanes].T).take(column, axis=0)
            _, ended = self._levels.sweep(took)
            result[lanes] = ended.max(axis=0, initial=0.0)
        return result

    def _blocks(self, count: int) -> Iterator[slice]:
        """Vectors evaluated together."""
        lanes = max(1, min(_LANES, _VALUES // max(len(self), 1)))
        return (slice(begin, begin + lanes) for begin in range(0, count, lanes))


def _level(program: Program, waits: Lists) -> Ints:
    """How many rows, at most, come before each row: when it starts if every row takes one tick."""
    chains = Chains.of(program)
    ends = chains.run(np.ones(len(program)))
    finished = ends[chains.last] >= 0
    if not finished.all():
        raise deadlock(program, waits, finished)
    return chains.starts(ends).astype(np.int64)


_COLUMNS = 6  # up to so many waits a row, a maximum over columns beats one over segments (measured)
_BROAD = 512  # from so many rows a level columns are not worth their memory


class _Level(NamedTuple):
    """Places ``begin:end`` and what each waits for, in columns; None where segments do better."""

    begin: int
    end: int
    columns: list[Ints]


class Levels:
    """Evaluates a graph level by level.

    `order` (int64[N]): rows in the order of the layout. `size` (int64[L]): rows of each level.
    `waits`: places that each place waits for: of the first level nothing, of others something.
    """

    def __init__(self, order: Ints, size: Ints, waits: Lists) -> None:
        self.order = order
        self._waits = waits
        self._levels = list(_cut(size, waits))

    @classmethod
    def of(cls, level: Ints, waits: Lists) -> Levels:
        """Lay out rows whose levels and waits are known."""
        order = stable_order(level)
        place = np.empty(len(order), dtype=np.int32)
        place[order] = np.arange(len(order))
        picked = waits.pick(order)
        return cls(order, np.bincount(level), Lists(picked.ptr, place[picked.value]))

    def __len__(self) -> int:
        return len(self._levels)

    def sweep(self, takes: Floats) -> tuple[Floats, Floats]:
        """Evaluate durations. `takes` (float64[N, K] or float64[N]): durations in the order of the
        layout.

        Returns
        -------
        start, end : float64
            Of the same shape and order.
        """
        start = np.empty_like(takes)
        end = np.empty((len(takes) + 1, *takes.shape[1:]))
        end[-1] = 0.0
        for level in self._levels:
            begin, stop = level.begin, level.end
            latest = start[begin:stop] = self._start(level, end)
            np.add(latest, takes[begin:stop], out=end[begin:stop])
        return start, end[:-1]

    def _start(self, level: _Level, end: Floats) -> Floats:
        """When the rows of a level start, from when those of earlier ones end."""
        if level.columns:
            latest = end.take(level.columns[0], axis=0)
            for column in level.columns[1:]:
                np.maximum(latest, end.take(column, axis=0), out=latest)
            return latest
        if not level.begin:
            return np.zeros((level.end, *end.shape[1:]))
        pointer = self._waits.ptr[level.begin : level.end + 1]
        # few rows wait for many: waits are reduced by segment, as columns were mostly padding
        ended = end.take(self._waits.value[pointer[0] : pointer[-1]], axis=0)
        result: Floats = np.maximum.reduceat(ended, pointer[:-1] - pointer[0], axis=0)
        return result


def _cut(size: Ints, waits: Lists) -> Iterator[_Level]:
    """Levels of the given sizes, one after the other."""
    bounds = np.concatenate([[0], np.cumsum(size)])
    count = np.diff(waits.ptr)
    most = np.maximum.reduceat(count, bounds[:-1]) if len(count) else count
    columns = [] if len(count) > _BROAD * len(size) else _columns(waits, int(most.max(initial=0)))
    for (begin, end), deepest in zip(
        itertools.pairwise(bounds.tolist()), most.tolist(), strict=True
    ):
        fits = deepest <= len(columns)
        yield _Level(
            begin, end, [column[begin:end] for column in columns[:deepest]] if fits else []
        )


def _columns(waits: Lists, most: int) -> list[Ints]:
    """The first, second, ... place that each place waits for; past the last where none."""
    count = np.diff(waits.ptr)
    columns = []
    for k in range(min(most, _COLUMNS)):
        column = np.full(len(count), len(count), dtype=np.int64)
        has = count > k
        column[has] = waits.value[waits.ptr[:-1][has] + k]
        columns.append(column)
    return columns


def digests_of(programs: Sequence[Program]) -> Iterator[str]:
    """Digest of the columns that decide the structure of each program."""
    seen: list[tuple[tuple[Column, ...], str]] = []
    for program in programs:
        own = program.dep_ptr, program.dep, program.slot_ptr, program.slot
        # programs of one graph have its very arrays
        if known := [name for them, name in seen if all(map(operator.is_, them, own))]:
            yield known[0]
            continue
        digest = hashlib.blake2b(digest_size=16)
        for column in own:
            digest.update(np.ascontiguousarray(column).tobytes())
        seen.append((own, digest.hexdigest()))
        yield digest.hexdigest()
