"""Every schedule in a whole training step: it runs, adds up, and the engines agree."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mpsim
from mpsim.engine import run
from mpsim.program.expand import expand
from mpsim.schedule import schedule, schedule_names
from mpsim.training import build_program, make_plan
from mpsim.training.pipeline import action_times, with_timed_orders
from mpsim.training.plan import PlanCosts
from mpsim.training.vocabulary import PARTS
from tests.plans import small_plan

_NOT_WHOLE_STEPS = {"forward-only", "seq-1f1b"}
_TRAINING = [name for name in schedule_names() if name not in _NOT_WHOLE_STEPS]


def _scenario(name: str, **changes: Any) -> mpsim.Scenario:
    choice: dict[str, Any] = {"name": name}
    if schedule(name).chunks is None:
        choice["virtual_stages"] = 3
    return mpsim.Scenario.from_mapping(
        {
            "schema": 1,
            "model": "gpt2-medium",
            "cluster": {"preset": "dgx-h100", "nodes": 2},
            "parallelism": {"tp": 2, "pp": 4, "dp": 2, "zero": 1},
            "schedule": choice,
            "training": {"global_batch": 16, "sequence_length": 1024},
            "framework": "megatron-core",
            **changes,
        }
    )


@pytest.mark.parametrize("name", _TRAINING)
def test_a_step_adds_up_and_the_engines_agree(name: str) -> None:
    """Parts sum to the step on every rank, simpy equals replay, kernels equal actions, all memory is counted."""
    result = mpsim.simulate(_scenario(name))
    assert (result.parts.sum(axis=1) == result.timeline.makespan).all()
    assert (result.parts >= 0).all()
    program = result.timeline.program
    assert np.array_equal(run(program, "simpy").end, result.timeline.end)
    assert run(expand(program), "replay").makespan == result.timeline.makespan
    assert result.memory.components["activations"].min() > 0


@pytest.mark.parametrize("name", _TRAINING)
def test_every_schedule_does_the_same_work(name: str) -> None:
    """Hardware FLOPs do not depend on the order."""
    flops = mpsim.simulate(_scenario(name)).summary["hardware_flops_per_step"]
    assert flops == pytest.approx(
        mpsim.simulate(_scenario("1f1b")).summary["hardware_flops_per_step"], rel=1e-12
    )


@pytest.mark.parametrize("name", ["dualpipe", "chimera"])
def test_two_pipelines_hold_the_weights_twice_and_sum_their_gradients(name: str) -> None:
    """Parameters on all ranks together are those of 1F1B twice over, and the pairs of ranks meet once a step."""
    one, two = (mpsim.simulate(_scenario(which)) for which in ("1f1b", name))
    held = [result.memory.components["parameters"].sum() for result in (one, two)]
    tied = one.plan.layout.padded_vocab * one.plan.layout.model.hidden / one.plan.layout.mesh.tp * 2
    assert held[1] == pytest.approx(
        2 * (held[0] - tied)
    )  # each end holds the table once, for both directions
    labels = [two.timeline.program.labels[i] for i in two.timeline.program.label]
    assert labels.count("all-reduce weight copies") == 4


def test_schedules_that_are_no_whole_steps_are_refused_with_the_command_that_runs_them() -> None:
    """No training step comes out of a forward-only order or of parts of sequences."""
    for name in _NOT_WHOLE_STEPS:
        with pytest.raises(mpsim.ScenarioError, match=f"mpsim schedule {name}"):
            make_plan(_scenario(name))


def test_searched_schedules_are_searched_for_the_times_of_the_plan() -> None:
    """Orders for measured times are no slower than orders for equal times."""
    plan = make_plan(_scenario("zb-2p"))
    costs = PlanCosts(plan)
    timed = with_timed_orders(plan, costs)
    before, after = (run(build_program(one, costs)).makespan for one in (plan, timed))
    assert timed.orders.tokens() != plan.orders.tokens()
    assert after <= before


def test_times_of_actions_are_those_of_the_program() -> None:
    """Mean over stages of what a forward and a backward take."""
    plan = small_plan(tp=1, pp=2, dp=1, preset="torch-ddp", recompute="none")
    costs = PlanCosts(plan)
    times = action_times(plan, costs)
    program = build_program(plan, costs)
    forward = program.duration[(program.part == PARTS.index("forward")) & (program.template >= 0)]
    assert times.forward == pytest.approx(forward.mean())
    assert times.send > 0
