"""Cost models go with the plan that asked for them."""

from __future__ import annotations

import gc
import weakref

import pytest

import mpsim
from mpsim import memo
from mpsim.training.build import build_program
from mpsim.training.plan import PlanCosts
from mpsim.training.planning import make_plan


def test_plans_and_their_costs_are_forgotten(scenarios) -> None:
    """A sweep of many points takes no more memory than one of few."""
    plan = make_plan(mpsim.load(scenarios / "quickstart.yaml"))
    costs = PlanCosts(plan)
    build_program(plan, costs)
    alive = [weakref.ref(costs), weakref.ref(costs.kernels)]
    del plan, costs
    gc.collect()
    assert [one() for one in alive] == [None, None]


@pytest.mark.parametrize("name", ["quickstart", "mixtral-8x7b-h100"])
@pytest.mark.parametrize(
    "values",
    [
        {"training.recompute": "full"},
        {"training.precision": "fp8"},
        {"parallelism.pp": 1, "parallelism.zero": 1},
        {"framework.fused_attention": False, "training.micro_batch": 2},
    ],
    ids=lambda values: next(iter(values)),
)
def test_constants_of_a_step_do_not_hang_on_what_ran_before(scenarios, name, values) -> None:
    """Models share what they have answered: each answer brings the constants that it rests on, no fewer and no more."""
    scenario = mpsim.load(scenarios / f"{name}.yaml")
    other = scenario.with_values(values)
    memo.forget()
    first, second = (mpsim.simulate(each).constants for each in (scenario, other))
    memo.forget()
    # in the other order: whoever comes second finds answers of the first
    assert [mpsim.simulate(each).constants for each in (other, scenario)] == [second, first]
