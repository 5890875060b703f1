"""Laws of the steady state: periods that are said to come again do, and change no time of any operation, bit for bit."""

from __future__ import annotations

import contextlib
import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpsim.engine import Timeline, run
from mpsim.engine.steady import Fold, folded
from mpsim.errors import DeadlockError, ScheduleError
from mpsim.program import Rows
from mpsim.result.communication import communication_time
from mpsim.schedule import Orders, make_orders, schedule_names
from mpsim.training import from_orders
from mpsim.training.build import build_program
from mpsim.training.long_step import attribute as attribute_whole
from mpsim.training.result import attribute
from mpsim.training.vocabulary import TRAINING, Kind
from tests.nightly import examples
from tests.plans import small_plan

STEADY = ("1f1b", "interleaved-1f1b", "zb-1p", "zb-h1", "interleaved-zb", "zb-v")
"""Schedules that become steady within eight periods of equal stages."""


def _told(short: Orders, longer: Orders, whole: Orders, **times) -> Fold | None:
    """The fold of a short step, if any; it tells every figure of the whole."""
    timeline, expected = (run(from_orders(each, **times)) for each in (short, whole))
    period = longer.microbatches - short.microbatches
    fold = folded(timeline, short, longer, period)
    if fold is None:
        return None
    further = (whole.microbatches - short.microbatches) // period
    _same(fold.whole(expected.program, further), expected)
    assert expected.makespan == timeline.makespan + further * fold.ticks
    assert (attribute_whole(fold, further) == attribute(expected)).all()
    exchanged = [communication_time(each).both for each in (fold.counted(further), expected)]
    assert np.array_equal(*exchanged)
    return fold


def _same(told: Timeline, expected: Timeline) -> None:
    assert np.array_equal(told.start, expected.start)
    assert np.array_equal(told.end, expected.end)


@settings(max_examples=examples(20, 300), deadline=None)
@given(st.sampled_from(schedule_names()), st.integers(0, 2**31), st.booleans(), st.data())
def test_no_time_of_any_schedule_changes(name: str, seed: int, blocking: bool, data) -> None:
    """Stages as unequal as they like: whatever is said to come again does, one to four times more."""
    draw = np.random.default_rng(seed)
    pp, virtual = data.draw(st.sampled_from([1, 2, 3, 4])), data.draw(st.sampled_from([None, 2, 3]))
    short = pp * data.draw(st.integers(3, 12)) + data.draw(st.sampled_from([0, 0, 1]))
    counts = short, short + pp, short + pp * data.draw(st.integers(1, 4))
    try:
        orders = [
            make_orders(name, pp=pp, microbatches=count, virtual_stages=virtual) for count in counts
        ]
    except ScheduleError:
        return
    most = data.draw(st.sampled_from([1, 3, 60]))
    forward, backward, weight = (draw.integers(1, most + 1, orders[0].stages) for _ in range(3))
    send = float(draw.integers(0, 2 * most))
    times = {"forward": forward, "backward": backward, "weight": weight, "send": send}
    with contextlib.suppress(DeadlockError):  # of messages that block in an order not made for it
        _told(*orders, **times, blocking=blocking)


@pytest.mark.parametrize("name", STEADY)
def test_equal_stages_become_steady(name: str) -> None:
    """Eight periods of four ranks tell of thirty."""
    orders = (make_orders(name, pp=4, microbatches=count) for count in (32, 36, 120))
    assert _told(*orders, forward=1000, backward=1000, weight=900, send=30)


def test_phases_that_repeat_themselves_apart_are_no_period() -> None:
    """GPipe runs all forwards first: a window of them comes again, a period of the step does not."""
    orders = (make_orders("gpipe", pp=4, microbatches=count) for count in (32, 36, 120))
    assert _told(*orders, forward=1000, backward=1000, weight=900, send=30) is None


def test_orders_that_go_on_otherwise_are_no_period() -> None:
    """The longer step has to be the short one with the same actions once more."""
    timeline, orders, longer = _short()
    assert folded(timeline, orders, longer, 4)
    assert not folded(timeline, orders, make_orders("gpipe", pp=4, microbatches=68), 4)


def test_a_rank_that_falls_behind_its_messages_is_not_steady() -> None:
    """Messages take twice as long as forwards: what the second rank waits for was sent ever longer ago."""
    orders = (make_orders("forward-only", pp=2, microbatches=count) for count in (22, 24, 28))
    assert _told(*orders, forward=2, backward=1, weight=3, send=4, overlap="fused") is None


def test_what_runs_from_before_a_period_until_behind_it_does_not_come_again() -> None:
    """What begins with the step, waits for nothing and ends with it is there once."""
    timeline, *orders = _short()
    start, end = timeline.start.copy(), timeline.end.copy()
    program = timeline.program
    first = program.compute_rows[1][0]
    microbatch = np.where(np.arange(len(program)) == first, -1, program.microbatch)
    start[first], end[first] = 0.0, timeline.last
    program = dataclasses.replace(program, microbatch=microbatch.astype(np.int32))
    long = dataclasses.replace(timeline, program=program, start=start, end=end)
    assert not folded(long, *orders, 4)


def _short(factor: float = 1.0) -> tuple[Timeline, Orders, Orders]:
    """A steady step of 64 microbatches, and orders of it and of one longer; some forward is slower."""
    orders, longer = (make_orders("1f1b", pp=4, microbatches=count) for count in (64, 68))
    program = from_orders(orders, forward=100, backward=200)
    slow = (program.microbatch == 33) & (program.kind == Kind.FORWARD) & (program.stage == 2)
    duration = np.where(slow, factor, 1.0) * program.duration
    return run(dataclasses.replace(program, duration=duration)), orders, longer


def test_jittered_times_are_not_counted() -> None:
    """Nothing is followed by its like."""
    timeline, *orders = _short()
    program, draw = timeline.program, np.random.default_rng(1)
    jitter = np.rint(program.duration * draw.lognormal(0, 0.2, len(program)))
    assert folded(timeline, *orders, 4)
    assert not folded(run(dataclasses.replace(program, duration=jitter)), *orders, 4)


def test_an_operation_that_takes_longer_is_in_no_period_that_comes_again() -> None:
    """What it delays ends outside of the window."""
    timeline, *orders = _short(50.0)
    fold = folded(timeline, *orders, 4)
    assert fold is not None
    program = timeline.program
    slow = (program.microbatch == 33) & (program.kind == Kind.FORWARD) & (program.stage == 2)
    assert not slow[fold.rows].any()
    assert fold.ticks == 4 * 300


def test_a_plan_with_collectives_around_its_pipeline_keeps_every_time() -> None:
    """Reductions and the optimizer come after the flush, later by all that was left out."""
    plans = [small_plan(pp=4, tp=2, dp=4, microbatches=count) for count in (24, 28, 64)]
    short, whole = run(build_program(plans[0])), run(build_program(plans[2]), "simpy")
    fold = folded(short, plans[0].orders, plans[1].orders, 4)
    assert fold is not None
    _same(fold.whole(whole.program, 10), whole)


def test_operations_that_wait_for_each_other_are_found() -> None:
    """Forwards of the second rank wait for its later backwards: refused."""
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
    assert run(program).makespan == 2000.0
