"""Shapes: what a stage keeps and takes of a microbatch, by content and division.

Layouts with the same microbatch, the same division of a layer and the same recomputation share
these, whatever their pipeline is.

Exchanges of data parallelism are of all stages; a bound counts exposed or queued ones.

Shapes: D distinct stages, S stages, P pipeline ranks, A parts of the model.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from mpsim import structs
from mpsim.arrays import Floats, Ints
from mpsim.framework import ExpertOverlap
from mpsim.memo import Memo, asked_once
from mpsim.parallel import Stage
from mpsim.program.template import ticks
from mpsim.schedule import Action
from mpsim.training.blocks import Block, Blocks
from mpsim.training.memory.activations import Pieces, columns_of
from mpsim.training.plan import Plan, PlanCosts
from mpsim.training.replicas.groups import collective_columns, collective_of, dense_group
from mpsim.training.vocabulary import TRAINING

_DIVISIONS = 1024  # whose pieces stay ready


def part_names(plan: Plan) -> tuple[str, ...]:
    """Kinds of layers, then embedding and head."""
    return (*dict.fromkeys(plan.layout.model.layer_kinds), "embedding", "head")


def content(plan: Plan, costs: PlanCosts, stage: Stage) -> tuple[object, ...]:
    """Content of a stage that decides its shape: layers, ends, places of communicators."""
    return (*plan.layout.content(stage), costs.stage(stage.rank).key)


class Shapes:
    """Shapes of plans, each distinct one once; cost models are those of `plan`."""

    def __init__(self, plan: Plan) -> None:
        self._models = PlanCosts(plan)
        self._pieces = Memo[tuple[bool, object], Pieces](_DIVISIONS)
        self._ticks: dict[tuple[object, ...], float] = {}

    def costs(self, plan: Plan) -> PlanCosts:
        """Cost models of a plan, which remember what they were asked for other plans."""
        return PlanCosts(plan, like=self._models)

    def kept(self, plan: Plan, stages: Mapping[tuple[object, ...], Stage]) -> Floats:
        """Bytes that stages keep of a microbatch, float64[D, fields of `Kept`] [B]. `stages`:
        distinct stages of the plan by `content`.
        """
        # what a head needs beside its logits is another where one stage is the whole model
        key = (len(plan.layout.stages) == 1, _division(plan))
        pieces = self._pieces.get_or(key, lambda: Pieces(plan))
        kept = [pieces.kept(plan, stage) for stage in stages.values()]
        return np.array([columns_of(each) for each in kept])

    def ticks(
        self, plan: Plan, stages: Mapping[tuple[object, ...], Stage], actions: tuple[Action, ...]
    ) -> Floats:
        """Time of each `Action` of stages, float64[D, 4] [ticks]; where a block hides actions in
        each other, that of its kernels only.

        `stages`: distinct stages of the plan by `content`. `actions`: those that occur; others take
        no time.
        """
        columns = {action: _division(plan, recompute=action is not Action.F) for action in actions}
        wanted = [
            (column, (*division, *key, action), stage, action)
            for action, division in columns.items()
            for column, (key, stage) in enumerate(stages.items())
        ]
        result = np.zeros((len(stages), len(Action)))
        if any(key not in self._ticks for _, key, _, _ in wanted):
            few = plan.on(structs.replace(plan.layout, stages=tuple(stages.values())))
            blocks = Blocks(few, self.costs(few))
            for _, key, stage, action in wanted:
                if key not in self._ticks:
                    self._ticks[key] = _ticks(few, blocks.of(stage, action).blocks)
        for row, key, _, action in wanted:
            result[row, action] = self._ticks[key]
        return result

    @asked_once(lambda plan: (plan.layout.mesh, plan.micro_batch, plan.layout.sequence_parallel))
    def sends(self, plan: Plan) -> Floats:
        """Ticks of a message from pipeline ranks to the next and the one before, float64[2, P]."""
        pp = plan.layout.mesh.pp
        if pp == 1:
            return np.zeros((2, 1))
        twice = tuple(
            structs.replace(plan.layout.stages[0], index=index, rank=index % pp)
            for index in range(2 * pp)
        )
        probe = self.costs(plan.on(structs.replace(plan.layout, stages=twice)))
        onward, back = (sends.duration for sends in probe.sends())
        return np.stack([onward[:pp], np.roll(back[1 : pp + 1], 1)])


def _division(plan: Plan, *, recompute: bool = True) -> tuple[object, ...]:
    """Division of a part, which decides its operators on a rank, and what runs again."""
    mesh = plan.layout.mesh
    return (
        *mesh.of_layers,
        *(plan.micro_batch, plan.layout.sequence_parallel, plan.recompute if recompute else None),
    )


def _ticks(plan: Plan, blocks: Sequence[Block]) -> float:
    """Time of an action [ticks]; its kernels only, where exchanges hide beside another."""
    hides = plan.layout.framework.experts.expert_overlap is ExpertOverlap.MICROBATCH
    counted = TRAINING.computing_parts if hides else slice(None)
    alike = Counter(block.template for block in blocks)  # layers repeat; ticks are whole numbers
    return float(sum(times * each.parts[counted].sum() for each, times in alike.items()))


class Exposed(NamedTuple):
    """Ticks of exchanges of data parallelism of each rank, float64[P]."""

    once: Floats  # float64[P]: after its last action
    each: Floats  # float64[P]: between the actions of every microbatch, which wait for it
    # float64[P]: of every microbatch, beside actions: what a communicator's queue passes
    queued: Floats


@structs.dataclass(frozen=True, slots=True, eq=False)
class StageParts:
    """Ranks and parts of the stages of a frame."""

    rank: Ints  # int64[S]: pipeline rank of each stage
    count: Floats  # float64[S, A]: parts of each stage, by `part_names`

    def exposed(self, plan: Plan, costs: PlanCosts) -> Exposed:
        """Exchanges of data parallelism that are exposed, at least in part."""
        none = np.zeros(plan.layout.mesh.pp)
        if plan.replicas == 1:
            return Exposed(none, none, none)
        data = plan.layout.framework.data
        reduce = none  # of adapters and the like: as good as nothing, and a bound may be lower
        if plan.layout.tuning.trains_all:
            reduce = self._collective(plan, costs, *collective_of(plan, gather=False))
        every = plan.reduces_every_microbatch
        queued = reduce * every
        if plan.gathers_units and not plan.keeps_gathered:
            gather = self._collective(plan, costs, *collective_of(plan, gather=True))
            queued = queued + gather * (2 if data.reshard_after_forward else 1)
        hidden = plan.layout.framework.overlaps_gradients(plan.layout.mesh.pp) or plan.gathers_units
        return Exposed(
            once=none if hidden or every else reduce,
            each=reduce if every and not hidden else none,
            queued=queued,
        )

    def _collective(self, plan: Plan, costs: PlanCosts, kind: str, element: float) -> Floats:
        """Ticks of one collective over a rank's stages, float64[P]; by units where they are cut."""
        peers = dense_group(plan, costs)
        inside = [peers.inside(int(rank)) for rank in self.rank]
        if not plan.gathers_units:
            size = self._dense(plan) * element
            seconds, _, _ = collective_columns(costs.collectives, kind, size, inside, peers.owners)
            return self._by_rank(plan, ticks(seconds))
        layers, unit = self.count[:, :-2].sum(axis=1), plan.layout.framework.data.unit_layers
        least = self._each(plan).min() * unit * element
        seconds, _, _ = collective_columns(
            costs.collectives, kind, np.full(len(layers), least), inside, peers.owners
        )
        return self._by_rank(plan, (layers // unit) * ticks(seconds))

    def _by_rank(self, plan: Plan, values: Floats) -> Floats:
        """Sums over the stages of each rank, float64[S] to float64[P]."""
        sums = np.zeros(plan.layout.mesh.pp)
        np.add.at(sums, self.rank, values)
        return sums

    def _each(self, plan: Plan) -> Floats:
        """Parameters of a layer by kind that every replica holds, on one tp rank."""
        tp, layers = plan.layout.mesh.tp, plan.layout.layer_parameters
        names = part_names(plan)[:-2]
        return np.array([layers[name].sharded / tp + layers[name].replicated for name in names])

    def _dense(self, plan: Plan) -> Floats:
        """Parameters of each stage that every replica holds, on one tp rank, float64[S]."""
        tp = plan.layout.mesh.tp
        dense: Floats = self.count[:, :-2] @ self._each(plan)
        for place in np.flatnonzero(self.count[:, -2:].any(axis=1)).tolist():
            parts = plan.layout.stage_parameters(plan.layout.stages[place])
            ends = (parts[name] for name in ("embedding", "head") if name in parts)
            dense[place] += sum(end.sharded / tp + end.replicated for end in ends)
        return dense
