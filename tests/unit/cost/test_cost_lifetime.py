"""Cost models go with the plan that asked for them."""

from __future__ import annotations

import gc
import weakref

import mpsim
from mpsim.training.build import build_program
from mpsim.training.costs import PlanCosts
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
