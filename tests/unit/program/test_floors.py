"""Floors: what links need for the bytes of a step, and steps that are held to it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import mpsim
from mpsim.engine import run
from mpsim.program import TICK, Program, Rows, Stream
from mpsim.program.floors import held_to_links, link_floors
from mpsim.scenario import Scenario
from mpsim.scenario.sections import Variation
from mpsim.simulate import prepare
from mpsim.study import simulate_variation
from mpsim.training.blocks import Blocks
from mpsim.training.build import build_program
from mpsim.training.plan import PlanCosts
from mpsim.training.vocabulary import PARTS, TRAINING, Kind
from tests.plans import small_plan

CORPUS = Path(__file__).parents[2] / "corpus"
PLAN = small_plan(tp=1, pp=2, dp=8, cluster="dgx-a100-80gb")
NIC = (
    PLAN.layout.cluster.node.nic_bandwidth_per_accelerator * PLAN.layout.cluster.node.nic.efficiency
)


def _program(compute: float) -> Program:
    """On pp 0: a gradient reduction and a message, side by side at the full rate of a NIC for a second each, beside so many seconds of kernels."""
    rows = Rows(TRAINING)
    second = 1 / TICK
    rows.add(1, kind=Kind.FORWARD, rank=0, stream=Stream.COMPUTE, duration=compute * second)
    rows.add(
        1,
        kind=Kind.COLLECTIVE,
        rank=0,
        stream=Stream.DP,
        part=PARTS.index("exposed_dp"),
        duration=second,
        out_bytes=NIC,
    )
    row = rows.add(
        1,
        kind=Kind.SEND,
        rank=0,
        peer=1,
        stream=Stream.SEND_NEXT,
        part=PARTS.index("exposed_pp"),
        duration=0.5 * second,
        out_bytes=NIC / 2,
    )
    rows.occupy(row, 1, Stream.RECV_PREV)
    return rows.finish(rank_name=["pp 0", "pp 1"], class_size=[8, 8])


def test_a_port_needs_the_time_of_all_that_leaves_by_it() -> None:
    """1 s of gradients and 0.5 s of a message leave by the NIC of pp 0: 1.5 s; 0.5 s arrive at pp 1."""
    floors = {floor.name: floor for floor in link_floors(_program(0.1), PLAN)}
    assert floors["nic"].ticks * TICK == pytest.approx(1.5, rel=1e-9)
    assert floors["nic"].where == "pp 0 NIC out"
    assert floors["scale_up"].ticks == 0


def test_a_program_ends_no_sooner_than_its_links_can() -> None:
    """1 s of rows becomes 1.5 s on either engine; what lies between is of the gradients, which are most of the bytes."""
    held = held_to_links(_program(0.1), PLAN)
    assert PARTS[held.least_part] == "exposed_dp"
    for engine in ("replay", "simpy"):
        timeline = run(held, engine)
        assert timeline.last * TICK == pytest.approx(1.0)
        assert timeline.step_time_s == pytest.approx(1.5)


def test_a_program_that_computes_for_longer_is_left_as_it_is() -> None:
    """2 s of kernels: nothing is held, and the object is the same."""
    program = _program(2.0)
    assert held_to_links(program, PLAN) is program


@pytest.mark.parametrize(
    "path", sorted(CORPUS.glob("scenario-below-floor-*.yaml")), ids=lambda path: path.stem
)
def test_a_step_below_its_floor_is_held_and_says_so(path: Path) -> None:
    """Analytic: exactly at the floor of a NIC, the account exact, a warning. Flow: longer, as transfers share more than the busiest link."""
    data: dict[str, Any] = yaml.safe_load(path.read_text())
    result = mpsim.simulate(Scenario.from_mapping(data))
    summary, timeline = result.summary, result.timeline
    assert timeline.last < timeline.makespan
    assert summary["floors_s"]["nic"] == pytest.approx(summary["step_time_s"], rel=1e-9)
    assert np.array_equal(
        result.parts.sum(axis=1), np.full(result.program.ranks, timeline.makespan)
    )
    assert any("the step is held to that" in warning for warning in summary["warnings"])
    data["simulation"] = {"network": "flow"}
    assert (
        mpsim.simulate(Scenario.from_mapping(data)).summary["step_time_s"] > summary["step_time_s"]
    )


def test_studies_hold_a_step_as_a_run_does() -> None:
    """A sweep, no variation and a sensitivity start from the step that a run has."""
    data = yaml.safe_load((CORPUS / "scenario-below-floor-pipeline-messages.yaml").read_text())
    scenario = Scenario.from_mapping(data)
    result = mpsim.simulate(scenario)
    step = result.summary["step_time_s"]
    seeds = mpsim.sweep(scenario, {"simulation.seed": [0, 1, 2, 3], "training.micro_batch": [1]})
    assert {row.number("step_time_s") for row in seeds} == {step}
    still = simulate_variation(result, Variation())
    assert still.step_times_s.tolist() == [step]
    answer = result.sensitivity()
    assert answer["nic.bandwidth"].elasticity == pytest.approx(-1.0, rel=1e-2)
    assert prepare(scenario).run().timeline.step_time_s == step


@pytest.mark.parametrize(
    "path", sorted(CORPUS.glob("scenario-below-floor-*.yaml")), ids=lambda path: path.stem
)
def test_a_search_holds_a_step_as_a_run_does(path: Path) -> None:
    """It builds steps without their kernels, and with them where links may need longer."""
    result = mpsim.simulate(Scenario.from_mapping(yaml.safe_load(path.read_text())))
    costs = PlanCosts(result.plan)
    sums = Blocks(result.plan, costs, sums=True)
    program = build_program(result.plan, costs, blocks=sums)
    assert run(program, "replay").makespan == result.timeline.makespan > result.timeline.last
