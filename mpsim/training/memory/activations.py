"""Activations: what each stage keeps of a microbatch, and how much of that a rank holds when.

Shapes: N actions of one rank.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from operator import attrgetter
from typing import NamedTuple

import numpy as np

from mpsim import structs
from mpsim.arrays import Floats
from mpsim.cost.quantise import FORMATS, format_bytes
from mpsim.memo import Memo, asked_once, remembered
from mpsim.parallel import Sharding, Stage, shard
from mpsim.schedule import Action, Orders
from mpsim.training.memory.fresh import Fresh, Fullest, blocks_as_one, fresh_gradients, fullest
from mpsim.training.memory.states import step_scratch
from mpsim.training.plan import Plan
from mpsim.training.recompute import Recompute, Rerun, rerun
from mpsim.workload import (
    Expansion,
    Module,
    Operator,
    OperatorKind,
    Phase,
    Role,
    Split,
    kept_narrow,
)

_DIVISIONS, _RECOMPUTED = 64, 16  # of each, whose pieces stay ready, for points of a sweep
_ORDERS, _LONG = 16, 1 << 14  # that stay followed, and their most actions
_PRODUCTS = (OperatorKind.GEMM, OperatorKind.GROUPED_GEMM)
_FLOAT32 = 4  # in which a loss is computed
_SECOND_HALF = (Module.MLP, Role.NORM)  # where it begins


@structs.dataclass(frozen=True, slots=True)
class Kept:
    """Bytes of one microbatch on one stage."""

    for_input: float = 0.0  # kept from the forward until the input gradient [B]
    for_weight: float = 0.0  # kept until the weight gradient [B]
    logits: float = 0.0  # kept as logits [B]
    in_layers: float = 0.0  # most beside them while a layer is recomputed and differentiated [B]
    in_head: float = 0.0  # the same while the output head is [B]
    in_loss: float = 0.0  # part of `in_head` that is of the loss's own [B]
    collected: float = 0.0  # gradients of a whole backward before they are added to those kept [B]
    # in host memory; one layer's is on the device (`in_layers`) while that is differentiated [B]
    on_host: float = 0.0
    layer: float = 0.0  # part that the last layer keeps, the first to be differentiated [B]
    # of_layers, of_loss: largest tensor that a layer, or the loss, has only while it runs [B]
    of_layers: float = 0.0
    of_loss: float = 0.0

    def __add__(self, other: Kept) -> Kept:
        pairs = zip(columns_of(self), columns_of(other), strict=True)
        joined = [sum(pair) if adds else max(pair) for pair, adds in zip(pairs, _ADDS, strict=True)]
        return structs.replace(Kept(*joined), layer=other.layer or self.layer)


KEPT = tuple(field.name for field in structs.fields(Kept))  # columns of what stages keep
columns_of = attrgetter(*KEPT)
_ADDS = [name in "for_input for_weight logits collected on_host".split() for name in KEPT]


@structs.dataclass(frozen=True, slots=True, eq=False)
class Held:
    """Activations of one rank over its order of actions, and the optimizer's step behind them."""

    # float64[N], as all of these: kept, logits included, when each action starts and has ended [B]
    before: Floats
    after: Floats
    most: Floats  # alive at the fullest moment of each action [B]
    logits: Floats  # part of `most` that is logits, and the loss's own tensors [B]
    collected: Floats  # part of `most` that is this microbatch's gradients [B]
    passing: Floats  # part of `most` that is gathered or reduced units [B]
    elsewhere: Floats  # most that another moment needs at once: much of it fits no hole [B]
    stays: Floats  # the same without what has segments of its own, free when others are short [B]

    @property
    def fullest(self) -> int:
        """The action during which most is alive; the one after the last is the optimizer's step."""
        return int(np.argmax(self.most))

    @property
    def at_fullest(self) -> list[float]:
        """`most`, `logits`, `collected`, `passing`, `elsewhere`, `stays` of that action [B]."""
        columns = self.most, self.logits, self.collected, self.passing, self.elsewhere, self.stays
        place = self.fullest
        return [float(column[place]) for column in columns]


SIGNS = {Action.F: (1, 1, 1), Action.B: (-1, -1, -1), Action.I: (-1, 0, -1), Action.W: (0, -1, 0)}
"""How an action changes what is held for input gradients, for weight gradients and as logits."""


def kept_by_stage(plan: Plan) -> list[Kept]:
    """Bytes that each stage keeps of a microbatch, and needs beside that while it runs backward."""
    # what a head needs beside its logits is another where gradients do not stay
    fresh = len(plan.layout.stages) == 1, bool(fresh_gradients(plan).total)
    known = _pieces((*plan.division, plan.longest, *fresh))
    pieces = known.get_or(plan.recompute, lambda: Pieces(plan))
    return [pieces.kept(plan, stage) for stage in plan.layout.stages]


@remembered(_DIVISIONS)
def _pieces(division: tuple[object, ...]) -> Memo[Recompute, Pieces]:
    """Pieces of all plans with a division, by what runs again."""
    return Memo(_RECOMPUTED)


def kept_by_piece(plan: Plan) -> list[list[tuple[str, Kept]]]:
    """Embedding, layers (or chunks that run again together) and head of each stage."""
    pieces = Pieces(plan)
    return [pieces.of(stage) for stage in plan.layout.stages]


def kept_of(plan: Plan, kind: str) -> Kept:
    """Bytes that a layer of this kind keeps of a microbatch between passes, if it runs again."""
    layers = max(stage.layers for stage in plan.layout.stages)
    return _layer(_expansions(plan)[kind], _sharding(plan), plan.recompute.of_layer(0, layers))


def _ends(plan: Plan, parts: Mapping[str, Expansion]) -> dict[str, Kept]:
    """Bytes that embedding and head keep of a microbatch."""
    sharding, software = _sharding(plan), plan.layout.framework
    # the sum of chunks before and the next one's, unless the sum is among gradients kept from step
    # to step
    copies = 0 if software.memory.steps_in_backward else 2 if fresh_gradients(plan).total else 1
    peak = software.lowering.loss_peak_bytes
    return {
        "embedding": _all(parts["embedding"], sharding),
        "head": _head(parts["head"], sharding, peak, copies),
    }


def _expansions(plan: Plan) -> Mapping[str, Expansion]:
    """Operators of every part with what this stack keeps of them in this precision."""
    parts = plan.fullest_expansions
    kinds = dict.fromkeys(plan.layout.model.layer_kinds)
    return {**parts, **{kind: _as_kept(plan, parts[kind]) for kind in kinds}}


def _as_kept(plan: Plan, layer: Expansion) -> Expansion:
    """A layer with narrow copies where they are kept, and without what is made anew."""
    software, precision = plan.layout.framework, plan.layout.precision
    lifetimes = software.memory
    if lifetimes.keeps_narrow and precision in FORMATS:
        layer = kept_narrow(
            layer,
            element_bytes=format_bytes(precision),
            wide_bytes=float(software.lowering.activation_bytes),
            activation_inputs=lifetimes.narrow_activations,
        )
    anew = {Role.DOWN: lifetimes.remade_products, Role.NORM: lifetimes.remade_norms}
    forward = (
        structs.replace(operator, saved_for_weight=0.0) if anew.get(operator.role) else operator
        for operator in layer.forward
    )
    return structs.replace(layer, forward=tuple(forward)) if any(anew.values()) else layer


def _sharding(plan: Plan) -> Sharding:
    """Division of what is kept: over every axis of the mesh where the compiler divides it so."""
    if not plan.layout.framework.memory.divides_kept:
        return plan.sharding
    return structs.replace(plan.sharding, sequence_parallel=True)


def held_by_rank(plan: Plan, kept: Sequence[Kept] | None = None) -> list[Held]:
    """Follow the order of every rank: a forward adds what its stage keeps, gradients free it.
    `kept`: of each stage; `kept_by_stage` by default.

    Notes
    -----
    A forward is fullest when it ends, a backward as `mpsim.training.memory.fresh.fullest` says.
    """
    orders, fresh = plan.orders, fresh_gradients(plan)
    # of plans that share states in other ways most actions hold the same
    follow = _followed if len(orders) <= _LONG else _follow
    alive = follow(orders, tuple(kept or kept_by_stage(plan)), plan.fuses_blocks, fresh)
    bounds, scratch, total = orders.rank_ptr, step_scratch(plan), fresh.total
    moment = alive.moment
    moments = np.stack([moment.most, moment.elsewhere, moment.stays])
    most, others, stays = np.maximum.reduceat(moments, bounds[:-1], axis=1)
    others = np.maximum(others, np.minimum(scratch, most))
    beside = np.repeat([others, stays], np.diff(bounds), axis=1)
    every = *alive[:2], moment.most, alive.logits, moment.collected, moment.passing, *beside
    lists = scratch - fresh.root
    steps: list[float | Floats] = [0.0, 0.0, total + lists, 0.0, total, lists, others, stays]
    # the optimizer's step stands behind the actions of each rank
    stepped = np.empty((len(every), len(orders) + orders.pp))
    acts, ends = np.arange(len(orders)) + orders.rank, bounds[1:] + np.arange(orders.pp)
    for row, column, step in zip(stepped, every, steps, strict=True):
        row[acts], row[ends] = column, step
    return [
        Held(*(column[first + rank : last + rank + 1] for column in stepped))
        for rank, (first, last) in enumerate(itertools.pairwise(bounds.tolist()))
    ]


class _Alive(NamedTuple):
    """Bytes kept as actions start and when they have ended, and the most meanwhile [B]."""

    before: Floats
    after: Floats
    logits: Floats
    moment: Fullest


def _follow(orders: Orders, kept: tuple[Kept, ...], fuses: bool, fresh: Fresh) -> _Alive:
    """Follow the actions of an order."""
    kind = orders.kind
    table = np.array([columns_of(stage) for stage in kept])
    # taken, which costs a third of indexing
    columns = dict(zip(KEPT, table.T.take(orders.stage, axis=1), strict=True))
    held = np.stack([columns[name] for name in ("for_input", "for_weight", "logits")])
    signs = np.array([SIGNS[action] for action in Action], dtype=float)
    change = held * signs.T.take(kind, axis=1)
    bounds = orders.rank_ptr.tolist()
    ranks = np.split(change, bounds[1:-1], axis=1)
    after = np.concatenate([rank.cumsum(axis=1) for rank in ranks], axis=1).sum(axis=0)
    before = np.concatenate([[0.0], after[:-1]])
    before[bounds[:-1]] = 0.0
    if fuses:
        blocks_as_one(before, after, orders.fused)
    whole = kind == Action.B
    moment = fullest(before, after, columns, whole | (kind == Action.I), whole, fresh)
    in_loss = np.where(columns["in_loss"] >= columns["in_head"], columns["in_loss"], 0.0)
    made = np.where(kind == Action.F, columns["logits"], 0.0)
    logits = np.where(moment.at_head, columns["logits"] + in_loss, made)
    return _Alive(before, after, logits, moment)


_followed = remembered(_ORDERS)(_follow)


class Pieces:
    """Pieces of the stages of plans of one division and recomputation, each worked out once."""

    def __init__(self, plan: Plan) -> None:
        self._layout, self._recompute = plan.layout, plan.recompute
        self._parts, self._sharding = _expansions(plan), _sharding(plan)
        self._ends = _ends(plan, self._parts)

    @asked_once(lambda plan, stage: plan.layout.content(stage))
    def kept(self, plan: Plan, stage: Stage) -> Kept:
        """Bytes that a stage of `plan` keeps of a microbatch, all pieces together."""
        kept, layout = sum((kept for _, kept in self.of(stage)), Kept()), plan.layout
        element = layout.framework.optimizer.microbatch_gradients
        if not element:
            return kept
        trained = math.fsum(map(layout.held, layout.trained_parameters(stage).values()))
        return structs.replace(kept, collected=float(element * trained))

    def of(self, stage: Stage) -> list[tuple[str, Kept]]:
        """Embedding, layers (or chunks of them that run again together) and head by name."""
        layers = self._layers(self._layout.layer_kinds(stage))
        return [
            *([("embedding", self._ends["embedding"])] if stage.embedding else []),
            *((f"layers.{stage.first_layer + layer}", kept) for layer, kept in layers),
            *([("head", self._ends["head"])] if stage.head else []),
        ]

    def _layers(self, kinds: Sequence[str]) -> Iterator[tuple[int, Kept]]:
        """First layer and bytes of each piece of a stage: chunks run again, layers one by one."""
        chunks = {chunk[0]: chunk for chunk in self._recompute.chunks(len(kinds)) if len(chunk) > 1}
        layer, alone = 0, self._recompute.alone(len(kinds))
        while layer < len(kinds):
            chunk = chunks.get(layer, (layer,))
            yield layer, self._piece(tuple(kinds[each] for each in chunk), alone[layer])
            layer += len(chunk)

    @asked_once(lambda kinds, recompute: (kinds, recompute))
    def _piece(self, kinds: tuple[str, ...], recompute: Recompute) -> Kept:
        """Bytes of a layer, or of several that run again together."""
        first, *others = (self._parts[kind] for kind in kinds)
        if others:
            return _together([first, *others], self._sharding)
        return _layer(first, self._sharding, recompute)


def _together(layers: Sequence[Expansion], sharding: Sharding) -> Kept:
    """Layers that run again from the first's input: all whole while the last goes back."""
    inputs = layers[0].input_bytes / sharding.divisor(layers[0].input_split)
    whole = [_all(layer, sharding) for layer in layers]
    again = sum(layer.for_input + layer.for_weight for layer in whole) - inputs
    beside, largest = map(max, zip(*(_gradients(layer, sharding) for layer in layers), strict=True))
    return Kept(for_weight=inputs, in_layers=again + beside, layer=inputs, of_layers=largest)


def _layer(expansion: Expansion, sharding: Sharding, recompute: Recompute) -> Kept:
    if recompute.granularity == "full":
        kept, inputs = _together([expansion], sharding), 1.0
    else:
        repeated = rerun(expansion, recompute, tp=sharding.tp)
        kept = _all(expansion, sharding, repeated)
        beside, largest = _gradients(expansion, sharding)
        beside += _dropped(expansion, sharding, repeated)
        kept = structs.replace(kept, in_layers=beside, of_layers=largest)
        inputs = expansion.input_bytes / sharding.divisor(expansion.input_split)
        inputs = min(inputs / (kept.for_input + kept.for_weight), 1.0)
    share = {"none": 0.0, "inputs": inputs, "products": 1.0 - inputs, "all": 1.0}
    return _on_host(kept, share[recompute.offload])


def _on_host(kept: Kept, share: float) -> Kept:
    """A layer with a share of what it keeps on the host, back while it is differentiated."""
    whole = kept.for_input + kept.for_weight
    away = share * whole
    return structs.replace(
        kept,
        layer=whole - away,
        for_input=(1.0 - share) * kept.for_input,
        for_weight=(1.0 - share) * kept.for_weight,
        in_layers=kept.in_layers + away,
        on_host=away,
    )


def _dropped(expansion: Expansion, sharding: Sharding, repeated: Rerun) -> float:
    """Most of what was not kept alive at once: a half layer's, unless all runs again [B]."""
    halves = [0.0, 0.0]
    half = 0
    for operator in expansion.forward:
        if operator.place == _SECOND_HALF and not repeated.together:
            half = 1
        until_input, until_weight = repeated.of(operator)
        halves[half] += (operator.saved - until_input) / sharding.divisor(operator.saved_split)
        halves[half] += (operator.saved_for_weight - until_weight) / _weight_divisor(
            operator, sharding
        )
    return max(halves)


def _head(expansion: Expansion, sharding: Sharding, peak: float, copies: int) -> Kept:
    """The output head; its loss has `peak` bytes per logit alive at a time in its backward, and in
    chunks so many `copies` of its weight's gradient.
    """
    kept = _all(expansion, sharding)
    projection = next(operator for operator in expansion.forward if operator.role is Role.LOGITS)
    loss = next(each for each in expansion.forward if each.kind is OperatorKind.LOSS)
    logits = projection.m * projection.n / _divisor(loss, sharding)
    in_loss = max(peak * logits - kept.logits, 0.0)
    pair, _ = _gradients(expansion, sharding)
    if 0.0 < peak < sharding.activation_bytes:  # their gradient is never whole either
        pair -= (sharding.activation_bytes - peak) * logits
    each = max(kept.logits, in_loss)  # compiled, no tensor of a loss is in float32
    in_head, of_loss = max(in_loss, pair), min(_FLOAT32 * logits, each)
    if 0 < in_loss < sharding.activation_bytes * logits:
        # a loss in chunks hands the projection one chunk's gradients at a time, and its weight's
        # gradient is there from the first
        products = (each for each in expansion.backward if each.kind in _PRODUCTS)
        weight = sum(each.m * each.n for each in products if each.phase is Phase.WEIGHT_GRADIENT)
        element = sharding.activation_bytes / sharding.divisor(Split.TENSOR)
        in_loss = in_head = in_loss + copies * element * weight
        of_loss = element * weight
    return structs.replace(kept, in_head=in_head, in_loss=in_loss, of_loss=of_loss)


def _all(expansion: Expansion, sharding: Sharding, repeated: Rerun | None = None) -> Kept:
    for_input = for_weight = logits = 0.0
    for operator in expansion.forward:
        share = _divisor(operator, sharding)
        saved, longer = (
            repeated.of(operator) if repeated else (operator.saved, operator.saved_for_weight)
        )
        if operator.kind is OperatorKind.LOSS:
            logits += (saved + longer) / share
        else:
            for_input += saved / share
            for_weight += longer / _weight_divisor(operator, sharding)
    return Kept(for_input, for_weight, logits)


def _divisor(operator: Operator, sharding: Sharding) -> int:
    """How tensor parallelism divides what is kept to the input gradient, logits unless gathered."""
    whole = operator.kind is OperatorKind.LOSS and not sharding.tensor.loss_reductions
    return 1 if whole else sharding.divisor(operator.saved_split)


def _weight_divisor(operator: Operator, sharding: Sharding) -> int:
    """By how much tensor parallelism divides what is kept for a weight gradient: not what was
    gathered for it and stays.
    """
    norm = operator.kind is OperatorKind.NORM or operator.role is Role.NORM  # or a chain of kernels
    stays = sharding.tensor.keeps_gathered and norm
    return 1 if stays else sharding.divisor(operator.saved_split)


def _gradients(layer: Expansion, sharding: Sharding) -> tuple[float, float]:
    """The most that gradients take at once beside what a layer still keeps: what one matrix product
    reads and writes, or a softmax; and the largest of them [B].
    """
    scores, freed = _softmax(layer, sharding)
    pairs = [(scores, scores - freed)]
    for operator in layer.backward:
        if operator.phase is Phase.INPUT_GRADIENT and operator.kind in _PRODUCTS:
            product = shard(operator, sharding)
            rows = float(sharding.activation_bytes * product.batch * product.m)
            pairs.append((rows * product.n, rows * product.k))
    return max(map(sum, pairs)), max(map(max, pairs))


def _softmax(layer: Expansion, sharding: Sharding) -> tuple[float, float]:
    """Gradient of a softmax that torch's own kernels compute in float32, of its scores as of its
    result; and what a backward has freed of the layer by then, their cast too [B]. One kernel for
    all writes in place.

    References
    ----------
    torch 2.13, aten/src/ATen/native/SoftMax.cpp: bfloat16 is converted before. Megatron-LM
    core_v0.8.0, megatron/legacy/fused_kernels/scaled_masked_softmax_cuda.cu, "in-place".
    """
    scores = 0.0
    for place, operator in enumerate(layer.forward):
        if operator.role is Role.SCORES:
            scores = float(_FLOAT32 * shard(operator, sharding).operands[-1])
        cast = operator.saved / sharding.divisor(operator.saved_split) - scores
        if operator.role is Role.SOFTMAX and cast >= 0.0:
            later = _all(structs.replace(layer, forward=layer.forward[place + 1 :]), sharding)
            return scores, cast + later.for_input + later.for_weight
    return 0.0, 0.0
