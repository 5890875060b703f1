"""Small plans built by hand, so that tests of the inner layers need no scenario file."""

from __future__ import annotations

import dataclasses
from typing import Any

from mpsim.framework import ExpertBehaviour, TensorBehaviour, TensorOverlap, framework
from mpsim.hardware import system
from mpsim.parallel import Layout, Mesh, Routing, Sharding, partition_layers, placed_stages
from mpsim.schedule import make_orders
from mpsim.training.plan import Plan
from mpsim.training.recompute import Recompute
from mpsim.workload import Experts, model


def sharding(**changes: Any) -> Sharding:
    """A sharding; fields of the software's tensor parallelism stand beside its own."""
    own = _taken(TensorBehaviour, changes)
    return Sharding(
        **changes, tensor=TensorBehaviour(**{"tensor_overlap": TensorOverlap.NONE, **own})
    )


def routing(**changes: Any) -> Routing:
    """A routing of 16 experts; fields of the software's experts stand beside its own."""
    own = _taken(ExpertBehaviour, changes)
    software = ExpertBehaviour(**{"expert_synchronizations": 0, **own})
    return Routing(**{"experts": 16, **changes}, software=software)


def _taken(area: type, changes: dict[str, Any]) -> dict[str, Any]:
    """Changes of an area of the framework, taken out of `changes`."""
    return {
        field.name: changes.pop(field.name)
        for field in dataclasses.fields(area)
        if field.name in changes
    }


def small_plan(
    *,
    tp: int = 2,
    pp: int = 2,
    dp: int = 2,
    cp: int = 1,
    virtual_stages: int = 1,
    microbatches: int = 4,
    flushes: int = 1,
    micro_batch: int = 1,
    model_name: str = "gpt-1.7b",
    cluster: str = "dgx-a100-80gb",
    preset: str = "megatron-2021",
    overrides: dict[str, Any] | None = None,
    schedule: str | None = None,
    sequence_length: int = 2048,
    precision: str = "bf16",
    recompute: str | Recompute = "full",
    sequence_parallel: bool = False,
    zero: int = 0,
    ep: int = 1,
    etp: int | None = None,
    moe: Experts | None = None,
    shard: int | None = None,
    offload: str = "none",
    offload_to: str = "host",
    straggling: float = 0.0,
) -> Plan:
    """A plan with everything defaulted to something small, and nothing lost to stragglers."""
    name = schedule or ("interleaved-1f1b" if virtual_stages > 1 else "1f1b")
    shape = dataclasses.replace(model(model_name), moe=moe)
    hardware = system(cluster, nodes=-(-tp * pp * dp * cp // 8))
    sizes = {"microbatches": microbatches, "virtual_stages": virtual_stages, "flushes": flushes}
    orders = make_orders(name, pp=pp, **sizes)
    parts = partition_layers(shape.layers, int(orders.model_stage.max()) + 1)
    return Plan(
        name="small",
        layout=Layout(
            cluster=hardware,
            model=shape,
            framework=framework(preset, overrides),
            mesh=Mesh(tp=tp, pp=pp, dp=dp, cp=cp, ep=ep, etp=etp),
            stages=placed_stages(parts, orders.model_stage.tolist(), orders.stage_rank.tolist()),
            precision=precision,
            sequence_parallel=sequence_parallel,
        ),
        orders=orders,
        micro_batch=micro_batch,
        global_batch=microbatches * dp * micro_batch,
        sequence_length=sequence_length,
        recompute=Recompute(recompute) if isinstance(recompute, str) else recompute,
        zero=zero,
        engine="auto",
        seed=0,
        shard=shard,
        offload=offload,
        offload_to=offload_to,
        straggling=straggling,
    )
