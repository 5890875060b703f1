"""From Scenario to ServicePlan: what the scenario leaves to be worked out."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping

from mpsim.errors import Problem, ScenarioError, nearest
from mpsim.hardware import accelerator
from mpsim.scenario import Scenario
from mpsim.scenario.extent import refuse_large_scenario
from mpsim.scenario.serving import PoolChoice
from mpsim.serving.engines import EnginePreset, calibrated, engine, engine_names, override
from mpsim.serving.plan import ServicePlan


def make_service(scenario: Scenario) -> ServicePlan:
    """Resolve a scenario that serves. ScenarioError has every problem, located in the file."""
    if problems := scenario.problems:
        raise ScenarioError(problems)
    refuse_large_scenario(scenario)
    serving, p = scenario.service, scenario.parallelism
    apart = serving.disaggregated
    if apart is None:
        plan = _plan(scenario, p.tp, p.pp, p.ep)
    else:
        behind = _pool_plan(scenario, apart.prefill, "prefill")
        plan = dataclasses.replace(
            _pool_plan(scenario, apart.decode, "decode"),
            prefill=behind,
            samples_first=apart.first_token == "decode",
        )
    blocks = (problem for pool in plan.pools.values() for problem in _too_many_blocks(pool))
    if problems := [*plan.problems(), *blocks]:
        raise ScenarioError(scenario.locate(problems))
    return plan


def _too_many_blocks(plan: ServicePlan) -> Iterator[Problem]:
    """Refuse blocks of cache that memory has no room for; tables of services may leave it open."""
    given, memory = plan.given_blocks or 0, plan.memory
    left = max(0.0, memory.capacity - memory.weights) * plan.attention_dp
    if given * memory.block_bytes > left:
        message = f"got {given:,} blocks, but beside the weights memory has room for {left // memory.block_bytes:,.0f}; leave kv_blocks out for what the engine leaves"
        yield Problem(message, f"{plan.key}.kv_blocks")


def _plan(scenario: Scenario, tp: int, pp: int, ep: int) -> ServicePlan:
    """The service without pools."""
    serving = scenario.service
    return ServicePlan(
        name=scenario.name,
        model=scenario.transformer,
        cluster=scenario.hardware,
        engine=_engine(scenario, serving.engine.preset, serving.engine.overrides),
        workload=serving.workload,
        slo=serving.slo,
        tp=tp,
        pp=pp,
        ep=ep,
        attention_dp=serving.attention_dp,
        replicas=serving.replicas or max(1, scenario.world_size // (tp * pp)),
        weights=serving.weights,
        kv=serving.kv,
        routing=serving.routing,
        given_blocks=serving.kv_blocks,
        speculation=serving.speculation,
        autoscale=serving.autoscale,
        variation=scenario.variation,
        seed=scenario.simulation.seed,
        folder=str(scenario.folder),
    )


def _pool_plan(scenario: Scenario, pool: PoolChoice, name: str) -> ServicePlan:
    """One of two pools: the service with the pool's own choices."""
    plan, key = _plan(scenario, pool.tp, pool.pp, pool.ep), f"serving.disaggregated.{name}"
    try:
        engine = override(plan.engine, pool.engine)
    except ScenarioError as error:
        moved = [
            dataclasses.replace(problem, key=problem.key.replace("serving", key, 1))
            for problem in error.problems
        ]
        raise ScenarioError(scenario.locate(moved)) from None
    cluster = plan.cluster
    if pool.accelerator is not None:
        chip = accelerator(pool.accelerator)
        if pool.price_per_hour is not None:
            chip = dataclasses.replace(chip, price_per_hour=pool.price_per_hour)
        node = dataclasses.replace(cluster.node, accelerator=chip)
        cluster = dataclasses.replace(cluster, node=node)
    return dataclasses.replace(
        plan,
        cluster=cluster,
        engine=engine,
        attention_dp=pool.attention_dp,
        replicas=pool.replicas,
        weights=pool.weights or plan.weights,
        kv=pool.kv or plan.kv,
        given_blocks=pool.kv_blocks,
        key=key,
    )


def _engine(scenario: Scenario, preset: str, overrides: Mapping[str, object]) -> EnginePreset:
    if preset not in engine_names():
        problem = Problem(
            f"no engine {preset!r}; {nearest(preset, engine_names())}", key="serving.engine"
        )
        raise ScenarioError(scenario.locate([problem]))
    try:
        return override(calibrated(engine(preset), scenario.hardware), overrides)
    except ScenarioError as error:
        raise ScenarioError(scenario.locate(error.problems)) from None
