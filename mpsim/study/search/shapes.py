"""Shapes: what one layer, the embedding and the head take and keep, for every distinct way to divide them.

Layouts with the same microbatch, the same division of a layer and the same recomputation share these, whatever their pipeline is.

Shapes: A parts of the model (kinds of layers, then embedding, head), P pipeline ranks.
"""

from __future__ import annotations

import dataclasses
import functools

import numpy as np
from numpy.typing import NDArray

from mpsim.framework import ExpertOverlap
from mpsim.program.blocks import Blocks
from mpsim.program.costs import PlanCosts
from mpsim.program.plan import Plan
from mpsim.program.program import COMPUTING
from mpsim.result.memory import kept_by_part
from mpsim.schedule import Action, make_orders

__all__ = ["Shape", "Shapes", "part_names"]

Floats = NDArray[np.float64]


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Shape:
    """Parts of the model, divided in one way.

    Parameters
    ----------
    blocks : Blocks
        With the templates of the parts.
    ticks : float64[4, A]
        Time of each `Action` of each part [ticks]; of an action that can hide in another, its kernels only.
    kept : float64[5, A]
        Fields of `mpsim.result.memory.Kept` of each part [B].
    """

    blocks: Blocks
    ticks: Floats
    kept: Floats


def part_names(plan: Plan) -> tuple[str, ...]:
    """Kinds of layers, then embedding and head."""
    return (*dict.fromkeys(plan.model.layer_kinds), "embedding", "head")


class Shapes:
    """Finds the shapes of plans, each distinct one once.

    Parameters
    ----------
    plan : Plan
        Any of the plans: cost models are those of its cluster, precision and framework.
    """

    def __init__(self, plan: Plan) -> None:
        self._models = PlanCosts(plan)
        self._shapes: dict[tuple[object, ...], Shape] = {}
        self._blocks: dict[tuple[object, ...], Blocks] = {}
        self._sends: dict[tuple[object, ...], Floats] = {}

    def costs(self, plan: Plan) -> PlanCosts:
        """Cost models of a plan, which remember what they were asked for other plans."""
        return PlanCosts(plan, like=self._models)

    def blocks(self, plan: Plan, costs: PlanCosts) -> Blocks:
        """Blocks of a plan, with the templates of all plans that divide layers the same way."""
        key = _division(plan)
        if key not in self._blocks:
            self._blocks[key] = Blocks(plan, costs)
        return Blocks(plan, costs, like=self._blocks[key])

    def shape(self, plan: Plan, groups: tuple[object, ...], *, splits: bool) -> Shape:
        """Times and kept bytes of a plan's parts.

        Parameters
        ----------
        plan : Plan
        groups : tuple
            Where the communicators of its mesh sit, as `groups` says.
        splits : bool
            Whether weight gradients are actions of their own.
        """
        key = (*_division(plan), splits, groups)
        if key not in self._shapes:
            self._shapes[key] = self._shape(plan, self.costs(plan), splits)
        return self._shapes[key]

    @staticmethod
    def groups(costs: PlanCosts) -> tuple[object, ...]:
        """Where the communicators inside stages sit, for every kind of pipeline rank."""
        return tuple(costs.stage(int(rank)).key for rank in np.unique(costs.alike))

    def _shape(self, plan: Plan, costs: PlanCosts, splits: bool) -> Shape:
        blocks, names = self.blocks(plan, costs), part_names(plan)
        actions = (Action.F, Action.I, Action.W) if splits else (Action.F, Action.B)
        ticks = np.zeros((len(Action), len(names)))
        for action in actions:
            for place, name in enumerate(names):
                ticks[action, place] = _least(plan, blocks, costs, name, action)
        kept = kept_by_part(plan)
        fields = [dataclasses.astuple(kept[name]) for name in names]
        return Shape(blocks, ticks, np.array(fields).T)

    def sends(self, plan: Plan) -> Floats:
        """Ticks of a message from every pipeline rank to the next and to the one before, float64[2, P]."""
        pp = plan.mesh.pp
        if pp == 1:
            return np.zeros((2, 1))
        key = (plan.mesh, plan.micro_batch, plan.sequence_parallel)
        if key not in self._sends:
            loop = dataclasses.replace(plan, orders=_loop(pp), stages=plan.stages)
            twice = dataclasses.replace(loop, stages=(plan.stages[0],) * (2 * pp))
            probe = self.costs(twice)
            ticks = probe.sends().duration
            onward = ticks[0, :pp]
            back = np.roll(ticks[1, 1 : pp + 1], 1)
            self._sends[key] = np.stack([onward, back])
        return self._sends[key]


@functools.lru_cache(maxsize=64)
def _loop(pp: int):  # type: ignore[no-untyped-def] # noqa: ANN202
    return make_orders("interleaved-1f1b", pp=pp, microbatches=pp, virtual_stages=2)


def _division(plan: Plan) -> tuple[object, ...]:
    """What decides the operators of a part on one rank."""
    mesh = plan.mesh
    return (
        *(mesh.tp, mesh.cp, mesh.ep, mesh.expert_tp),
        *(plan.micro_batch, plan.sequence_parallel, plan.recompute),
    )


def _least(plan: Plan, blocks: Blocks, costs: PlanCosts, name: str, action: Action) -> float:
    """Least time of a part over ranks whose groups sit differently [ticks]."""
    hides = plan.framework.experts.expert_overlap is ExpertOverlap.MICROBATCH
    parts = (
        blocks.template(name, action, costs.stage(int(rank))).parts
        for rank in np.unique(costs.alike)
    )
    return float(min(one[[*COMPUTING]].sum() if hides else one.sum() for one in parts))
