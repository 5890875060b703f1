"""From Scenario to Plan: what the scenario leaves to be worked out is worked out here, and nowhere else."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from mpsim.errors import Problem, ScenarioError, ScheduleError
from mpsim.framework import ExpertOverlap
from mpsim.hardware import Cluster
from mpsim.parallel import Layout, Mesh, Stage, partition_layers, placed_stages
from mpsim.scenario import Scenario, check
from mpsim.schedule import Orders, forwards_beside_backwards, make_orders
from mpsim.training.plan import Plan, ReplicaClass
from mpsim.training.recompute import Recompute

__all__ = ["make_plan"]


def make_plan(scenario: Scenario) -> Plan:
    """Resolve a scenario.

    Parameters
    ----------
    scenario : Scenario

    Returns
    -------
    Plan

    Raises
    ------
    ScenarioError
        With every problem found, located in the scenario's file.
    """
    if problems := check(scenario):
        raise ScenarioError(problems)
    parallelism, training = scenario.parallelism, scenario.training
    mesh = Mesh(
        **scenario.degrees,
        order=parallelism.axes,
        etp=parallelism.etp,
    )
    orders = _orders(scenario, scenario.microbatches)
    nodes = _nodes(scenario, mesh)
    return Plan(
        name=scenario.name,
        layout=Layout(
            cluster=nodes[0] if nodes else scenario.hardware,
            model=scenario.transformer,
            framework=scenario.software.in_precision(training.precision),
            mesh=mesh,
            stages=_stages(scenario, orders),
            precision=training.precision,
            sequence_parallel=parallelism.sequence_parallel,
            stage_clusters=nodes if scenario.stage_clusters and len(scenario.clusters) > 1 else (),
        ),
        orders=orders,
        micro_batch=training.micro_batch,
        global_batch=training.global_batch,
        sequence_length=training.sequence_length,
        recompute=_recompute(scenario),
        zero=parallelism.zero,
        engine=scenario.simulation.engine,
        seed=scenario.simulation.seed,
        schedule=scenario.schedule.name or "",
        network=scenario.simulation.network,
        shard=parallelism.shard,
        offload=parallelism.offload,
        offload_to=parallelism.offload_to,
        classes=_classes(scenario) if scenario.has_uneven_replicas else (),
        interference=scenario.simulation.interference,
    )


def _nodes(scenario: Scenario, mesh: Mesh) -> tuple[Cluster, ...]:
    """What each pipeline rank or replica runs on, where the scenario says so.

    Raises
    ------
    ScenarioError
        If a scale-up domain would hold ranks of more than one part.
    """
    stages, replicas = scenario.stage_clusters, scenario.replica_clusters
    nodes = stages or replicas or ()
    if len(scenario.clusters) == 1:
        return nodes
    kinds = np.array([scenario.clusters.index(cluster) for cluster in nodes])
    kind = np.broadcast_to(
        kinds.reshape((-1, 1, 1, 1) if stages else (-1, 1, 1)), mesh.ranks.shape
    ).ravel()
    domain = scenario.hardware.domain_of(mesh.ranks.ravel())
    first = np.full(scenario.hardware.domains, -1)
    first[domain[::-1]] = kind[::-1]
    mixed = domain[first[domain] != kind]
    if len(mixed):
        key = f"cluster.{'stages' if stages else 'replicas'}"
        message = (
            f"scale-up domain {int(mixed.min())} would hold ranks of two parts; needed one part in each domain: change "
            "the counts, the degrees, or parallelism.order"
        )
        raise ScenarioError(scenario.locate([Problem(message, key=key)]))
    return nodes


def _classes(scenario: Scenario) -> tuple[ReplicaClass, ...]:
    """Replicas by what they run on and how many microbatches they run, those with most microbatches first."""
    nodes = scenario.replica_clusters or (scenario.hardware,) * scenario.dp
    alike: dict[tuple[int, int], list[int]] = {}
    for replica, cluster in enumerate(nodes):
        key = (scenario.microbatches_of(replica), nodes.index(cluster))
        alike.setdefault(key, []).append(replica)
    return tuple(
        ReplicaClass(tuple(members), nodes[members[0]], _orders(scenario, microbatches))
        for (microbatches, _), members in sorted(alike.items(), key=lambda one: -one[0][0])
    )


def _recompute(scenario: Scenario) -> Recompute:
    training, usual = scenario.training, Recompute()
    layers = training.recompute_layers
    return Recompute(
        training.recompute,
        modules=training.recompute_modules or usual.modules,
        method=training.recompute_method or usual.method,
        layers=usual.layers if layers is None else layers,
        stops_early=scenario.software.kernels.recompute_stops_early,
        prunes=scenario.software.kernels.recompute_prunes,
    )


def _stages(scenario: Scenario, orders: Orders) -> tuple[Stage, ...]:
    parallelism = scenario.parallelism
    try:
        parts = partition_layers(
            scenario.transformer.layers,
            int(orders.model_stage.max()) + 1,
            given=parallelism.layers_per_stage,
            embedding_counts=parallelism.embedding_counts_as_layer,
            loss_counts=parallelism.loss_counts_as_layer,
        )
    except ScenarioError as error:
        raise ScenarioError(scenario.locate(error.problems)) from None
    return placed_stages(parts, orders.model_stage.tolist(), orders.stage_rank.tolist())


def _orders(scenario: Scenario, microbatches: int) -> Orders:
    schedule = scenario.schedule
    name: str | None = schedule.name
    try:
        if schedule.file is not None:
            name = str(Path(scenario.source.file).parent / schedule.file)
        assert name is not None, "the schema wants a name or a file"
        orders = make_orders(
            name,
            pp=scenario.parallelism.pp,
            microbatches=microbatches,
            virtual_stages=scenario.virtual_stages,
        )
        if _runs_beside(scenario) and not orders.fused.any():
            orders = forwards_beside_backwards(orders)
        orders.validate()
        _check_trains(orders, microbatches)
    except ScheduleError as error:
        raise ScenarioError(scenario.locate([Problem(str(error), key="schedule")])) from None
    return orders


def _runs_beside(scenario: Scenario) -> bool:
    """Whether the framework makes blocks of forwards and backwards, to hide exchanges of experts."""
    beside = scenario.software.experts.expert_overlap is ExpertOverlap.MICROBATCH
    return beside and scenario.transformer.moe is not None


def _check_trains(orders: Orders, microbatches: int) -> None:
    """Refuse orders that are no training step of whole microbatches."""
    if orders.forward_only:
        raise ScheduleError(
            f"{orders.schedule}: got a schedule without backward; needed one that trains; time it alone with "
            f"'mpsim schedule {orders.schedule}'"
        )
    if orders.microbatches != microbatches:
        raise ScheduleError(
            f"{orders.schedule}: got {orders.microbatches} units of work for {microbatches} microbatches; needed "
            f"whole microbatches; parts of a sequence are timed by 'mpsim schedule {orders.schedule}' only"
        )
