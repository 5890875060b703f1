"""Model states and buffers: parameters, gradients, optimizer, what kernels set aside.

Shapes: P pipeline ranks.
"""

from __future__ import annotations

import itertools
import math

import numpy as np

from mpsim.arrays import Floats
from mpsim.cost.quantise import FORMATS, casting
from mpsim.training.plan import Plan
from mpsim.training.replicas.residency import matrices, residency, weight_sizes, weights_of

_MESSAGES = 4  # sent and received, activations and gradients


def model_states(plan: Plan) -> dict[str, Floats]:
    """Parameters, gradients and optimizer state of each pipeline rank, float64[P] [B].

    Notes
    -----
    What `parallelism.zero` shares is divided among ranks that hold the same parameters: data- and
    context-parallel peers, or a group of them (`parallelism.shard`), for most, only those that hold
    the same experts for experts. What the host keeps is not on the device. Weights of layers that
    are narrow themselves (``gathered_bytes`` 1 in an 8-bit format) take a byte, and another for the
    transposed copy where products need one.
    """
    sizes, held = plan.layout.framework.optimizer, residency(plan)
    gradients = held.gradients
    # of a reference model, which with adapters is the model itself
    copied = plan.reference * (not plan.layout.tuning.rank)
    copied *= plan.layout.framework.lowering.activation_bytes
    if plan.layout.framework.memory.steps_in_backward:
        # of one weight the gradient is applied while that of the next is computed
        gradients = np.minimum(gradients, sum(sorted(weight_sizes(plan, plan.expansions))[-2:]))
    return {
        "parameters": held.parameters * plan.layout.frozen_bytes(sizes.parameter_bytes)
        + held.adapters * sizes.parameter_bytes
        + _narrow_weights(plan)
        + held.parameters * copied,
        "gradients": gradients * sizes.gradient_bytes,
        "optimizer": held.optimizer * (sizes.optimizer_bytes + _other_states(plan, held.owned)),
    }


def _other_states(plan: Plan, owned: Floats) -> Floats:
    """Further state of what is no matrix, where an optimizer differs, float64[P] [B a parameter].
    `owned`: parameters of each rank.
    """
    each = plan.layout.framework.optimizer.other_states
    if not each:
        return np.zeros_like(owned)
    others: Floats = np.maximum(owned - matrices(plan), 0.0) / owned
    return each * others


def step_scratch(plan: Plan) -> Floats:
    """On the device only in the optimizer's step or right before, without activations, float64[P]
    [B]: lists, or a bucket of gradients cast to the format in which they travel.

    References
    ----------
    NVIDIA/TransformerEngine v2.2 to HEAD, pytorch/tensor/utils.py cast_master_weights_to_fp8: of
    weights that are kept narrow, all masters are in 16 bits before the first is cast on.
    """
    software, held = plan.layout.framework, residency(plan)
    sizes, alone = software.optimizer, software.data.gathered_bytes == 1 and not plan.gathers_units
    cast = _buckets(plan, int(plan.reduced_bytes != sizes.gradient_bytes))
    each = np.full_like(held.owned, sizes.step_scratch)
    if alone and software.memory.keeps_narrow and plan.layout.precision in FORMATS:
        each += software.lowering.activation_bytes * matrices(plan) / held.owned
    lists = np.maximum(each * held.optimizer, cast)
    if not sizes.tensor_scratch:
        return lists
    largest = max(weight_sizes(plan, plan.expansions)) * held.share / held.owned
    return np.maximum(lists, sizes.tensor_scratch * largest * (held.optimizer > 0))


def _narrow_weights(plan: Plan) -> Floats:
    """Difference that narrow weights of layers make, float64[P] [B]: less than wide ones where they
    are all that is kept, copies of them beside wide ones where the first microbatch casts for all;
    0 without either.

    References
    ----------
    NVIDIA/Megatron-LM core_v0.6.0 to HEAD, core/extensions/transformer_engine.py:
    is_first_microbatch, unless disable_parameter_transpose_cache.
    """
    layout, software = plan.layout, plan.layout.framework
    held, alone = np.zeros(layout.mesh.pp), software.data.gathered_bytes == 1
    kept = software.memory.keeps_narrow and (alone or software.memory.transposed_weights)
    if not kept or plan.gathers_units or layout.tuning.base != "bf16":
        return held
    for rank in range(layout.mesh.pp):
        casts = casting(layout.precision, layout.cluster_of(rank).accelerator)
        if casts is None:
            continue
        kinds = itertools.chain.from_iterable(map(layout.layer_kinds, layout.rank_stages(rank)))
        layers = [layout.held(layout.layer_parameters[kind]) for kind in kinds]
        copies = casts.copies if software.memory.transposed_weights else 1.0
        element = casts.element_bytes * copies
        if alone:
            element = min(element - software.optimizer.parameter_bytes, 0.0)
        held[rank] = element * math.fsum(layers)
    return held


def buffers(plan: Plan) -> Floats:
    """Messages of both directions, buckets of gradients, gathered units, float64[P] [B]."""
    return message_buffers(plan) + sharing_buffers(plan)


def message_buffers(plan: Plan) -> float:
    """Messages of both directions between stages [B]."""
    if plan.layout.mesh.pp == 1:
        return 0.0
    divided = plan.layout.mesh.tp if plan.layout.sequence_parallel else 1
    longer = plan.longest / plan.sequence_length if plan.longest else 1.0
    return _MESSAGES * longer * plan.message_bytes / divided


def sharing_buffers(plan: Plan) -> Floats:
    """Buckets of gradients, gathered units and gradients of units under way, whatever a microbatch
    is, float64[P] [B].
    """
    held = residency(plan)
    gathered = held.gathered * plan.layout.frozen_bytes(plan.gathered_bytes)
    buckets = _buckets(plan, plan.layout.framework.data.bucket_copies)
    return buckets + (gathered + held.reducing * plan.reduced_bytes)


def _buckets(plan: Plan, copies: int) -> Floats:
    """So many buckets that gradients are copied into, at most all, float64[P] [B]."""
    software, trained = plan.layout.framework, plan.layout.trained_kinds
    if plan.replicas == 1 or (plan.gathers_units and not software.memory.frees_weights):
        return np.zeros(plan.layout.mesh.pp)
    whole = plan.reduced_bytes * (trained.dense + trained.experts)
    return np.minimum(copies * software.data.bucket_bytes, whole)


def gradient_scratch(plan: Plan) -> Floats:
    """A buffer for each distinct shape of a layer's weights, if any, float64[P] [B]."""
    element = plan.layout.framework.optimizer.gradient_scratch
    if not element:
        return np.zeros(plan.layout.mesh.pp)
    parts, layout = plan.expansions, plan.layout
    shapes = {
        kind: {(weight.m, weight.n) for weight in weights_of(plan, [parts[kind]])}
        for kind in dict.fromkeys(layout.model.layer_kinds)
    }

    def of_rank(rank: int) -> int:
        kinds = itertools.chain(*map(layout.layer_kinds, layout.rank_stages(rank)))
        return sum(m * n for m, n in set().union(*(shapes[kind] for kind in {*kinds})))

    return element * np.array([*map(of_rank, range(layout.mesh.pp))], dtype=float)
