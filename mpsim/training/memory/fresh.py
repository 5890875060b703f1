"""Fresh tensors: what the backward of a model that is whole along the pipeline makes or gathers for
itself, beside activations; and its fullest moment.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mpsim import structs
from mpsim.arrays import Flags, Floats
from mpsim.training.memory.states import model_states
from mpsim.training.plan import Plan
from mpsim.training.replicas.residency import largest_unit, largest_weight, weight_sizes


@structs.dataclass(frozen=True, slots=True)
class Fresh:
    """Gradients of a rank that its backward makes, and units gathered or being reduced."""

    # gradients that are not there before the backward; 0 where they are there all the time [B]
    total: float = 0.0
    # those that are not there yet while the last layer of a backward is differentiated: its own,
    # and those of an embedding of its own [B]
    late: float = 0.0
    # head, layer: those of the head, whole where they wait for a sharded root, and of a layer, once
    # they have been differentiated [B]
    head: float = 0.0
    layer: float = 0.0
    # whole gradients of a sharded root, or of a unit of the embedding, and the copy that is
    # reduced, beyond what is gathered all the time [B]
    waiting: float = 0.0
    # gathered, passing, at_head: units or weights that were gathered, and those that are being
    # reduced, while the first layer of a backward is differentiated, any other, and the head [B]
    gathered: float = 0.0
    passing: float = 0.0
    at_head: float = 0.0
    root: float = 0.0  # gathered until the end of a backward: a sharded root, or all [B]
    grows: bool = False  # whether segments of the allocator do, so that fewer tensors fit no hole

    def __bool__(self) -> bool:
        return self != Fresh(grows=self.grows)


class Fullest(NamedTuple):
    """Fullest moment of actions: bytes alive; those of gradients of this backward, and of units;
    the largest that other moments need beside it, and what stays of it; whether it is in the head.
    """

    most: Floats
    collected: Floats
    passing: Floats
    elsewhere: Floats
    stays: Floats
    at_head: Flags

    @property
    def apart(self) -> Floats:
        """Part of `most` that is no activation."""
        return self.collected + self.passing


def blocks_as_one(before: NDArray[Any], after: NDArray[Any], fused: Flags) -> None:
    """Give both halves of each fused block its levels, [N, ...]: they go through their layers in
    turns, so that one frees what the other keeps.

    References
    ----------
    NVIDIA/Megatron-LM core/pipeline_parallel/combined_1f1b.py,
    core/models/common/model_chunk_schedule_plan.py: a layer forwards, a layer backwards.
    """
    head = np.flatnonzero(fused)
    before[head + 1], after[head] = before[head], after[head + 1]


def fullest(
    before: Floats,
    after: Floats,
    kept: Mapping[str, Floats],
    backward: Flags,
    whole: Flags,
    fresh: Fresh,
) -> Fullest:
    """Find the fullest moment of each action.

    `before` and `after` (float64[...]): kept when it starts and when it has ended [B]. `kept`
    (mapping of str to float64[...]): fields of `Kept` of its stage [B].
    `backward` and `whole` (bool[...]): whether it computes input gradients, and weight gradients
    with them.

    Notes
    -----
    A backward is fullest in the output head; in its first layer, when logits are gone; in its
    second, when the first has freed what it kept and its gradients are on their way; in its last,
    when all gradients but that one's are there; or when those of the embedding have followed.
    """
    in_layers, layer = kept["in_layers"], np.where(whole, kept["layer"], 0.0)
    early = before - kept["logits"] + in_layers
    late = after + layer + in_layers
    nothing = np.zeros_like(before)
    moments = [
        (before + kept["in_head"], nothing, fresh.at_head + nothing),
        (early, fresh.head + nothing, fresh.gathered + nothing),
    ]
    own = kept["collected"]
    if fresh:
        ends = fresh.total - fresh.late + own
        moments += [
            (early - layer, fresh.head + fresh.layer + nothing, fresh.passing + nothing),
            (late, ends, fresh.passing + nothing),
            (after, fresh.total + fresh.waiting + own, nothing),
        ]
    elif own.any():
        moments.append((np.where(own > 0, late, 0.0), own, nothing))
    levels, collected, passing = (np.stack(column) for column in zip(*moments, strict=True))
    levels = levels + collected + passing
    at = levels.argmax(axis=0)

    def of(column: Floats) -> Floats:
        chosen: Floats = np.where(backward, np.take_along_axis(column, at[None], axis=0)[0], 0.0)
        return chosen

    most, at_head = np.where(backward, of(levels), np.maximum(before, after)), backward & (at == 0)
    # a loss that comes after larger tensors of layers lies in their places; else the largest needs
    # one of its own, and layers after a loss cut its, if segments do not grow
    cuts, larger = float(not fresh.grows), kept["of_loss"] > kept["of_layers"]
    cut = cuts * np.minimum(in_layers, kept["in_head"])
    in_loss = np.where(larger, kept["of_loss"] + cut, 0.0)
    elsewhere = np.maximum(in_loss, fresh.passing + cuts * fresh.waiting)
    # before torch gives up, it frees segments that nothing lies in (release_cached_blocks): those
    # of whole gradients of a root, lists of an optimizer, what layers cut and do not keep
    stays = np.where(larger, kept["of_loss"] + np.minimum(cut, before - kept["logits"]), 0.0)
    stays = np.maximum(stays, fresh.passing)
    return Fullest(most, of(collected), of(passing), elsewhere, stays, at_head)


def fresh_gradients(plan: Plan, microbatches: int | None = None) -> Fresh:
    """Gradients that are not there before the backward of a microbatch, and units under way in it;
    none with several stages. `microbatches`: of a step; those of the plan's order by default.
    """
    layout, lifetimes = plan.layout, plan.layout.framework.memory
    count = plan.orders.microbatches if microbatches is None else microbatches
    # torch on ROCm has no such segments: c10/cuda/CUDAAllocatorConfig.h, "not supported"
    nvidia = layout.cluster.accelerator.vendor == "NVIDIA"
    grows = lifetimes.expandable_segments and nvidia
    if len(layout.stages) > 1:
        return Fresh(grows=grows)
    stage = layout.stages[0]
    units = plan.gathers_units and not lifetimes.frees_weights
    drops = lifetimes.drops_gradients and not lifetimes.steps_in_backward
    alone = count == 1 and drops and (plan.replicas == 1 or plan.gathers_units)
    parts = {name: layout.held(held) for name, held in layout.trained_parameters(stage).items()}
    kinds = layout.trained(layout.layer_parameters)
    each = [layout.held(kinds[kind]) for kind in layout.layer_kinds(stage)] or [0.0]
    # a part of a pipeline lacks one
    table, head = (parts.get(end, 0.0) for end in ("embedding", "head"))
    if layout.model.tied_embeddings:
        table, head = 0.0, head + table
    root = units and layout.framework.data.root_unit
    total = float(model_states(plan)["gradients"][0]) if alone else 0.0
    share = total / max(sum(parts.values()), 1.0)
    # casts of products' weights stay until autocast ends, behind the loss, whose backward needs as
    # much as its forward and logits; autograd keeps those of layers between their passes
    element = layout.framework.lowering.activation_bytes * layout.framework.lowering.autocast
    casts = element * (float(layout.rank_parameters[0]) - table)
    again = plan.recompute.granularity != "none"
    logits = element * again * plan.micro_batch * plan.sequence_length * layout.model.vocab
    gradients = Fresh(
        total=total,
        at_head=max(casts - logits, 0.0),
        gathered=element * max(each) if again else casts - element * head,
        passing=element * max(each),
        late=share * (each[0] + table + (head if root else 0.0)),
        head=share * head,
        layer=share * each[-1],
        grows=grows,
    )
    if units:
        return _with_units(plan, gradients, table, head)
    return _with_weights(plan, gradients) if plan.gathers_units else gradients


def _with_weights(plan: Plan, gradients: Fresh) -> Fresh:
    """Gathered weights, and gradients under way, of stacks that free each after its product."""
    again = plan.layout.framework.data.reshard_after_forward
    element = _gathered(plan) if again else 0.0
    reduced = _trained(plan) * plan.reduced_bytes if plan.reduces_every_microbatch else 0.0
    layer, head = largest_weight(plan), max(weight_sizes(plan, ["head"]))
    in_layers = (element * plan.units_in_flight + 2 * reduced) * layer
    at_head = gradients.at_head + (element + reduced) * head
    return structs.replace(gradients, gathered=in_layers, passing=in_layers, at_head=at_head)


def _with_units(plan: Plan, gradients: Fresh, table: float, head: float) -> Fresh:
    """Gathered units, and gradients of units under way, of torch's sharded parameters.

    References
    ----------
    torch 2.13, distributed/fsdp/_fully_shard/_fsdp_param_group.py: before a backward its unit is
    whole and the next one's gather has its buffer; after it the unit is freed, the reduction of the
    one before is waited for and its buffer freed, and gradients are copied into another.
    """
    software, unit = plan.layout.framework, largest_unit(plan)
    data, gradient = software.data, float(software.lowering.weight_grad_bytes)
    stays = not data.reshard_after_forward
    element = _gathered(plan)
    copied = plan.reduced_bytes if data.reduce_copy_traffic else 0.0
    gathered = 0.0 if stays else element * plan.units_in_flight * unit
    gradient, copied = (each * _trained(plan) for each in (gradient, copied))
    gathered += gradient * largest_weight(plan)
    root = table + head if data.root_unit else 0.0
    # autograd puts the gradient of a flat parameter together while that is whole; others are freed
    # before their gradients are copied
    flat = not data.gather_copy_traffic
    whole = (gradient + copied) * (root or table) - (0.0 if flat else element * root)
    return structs.replace(
        gradients,
        head=gradient * head if root else gradients.head,
        waiting=max(whole, gradient * root + copied * unit if root else 0.0),
        gathered=gradients.gathered + gathered + (0.0 if root else copied * head),
        passing=gradients.passing + gathered + copied * unit,
        root=element * (float(plan.layout.rank_parameters[0]) if stays else root),
    )


def _gathered(plan: Plan) -> float:
    """Bytes of a gathered parameter, on average where some are frozen in another format."""
    return float(plan.layout.frozen_bytes(plan.gathered_bytes)[0])


def _trained(plan: Plan) -> float:
    """Share of the parameters that have gradients."""
    if plan.layout.tuning.trains_all:
        return 1.0
    trained = plan.layout.trained_kinds
    return float((trained.dense + trained.experts)[0] / plan.layout.rank_parameters[0])
