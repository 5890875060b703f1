"""The inside of every action: which templates it consists of, and where gathers and reductions hook in.

An action is one row with one template, unless data parallelism cuts it (`mpsim.training.replicas.segments`); then every piece is a row, and
copies of its gradients before they are reduced another.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mpsim.parallel import Stage
from mpsim.program.program import Template
from mpsim.program.template import EMPTY, stretched
from mpsim.schedule import Action
from mpsim.training.blocks import Block, Blocks
from mpsim.training.costs import PlanCosts
from mpsim.training.pipeline import Variants
from mpsim.training.plan import Plan
from mpsim.training.replicas.habits import gathers, reduces
from mpsim.training.replicas.hooks import Hooks, Inside
from mpsim.training.replicas.passes import Passes
from mpsim.training.replicas.segments import Amount, Piece, cut
from mpsim.training.replicas.slowdown import Beside

__all__ = ["Insides"]

_GRADIENT = (Action.B, Action.W)


class Insides:
    """Chooses and collects the templates of one Plan.

    Parameters
    ----------
    plan : Plan
    costs : PlanCosts
    blocks : Blocks, optional
        Templates of the plan's blocks; made from the plan when absent.

    Attributes
    ----------
    variant : int64[N]
        Which of `variants` each action is.
    hooks : Hooks
        Where parameters are gathered and gradients reduced.
    """

    def __init__(self, plan: Plan, costs: PlanCosts, blocks: Blocks | None = None) -> None:
        self._plan = plan
        self._blocks = blocks or Blocks(plan, costs)
        self._costs = costs
        self._passes = Passes(plan)
        self._beside = Beside(plan, costs)
        self._stretches: dict[tuple[int, float], Template] = {}
        self._templates: list[Template] = []
        self._segments: list[list[int]] = []  # templates of each variant
        self._place: dict[int, int] = {}
        self._insides: list[Inside] = []
        self._known: dict[tuple[object, ...], int] = {}
        self.variant = self._chosen()
        if plan.fuses_blocks:
            self._fuse()
        self.hooks = Hooks.of(self._insides, self.variant)

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

    def _chosen(self) -> NDArray[np.int64]:
        """Variant of every action."""
        orders = self._plan.orders
        gather, reduce = gathers(self._plan), reduces(self._plan)
        shape = (len(Action), orders.stages, 2, 2)
        key = np.ravel_multi_index(
            (orders.kind, self._alike()[orders.stage], gather.astype(int), reduce.astype(int)),
            shape,
        )
        distinct = np.flatnonzero(np.bincount(key))
        needs = zip(*(one.tolist() for one in np.unravel_index(distinct, shape)), strict=True)
        table = np.zeros(int(np.prod(shape)), dtype=np.int64)
        table[distinct] = [
            self._variant(Action(kind), self._plan.layout.stages[stage], bool(first), bool(last))
            for kind, stage, first, last in needs
        ]
        chosen: NDArray[np.int64] = table[key]
        return chosen

    def _alike(self) -> NDArray[np.int64]:
        """For each stage, the first whose actions are cut and timed as its own."""
        first: dict[tuple[object, ...], int] = {}
        contents = [(self._blocks.content(one), one.index == 0) for one in self._plan.layout.stages]
        return np.array([first.setdefault(one, i) for i, one in enumerate(contents)])

    def _variant(self, action: Action, stage: Stage, gather: bool, reduce: bool) -> int:
        """Cut an action and register the rows it becomes, once for stages of equal content."""
        blocks = self._blocks.of(stage, action)
        rank = stage.rank
        where = int(self._costs.alike[rank])
        key = (id(blocks), action, gather, reduce, stage.index == 0, where)
        if key in self._known:
            return self._known[key]
        pieces = cut(self._plan, stage, action, blocks, gather=gather, reduce=reduce)
        segments: list[int] = []
        first, last, ready = [], [], []
        for piece, template in zip(pieces, self._stretched(action, pieces, rank), strict=True):
            first.append(len(segments))
            last.append(len(segments))
            segments.append(self._register(template))
            if copies := self._passes.to_reduce(_parameters(piece.reduces), rank):
                segments.append(self._join(action, copies))
            ready.append(len(segments) - 1)
        self._known[key] = self._add(segments, Inside(pieces, first, last, ready))
        return self._known[key]

    def _stretched(self, action: Action, pieces: list[Piece], rank: int) -> list[Template]:
        """Templates of pieces, longer by what runs beside them."""
        alone = [self._blocks.join(action, self._computed(action, one, rank)) for one in pieces]
        factors = self._beside.factors(pieces, alone, rank)
        return [self._longer(*one) for one in zip(alone, factors, strict=True)]

    def _longer(self, template: Template, factor: float) -> Template:
        """The template stretched by a factor; equal ones are one."""
        if factor == 1.0:
            return template
        key = (id(template), factor)
        if key not in self._stretches:
            self._stretches[key] = stretched(template, factor)
        return self._stretches[key]

    def _add(self, segments: list[int], inside: Inside) -> int:
        self._segments.append(segments)
        self._insides.append(inside)
        return len(self._segments) - 1

    def _fuse(self) -> None:
        """Put both actions of a block into the first one's row, where neither is cut; the second one's row is left empty."""
        orders = self._plan.orders
        if self._plan.layout.framework.data.accumulation_traffic:
            return
        whole = [_is_whole(one) for one in self._insides]
        nothing = self._alone(EMPTY)
        for head in np.flatnonzero(orders.fused).tolist():
            if not all(whole[one] for one in self.variant[head : head + 2]):
                continue
            ahead, behind = (
                self._plan.layout.stages[orders.stage[row]] for row in (head, head + 1)
            )
            both = self._blocks.fused(ahead, behind, Action(int(orders.kind[head + 1])))
            self.variant[head] = self._alone(both)
            self.variant[head + 1] = nothing

    def _alone(self, template: Template) -> int:
        """Variant of one row that nothing hooks into."""
        key = ("alone", id(template))
        if key not in self._known:
            segments = [self._register(template)]
            self._known[key] = self._add(segments, Inside([Piece(())], [0], [0], [0]))
        return self._known[key]

    def _computed(self, action: Action, piece: Piece, rank: int) -> list[Block]:
        """Blocks of a piece with the passes over memory around them."""
        gathered = _parameters(piece.gathers) if self._plan.gathers_units else 0.0
        before = self._passes.gathered(gathered, rank)
        added = sum(one.parameters for one in piece.blocks) if action in _GRADIENT else 0.0
        return [*before, *piece.blocks, *self._passes.added(added, rank)]

    def _join(self, action: Action, blocks: list[Block]) -> int:
        return self._register(self._blocks.join(action, blocks))

    def _register(self, template: Template) -> int:
        if id(template) not in self._place:
            self._place[id(template)] = len(self._templates)
            self._templates.append(template)
        return self._place[id(template)]


def _parameters(amounts: tuple[Amount, ...]) -> float:
    return sum(one.dense + one.experts for one in amounts)


def _is_whole(inside: Inside) -> bool:
    """Whether an action is one row that nothing hooks into."""
    return len(inside.pieces) == 1 and not (inside.pieces[0].gathers or inside.pieces[0].reduces)
