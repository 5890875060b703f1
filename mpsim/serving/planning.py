"""From Scenario to ServicePlan: what the scenario leaves to be worked out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from mpsim import structs
from mpsim.errors import Problem, ScenarioError
from mpsim.hardware import Cluster, accelerator
from mpsim.scenario import Scenario
from mpsim.scenario.extent import refuse_large_scenario
from mpsim.scenario.serving import PoolChoice
from mpsim.serving.engines import EnginePreset, calibrated, engine, override
from mpsim.serving.plan import ServicePlan
from mpsim.shipped import say


def make_service(scenario: Scenario) -> ServicePlan:
    """Resolve a scenario that serves. ScenarioError has every problem, located in the file."""
    if problems := scenario.problems:
        raise ScenarioError(problems)
    refuse_large_scenario(scenario)
    apart = scenario.service.disaggregated
    *before, plan = (_plan(scenario, pool, key) for key, pool in scenario.pools.items())
    if apart is not None:
        plan = structs.replace(plan, prefill=before[0], samples_first=apart.first_token == "decode")
    blocks = (problem for pool in plan.pools.values() for problem in _too_many_blocks(pool))
    if problems := [*plan.problems(), *blocks]:
        raise ScenarioError(scenario.locate(problems))
    return plan


def _too_many_blocks(plan: ServicePlan) -> Iterator[Problem]:
    """Refuse blocks of cache that memory has no room for; tables of services may leave it open."""
    given, memory = plan.given_blocks or 0, plan.memory
    left = max(0.0, memory.capacity - memory.weights) * plan.attention_dp
    if given * memory.block_bytes > left:
        message = say("serving.many_blocks", given=given, room=left // memory.block_bytes)
        yield Problem(message, f"{plan.key}.kv_blocks")


def pool_cluster(scenario: Scenario, pool: PoolChoice) -> Cluster:
    """The cluster with the accelerators of a pool, whose boards its nodes feed instead."""
    cluster = scenario.hardware
    if pool.accelerator is None:
        return cluster
    node, chip, old = cluster.node, accelerator(pool.accelerator), cluster.node.accelerator
    if pool.price_per_hour is not None:
        chip = structs.replace(chip, price_per_hour=pool.price_per_hour)
    power = node.power_w and node.power_w + node.accelerators * (chip.tdp_w - old.tdp_w)
    return structs.replace(cluster, node=structs.replace(node, accelerator=chip, power_w=power))


def _plan(scenario: Scenario, pool: PoolChoice, key: str) -> ServicePlan:
    """The plan of a service, or of one of its pools, whose choices stand in the section `key`."""
    serving, replicas, cluster = scenario.service, pool.replicas, pool_cluster(scenario, pool)
    if serving.disaggregated is None and serving.replicas is None:
        replicas = max(1, scenario.world_size // (pool.tp * pool.pp))
    own: dict[str, Any] = structs.named(pool, "tp", "pp", "ep", "attention_dp", "weights", "kv")
    own |= structs.named(serving, "workload", "slo", "routing", "speculation", "autoscale")
    return ServicePlan(
        **own,
        name=scenario.name,
        model=scenario.transformer,
        cluster=cluster,
        engine=engine_of(scenario, cluster, own=pool.engine, key=key),
        replicas=replicas,
        given_blocks=pool.kv_blocks,
        variation=scenario.variation,
        key=key,
        seed=scenario.simulation.seed,
        folder=str(scenario.folder),
    )


def engine_of(
    scenario: Scenario, cluster: Cluster, *, own: Mapping[str, object], key: str = "serving"
) -> EnginePreset:
    """The engine of a pool: the preset, what was fitted on its cluster, what the file replaces, and
    what the pool replaces of its `own`. ScenarioError is located in the file.
    """
    choice = scenario.service.engine
    try:
        preset = override(calibrated(engine(choice.preset), cluster), choice.overrides)
        return override(preset, own, section=key)
    except ScenarioError as error:
        raise ScenarioError(scenario.locate(error.problems)) from None
