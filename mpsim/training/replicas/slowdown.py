"""How much longer the segments of an action take because gathers and reductions run beside them.

A collective's blocks hold processors and memory bandwidth of the device they run on, so a kernel beside them loses a part of its rate
(`Interference.lost_at`). Segments run in order; what is queued beside one and does not end there runs on beside the next. What the next
action finds still under way is left out, and so are collectives of other axes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from mpsim.cost import interference_of
from mpsim.program.program import TICK, Template
from mpsim.training.costs import PlanCosts
from mpsim.training.plan import Plan
from mpsim.training.replicas.exchanges import exchange_times
from mpsim.training.replicas.segments import Bucket, Segment
from mpsim.training.vocabulary import PARTS

__all__ = ["OverlapSlowdown"]

_HOST = PARTS.index("host")


class _Load(NamedTuple):
    """Time of collectives, and what kernels beside them lose meanwhile [s]."""

    seconds: float
    lost: float


_NOTHING = _Load(0.0, 0.0)


class OverlapSlowdown:
    """Says by how much segments of one Plan are longer than alone.

    Parameters
    ----------
    plan : Plan
    costs : PlanCosts
    """

    def __init__(self, plan: Plan, costs: PlanCosts) -> None:
        self._plan = plan
        self._costs = costs
        self._known: dict[tuple[Bucket, bool, int], _Load] = {}

    def factors(
        self, segments: Sequence[Segment], templates: Sequence[Template], rank: int
    ) -> list[float]:
        """How many times longer than alone each segment takes.

        Parameters
        ----------
        segments : sequence of Segment
            Of one action, in the order they run.
        templates : sequence of Template
            What each is alone.
        rank : int
            Pipeline rank that runs them.

        Notes
        -----
        A segment in which the device waits for the host is longer only by what does not fit into the waiting.
        """
        factors, left, lost = [], 0.0, 0.0
        for template, queued in zip(templates, self._queued(segments, rank), strict=True):
            left, lost = left + queued.seconds, lost + queued.lost
            alone = float(template.parts.sum()) * TICK
            busy = alone - float(template.parts[_HOST]) * TICK
            share = lost / left if left else 0.0
            # either all that is queued ends beside this segment, or collectives run all the time that it does
            took = max(alone, min(busy + lost, busy / (1.0 - share)))
            left = max(left - took, 0.0)
            lost = share * left
            factors.append(took / alone if took > alone else 1.0)
        return factors

    def _queued(self, segments: Sequence[Segment], rank: int) -> list[_Load]:
        """Exchanges that join the queue when each segment begins: gathers for those behind it, the reduction of the one before it."""
        plan = self._plan
        gathers, reduces = [_NOTHING] * len(segments), [_NOTHING] * len(segments)
        if not plan.exchanges_beside or len(segments) == 1:
            return gathers
        ahead = [self._load(segment.gathers, rank, gather=True) for segment in segments[1:]]
        if plan.gathers_units and plan.units_in_flight > 1:
            gathers[:-1] = ahead
        elif plan.gathers_beside:
            gathers[0] = _sum(ahead)
        if (
            plan.layout.framework.overlaps_gradients(plan.layout.mesh.pp)
            and not plan.keeps_gathered
        ):
            reduces[1:] = [
                self._load(segment.reduces, rank, gather=False) for segment in segments[:-1]
            ]
        return [_sum(both) for both in zip(gathers, reduces, strict=True)]

    def _load(self, buckets: Sequence[Bucket], rank: int, *, gather: bool) -> _Load:
        """Time of exchanging several buckets one after the other."""
        alike = int(self._costs.alike[rank])
        for bucket in buckets:
            if (bucket, gather, alike) not in self._known:
                self._known[bucket, gather, alike] = self._time(bucket, alike, gather=gather)
        return _sum(self._known[bucket, gather, alike] for bucket in buckets)

    def _time(self, bucket: Bucket, rank: int, *, gather: bool) -> _Load:
        plan, costs = self._plan, self._costs
        chip = plan.layout.cluster_of(rank).accelerator
        taken = interference_of(plan.layout.framework.name, chip)
        times = exchange_times(plan, costs, bucket, gather=gather, rank=rank)
        return _sum(_Load(seconds, seconds * taken.lost_at(rate)) for seconds, rate in times)


def _sum(loads: Iterable[_Load]) -> _Load:
    seconds, lost = 0.0, 0.0
    for load in loads:
        seconds, lost = seconds + load.seconds, lost + load.lost
    return _Load(seconds, lost)
