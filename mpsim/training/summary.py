"""The summary of a training step: one flat mapping of SI numbers, the JSON of ``mpsim run``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, TypeAlias

import numpy as np

from mpsim import structs
from mpsim.arrays import Floats
from mpsim.engine import run
from mpsim.engine.timeline import Step
from mpsim.hardware.routes import routes_of
from mpsim.parallel import best_domain, straddling
from mpsim.program import TICK, Program
from mpsim.program.floors import fabric_ticks, link_floors, port_ticks
from mpsim.result import Result, figures
from mpsim.result.figures import measure_energy
from mpsim.result.words import Figures
from mpsim.shipped import say
from mpsim.training.build import build_program
from mpsim.training.intervals import fits_probability, intervals, nearest_measured, setting_of, told
from mpsim.training.plan import Plan, PlanCosts
from mpsim.training.vocabulary import PARTS
from mpsim.units import Dimension, format_quantity

_FULL = 1.001  # of a floor: what ticks round is not told
_FELT = 0.1  # share of a step from which waiting for the host is told
_CROWDED = 0.2  # odds of a peak beyond memory from which runs were measured slower


def summarise(result: Result, plan: Plan, work: Work, needs: Needs) -> dict[str, object]:
    """Build the summary of a training step; every key is defined in docs/reference/metrics.md."""
    head = result.headline
    undisturbed, step = result.timeline.step_time_s, head["step_time_s"]
    varied = result.variation.to_json() if result.scenario.variation else None
    precision = plan.layout.precision
    hardware, executed, at_peak = work
    mean = figures.mean_over_ranks(result, result.parts) * TICK
    breakdown = dict(zip(PARTS, mean.tolist(), strict=True))
    if varied:  # waits beyond the undisturbed step; where draws came out shorter, all parts shrink
        breakdown = {part: s * min(1.0, step / undisturbed) for part, s in breakdown.items()}
        breakdown["variation"] = max(0.0, step - undisturbed)
    each = head["accelerators"] * step
    setting = told(head)
    floors = {name: float(seconds.max(initial=0.0)) for name, seconds in needs.items()}
    energy = measure_energy(result, step)
    straddles = straddling_words(plan, result.program)
    model = head["model_flops_per_step"]
    return {
        "scenario": plan.name,
        "engine": result.timeline.engine,
        **{name: head[name] for name in ("accelerators", "step_time_s", "tokens_per_s")},
        "tokens_per_s_per_accelerator": head["tokens_per_s_per_accelerator"],
        "used_tokens": plan.used,
        "model_flops_per_step": model,
        "hardware_flops_per_step": hardware,
        "executed_flops_per_step": executed,
        "model_tflops_per_accelerator": model / each / 1e12,
        "hardware_tflops_per_accelerator": hardware / each / 1e12,
        **{name: head[name] for name in ("mfu", "hfu")},
        "peak_format": precision,
        "tensor_utilisation": at_peak / each,
        "bubble_fraction": breakdown["bubble"] / step,
        "breakdown_s": breakdown,
        "floors_s": floors,
        "communication_s": figures.communication(result),
        "parameters": _parameters(plan),
        "memory": _memory(result, plan),
        "fits_memory": result.memory.fits,
        "fits_probability": fits_probability(result.memory, setting),
        "peak_memory_bytes": head["peak_memory_bytes"],
        "energy_j_per_step": energy.total,
        "energy_j_per_token": energy.total / (plan.used * plan.tokens_per_step),
        "energy_parts_j": dict(energy.accelerators),
        "accelerator_power_w": energy.total / each,
        "meter_energy_j_per_step": energy.at_meter,
        "meter_energy_j_per_token": energy.at_meter / (plan.used * plan.tokens_per_step),
        "meter_parts_j": dict(energy.meter),
        "meter_power_w": energy.at_meter / step,
        "cost_per_step": figures.price(result, step),
        "utilisation": figures.utilisation(result, step),
        "calibration": figures.calibration(result.constants),
        "validated": nearest_measured(setting),
        "warnings": _warnings(result, plan, floors, straddles)
        + _gathered_shards(plan)
        + _waits_for_host(result, plan, breakdown["host"] / step)
        + figures.unsure(result, precision, breakdown, interference=plan.interference),
        **result.scenario.told,
        **({"straddling": straddles} if straddles else {}),
        **({"variation": varied} if varied else {}),
        "interval": head["interval"],
    }


def headline(result: Result, plan: Plan, hardware: float) -> Figures:
    """The figures of a step that people measure, with their interval: those of the summary that
    need no account of where its time went. `hardware`: FLOPs of all ranks with what runs again.
    """
    varied = result.variation.to_json() if result.scenario.variation else None
    step = varied["mean_s"] if varied else result.timeline.step_time_s
    accelerators, precision = plan.layout.mesh.world, plan.layout.precision
    peak = figures.mean_over_accelerators(result, lambda chip: chip.peak(precision))
    tokens, each = plan.used * plan.tokens_per_step / step, accelerators * step
    head = {
        "accelerators": accelerators,
        "step_time_s": step,
        "tokens_per_s": tokens,
        "tokens_per_s_per_accelerator": tokens / accelerators,
        "model_flops_per_step": plan.model_flops,
        "mfu": plan.model_flops / each / peak,
        "hfu": hardware / each / peak,
        "peak_memory_bytes": float(result.memory.total.max()),
    }
    seconds = dict(zip(PARTS, figures.mean_over_ranks(result, result.parts).tolist(), strict=True))
    return {**head, "interval": intervals(setting_of(plan, seconds, result.memory), head)}


class Work(NamedTuple):
    """FLOPs of all ranks as papers count them, those executed, and these at peaks [s]."""

    hardware: float
    executed: float
    at_peak: float


def work_of(program: Program) -> Work:
    """Work of a program."""
    inside = np.array(
        [(t.issued, t.executed_flops, t.peak_seconds) for t in program.templates]
    ).reshape(-1, 3)
    chosen = program.template >= 0
    size = program.class_size[program.rank[chosen]] * program.times_of(chosen)
    return Work(*(float((column[program.template[chosen]] * size).sum()) for column in inside.T))


def _parameters(plan: Plan) -> dict[str, float]:
    """Parameters of the model, those a token meets, and the most that an accelerator works with."""
    model = plan.layout.model
    return {
        "total": model.parameters().total,
        "active": model.active_parameters(lookup=True),
        "per_rank": float(plan.layout.rank_parameters.max()),
    }


def _memory(result: Result, plan: Plan) -> dict[str, float | int]:
    memory, rank = result.memory, result.memory.fullest
    sizes = {**memory.components, "total": memory.total, "capacity": memory.capacities}
    parts = {name: float(held[rank]) for name, held in sizes.items()}
    return {**parts, "rank": rank, "stage": rank % plan.layout.mesh.pp}


def _warnings(result: Result, plan: Plan, floors: dict[str, float], straddles: str) -> list[str]:
    memory = result.memory
    warnings = [straddles] if straddles else []
    staged = plan.network == "analytic" and plan.layout.mesh.pp > 1
    if staged and routes_of(plan.layout.cluster).names:
        warnings.append(say("training.thin_links"))
    if plan.orders.fused.any() and plan.layout.mesh.ep > 1 and not plan.fuses_blocks:
        order = plan.schedule or "this order of actions"
        warnings.append(say("training.nothing_beside", order=order))
    warnings += _floor_warnings(result, plan, floors)
    if memory.fits and told(result.headline).full > _CROWDED:
        warnings.append(say("training.full_memory"))
    if not memory.fits:
        rank = int((memory.needed / memory.capacities).argmax())
        needed, capacity = memory.needed[rank] / 1e9, memory.capacities[rank] / 1e9
        warnings.append(say("training.too_full", rank=rank, needed=needed, capacity=capacity))
    return warnings


Needs: TypeAlias = Mapping[str, Floats]
"""Seconds that work needs at least, by what is needed: one figure a rank class or link."""


def least_of(step: Step) -> Floats:
    """Seconds that each rank class computes, seconds that its memory moves what kernels of layers
    read and write, and ticks that its ports are busy, by kind and direction [R, 6].
    """
    program = step.program
    chosen = program.template >= 0
    rank, template = program.rank[chosen], program.template[chosen]
    times = program.times_of(chosen)
    inside = np.array([(t.peak_seconds, t.memory_seconds) for t in program.templates])
    kernels = [
        np.bincount(rank, weights=seconds[template] * times, minlength=program.ranks)
        for seconds in inside.reshape(-1, 2).T
    ]
    ports = port_ticks(program, step.clusters).reshape(program.ranks, -1)
    return np.concatenate([np.stack(kernels, axis=1), ports], axis=1)


def needs_of(program: Program, plan: Plan, least: Floats) -> Needs:
    """Least time of each rank class and link by what is needed [s]: ``compute``, ``memory``,
    ``scale_up``, ``nic``, ``fabric``. `least` (float64[R, 6]): what `least_of` says.

    Notes
    -----
    Compute is what products execute over the peaks of their formats, memory what kernels of layers
    read and write over its bandwidth; links are ports of ranks, and links of a fabric that could be
    too thin, at their usable rates (`mpsim.program.floors`).
    """
    compute, memory, *ports = least.T
    return {
        "compute": compute,
        "memory": memory,
        "scale_up": np.concatenate(ports[:2]) * TICK,
        "nic": np.concatenate(ports[2:]) * TICK,
        "fabric": fabric_ticks(program, plan)[0] * TICK,
    }


def _gathered_shards(plan: Plan) -> list[str]:
    """Say that ZeRO 2 is not what users of FSDP call so."""
    stack, zero = plan.layout.framework, plan.zero
    if zero != 2 or stack.suits.get("parallelism.zero") != 3 or plan.layout.mesh.dp == 1:
        return []
    text = f"{stack.name} shards parameters; parallelism.zero: 2 keeps all of them on every rank"
    return [f"{text}: 3 with framework.reshard_after_forward: false gathers them once a step"]


def _waits_for_host(result: Result, plan: Plan, waits: float) -> list[str]:
    """Say that the step waits for launches, and each change that needs fewer of them."""
    if waits < _FELT:
        return []
    software, routing = plan.layout.framework, plan.sharding.routing
    said = ["more than a tenth of the step waits for the host to launch kernels"]
    several = routing is not None and routing.experts > plan.layout.mesh.ep
    if several and not software.experts.grouped_gemm:
        said.append("framework.grouped_gemm: true is one kernel for all experts of a rank")
    if software.host.launch_cost:
        said.append("framework.launch_cost: 0 us is that of CUDA graphs, where the stack has them")
    if plan.orders.microbatches > 1:
        stated = "micro_batch" in result.scenario.training_step.model_fields_set
        whose = "" if stated else ", here mpsim's own"
        said.append(f"a larger training.micro_batch ({plan.micro_batch}{whose}) needs fewer")
    return ["; ".join(said)]


def _floor_warnings(result: Result, plan: Plan, floors: dict[str, float]) -> list[str]:
    """Warnings of a step that links hold up, or that is shorter than anything it needs."""
    timeline, program = result.timeline, result.program
    step = timeline.step_time_s
    warnings = []
    if timeline.makespan > timeline.last:
        busiest = max(link_floors(program, plan), key=lambda floor: floor.ticks)
        warnings.append(
            f"network: analytic lets transfers overlap that share {busiest.where}, which alone"
            f" takes {step:.4g} s to carry them: the step is held to that, and the"
            f" {step - timeline.last * TICK:.3g} s more than its operations take count as"
            f" {program.vocabulary.parts[program.least_part]}; set simulation.network to flow to"
            " let them meet"
        )
    slowest = max(floors, key=floors.__getitem__)
    if floors[slowest] > step * _FULL:
        warnings.append(
            f"takes {step:.4g} s, but needs {floors[slowest]:.4g} s of {slowest.replace('_', '-')}"
            " at least: no step is this short; please report it with the scenario"
        )
    return warnings


def straddling_words(plan: Plan, program: Program) -> str:
    """Which groups straddle scale-up domains, with the step as it is and as it would be without;
    empty where none do.

    `program`: of the plan, replayed to compare like with like, whatever the scenario's engine and
    network are.
    """
    layout = plan.layout
    if plan.classes or layout.stage_clusters:  # parts say where their ranks are
        return ""
    found = straddling(layout.cluster, layout.mesh)
    if not found:
        return ""
    node, whole = layout.cluster.node, best_domain(layout.cluster, layout.mesh)
    said = f"{', '.join(map(str, found))} straddle scale-up domains of {node.domain}"
    if whole.node.domain == node.domain:
        degrees = ", ".join(groups.axis for groups in found)
        return f"{said}: choose degrees ({degrees}) that divide {node.domain}"
    nodes = layout.cluster.domains * whole.node.domain // node.accelerators
    steps = [run(each, "replay") for each in (program, _on(plan, whole.node.domain))]
    times = " and ".join(format_quantity(step.step_time_s, Dimension.TIME) for step in steps)
    return say(
        "training.other_domain", said=said, times=times, domain=whole.node.domain, nodes=nodes
    )


def _on(plan: Plan, domain: int) -> Program:
    """The step of the plan with so many accelerators of each scale-up domain."""
    cluster = plan.layout.cluster
    node = structs.replace(cluster.node, domain=domain)
    moved = plan.on(structs.replace(plan.layout, cluster=structs.replace(cluster, node=node)))
    return build_program(moved, PlanCosts(moved))
