"""Activations: what each stage keeps of a microbatch, and how much of that a rank holds when.

Shapes: N actions of one rank.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from mpsim.parallel import Sharding, shard
from mpsim.program.blocks import Blocks
from mpsim.program.plan import Plan
from mpsim.schedule import Action
from mpsim.workload import Expansion, Operator, OperatorKind, Phase

__all__ = ["Held", "Kept", "held_by_rank", "kept_by_part", "kept_by_stage"]

_PRODUCTS = (OperatorKind.GEMM, OperatorKind.GROUPED_GEMM)


@dataclasses.dataclass(frozen=True, slots=True)
class Kept:
    """Bytes of one microbatch on one stage.

    Parameters
    ----------
    for_input, for_weight, logits : float
        Kept from the forward until the input gradient, until the weight gradient, and as logits [B].
    in_layers : float
        Most that is alive beside them while one layer is recomputed and differentiated [B].
    in_head : float
        The same while the output head is.
    """

    for_input: float = 0.0
    for_weight: float = 0.0
    logits: float = 0.0
    in_layers: float = 0.0
    in_head: float = 0.0

    def __add__(self, other: Kept) -> Kept:
        return Kept(
            self.for_input + other.for_input,
            self.for_weight + other.for_weight,
            self.logits + other.logits,
            max(self.in_layers, other.in_layers),
            max(self.in_head, other.in_head),
        )


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Held:
    """Activations of one rank over its order of actions.

    Parameters
    ----------
    before, after : float64[N]
        Kept when each action starts and when it has ended, logits included [B].
    most : float64[N]
        Alive at the fullest moment of each action [B].
    logits : float64[N]
        Part of `most` that is logits [B].
    """

    before: NDArray[np.float64]
    after: NDArray[np.float64]
    most: NDArray[np.float64]
    logits: NDArray[np.float64]

    @property
    def fullest(self) -> int:
        """The action during which most is alive."""
        return int(np.argmax(self.most))


def kept_by_stage(plan: Plan) -> list[Kept]:
    """What each stage keeps of a microbatch, and what it needs beside that while it runs backward."""
    parts = kept_by_part(plan)
    result = []
    for stage in plan.stages:
        kept = sum((parts[kind] for kind in plan.layer_kinds(stage)), Kept())
        kept = kept + parts["embedding"] if stage.embedding else kept
        result.append(kept + parts["head"] if stage.head else kept)
    return result


def kept_by_part(plan: Plan, parts: Mapping[str, Expansion] | None = None) -> dict[str, Kept]:
    """What a layer of each kind (by that name), the embedding and the head keep of a microbatch.

    Parameters
    ----------
    plan : Plan
    parts : mapping of str to Expansion, optional
        Operators of each, as `Blocks.expand` gives them.
    """
    parts = parts or Blocks.expand(plan)
    layers = {kind: _layer(parts[kind], plan) for kind in dict.fromkeys(plan.model.layer_kinds)}
    ends = {
        "embedding": _all(parts["embedding"], plan.sharding),
        "head": _head(parts["head"], plan.sharding),
    }
    return layers | ends


def held_by_rank(plan: Plan, rank: int, kept: Sequence[Kept]) -> Held:
    """Follow the order of one rank: a forward adds what its stage keeps, gradients free it.

    Notes
    -----
    A forward is fullest when it ends. A backward is fullest either at its start, in the output head, or in a layer, when the
    logits are gone; both hold what was kept and what the part itself needs.
    """
    orders = plan.orders
    rows = slice(int(orders.rank_ptr[rank]), int(orders.rank_ptr[rank + 1]))
    kind, stage = orders.kind[rows], orders.stage[rows]
    table = np.array([(one.for_input, one.for_weight, one.logits) for one in kept])
    sign = {
        Action.F: (1, 1, 1),
        Action.B: (-1, -1, -1),
        Action.I: (-1, 0, -1),
        Action.W: (0, -1, 0),
    }
    signs = np.array([sign[action] for action in Action], dtype=float)
    levels = np.cumsum(table[stage] * signs[kind], axis=0)
    after = levels.sum(axis=1)
    before = np.concatenate([[0.0], after[:-1]])
    differentiates = (kind == Action.B) | (kind == Action.I)
    logits = np.where(kind == Action.F, table[stage, 2], 0.0)
    in_layers = np.array([one.in_layers for one in kept])[stage]
    in_head = np.array([one.in_head for one in kept])[stage]
    own = np.where(differentiates, table[stage, 2], 0.0)
    beside = np.maximum(in_layers - own, in_head)
    return Held(
        before=before,
        after=after,
        most=np.where(differentiates, before + beside, np.maximum(before, after)),
        logits=np.where(differentiates & (in_head >= in_layers - own), own, logits),
    )


def _layer(expansion: Expansion, plan: Plan) -> Kept:
    transient = _gradients(expansion.backward, plan.sharding)
    if plan.recompute == "full":
        whole = _all(expansion, plan.sharding)
        kept = expansion.input_bytes / plan.sharding.divisor(expansion.input_split)
        again = whole.for_input + whole.for_weight - kept
        return Kept(for_weight=kept, in_layers=again + transient)
    kept_ = _all(expansion, plan.sharding, selective=plan.recompute == "selective")
    return dataclasses.replace(kept_, in_layers=kept_.in_layers + transient)


def _head(expansion: Expansion, sharding: Sharding) -> Kept:
    kept = _all(expansion, sharding)
    return dataclasses.replace(
        kept, in_layers=0.0, in_head=_gradients(expansion.backward, sharding)
    )


def _all(expansion: Expansion, sharding: Sharding, *, selective: bool = False) -> Kept:
    for_input = for_weight = logits = core = 0.0
    for one in expansion.forward:
        share = sharding.divisor(one.saved_split)
        if one.kind is OperatorKind.LOSS:
            logits += (one.saved + one.saved_for_weight) / share
        elif selective and one.recomputed_selectively:
            core += (one.saved + one.saved_for_weight) / share
        else:
            for_input += one.saved / share
            for_weight += one.saved_for_weight / share
    return Kept(for_input, for_weight, logits, core)


def _gradients(operators: Iterable[Operator], sharding: Sharding) -> float:
    """The largest pair of gradients that one matrix product reads and writes [B]."""
    products = (
        shard(one, sharding)
        for one in operators
        if one.phase is Phase.INPUT_GRADIENT and one.kind in _PRODUCTS
    )
    elements = (one.batch * one.m * (one.n + one.k) for one in products)
    return float(sharding.activation_bytes * max(elements, default=0))
