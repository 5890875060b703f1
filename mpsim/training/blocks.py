"""Blocks of a Plan: forward and backward of every stage as templates, cut where data may travel."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from mpsim import structs
from mpsim.cost import StageCosts, Used
from mpsim.cost.quantise import launch_seconds
from mpsim.hardware import host_of
from mpsim.memo import Memo, remembered
from mpsim.parallel import (
    Communication,
    Compute,
    Item,
    Stage,
    Synchronization,
    Waits,
    block_backward,
    block_forward,
    fused_blocks,
    repeated,
)
from mpsim.program.program import Template
from mpsim.program.template import concatenate, evaluate_block
from mpsim.schedule import Action
from mpsim.training.memory.activations import kept_of
from mpsim.training.plan import Plan, PlanCosts
from mpsim.training.recompute import NOTHING, Recompute, repeats, rerun
from mpsim.training.vocabulary import TRAINING, part_of
from mpsim.workload import ADAPTERS, Expansion, Phase, Role, Split, make_elementwise

_DIVISIONS = 64  # ways to divide layers of which all stays ready
_RECIPES = 512  # of each of them
_ROWS = 512  # of each of them
_PRICES = 64  # of a recipe
_JOINED = 512  # actions
_PHASES = {
    Action.B: frozenset({Phase.INPUT_GRADIENT, Phase.WEIGHT_GRADIENT}),
    Action.I: frozenset({Phase.INPUT_GRADIENT}),
    Action.W: frozenset({Phase.WEIGHT_GRADIENT}),
}


class Block(NamedTuple):
    """One layer, embedding or head inside an action of a stage, or what comes before the first."""

    layer: int  # counted from the stage's first; -1 for all others
    template: Template
    parameters: (
        float  # on one tensor-parallel rank; gradients are complete as its last backward ends
    )
    experts: float = 0.0  # those of them that belong to routed experts
    trained: float = 0.0  # those of `parameters` that train
    trained_experts: float = 0.0  # those of `experts` that train
    items: tuple[Item, ...] = ()  # that the template consists of


@structs.dataclass(frozen=True, slots=True, eq=False)
class Row:
    """Blocks of an action in order: one row for all plans in which they consist and cost alike."""

    action: Action
    blocks: tuple[Block, ...]
    used: Used  # constants that the prices rest on


@structs.dataclass(frozen=True, slots=True, eq=False)
class _Recipe:
    """A template before it is priced: all that no cost model decides."""

    name: str
    items: tuple[Item, ...]
    launches: float  # time that the host needs to launch the items [s]
    small: float  # device time of a kernel that is shorter than its launch [s]
    # its templates by their prices, and by the costs that asked, as layouts do again and again
    known: Memo[tuple[object, ...], Template]
    priced: Memo[object, tuple[Template, Used]]


class Blocks:
    """Expands, shards and times the parts of the model, each distinct one once.

    With `sums`, an action is the time of its blocks without the kernels inside and their constants,
    all that a step time needs.

    Notes
    -----
    Plans that divide layers in the same way, on ranks that price them alike, share templates and
    rows of them. Each comes with the constants that its prices rest on, for which every plan's own
    cost models account.
    """

    def __init__(self, plan: Plan, costs: PlanCosts, *, sums: bool = False) -> None:
        self.sums = sums
        self._plan = plan
        self._costs = costs
        self._recipes, self._rows = _known(plan.division)

    @functools.cached_property
    def _expansions(self) -> Mapping[str, Expansion]:
        """Operators of each part, with the casts of a narrow precision."""
        software, sharding = self._plan.layout.framework, self._plan.sharding
        gathered = sharding.tensor.narrow_gathers and sharding.tp > 1 and sharding.sequence_parallel
        return {
            name: self._costs.kernels.with_casts(
                operators,
                software.lowering.activation_bytes,
                gathered=gathered,
                fused_experts=software.lowering.fused_grouped_mlp,
                casts=software.kernels.narrow_casts,
            )
            for name, operators in self._plan.expansions.items()
        }

    def of(self, stage: Stage, action: Action) -> Row:
        """Blocks of an action of `stage`."""
        costs = self._costs.stage(stage.rank)
        again = self._plan.recompute if action in (Action.B, Action.I) else None
        key = (action, self._plan.layout.content(stage), again, *self._copies.values(), costs.key)
        if (row := self._rows.get(key)) is None:
            with costs.apart() as used:
                blocks = tuple(self._row(stage, action, costs))
            self._rows[key] = row = Row(action, blocks, used)
        if not self.sums:
            costs.note(row.used)
        return row

    @functools.cached_property
    def _copies(self) -> Mapping[str, tuple[float, float]]:
        """For each kind of layer `_copied` [s], and bytes copied into its stack or out of it."""
        stacks, sizes = 2.0 * self._plan.layout.framework.memory.stacks_kept, dict[str, float]()
        kinds = dict.fromkeys(self._plan.layout.model.layer_kinds)
        for kind in kinds if stacks else ():
            kept = kept_of(self._plan, kind)
            sizes[kind] = stacks * (kept.layer + kept.on_host)
        return {kind: (self._copied(kind), sizes.get(kind, 0.0)) for kind in kinds}

    def _row(self, stage: Stage, action: Action, costs: StageCosts) -> list[Block]:
        layout = self._plan.layout
        parts = {**layout.stage_parameters(stage), **layout.layer_parameters}
        del parts["layers"]
        trained = layout.trained(parts)
        mesh = layout.mesh

        def block(layer: int, part: str, again: Recompute | None = None) -> Block:
            sizes = [
                (layout.held(count), count.experts_per_rank(ep=mesh.ep, etp=mesh.expert_tp))
                for count in (parts[part], trained[part])
            ]
            recipe = self._recipe_at(part, action, again)
            template = self._timed(recipe, costs)
            return Block(layer, template, *sizes[0], *sizes[1], recipe.items)

        blocks: list[Block] = []
        alone = zip(layout.layer_kinds(stage), self._again(stage, action), strict=True)
        for each, run in itertools.groupby(alone):  # layers of a stage are mostly of one kind
            made = block(0, *each)
            blocks += [Block(i, *made[1:]) for i, _ in enumerate(run, len(blocks))]
        blocks = self._chunked(stage, action, blocks, costs)
        if stage.embedding and (action is Action.F or self._expansions["embedding"].backward):
            blocks.insert(0, block(-1, "embedding"))
        if stage.head:
            blocks.append(block(-1, "head"))
        opening = self._opening(stage, action, costs)
        return [*opening, *(blocks if action is Action.F else blocks[::-1])]

    def _opening(self, stage: Stage, action: Action, costs: StageCosts) -> list[Block]:
        """Blocks before a pass's first kernel: waits of the host, gathers of what was sent."""
        software = self._plan.layout.framework
        items: list[Item] = []
        if action is not Action.W and software.host.stage_synchronizations:
            items.append(Synchronization(software.host.stage_synchronizations))
        if action in (Action.B, Action.I) and self._costs.scatters_messages and not stage.head:
            size, phase = self._plan.message_bytes, Phase.INPUT_GRADIENT
            gather = Communication("rebuild output", "tp", "all_gather", size, Waits.ALL, phase)
            items += [gather] * software.pipeline.stage_gathers
        if not items:
            return []
        key, name = ("opening", action, *items), f"opening {action.name}"
        recipe = self._recipes.get_or(key, lambda: self._recipe(name, items))
        return [Block(-1, self._timed(recipe, costs), 0.0, items=recipe.items)]

    def _again(self, stage: Stage, action: Action) -> Sequence[Recompute]:
        """Recomputation of every layer of a stage by itself in one action."""
        if action not in (Action.B, Action.I):
            return [NOTHING] * stage.layers
        return self._plan.recompute.alone(stage.layers)

    def _chunked(
        self, stage: Stage, action: Action, blocks: list[Block], costs: StageCosts
    ) -> list[Block]:
        """The same layers; forwards that run again together come after the last of them."""
        if action not in (Action.B, Action.I):
            return blocks
        kinds, result = self._plan.layout.layer_kinds(stage), list(blocks)
        for chunk in reversed(self._plan.recompute.chunks(stage.layers)):
            if len(chunk) > 1:
                again = [self._run_again(i, kinds[i], costs) for i in reversed(chunk)]
                result[chunk.stop : chunk.stop] = again
        return result

    def _run_again(self, layer: int, part: str, costs: StageCosts) -> Block:
        """The forward of one layer, run again."""

        def make() -> _Recipe:
            items = repeated(block_forward(self._expansions[part], self._plan.sharding))
            launches = self._launch_seconds(Action.F)
            return self._recipe(f"{_title(part)} again", items, launches, is_layer=True)

        recipe = self._recipes.get_or(("again", part), make)
        return Block(layer, self._timed(recipe, costs), 0.0, items=recipe.items)

    def _recipe_at(self, part: str, action: Action, again: Recompute | None = None) -> _Recipe:
        """One layer of kind `part`, embedding or head in an action.

        What it runs `again` is what the plan has a layer run again by itself, unless given; ends
        run nothing again.
        """
        is_layer = _is_layer(part)
        reruns = (again or self._plan.recompute.of_layer(0, 1)) if is_layer else NOTHING
        copies = self._copies[part] if is_layer and action is not Action.W else (0.0, 0.0)
        return self._recipes.get_or(
            (part, action, reruns, copies), lambda: self._recipe_of(part, action, reruns, copies[0])
        )

    def fused(self, ahead: Stage, behind: Stage, action: Action) -> Template:
        """Forward of stage `ahead` beside a backward (`action`) of `behind`, layer by layer.

        Both stages are on one rank; what has no counterpart runs alone.
        """
        return _beside(action, *self._pairs(ahead, behind, action))

    def _pairs(self, ahead: Stage, behind: Stage, action: Action) -> list[tuple[int, Template]]:
        costs = self._costs.stage(ahead.rank)
        forward, backward = self._parts(ahead), self._parts(behind)[::-1]
        row: list[tuple[int, Template]] = []
        while forward or backward:
            routed = [bool(left) and self._has_experts(left[0][1]) for left in (forward, backward)]
            if all(routed):
                (layer, mine), (_, other) = forward.pop(0), backward.pop(0)
                row.append((layer, self._fused(mine, other, action, costs)))
            elif forward and (not routed[0] or not backward):
                layer, part = forward.pop(0)
                row.append((layer, self._timed(self._recipe_at(part, Action.F), costs)))
            else:
                layer, part = backward.pop(0)
                row.append((layer, self._timed(self._recipe_at(part, action), costs)))
        return row

    def _parts(self, stage: Stage) -> list[tuple[int, str]]:
        """Layer (-1 for ends) and part of every block of a stage, in model order."""
        first, last = [(-1, "embedding")] * stage.embedding, [(-1, "head")] * stage.head
        return [*first, *enumerate(self._plan.layout.layer_kinds(stage)), *last]

    def _has_experts(self, part: str) -> bool:
        return any(operator.split is Split.EXPERT for operator in self._expansions[part].forward)

    def _fused(self, ahead: str, behind: str, action: Action, costs: StageCosts) -> Template:
        copied = self._copies[ahead][0] + self._copies[behind][0]
        again = self._plan.recompute.of_layer(0, 1)

        def make() -> _Recipe:
            forward = self._items(ahead, Action.F, NOTHING)
            items = fused_blocks(forward, self._items(behind, action, again))
            share = self._share(behind, again)
            launches = self._launch_seconds(Action.F) + self._launch_seconds(action, share)
            name = f"{ahead} F beside {behind} {action.name}"
            return self._recipe(name, items, max(launches, copied), is_layer=True)

        key = ("fused", ahead, behind, action, again, copied)
        return self._timed(self._recipes.get_or(key, make), costs)

    def _recipe_of(self, part: str, action: Action, again: Recompute, copied: float) -> _Recipe:
        is_layer = _is_layer(part)
        launches = self._launch_seconds(action, self._share(part, again)) if is_layer else 0.0
        launches = max(self._launches_left(part, action, launches), copied)
        items = self._items(part, action, again)
        return self._recipe(f"{_title(part)} {action.name}", items, launches, is_layer=is_layer)

    def _launches_left(self, part: str, action: Action, launches: float) -> float:
        """Host time of launches without kernels that are gone, one more an adapter's [s]."""
        plan = self._plan
        if plan.layout.tuning.trains_all or not launches:
            return launches
        left, whole = (
            len(parts[part].forward)
            if action is Action.F
            else sum(operator.phase in _PHASES[action] for operator in parts[part].backward)
            for parts in (plan.expansions, plan.weights)
        )
        more = max(left - whole, 0) * plan.layout.framework.host.launch_cost
        return launches * min(left / whole, 1.0) + more

    def _copied(self, part: str) -> float:
        """Time of copies of activations to the host or back beyond the layer beside them [s].

        Copies of some layers of a stage are spread over all of them, as Transformer Engine does.
        """
        layout, recompute = self._plan.layout, self._plan.recompute
        if recompute.offload == "none":
            return 0.0
        layers = max(stage.layers for stage in layout.stages)
        share = min((recompute.offload_layers or layers) / layers, 1.0)
        return share * kept_of(self._plan, part).on_host / host_of(layout.cluster).link_bandwidth

    def _items(self, part: str, action: Action, again: Recompute) -> list[Item]:
        """Kernels and collectives of one part in one action, copies into its stack or out of it."""
        expansion, sharding = self._expansions[part], self._plan.sharding
        phase = Phase.FORWARD if action is Action.F else Phase.INPUT_GRADIENT
        moved = self._copies[part][1] if _is_layer(part) and action is not Action.W else 0.0
        copy = make_elementwise(Role.COPY, phase, moved=moved, name="stack copy")
        copies = [Compute(copy)] if moved else []
        if action is Action.F:
            return [*block_forward(expansion, sharding), *copies, *self._reference(expansion)]
        parts = repeats(expansion, sharding, again) if _is_layer(part) else ()
        return [*copies, *block_backward(expansion, sharding, again=parts, phases=_PHASES[action])]

    def _reference(self, expansion: Expansion) -> list[Item]:
        """The forward of a part in the frozen reference model, without adapters, if any."""
        if not self._plan.reference:
            return []
        base = tuple(each for each in expansion.forward if each.role not in ADAPTERS)
        frozen = structs.replace(expansion, forward=base)
        return block_forward(frozen, self._plan.sharding)

    def _share(self, part: str, again: Recompute) -> float:
        """Kernels of a layer's forward that run again, over all."""
        expansion = self._expansions[part]
        parts = rerun(expansion, again).parts
        return sum(len(part.operators) for part in parts) / len(expansion.forward)

    def _recipe(
        self, name: str, items: list[Item], launches: float = 0.0, *, is_layer: bool = False
    ) -> _Recipe:
        host = self._plan.layout.framework.host
        if is_layer and host.layer_synchronizations:
            items = [*items, Synchronization(host.layer_synchronizations)]
        collectives = sum(isinstance(item, Communication) for item in items)
        launches += self._expert_launch_seconds(items) + collectives * host.collective_launch_cost
        small = launch_seconds("graph", self._plan.layout.cluster.accelerator)
        return _Recipe(name, tuple(items), launches, small, Memo(_PRICES), Memo(_PRICES))

    def _timed(self, recipe: _Recipe, costs: StageCosts) -> Template:
        """The template of a recipe on ranks with these costs, made unless a like plan did."""
        if (answer := recipe.priced.get(costs.key)) is None:
            with costs.apart() as used:
                answer = self._evaluate(recipe, costs), used
            recipe.priced[costs.key] = answer
        costs.note(answer[1])
        return answer[0]

    def _evaluate(self, recipe: _Recipe, costs: StageCosts) -> Template:
        host = self._plan.layout.framework.host
        return evaluate_block(
            recipe.name,
            recipe.items,
            costs,
            known=recipe.known,
            vocabulary=TRAINING,
            part_of=part_of,
            host_seconds=recipe.launches,
            synchronization_seconds=host.synchronization_cost,
            launch_seconds=host.launch_cost,
            small_seconds=recipe.small,
            launch_blocking=host.launch_blocking,
            shares=not self._plan.interference,
        )

    @property
    def _call_seconds(self) -> float:
        """Host time of a launch; narrow layers have more, for scales and casts."""
        host = self._plan.layout.framework.host
        narrow = self._costs.kernels.casts
        return host.launch_cost * (host.narrow_launches if narrow else 1.0)

    def _expert_launch_seconds(self, items: Sequence[Item]) -> float:
        """Host time of a layer with experts beyond a dense one, both passes together."""
        software = self._plan.layout.framework
        operators = [item.operator for item in items if isinstance(item, Compute)]
        products = [o for o in operators if o.split is Split.EXPERT and o.flops > 0]
        calls = len({(product.role, product.phase) for product in products})
        casts = sum(o.split is Split.EXPERT and o.is_cast for o in operators)
        each = software.experts.product_launch_cost or self._call_seconds
        # a call that loops over experts casts what each of them reads by itself, too
        looped = each * (len(products) - calls) * (1.0 + casts / max(calls, 1))
        passes = sum(
            operator.role is Role.ROUTER and operator.phase is not Phase.WEIGHT_GRADIENT
            for operator in operators
        )
        bookkeeping = software.host.launch_cost * software.experts.expert_launches
        return self._call_seconds * calls + looped + passes * bookkeeping

    def _launch_seconds(self, action: Action, repeated: float = 0.0) -> float:
        """Host time of a layer's launches, with the share of its forward that is `repeated`."""
        plan, host = self._plan, self._plan.layout.framework.host
        halves = {Action.F: 0.0, Action.I: 0.5, Action.W: 0.5}
        backward = halves.get(action, 1.0)
        again = repeated * (action is not Action.W)
        forward = 1.0 + plan.reference if action is Action.F else again
        fused = plan.layout.framework.lowering.fused_softmax
        apart = fused and not plan.layout.lowering(plan.micro_batch).fused_softmax
        more = host.softmax_launches * apart
        engine = host.backward_launch_cost or host.launch_cost
        launches = forward * (host.layer_launches_forward + more) * host.launch_cost
        launches += backward * (host.layer_launches_backward + more) * engine
        narrow = host.narrow_launches if self._costs.kernels.casts else 1.0
        return narrow * launches + host.layer_host_time * (forward + backward)

    def join(self, action: Action, blocks: Sequence[Block]) -> Template:
        """Lay blocks end to end; equal rows of blocks share one template."""
        return _laid(action, *[(block.layer, block.template) for block in blocks])


@remembered(_DIVISIONS)
def _known(division: object) -> tuple[Memo[object, _Recipe], Memo[object, Row]]:
    """Recipes of all plans with a division, by part and action, and rows."""
    del division
    return Memo(_RECIPES), Memo(_ROWS)


@remembered(_JOINED)
def _laid(action: Action, *row: tuple[int, Template]) -> Template:
    layers = sum(layer >= 0 for layer, _ in row)
    return concatenate(f"{action.name} of {layers} layer{'s' * (layers != 1)}", row)


@remembered(_JOINED)
def _beside(action: Action, *row: tuple[int, Template]) -> Template:
    return concatenate(f"F beside {action.name}", row)


def _title(part: str) -> str:
    return "layer" if part == "dense" else part


def _is_layer(part: str) -> bool:
    return part not in ("embedding", "head")
