"""Rows of every action: which templates an action consists of, and what travels between them.

An action is one row with one template, unless data parallelism cuts it
(`mpsim.training.replicas.segments`); then every segment is a row, and copies of its gradients
before they are reduced another.

A segment takes longer where gathers and reductions run beside it: a collective's blocks hold
processors and memory bandwidth of the device they run on, so a kernel beside them loses a part of
its rate (`Interference.lost_at`). Segments run in order; what is queued beside one and does not end
there runs on beside the next. What the next action finds still under way is left out, and so are
collectives of other axes.

Shapes: N actions.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from mpsim.cost import copy_seconds, update_seconds
from mpsim.hardware import Calibration
from mpsim.memo import remembered
from mpsim.program.program import TICK, Template
from mpsim.program.rows import Prices
from mpsim.program.template import one_kernel, stretched, ticks
from mpsim.schedule import Action, Orders
from mpsim.training.blocks import Block, Blocks
from mpsim.training.costs import PlanCosts
from mpsim.training.plan import Plan
from mpsim.training.replicas.groups import exchange_times, replica_groups
from mpsim.training.replicas.segments import Bucket, CutAction, CutRows, Cuts, Segment
from mpsim.training.vocabulary import PARTS, TRAINING

_GRADIENT = (Action.B, Action.W)
_HOST = PARTS.index("host")
_Seconds: TypeAlias = Callable[[float, float, Calibration | None], float]
_KEPT = 1024  # passes that stay ready: equal ones are one template, whoever asks


class ActionVariants:
    """Collects the templates of the actions of one Plan: actions that do the same are one variant.
    `beside`: what runs beside the segments of each of them.
    """

    def __init__(
        self, plan: Plan, blocks: Blocks, cuts: Cuts, beside: Sequence[Sequence[Load]]
    ) -> None:
        self._plan = plan
        self._blocks = blocks
        self._gathers_units = plan.gathers_units
        self._passes = _MemoryPasses(plan)
        # templates compare by identity: equal ones are made once
        self._number: dict[Template, int] = {}
        self._rows: list[int] = []  # templates of the rows of all variants
        self.cuts: list[CutRows] = []  # rows of every variant
        # what is gathered before the segments of all variants, and reduced after them
        self.gathers: list[Bucket] = []
        self.reduces: list[Bucket] = []
        for cut, queued in zip(cuts.distinct, beside, strict=True):
            self._append(cut, queued)

    @property
    def templates(self) -> tuple[Template, ...]:
        """Every template, in the order `variants` numbers them."""
        return tuple(self._number)

    @functools.cached_property
    def prices(self) -> Prices:
        """Prices of the rows of all variants, one variant after the other."""
        duration, up, out = np.array([*map(_sums, self._number)])[self._rows].T
        return Prices(duration, up, out, template=self._rows)

    def busy(self, orders: Orders, chosen: NDArray[np.int64]) -> NDArray[np.float64]:
        """Time that the actions of each rank take, float64[R] [ticks]. `chosen` (int64[N]): which
        variant each is.
        """
        ends = np.cumsum([0, *(cut.rows for cut in self.cuts)])[:-1]
        took = np.add.reduceat(self.prices.duration, ends)
        busy = np.bincount(orders.rank, weights=took[chosen], minlength=orders.pp)
        return busy.astype(np.float64)

    def _append(self, cut: CutAction, queued: Sequence[Load]) -> None:
        """Register the rows that an action becomes: one a segment, longer by what runs beside it,
        and one for copies of its gradients.
        """
        action, rank = cut.action, cut.stage.rank
        alone = [cut.fused] if cut.fused else self._alone(cut)
        factors = _slowdowns(alone, queued)
        rows: list[int] = []
        own, ready = [], []
        # a reference model's units are gathered beside the model's own
        times = 1.0 + (self._gathers_units and self._plan.reference and action is Action.F)
        for segment, template, factor in zip(cut.segments, alone, factors, strict=True):
            own.append(len(rows))
            longer = template if factor == 1.0 else stretched(template, factor)
            rows.append(self._register(longer))
            if copies := self._passes.to_reduce(_parameters(segment.reduces), rank):
                rows.append(self._register(self._blocks.join(action, copies)))
            ready.append(len(rows) - 1)
            self.gathers += [Bucket(*(times * each for each in all_)) for all_ in segment.gathers]
            self.reduces += segment.reduces
        self._rows += rows
        travels = [(len(segment.gathers), len(segment.reduces)) for segment in cut.segments]
        gathers, reduces = zip(*travels, strict=True)
        self.cuts.append(CutRows(len(rows), tuple(own), tuple(ready), gathers, reduces))

    def _alone(self, cut: CutAction) -> list[Template]:
        """Templates of segments beside which nothing runs."""
        return [
            self._blocks.join(cut.action, self._computed(cut.action, segment, cut.stage.rank))
            for segment in cut.segments
        ]

    def _computed(self, action: Action, segment: Segment, rank: int) -> list[Block]:
        """Blocks of a segment with the passes over memory around them."""
        gathered = _parameters(segment.gathers) if self._gathers_units else 0.0
        before = self._passes.gathered(gathered, rank)
        added = math.fsum([each.trained for each in segment.blocks]) if action in _GRADIENT else 0.0
        return [*before, *segment.blocks, *self._passes.added(added, rank)]

    def _register(self, template: Template) -> int:
        return self._number.setdefault(template, len(self._number))


class _Sums(NamedTuple):
    """Time of a template [ticks], and what one rank sends in it [B]."""

    duration: float
    up_bytes: float
    out_bytes: float


@remembered(_KEPT)
def _sums(template: Template) -> _Sums:
    columns = (template.parts, template.up_bytes, template.out_bytes)
    return _Sums(*(float(column.sum()) for column in columns))


def _parameters(buckets: tuple[Bucket, ...]) -> float:
    return sum([bucket.dense + bucket.experts for bucket in buckets])


def _slowdowns(templates: Sequence[Template], queued: Sequence[Load]) -> list[float]:
    """How many times longer than alone each segment takes, beside what is queued at its start.

    A segment that waits for the host is longer only by what does not fit into the waiting.
    """
    factors, left, lost = [], 0.0, 0.0
    for template, joining in zip(templates, queued, strict=True):
        left, lost = left + joining.seconds, lost + joining.lost
        alone = _sums(template).duration * TICK
        busy = alone - float(template.parts[_HOST]) * TICK
        share = lost / left if left else 0.0
        # either all that is queued ends beside this segment, or collectives run all the time that
        # it does
        took = max(alone, min(busy + lost, busy / (1.0 - share)))
        left = max(left - took, 0.0)
        lost = share * left
        factors.append(took / alone if took > alone else 1.0)
    return factors


class _MemoryPasses:
    """Passes over memory on the compute stream: laying out exchanges, adding up gradients.

    Notes
    -----
    Each is a template of one memory-bound kernel, made once. Copies that only sharding needs count
    as ``exposed_dp``, adding up gradients as ``other``. Copies move memory as fast as
    `mpsim.cost.copy_seconds` says, additions in place as fast as the optimizer.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    def gathered(self, parameters: float, rank: int) -> list[Block]:
        """Laying out a gathered unit on a pipeline rank."""
        traffic = self._plan.layout.framework.data.gather_copy_traffic
        return self._blocks("copy gathered parameters", "exposed_dp", parameters * traffic, rank)

    def to_reduce(self, parameters: float, rank: int) -> list[Block]:
        """Laying out gradients before they are reduced."""
        traffic = self._plan.layout.framework.data.reduce_copy_traffic
        return self._blocks("copy gradients", "exposed_dp", parameters * traffic, rank)

    def added(self, parameters: float, rank: int) -> list[Block]:
        """Adding the gradients of a microbatch to those of the ones before it."""
        traffic = self._plan.layout.framework.data.accumulation_traffic
        return self._blocks(
            "accumulate gradients", "other", parameters * traffic, rank, update_seconds
        )

    def _blocks(
        self, name: str, part: str, moved: float, rank: int, time: _Seconds = copy_seconds
    ) -> list[Block]:
        """A block of one kernel that moves so many bytes, or none."""
        if not moved:
            return []
        chip = self._plan.layout.cluster_of(rank).accelerator
        seconds = time(moved, chip.memory_bandwidth, chip.calibration)
        return [Block(-1, _pass(name, part, float(ticks(seconds))), 0.0)]


@remembered(_KEPT)
def _pass(name: str, part: str, duration: float) -> Template:
    return one_kernel(TRAINING, name, part, duration)


class Load(NamedTuple):
    """Time of collectives, and what kernels beside them lose meanwhile [s]."""

    seconds: float
    lost: float


_NOTHING = Load(0.0, 0.0)


def exchanges_beside(plan: Plan, costs: PlanCosts, cuts: Cuts) -> list[list[Load]]:
    """Exchanges that join the queue as segments of distinct actions begin, a list an action."""
    if not plan.exchanges_beside:
        return [[_NOTHING] * len(cut.segments) for cut in cuts.distinct]
    pricing = _Pricing(plan, costs)
    return [_queued(plan, pricing, cut.segments, cut.stage.rank) for cut in cuts.distinct]


def _queued(plan: Plan, pricing: _Pricing, segments: Sequence[Segment], rank: int) -> list[Load]:
    """Gathers for the segments behind each one, and the reduction of the one before it."""
    gathers, reduces = [_NOTHING] * len(segments), [_NOTHING] * len(segments)
    if len(segments) == 1:
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
        self._groups = replica_groups(plan, costs)
        self._known: dict[tuple[Bucket, bool, int], Load] = {}

    def load(self, buckets: Sequence[Bucket], rank: int, *, gather: bool) -> Load:
        """Time of exchanging several buckets one after the other."""
        alike = int(self._costs.alike[rank])
        for bucket in buckets:
            if (bucket, gather, alike) not in self._known:
                self._known[bucket, gather, alike] = self._time(bucket, alike, gather=gather)
        return _sum([self._known[bucket, gather, alike] for bucket in buckets])

    def _time(self, bucket: Bucket, rank: int, *, gather: bool) -> Load:
        taken = self._costs.of(rank).interference
        times = exchange_times(
            self._plan, self._costs, self._groups, bucket, gather=gather, rank=rank
        )
        return _sum(Load(time.seconds, time.seconds * taken.lost_at(time.rate)) for time in times)


def _sum(loads: Iterable[Load]) -> Load:
    seconds, lost = 0.0, 0.0
    for load in loads:
        seconds, lost = seconds + load.seconds, lost + load.lost
    return Load(seconds, lost)
