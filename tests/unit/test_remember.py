"""What methods remember goes with their object."""

from __future__ import annotations

import gc
import weakref

import mpsim
from mpsim.program.remember import remembered
from mpsim.training.build import build_program
from mpsim.training.costs import PlanCosts
from mpsim.training.planning import make_plan


class _Asked:
    def __init__(self) -> None:
        self.times = 0

    @remembered
    def answer(self, *what: int) -> int:
        """A sum."""
        self.times += 1
        return sum(what)


def test_the_same_question_is_answered_once() -> None:
    """By object and arguments."""
    one, other = _Asked(), _Asked()
    assert [one.answer(1, 2), one.answer(1, 2), one.answer(2), other.answer(1, 2)] == [3, 3, 2, 3]
    assert (one.times, other.times) == (2, 1)


def test_answers_keep_no_object_alive() -> None:
    """Unlike those of ``functools.cache`` on a method."""
    one = _Asked()
    one.answer(1)
    alive = weakref.ref(one)
    del one
    gc.collect()
    assert alive() is None


def test_plans_and_their_costs_are_forgotten(scenarios) -> None:
    """A sweep of many points takes no more memory than one of few."""
    plan = make_plan(mpsim.load(scenarios / "quickstart.yaml"))
    costs = PlanCosts(plan)
    build_program(plan, costs)
    alive = [weakref.ref(plan), weakref.ref(costs)]
    del plan, costs
    gc.collect()
    assert [one() for one in alive] == [None, None]
