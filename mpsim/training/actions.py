"""Rows of every action: which templates an action consists of, and what travels between them.

An action is one row with one template, unless data parallelism cuts it (`mpsim.training.replicas.segments`); then every segment is a row,
and copies of its gradients before they are reduced another.

Shapes: N actions.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mpsim.parallel import Stage
from mpsim.program.program import Template
from mpsim.program.template import empty_template, stretched
from mpsim.schedule import Action
from mpsim.training.blocks import Block, Blocks
from mpsim.training.costs import PlanCosts
from mpsim.training.pipeline import Variants
from mpsim.training.plan import Plan
from mpsim.training.replicas.issue import SegmentedAction
from mpsim.training.replicas.passes import MemoryPasses
from mpsim.training.replicas.segments import (
    Bucket,
    Segment,
    gathering_actions,
    reducing_actions,
    split_action,
)
from mpsim.training.replicas.slowdown import OverlapSlowdown
from mpsim.training.vocabulary import TRAINING

__all__ = ["ActionVariants"]

_GRADIENT = (Action.B, Action.W)


class ActionVariants:
    """Chooses and collects the templates of the actions of one Plan: actions that do the same are one variant.

    Parameters
    ----------
    plan : Plan
    costs : PlanCosts
    blocks : Blocks, optional
        Templates of the plan's blocks; made from the plan when absent.

    Attributes
    ----------
    chosen : int64[N]
        Which variant each action is.
    segmented : list of SegmentedAction
        Segments of every variant, with what travels around them.
    """

    def __init__(self, plan: Plan, costs: PlanCosts, blocks: Blocks | None = None) -> None:
        self._plan = plan
        self._blocks = blocks or Blocks(plan, costs)
        self._costs = costs
        self._passes = MemoryPasses(plan)
        self._slowdown = OverlapSlowdown(plan, costs)
        self._stretched: dict[tuple[Template, float], Template] = {}
        self._number: dict[
            Template, int
        ] = {}  # templates compare by identity: equal ones are made once
        self._rows: list[list[int]] = []  # templates of the rows of each variant
        self._alone: dict[int, int] = {}
        self.segmented: list[SegmentedAction] = []
        self.chosen = self._choose()
        if plan.fuses_blocks:
            self._fuse()

    @property
    def templates(self) -> tuple[Template, ...]:
        """Every template, in the order `variants` numbers them."""
        return tuple(self._number)

    @property
    def variants(self) -> Variants:
        """Rows of each variant, columnar."""
        template = np.array([row for rows in self._rows for row in rows], dtype=np.int32)
        counts = [len(rows) for rows in self._rows]
        templates = self.templates
        return Variants(
            ptr=np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
            template=template,
            duration=np.array([each.parts.sum() for each in templates])[template],
            up_bytes=np.array([each.up_bytes.sum() for each in templates])[template],
            out_bytes=np.array([each.out_bytes.sum() for each in templates])[template],
        )

    def _choose(self) -> NDArray[np.int64]:
        """Variant of every action; those of equal kind, content and exchanges are worked out once."""
        orders = self._plan.orders
        gather, reduce = gathering_actions(self._plan), reducing_actions(self._plan)
        shape = (len(Action), orders.stages, 2, 2)
        key = np.ravel_multi_index(
            (
                orders.kind,
                self._first_alike()[orders.stage],
                gather.astype(int),
                reduce.astype(int),
            ),
            shape,
        )
        # a step has thousands of actions and a handful of distinct ones, which a table of counts finds without sorting
        distinct = np.flatnonzero(np.bincount(key))
        needs = zip(*(axis.tolist() for axis in np.unravel_index(distinct, shape)), strict=True)
        table = np.zeros(int(np.prod(shape)), dtype=np.int64)
        table[distinct] = [
            self._variant(Action(kind), self._plan.layout.stages[stage], bool(first), bool(last))
            for kind, stage, first, last in needs
        ]
        chosen: NDArray[np.int64] = table[key]
        return chosen

    def _first_alike(self) -> NDArray[np.int64]:
        """For each stage, the first whose actions are cut and timed as its own."""
        first: dict[tuple[object, ...], int] = {}
        alike = self._costs.alike
        contents = [
            # the first stage's first chunk is cut in its own way, and so are stages on other nodes
            (self._blocks.content(stage), stage.index == 0, int(alike[stage.rank]))
            for stage in self._plan.layout.stages
        ]
        return np.array([first.setdefault(content, i) for i, content in enumerate(contents)])

    def _variant(self, action: Action, stage: Stage, gather: bool, reduce: bool) -> int:
        """Cut an action and register the rows it becomes."""
        blocks = self._blocks.of(stage, action)
        segments = split_action(self._plan, stage, action, blocks, gather=gather, reduce=reduce)
        rows: list[int] = []
        own, ready = [], []
        templates = self._templates(action, segments, stage.rank)
        for segment, template in zip(segments, templates, strict=True):
            own.append(len(rows))
            rows.append(self._register(template))
            if copies := self._passes.to_reduce(_parameters(segment.reduces), stage.rank):
                rows.append(self._register(self._blocks.join(action, copies)))
            ready.append(len(rows) - 1)
        return self._add(rows, SegmentedAction(segments, own, ready))

    def _templates(self, action: Action, segments: list[Segment], rank: int) -> list[Template]:
        """Templates of segments, longer by what runs beside them."""
        alone = [
            self._blocks.join(action, self._computed(action, segment, rank)) for segment in segments
        ]
        factors = self._slowdown.factors(segments, alone, rank)
        return [self._longer(*each) for each in zip(alone, factors, strict=True)]

    def _longer(self, template: Template, factor: float) -> Template:
        """The template stretched by a factor; equal ones are one."""
        if factor == 1.0:
            return template
        key = (template, factor)
        if key not in self._stretched:
            self._stretched[key] = stretched(template, factor)
        return self._stretched[key]

    def _computed(self, action: Action, segment: Segment, rank: int) -> list[Block]:
        """Blocks of a segment with the passes over memory around them."""
        gathered = _parameters(segment.gathers) if self._plan.gathers_units else 0.0
        before = self._passes.gathered(gathered, rank)
        added = sum(each.parameters for each in segment.blocks) if action in _GRADIENT else 0.0
        return [*before, *segment.blocks, *self._passes.added(added, rank)]

    def _fuse(self) -> None:
        """Put both actions of a block into the first one's row, where neither is cut; the second one's row is left empty."""
        orders, stages = self._plan.orders, self._plan.layout.stages
        if self._plan.layout.framework.data.accumulation_traffic:
            return
        whole = [variant.is_whole for variant in self.segmented]
        nothing = self._of_one_row(empty_template(TRAINING))
        for head in np.flatnonzero(orders.fused).tolist():
            if not all(whole[variant] for variant in self.chosen[head : head + 2]):
                continue
            ahead, behind = (stages[orders.stage[row]] for row in (head, head + 1))
            both = self._blocks.fused(ahead, behind, Action(int(orders.kind[head + 1])))
            self.chosen[head] = self._of_one_row(both)
            self.chosen[head + 1] = nothing

    def _of_one_row(self, template: Template) -> int:
        """Variant of one row around which nothing travels."""
        row = self._register(template)
        if row not in self._alone:
            self._alone[row] = self._add([row], SegmentedAction([Segment(())], [0], [0]))
        return self._alone[row]

    def _add(self, rows: list[int], segmented: SegmentedAction) -> int:
        self._rows.append(rows)
        self.segmented.append(segmented)
        return len(self._rows) - 1

    def _register(self, template: Template) -> int:
        return self._number.setdefault(template, len(self._number))


def _parameters(buckets: tuple[Bucket, ...]) -> float:
    return sum(bucket.dense + bucket.experts for bucket in buckets)
