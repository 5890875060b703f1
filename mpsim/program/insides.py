"""The inside of every action: which templates it consists of, and where gradient buckets hook in.

An action is one row with one template, except the last backward of a stage, which is cut where a bucket of gradients is complete, and the first
forward, which is cut where a bucket of parameters has to be there, when the framework overlaps these.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from mpsim.program.blocks import Block, Blocks
from mpsim.program.costs import PlanCosts
from mpsim.program.pipeline import Variants, first_forward, last_gradient
from mpsim.program.plan import Plan
from mpsim.program.program import Template
from mpsim.program.template import EMPTY
from mpsim.schedule import Action

__all__ = ["Bucket", "Insides"]


@dataclasses.dataclass(frozen=True, slots=True)
class Bucket:
    """Parameters reduced or gathered together.

    Parameters
    ----------
    stage : int
    segment : int
        Row of the cut action after which their gradients are complete (before which they have to be gathered).
    parameters : float
        On one tensor-parallel rank.
    """

    stage: int
    segment: int
    parameters: float


class Insides:
    """Chooses and collects the templates of one Plan.

    Parameters
    ----------
    plan : Plan
    costs : PlanCosts

    Attributes
    ----------
    variant : int64[N]
        Which of `variants` each action is.
    buckets : list of Bucket
        Of gradients, by stage, in the order they complete.
    gathers : list of Bucket
        Of parameters, in the order they are needed; empty when they are not gathered beside the first forward.
    """

    def __init__(self, plan: Plan, costs: PlanCosts) -> None:
        self._plan = plan
        self._blocks = Blocks(plan, costs)
        self._templates: list[Template] = []
        self._segments: list[tuple[int, ...]] = []  # templates of each variant
        self._place: dict[int, int] = {}
        self._number: dict[tuple[int, ...], int] = {}
        self.variant = self._whole()
        software = plan.framework
        shared = plan.replicas > 1
        reduce_beside = shared and software.overlaps_gradients(plan.mesh.pp)
        gather_beside = shared and plan.zero >= 1 and software.data.parameter_gather_overlap
        self.buckets = self._cut(last_gradient(plan.orders), fine=reduce_beside)
        self.gathers = self._cut(first_forward(plan.orders), fine=True) if gather_beside else []
        if plan.fuses_blocks:
            self._fuse()

    @property
    def templates(self) -> tuple[Template, ...]:
        """Every template, in the order `variants` numbers them."""
        return tuple(self._templates)

    @property
    def variants(self) -> Variants:
        """Rows of each variant, columnar."""
        template = np.array([one for piece in self._segments for one in piece], dtype=np.int32)
        counts = [len(piece) for piece in self._segments]
        return Variants(
            ptr=np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
            template=template,
            duration=np.array([one.parts.sum() for one in self._templates])[template],
            up_bytes=np.array([one.up_bytes.sum() for one in self._templates])[template],
            out_bytes=np.array([one.out_bytes.sum() for one in self._templates])[template],
        )

    def _whole(self) -> NDArray[np.int64]:
        """One row an action."""
        plan, orders = self._plan, self._plan.orders
        table = np.zeros((len(Action), orders.stages), dtype=np.int64)
        for kind in np.unique(orders.kind).tolist():
            known: dict[int, int] = {}  # stages of equal content have one list of blocks
            for stage in plan.stages:
                whole = self._blocks.of(stage, Action(kind))
                if id(whole) not in known:
                    known[id(whole)] = self._variant(Action(kind), [whole])
                table[kind, stage.index] = known[id(whole)]
        chosen: NDArray[np.int64] = table[orders.kind, orders.stage]
        return chosen

    def _cut(self, action: NDArray[np.int64], *, fine: bool) -> list[Bucket]:
        """Cut one action of every stage into buckets, or leave it one bucket."""
        result = []
        for stage in self._plan.stages:
            row = int(action[stage.index])
            kind = Action(int(self._plan.orders.kind[row]))
            blocks = self._blocks.of(stage, kind)
            pieces = self._pieces(blocks) if fine else [blocks]
            self.variant[row] = self._variant(kind, pieces)
            result += [
                Bucket(stage.index, i, sum(one.parameters for one in piece))
                for i, piece in enumerate(pieces)
            ]
        return result

    def _fuse(self) -> None:
        """Put both actions of a block into the first one's row, where neither is cut; the second one's row is left empty."""
        orders, plain = self._plan.orders, self._whole()
        nothing = self._chosen((self._register(EMPTY),))
        for head in np.flatnonzero(orders.fused).tolist():
            if (self.variant[head : head + 2] != plain[head : head + 2]).any():
                continue
            ahead, behind = (self._plan.stages[orders.stage[row]] for row in (head, head + 1))
            both = self._blocks.fused(ahead, behind, Action(int(orders.kind[head + 1])))
            self.variant[head] = self._chosen((self._register(both),))
            self.variant[head + 1] = nothing

    def _pieces(self, blocks: Sequence[Block]) -> list[list[Block]]:
        """Group blocks until each group's gradients fill a bucket."""
        size = (
            self._plan.framework.data.bucket_bytes / self._plan.framework.optimizer.gradient_bytes
        )
        pieces: list[list[Block]] = [[]]
        for block in blocks:
            if pieces[-1] and sum(one.parameters for one in pieces[-1]) >= size:
                pieces.append([])
            pieces[-1].append(block)
        return pieces

    def _variant(self, kind: Action, pieces: Sequence[Sequence[Block]]) -> int:
        return self._chosen(
            tuple(self._register(self._blocks.join(kind, piece)) for piece in pieces)
        )

    def _chosen(self, chosen: tuple[int, ...]) -> int:
        if chosen not in self._number:
            self._number[chosen] = len(self._segments)
            self._segments.append(chosen)
        return self._number[chosen]

    def _register(self, template: Template) -> int:
        if id(template) not in self._place:
            self._place[id(template)] = len(self._templates)
            self._templates.append(template)
        return self._place[id(template)]
