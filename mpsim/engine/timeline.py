"""The Timeline: the Program plus when each row started and ended."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from mpsim import structs
from mpsim.archive import Saved
from mpsim.arrays import Floats, Ints
from mpsim.engine.traffic import Traffic
from mpsim.hardware import Cluster
from mpsim.program.program import TICK, Program, Stream

if TYPE_CHECKING:
    import pandas as pd


@structs.dataclass(frozen=True, eq=False)
class Timeline(Saved):
    """When every operation of a Program ran."""

    program: Program
    start: Floats  # start, end: float64[N], ticks since the step began
    end: Floats
    engine: str  # ``simpy`` or ``replay``: which one ran
    traffic: Traffic | None = None  # what moved over shared links, where they were
    each: tuple[Timeline, ...] = ()  # those that lie side by side in this one, where several do

    def __repr__(self) -> str:
        return f"Timeline({self.step_time_s:.6g} s by {self.engine}, {self.program!r})"

    @property
    def makespan(self) -> float:
        """End of the last operation, or when links have carried all they were given [ticks]."""
        return max(self.last, self.program.least)

    @functools.cached_property
    def last(self) -> float:
        """End of the last operation [ticks]."""
        return float(self.end.max(initial=0.0))

    @property
    def lane(self) -> Ints:
        """Which of `each` every rank class belongs to [R]; 0 where there is but this one."""
        ranks = [each.program.ranks for each in self.each or (self,)]
        return np.repeat(np.arange(len(ranks)), ranks)

    def per_rank(self, figure: Callable[[Timeline], float]) -> Floats:
        """A figure of the timeline that each rank class belongs to [R]."""
        figures = [figure(each) for each in self.each or (self,)]
        return np.array(figures, dtype=np.float64)[self.lane]

    @property
    def step_time_s(self) -> float:
        """The same as `makespan` [s]."""
        return self.makespan * TICK

    def rows(self, rank: int, stream: Stream = Stream.COMPUTE) -> Ints:
        """Rows that occupy (rank, stream), in the order they ran."""
        program = self.program
        wanted = rank * len(Stream) + int(stream)
        hits = np.flatnonzero(program.slot == wanted)
        return np.searchsorted(program.slot_ptr, hits, side="right") - 1

    def to_pandas(self) -> pd.DataFrame:
        """One row an operation and (rank class, stream) that it occupies: names, and start and end
        [s]. MissingExtraError if pandas is not installed.
        """
        from mpsim.frame import to_frame

        program = self.program
        row, rank, stream = program.slots
        return to_frame(
            {
                "rank": np.array(program.rank_name, object)[rank],
                "stream": np.array([each.name.lower() for each in Stream], object)[stream],
                "kind": np.array(program.vocabulary.kinds, object)[program.kind[row]],
                "microbatch": program.microbatch[row],
                "chunk": program.chunk[row],
                "start_s": self.start[row] * TICK,
                "end_s": self.end[row] * TICK,
            }
        )


class Step(NamedTuple):
    """A program that ran, and the cluster as each of its rank classes has it."""

    timeline: Timeline
    program: Program
    clusters: tuple[Cluster, ...]
