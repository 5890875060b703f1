"""Residency: how much of the model a rank holds at a time where it is shared.

Shapes: P pipeline ranks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from mpsim import structs
from mpsim.arrays import Floats
from mpsim.parallel import Stage, shard
from mpsim.training.plan import Plan
from mpsim.workload import Expansion, Operator, OperatorKind, Phase

_WEIGHTS = (OperatorKind.GEMM, OperatorKind.GROUPED_GEMM)


@structs.dataclass(frozen=True, slots=True, eq=False)
class Residency:
    """Parameters of one rank of each pipeline rank, float64[P] each."""

    owned: Floats  # float64[P], all that it computes with
    share: Floats  # float64[P], those whose optimizer state is its own
    parameters: Floats  # float64[P], kept between their uses
    # float64[P], gathered beyond those, all the time (units of one stage come and go:
    # `mpsim.training.memory.fresh`)
    gathered: Floats
    gradients: Floats  # float64[P], gradients kept until the optimizer
    reducing: Floats  # float64[P], gradients of units under way to their owners
    optimizer: Floats  # float64[P], those with their optimizer state on the device
    adapters: Floats  # float64[P], parameters of adapters, which are kept beside `parameters`


def residency(plan: Plan) -> Residency:
    """Parameters, gradients and states that every rank holds.

    Notes
    -----
    Sharded parameters: a rank keeps its share, and gathers ``units_in_flight`` units beside the
    root; all of them where units are kept after the forward. One unit's whole gradients exist while
    the one before is being reduced. A stack that frees each weight after its product has weights in
    place of units; that of the head and its gradient are there when no layer's is. What the host
    keeps, the device does not.
    """
    dense, experts = plan.layout.parameter_kinds
    owned = dense + experts
    copies = plan.replicas // plan.sharers if plan.zero else 1
    peers = max(plan.layout.mesh.edp // copies, 1) if plan.zero else 1
    share = dense / plan.sharers + experts / peers
    trained = plan.layout.trained_kinds
    own = trained.dense / plan.sharers + trained.experts / peers
    nothing = np.zeros_like(owned)
    gathered = reducing = nothing
    if plan.gathers_units:
        largest, root = _units(plan)
        stays_gathered = plan.keeps_gathered or not plan.layout.framework.data.reshard_after_forward
        whole, summed = plan.units_in_flight * largest, 2 * largest
        if plan.layout.framework.memory.frees_weights:
            whole, summed, root = *_weights(plan, largest), nothing
        if len(plan.layout.stages) == 1:
            whole = summed = nothing
        gathered = owned if stays_gathered else np.minimum(owned, root + whole)
        reducing = np.minimum(trained.dense + trained.experts, summed)
    divided = plan.divides_gradients
    gradients = own if divided else trained.dense + trained.experts
    offloads = plan.offload != "none"
    return Residency(
        owned=owned,
        share=own,
        parameters=(nothing if plan.offload == "parameters" else share)
        if plan.gathers_units
        else owned,
        gathered=gathered,
        gradients=nothing if offloads and divided else gradients,
        reducing=reducing if divided else nothing,
        optimizer=own * (1.0 - plan.offload_fraction) if offloads else own,
        adapters=(own if plan.gathers_units else trained.dense + trained.experts)
        if plan.layout.tuning.rank
        else nothing,
    )


def _weights(plan: Plan, units: Floats) -> tuple[Floats, Floats]:
    """Weights a rank has whole at a time, and their gradients: of a few of a layer, or the head."""
    head = np.zeros_like(units)
    for stage in plan.layout.stages:
        head[stage.rank] += stage.head * max(weight_sizes(plan, ["head"]))
    layer = largest_weight(plan)
    return np.maximum(plan.units_in_flight * layer, head), np.maximum(2 * layer, head)


def largest_weight(plan: Plan) -> float:
    """Elements of the largest weight of any layer."""
    gated = 2 if plan.layout.model.gated_mlp else 1  # gate and up are one product, but two tensors
    layers = [part for part in plan.expansions if part not in ("embedding", "head")]
    return max(weight_sizes(plan, layers)) / gated


def largest_unit(plan: Plan) -> float:
    """Parameters of the largest unit of layers that are gathered together."""
    return max(max(_layers(plan, stage), default=0.0) for stage in plan.layout.stages)


def weight_sizes(plan: Plan, parts: Iterable[str]) -> list[int]:
    """Elements of every weight of some parts on one rank, all its experts' as one weight."""
    whole = weights_of(plan, (plan.weights[part] for part in parts))
    return [_elements(operator) // operator.weights for operator in whole]


def matrices(plan: Plan) -> Floats:
    """Elements of the weights of layers' products on each pipeline rank, float64[P]."""
    held = np.zeros(plan.layout.mesh.pp)
    for stage in plan.layout.stages:
        layers = (plan.weights[kind] for kind in plan.layout.layer_kinds(stage))
        held[stage.rank] += sum(map(_elements, weights_of(plan, layers)))
    return held


def weights_of(plan: Plan, parts: Iterable[Expansion]) -> Iterator[Operator]:
    """Gradients of the weights of some parts, as one rank has them."""
    sharding = plan.sharding
    for part in parts:
        for whole in part.backward:
            operator = shard(whole, sharding)
            if operator.phase is Phase.WEIGHT_GRADIENT and operator.kind in _WEIGHTS:
                yield operator


def _elements(gradient: Operator) -> int:
    return gradient.batch * gradient.m * gradient.n


def _units(plan: Plan) -> tuple[Floats, Floats]:
    """Largest unit of each rank, and its root (0 where embedding and head are units)."""
    largest, root = np.zeros((2, plan.layout.mesh.pp))
    for stage in plan.layout.stages:
        rank = stage.rank
        parts = plan.layout.stage_parameters(stage)
        ends = [plan.layout.held(parts[name]) for name in ("embedding", "head") if name in parts]
        if plan.layout.framework.data.root_unit:
            root[rank] += sum(ends)
            ends = []
        largest[rank] = max(largest[rank], *ends, *_layers(plan, stage), 0.0)
    return largest, root


def _layers(plan: Plan, stage: Stage) -> list[float]:
    """Parameters of every unit of layers of a stage."""
    each = plan.layout.layer_parameters
    held = [plan.layout.held(each[kind]) for kind in plan.layout.layer_kinds(stage)]
    size = plan.layout.framework.data.unit_layers
    return [sum(held[at : at + size]) for at in range(0, len(held), size)]
