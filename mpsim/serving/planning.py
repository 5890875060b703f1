"""From Scenario to ServicePlan: what the scenario leaves to be worked out."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mpsim.errors import Problem, ScenarioError, nearest
from mpsim.scenario import Scenario, check
from mpsim.serving.engines import EnginePreset, engine, engine_names, override
from mpsim.serving.plan import ServicePlan

__all__ = ["make_service"]


def make_service(scenario: Scenario) -> ServicePlan:
    """Resolve a scenario that serves.

    Raises
    ------
    ScenarioError
        With every problem found, located in the scenario's file.
    """
    if problems := check(scenario):
        raise ScenarioError(problems)
    serving, p = scenario.service, scenario.parallelism
    plan = ServicePlan(
        name=scenario.name,
        model=scenario.transformer,
        cluster=scenario.hardware,
        engine=_engine(scenario, serving.engine.preset, serving.engine.overrides),
        workload=serving.workload,
        slo=serving.slo,
        tp=p.tp,
        pp=p.pp,
        ep=p.ep,
        attention_dp=serving.attention_dp,
        replicas=serving.replicas or scenario.world_size // (p.tp * p.pp),
        weights=serving.weights,
        kv=serving.kv,
        routing=serving.routing,
        given_blocks=serving.kv_blocks,
        seed=scenario.simulation.seed,
        folder=str(Path(scenario.source.file).parent) if scenario.source.file else ".",
    )
    if problems := plan.problems():
        raise ScenarioError(scenario.locate(problems))
    return plan


def _engine(scenario: Scenario, preset: str, overrides: Mapping[str, Any]) -> EnginePreset:
    if preset not in engine_names():
        problem = Problem(
            f"no engine {preset!r}; {nearest(preset, engine_names())}", key="serving.engine"
        )
        raise ScenarioError(scenario.locate([problem]))
    try:
        return override(engine(preset), overrides)
    except ScenarioError as error:
        raise ScenarioError(scenario.locate(error.problems)) from None
