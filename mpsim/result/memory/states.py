"""Model states and buffers: parameters, gradients, optimizer, and what communication and kernels set aside.

Shapes: P pipeline ranks.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mpsim.parallel import shard
from mpsim.program.blocks import Blocks
from mpsim.program.plan import Plan
from mpsim.workload import OperatorKind, Phase

__all__ = ["buffers", "gradient_scratch", "model_states"]

_MESSAGES = 4  # sent and received, activations and gradients
_WEIGHTS = (OperatorKind.GEMM, OperatorKind.GROUPED_GEMM)


def model_states(plan: Plan) -> dict[str, NDArray[np.float64]]:
    """Parameters, gradients and optimizer state of each pipeline rank, float64[P] [B].

    Notes
    -----
    Optimizer state is shared by ranks that hold the same parameters: data- and context-parallel peers for most, only those that
    hold the same experts for experts.
    """
    sizes = plan.framework.optimizer
    dense, experts = _held(plan)
    owned = dense + experts
    shared = (plan.replicas, plan.mesh.edp) if plan.zero else (1, 1)
    return {
        "parameters": owned * sizes.parameter_bytes,
        "gradients": owned * sizes.gradient_bytes,
        "optimizer": (dense / shared[0] + experts / shared[1]) * sizes.optimizer_bytes,
    }


def _held(plan: Plan) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Parameters on one rank of each pipeline rank: all but routed experts, and of those, float64[P]."""
    mesh = plan.mesh
    dense, experts = np.zeros((2, mesh.pp))
    for rank in range(mesh.pp):
        for stage in plan.rank_stages(rank):
            for count in plan.stage_parameters(stage).values():
                own = count.experts_per_rank(ep=mesh.ep, etp=mesh.expert_tp)
                experts[rank] += own
                dense[rank] += count.per_rank(mesh.tp, ep=mesh.ep, etp=mesh.expert_tp) - own
    return dense, experts


def buffers(plan: Plan) -> NDArray[np.float64]:
    """Messages of both directions, a bucket of gradients, scratch of weight gradients, float64[P] [B]."""
    message = plan.sharding.tokens * plan.model.hidden * plan.sharding.activation_bytes
    divided = plan.mesh.tp if plan.sequence_parallel else 1
    messages = _MESSAGES * message / divided if plan.mesh.pp > 1 else 0.0
    overlapped = plan.framework.overlaps_gradients(plan.mesh.pp) and plan.replicas > 1
    bucket = plan.framework.data.bucket_bytes if overlapped else 0.0
    return np.full(plan.mesh.pp, messages + bucket)


def gradient_scratch(plan: Plan) -> NDArray[np.float64]:
    """One buffer for each distinct shape of a layer's weights, where the stack has them, float64[P] [B]."""
    element = plan.framework.optimizer.gradient_scratch
    if not element:
        return np.zeros(plan.mesh.pp)
    parts = Blocks.expand(plan)
    shapes = {
        kind: {
            (one.m, one.n)
            for one in (shard(whole, plan.sharding) for whole in parts[kind].backward)
            if one.phase is Phase.WEIGHT_GRADIENT and one.kind in _WEIGHTS
        }
        for kind in dict.fromkeys(plan.model.layer_kinds)
    }
    held = [
        set().union(
            *(shapes[kind] for stage in plan.rank_stages(rank) for kind in plan.layer_kinds(stage))
        )
        for rank in range(plan.mesh.pp)
    ]
    return np.array([float(element * sum(m * n for m, n in one)) for one in held])
