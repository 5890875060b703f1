"""Segments of an action: consecutive blocks that share a gather of parameters or a reduction of
gradients.

Where parameters are sharded (ZeRO 3, FSDP) every action is cut into *units*, each gathered before
it runs. Otherwise the last backward of a stage is cut into *buckets* of gradients where the
framework reduces them beside it, and the first forward likewise where parameters are gathered
beside it.

Shapes: N actions, S stages.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from mpsim import structs
from mpsim.arrays import Flags, Ints
from mpsim.memo import remembered
from mpsim.parallel import Stage
from mpsim.program.program import Template
from mpsim.program.template import empty_template
from mpsim.schedule import Action, Orders
from mpsim.training.blocks import Block, Blocks, Row
from mpsim.training.plan import Plan, PlanCosts
from mpsim.training.vocabulary import TRAINING

_NEEDING = (Action.F, Action.B, Action.I)  # a weight gradient needs activations and gradients only
_GRADIENT = (Action.B, Action.W)
_DIVISIONS = 64  # of layers among stages that stay known
_CUTS = 512  # rows


class Bucket(NamedTuple):
    """Parameters of a rank in one exchange; routed experts' apart, shared by other ranks."""

    dense: float
    experts: float


@structs.dataclass(frozen=True, slots=True)
class Segment:
    """Consecutive blocks of an action."""

    blocks: tuple[Block, ...]
    gathers: tuple[Bucket, ...] = ()  # gathered before it, in order
    reduces: tuple[Bucket, ...] = ()  # reduced after it, in order


class CutRows(NamedTuple):
    """Rows that an action becomes, counted from its first, and how much travels around them."""

    rows: int
    # row, ready: of each segment, the row that computes, and the row after which its gradients can
    # be reduced (a later one where they are copied first)
    row: tuple[int, ...]
    ready: tuple[int, ...]
    gathers: tuple[int, ...]  # gathers, reduces: buckets before and after each segment
    reduces: tuple[int, ...]


class Segments(tuple[Segment, ...]):
    """Segments of an action: one object for all plans that cut a row alike, compared as such."""

    __slots__ = ()
    __eq__, __hash__ = object.__eq__, object.__hash__


class CutAction(NamedTuple):
    """An action with its segments; `fused` is its template where it runs beside another."""

    action: Action
    stage: Stage
    segments: Segments
    fused: Template | None = None

    @property
    def is_whole(self) -> bool:
        """Whether the action is one segment with which nothing travels."""
        return len(self.segments) == 1 and not (
            self.segments[0].gathers or self.segments[0].reduces
        )


class Cuts(NamedTuple):
    """Every distinct action of a step, and which of them each action is [N]."""

    distinct: list[CutAction]
    chosen: Ints


class _Around(NamedTuple):
    """Actions of some kinds, or of these the first or last of each stage in a part of a step."""

    kinds: tuple[Action, ...] = ()
    which: str = "all"
    parts: int = 1

    def of(self, orders: Orders) -> Flags:
        """Which of some actions these are, bool[N]."""
        wanted = np.zeros(len(Action), dtype=bool)
        wanted[[int(kind) for kind in self.kinds]] = True
        mine = wanted[orders.kind]
        if self.which == "all" or not self.kinds:
            return mine
        ordered = np.flatnonzero(mine)[:: 1 if self.which == "last" else -1]
        # numpy assigns in order, so of several actions of a stage the last one stays
        extreme = np.full((orders.stages, self.parts), -1, dtype=np.int64)
        part = orders.microbatch[ordered] * self.parts // orders.microbatches
        extreme[orders.stage[ordered], part] = ordered
        chosen = np.zeros(len(orders), dtype=bool)
        chosen[extreme[extreme >= 0]] = True
        return chosen


def cut_actions(plan: Plan, costs: PlanCosts, blocks: Blocks) -> Cuts:
    """Cut the actions of a step where parameters or gradients travel, actions alike once."""
    sits = tuple((costs.stage(rank).key, rank) for rank in costs.alike.tolist())
    first = _first_alike(plan.layout.stages, plan.layout.model.layer_kinds, sits)
    needs, chosen = _distinct(plan.orders, first, _gathering(plan), _reducing(plan))
    cuts = []
    for action, index, gather, reduce in needs:
        stage = plan.layout.stages[index]
        how = _how(plan, stage, gather=gather, reduce=reduce)
        cuts.append(CutAction(action, stage, _split(blocks.of(stage, action), how)))
    if not plan.fuses_blocks or plan.layout.framework.data.accumulation_traffic:
        return Cuts(cuts, chosen)
    own = Cuts(cuts, chosen.copy())
    _fuse(plan, blocks, own)
    return own


@remembered(_DIVISIONS)
def _distinct(
    orders: Orders, first: tuple[int, ...], gathering: _Around, reducing: _Around
) -> tuple[list[tuple[Action, int, bool, bool]], Ints]:
    """Distinct actions by kind, stage and what travels around them, and which each one is [N]."""
    shape, alike = (len(Action), orders.stages, 2, 2), np.array(first)[orders.stage]
    around = (gathering.of(orders).astype(int), reducing.of(orders).astype(int))
    key = np.ravel_multi_index((orders.kind, alike, *around), shape)
    # of thousands of actions a handful are distinct, which a table counts without sorting
    distinct = np.flatnonzero(np.bincount(key))
    needs = zip(*(axis.tolist() for axis in np.unravel_index(distinct, shape)), strict=True)
    table = np.zeros(int(np.prod(shape)), dtype=np.int64)
    table[distinct] = np.arange(len(distinct))
    chosen = table[key]
    chosen.setflags(write=False)
    return [(Action(kind), *place, bool(g), bool(r)) for kind, *place, g, r in needs], chosen


_NOTHING = Segments([Segment(())])


def _fuse(plan: Plan, blocks: Blocks, cuts: Cuts) -> None:
    """Put both actions of an uncut block into the first; nothing is left of the second."""
    orders, stages = plan.orders, plan.layout.stages
    number: dict[Template, int] = {}

    def alone(action: Action, stage: Stage, template: Template) -> int:
        if template not in number:
            number[template] = len(cuts.distinct)
            cuts.distinct.append(CutAction(action, stage, _NOTHING, template))
        return number[template]

    whole = [cut.is_whole for cut in cuts.distinct]
    nothing = alone(Action.F, stages[0], empty_template(TRAINING))
    for head in np.flatnonzero(orders.fused).tolist():
        if not all(whole[place] for place in cuts.chosen[head : head + 2]):
            continue
        ahead, behind = (stages[orders.stage[row]] for row in (head, head + 1))
        action = Action(int(orders.kind[head + 1]))
        cuts.chosen[head] = alone(action, behind, blocks.fused(ahead, behind, action))
        cuts.chosen[head + 1] = nothing


@remembered(_DIVISIONS)
def _first_alike(
    stages: tuple[Stage, ...], kinds: tuple[str, ...], sits: tuple[tuple[object, int], ...]
) -> tuple[int, ...]:
    """For each stage, the first whose actions are cut and timed as its own. `kinds`: of all layers.
    `sits`: of each pipeline rank, where its communicators sit, and the first rank like it.
    """
    first: dict[object, int] = {}
    contents = [
        (
            kinds[stage.first_layer : stage.first_layer + stage.layers],
            # what a head holds depends on whether its rank has the embedding
            *(stage.embedding, stage.rank if stage.head else -1),
            # the first stage's first chunk is cut in its own way, and so are stages on other nodes
            *(stage.index == 0, sits[stage.rank]),
        )
        for stage in stages
    ]
    return tuple(first.setdefault(content, i) for i, content in enumerate(contents))


def _gathering(plan: Plan) -> _Around:
    """Actions that wait for parameters to be gathered.

    Notes
    -----
    Sharded parameters: every forward, and every backward too where they are given up after the
    forward; with a pipeline that keeps them gathered, the first forward of each stage after they
    were given up. Recomputation runs on what was gathered for the backward. Otherwise: the first
    forward, where the framework gathers beside it what the optimizer updated.
    """
    if plan.gathers_units and not plan.keeps_gathered:
        again = plan.layout.framework.data.reshard_after_forward
        return _Around(_NEEDING if again else (Action.F,))
    once = plan.gathers_units or plan.gathers_beside
    return _Around((Action.F,), "first", _kept(plan)) if once else _Around()


def _reducing(plan: Plan) -> _Around:
    """Actions after which gradients are reduced."""
    if plan.replicas == 1 and plan.offload == "none":
        return _Around()
    which = "all" if plan.reduces_every_microbatch else "last"
    return _Around(_GRADIENT, which, _kept(plan))


def _kept(plan: Plan) -> int:
    """Parts of a step, at whose ends a stage reduces and gives up what it has gathered [count]."""
    once = plan.layout.framework.data.defer_reduction or not plan.keeps_gathered
    return 1 if once else plan.orders.flushes


class _How(NamedTuple):
    """How an action is cut that needs parameters (`gather`) or completes gradients (`reduce`)."""

    gather: bool
    reduce: bool
    layers: int = 0  # of a unit; 0 where parameters are not gathered unit by unit
    root: bool = False  # whether embedding and head are one unit
    # parameters that fill the first bucket, and any other one
    first: float = math.inf
    usual: float = math.inf


def _how(plan: Plan, stage: Stage, *, gather: bool, reduce: bool) -> _How:
    framework, data = plan.layout.framework, plan.layout.framework.data
    if plan.gathers_units:
        return _How(gather, reduce, data.unit_layers, data.root_unit)
    if not gather and not (reduce and framework.overlaps_gradients(plan.layout.mesh.pp)):
        return _How(gather, reduce)
    if data.first_chunk_buckets and (stage.rank or plan.orders.stage_chunk[stage.index]):
        return _How(gather, reduce)
    element = framework.optimizer.gradient_bytes
    usual = max(data.bucket_bytes, data.bucket_bytes_per_replica * plan.replicas) / element
    first = data.first_bucket_bytes / element or usual
    return _How(gather, reduce, first=first, usual=usual)


@remembered(_CUTS)
def _split(row: Row, how: _How) -> Segments:
    """Cut an action."""
    return Segments((_units if how.layers else _buckets)(row, how))


def _buckets(row: Row, how: _How) -> Iterator[Segment]:
    """Blocks whose parameters were updated, or whose gradients are reduced, as one."""
    for group in _grouped(row.blocks, how):
        bucket = _trained(group)
        yield Segment(tuple(group), bucket if how.gather else (), bucket if how.reduce else ())


def _trained(blocks: Sequence[Block]) -> tuple[Bucket, ...]:
    """The bucket of what trains of some blocks; none where nothing does."""
    experts = math.fsum([block.trained_experts for block in blocks])
    total = math.fsum([block.trained for block in blocks])
    return (Bucket(total - experts, experts),) if total else ()


def _bucket(blocks: Sequence[Block]) -> Bucket:
    experts = math.fsum(block.experts for block in blocks)
    return Bucket(math.fsum(block.parameters for block in blocks) - experts, experts)


def _grouped(blocks: Sequence[Block], how: _How) -> list[list[Block]]:
    """Group blocks until each group's gradients fill a bucket."""
    groups, size = list[list[Block]]([[]]), how.first
    for block in blocks:
        if groups[-1] and math.fsum([block.trained for block in groups[-1]]) >= size:
            groups.append([])
            size = how.usual
        groups[-1].append(block)
    return groups


def _units(row: Row, how: _How) -> Iterator[Segment]:
    """Units of sharded parameters: some layers each; embedding and head are the root, or one each.

    The root is gathered with a forward's first unit and kept until its gradients are reduced after
    the backward's last. A head of its own is kept too: its backward follows its forward.
    """
    groups = _unit_groups(row.blocks, how.layers)
    ends = [block for block in row.blocks if block.layer < 0]
    root = _bucket(ends) if how.root and ends else None
    is_forward = row.action is Action.F
    outermost = 0 if is_forward else len(groups) - 1
    for place, group in enumerate(groups):
        is_end = group[0].layer < 0
        own = () if is_end and root else (_bucket(group),)
        extra = (root,) if root and place == outermost else ()
        forward = (*extra, *own) if how.gather and is_forward else ()
        again = own if how.gather and not is_forward and not is_end else ()
        reduced = () if is_end and root else _trained(group)
        reduced += _trained(ends) if extra else ()
        yield Segment(tuple(group), forward or again, reduced if how.reduce else ())


def _unit_groups(blocks: Sequence[Block], layers: int) -> list[list[Block]]:
    """Blocks by unit, in the order they run; embedding and head are groups of their own."""
    groups: list[list[Block]] = []
    previous: int | None = None
    for block in blocks:
        unit = block.layer // layers if block.layer >= 0 else None
        if unit is None or unit != previous:
            groups.append([])
        groups[-1].append(block)
        previous = unit
    return groups
