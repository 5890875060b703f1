"""Laws of the steady state: leaving out what repeats itself changes no time of any operation, bit for bit."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpsim.engine import run, steady
from mpsim.engine.chains import Chains
from mpsim.errors import DeadlockError, ScheduleError
from mpsim.program import Program, Rows
from mpsim.schedule import make_orders, schedule_names
from mpsim.training import from_orders
from mpsim.training.build import build_program
from mpsim.training.vocabulary import TRAINING, Kind
from tests.nightly import examples
from tests.plans import small_plan

STEADY = ("1f1b", "interleaved-1f1b", "seq-1f1b", "zb-1p", "zb-h1", "interleaved-zb", "zb-v")
"""Schedules that are walked in part, at equal times."""


@pytest.fixture(autouse=True)
def _always_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small programs try it too."""
    monkeypatch.setattr(steady, "_WORTH", 1)


def _left_out(program: Program) -> int:
    """Periods left out of `program`, 0 where everything is walked; the ends are the same in any case."""
    chains = Chains.of(program)
    every = chains.run(program.duration)
    assert np.array_equal(steady.ends_of(program, chains, program.duration), every)
    found = steady._Steady.of(program, chains, program.duration)
    return found.periods if found and found.ends() is not None else 0


@settings(max_examples=examples(20, 50), deadline=None)
@given(st.sampled_from(schedule_names()), st.integers(0, 2**31), st.booleans(), st.data())
def test_no_time_of_any_schedule_changes(name: str, seed: int, blocking: bool, data) -> None:
    """Stages as unequal as they like, whole ticks or not: what did not become steady is walked."""
    draw = np.random.default_rng(seed)
    pp, virtual = data.draw(st.sampled_from([2, 4, 6])), data.draw(st.sampled_from([None, 2, 3]))
    microbatches = pp * data.draw(st.integers(7, 14)) + data.draw(st.sampled_from([0, 0, 1]))
    try:
        orders = make_orders(name, pp=pp, microbatches=microbatches, virtual_stages=virtual)
    except ScheduleError:
        return
    unit = data.draw(st.sampled_from([1.0, 1 / 7]))
    times = [
        unit * draw.integers(1, data.draw(st.sampled_from([2, 60])), orders.stages)
        for _ in range(3)
    ]
    send = unit * float(draw.integers(0, 20))
    program = from_orders(
        orders, forward=times[0], backward=times[1], weight=times[2], send=send, blocking=blocking
    )
    _left_out(program)


@pytest.mark.parametrize("microbatches", [64, 68])
@pytest.mark.parametrize("name", STEADY)
def test_a_long_step_is_walked_in_part(name: str, microbatches: int) -> None:
    """With equal stages at least a third of the periods of four microbatches is left out, of an odd number of them too."""
    program = from_orders(
        make_orders(name, pp=4, microbatches=microbatches),
        forward=1000,
        backward=1000,
        weight=900,
        send=30,
    )
    assert _left_out(program) * 4 >= microbatches / 3


@pytest.mark.parametrize("virtual", [2, 3])
@pytest.mark.parametrize("microbatches", [120, 128])
def test_a_long_interleaved_step_is_walked_in_part(microbatches: int, virtual: int) -> None:
    """8 ranks, 15 and 16 rounds of microbatches: warm-up, flush and five periods are walked, the rest is not."""
    orders = make_orders(
        "interleaved-1f1b", pp=8, microbatches=microbatches, virtual_stages=virtual
    )
    program = from_orders(orders, forward=1000, backward=1000, weight=900, send=30)
    assert _left_out(program) == microbatches // 8 - 5


def test_jittered_times_are_walked_in_full() -> None:
    """No node is followed by its like, so nothing is left out."""
    program = from_orders(make_orders("1f1b", pp=4, microbatches=64), forward=100, backward=200)
    jitter = np.rint(program.duration * np.random.default_rng(1).lognormal(0, 0.2, len(program)))
    assert not _left_out(dataclasses.replace(program, duration=jitter))


def test_one_operation_that_takes_longer_in_the_middle_is_not_left_out() -> None:
    """The slower forward of microbatch 40 delays the step in simpy as in the replay."""
    program = from_orders(make_orders("1f1b", pp=4, microbatches=64), forward=100, backward=200)
    slow = (program.microbatch == 40) & (program.kind == Kind.FORWARD) & (program.stage == 2)
    program = dataclasses.replace(program, duration=program.duration + 5000 * slow)
    _left_out(program)
    assert run(program, "replay").makespan == run(program, "simpy").makespan


def test_a_plan_with_collectives_around_its_pipeline_keeps_every_time() -> None:
    """Reductions and the optimizer come after the flush, later by all that was left out."""
    program = build_program(small_plan(pp=4, tp=2, dp=4, microbatches=64))
    assert _left_out(program) > 4
    simpy, replay = run(program, "simpy"), run(program, "replay")
    assert np.array_equal(simpy.start, replay.start)
    assert np.array_equal(simpy.end, replay.end)


def test_operations_that_wait_for_each_other_are_still_found() -> None:
    """Forwards of the second rank wait for its later backwards: refused, whatever repeats itself."""
    program = from_orders(make_orders("1f1b", pp=2, microbatches=64), forward=100, backward=200)
    rows = np.flatnonzero((program.rank == 1) & (program.kind == Kind.FORWARD))
    before = program.dep.copy()
    backward = np.flatnonzero((program.rank == 1) & (program.kind == Kind.BACKWARD))
    before[program.dep_ptr[rows[3:40]]] = backward[4:41]
    with pytest.raises(DeadlockError):
        run(dataclasses.replace(program, dep=before), "replay")


def test_a_program_without_actions_is_walked() -> None:
    """Collectives alone, one after the other."""
    rows = Rows(TRAINING)
    rows.add(200, kind=Kind.COLLECTIVE, duration=10.0)
    program = rows.finish(rank_name=("pp 0",), class_size=[1])
    assert not _left_out(program)
    assert run(program).makespan == 2000.0
