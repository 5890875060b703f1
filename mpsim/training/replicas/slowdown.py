"""How much longer the segments of an action take because gathers and reductions run beside them.

A collective's blocks hold processors and memory bandwidth of the device they run on, so a kernel beside them loses a part of its rate
(`Interference.lost_at`). Segments run in order; what is queued beside one and does not end there runs on beside the next. What the next
action finds still under way is left out, and so are collectives of other axes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from mpsim.cost import interference_of
from mpsim.training.costs import PlanCosts
from mpsim.training.plan import Plan
from mpsim.training.replicas.groups import exchange_times
from mpsim.training.replicas.segments import Bucket, Cuts, Segment

__all__ = ["Load", "exchanges_beside"]


class Load(NamedTuple):
    """Time of collectives, and what kernels beside them lose meanwhile [s]."""

    seconds: float
    lost: float


_NOTHING = Load(0.0, 0.0)


def exchanges_beside(plan: Plan, costs: PlanCosts, cuts: Cuts) -> list[list[Load]]:
    """Exchanges that join the queue when each segment of each distinct action begins, one action a list."""
    pricing = _Pricing(plan, costs)
    return [_queued(plan, pricing, cut.segments, cut.stage.rank) for cut in cuts.distinct]


def _queued(plan: Plan, pricing: _Pricing, segments: Sequence[Segment], rank: int) -> list[Load]:
    """Gathers for the segments behind each one, and the reduction of the one before it."""
    gathers, reduces = [_NOTHING] * len(segments), [_NOTHING] * len(segments)
    if not plan.exchanges_beside or len(segments) == 1:
        return gathers
    ahead = [pricing.load(segment.gathers, rank, gather=True) for segment in segments[1:]]
    if plan.gathers_units and plan.units_in_flight > 1:
        gathers[:-1] = ahead
    elif plan.gathers_beside:
        gathers[0] = _sum(ahead)
    if plan.layout.framework.overlaps_gradients(plan.layout.mesh.pp) and not plan.keeps_gathered:
        before = segments[:-1]
        reduces[1:] = [pricing.load(segment.reduces, rank, gather=False) for segment in before]
    return [_sum(both) for both in zip(gathers, reduces, strict=True)]


class _Pricing:
    """Prices exchanges of buckets, each distinct one once."""

    def __init__(self, plan: Plan, costs: PlanCosts) -> None:
        self._plan = plan
        self._costs = costs
        self._known: dict[tuple[Bucket, bool, int], Load] = {}

    def load(self, buckets: Sequence[Bucket], rank: int, *, gather: bool) -> Load:
        """Time of exchanging several buckets one after the other."""
        alike = int(self._costs.alike[rank])
        for bucket in buckets:
            if (bucket, gather, alike) not in self._known:
                self._known[bucket, gather, alike] = self._time(bucket, alike, gather=gather)
        return _sum(self._known[bucket, gather, alike] for bucket in buckets)

    def _time(self, bucket: Bucket, rank: int, *, gather: bool) -> Load:
        plan, costs = self._plan, self._costs
        chip = plan.layout.cluster_of(rank).accelerator
        taken = interference_of(plan.layout.framework.name, chip)
        times = exchange_times(plan, costs, bucket, gather=gather, rank=rank)
        return _sum(Load(time.seconds, time.seconds * taken.lost_at(time.rate)) for time in times)


def _sum(loads: Iterable[Load]) -> Load:
    seconds, lost = 0.0, 0.0
    for load in loads:
        seconds, lost = seconds + load.seconds, lost + load.lost
    return Load(seconds, lost)
