"""Lanes: steps that were simulated together are measured together, side by side.

Figures of a step are sums over the rows of each rank class. To measure them of one step takes some
array operations, and as many of sixty small ones laid end to end.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np

from mpsim.arrays import Floats
from mpsim.engine.timeline import Step, Timeline
from mpsim.program.unfold import beside

_TOGETHER = 1 << 15  # rows: arrays of more leave the caches of a processor

Measure: TypeAlias = Callable[[Step], Floats]
"""Figures of the rank classes of a step [R, ...]."""


class Lane(NamedTuple):
    """One of several steps side by side: its rank classes, and what is known of those of all."""

    together: Step
    ranks: slice
    known: dict[str, Floats]

    def measured(self, name: str, measure: Measure) -> Floats:
        """A figure of its rank classes, which is measured of all when the first of them asks."""
        if name not in self.known:
            self.known[name] = measure(self.together)
        return self.known[name][self.ranks]


def lanes_of(steps: Sequence[Step]) -> list[Lane]:
    """Lay steps side by side, some thousands of rows together."""
    lanes: list[Lane] = []
    while few := steps[len(lanes) :]:
        ends = itertools.accumulate(len(step.program) for step in few)
        few = few[: max(1, sum(end <= _TOGETHER for end in ends))]
        known, clusters = dict[str, Floats](), itertools.chain(*(step.clusters for step in few))
        program, each = beside([step.program for step in few]), tuple(s.timeline for s in few)
        start, end = (np.concatenate([getattr(t, name) for t in each]) for name in ("start", "end"))
        timeline = Timeline(program, start, end, each[0].engine, each=each)
        together = Step(timeline, program, tuple(clusters))
        ranks = itertools.accumulate((step.program.ranks for step in few), initial=0)
        lanes += [Lane(together, slice(*bounds), known) for bounds in itertools.pairwise(ranks)]
    return lanes
