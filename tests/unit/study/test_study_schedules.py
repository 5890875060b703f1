"""Schedules with given times, one and all."""

from __future__ import annotations

import random
from fractions import Fraction

import pytest

from mpsim.schedule import make_orders
from mpsim.schedule.search.synthesise import synthesise
from mpsim.study import Times, compare_schedules, synthesise_schedule, time_schedule


def test_times_are_exact() -> None:
    """0.1 is a tenth, and halves of it are twentieths."""
    times = Times.of(0.1, 0.2, 0, 0.05)
    assert times.forward == Fraction(1, 10)
    assert times.divided(Fraction(2)).scale == 20


def test_a_timed_schedule_reports_what_the_reference_defines() -> None:
    """1F1B, p = 4, m = 8, unit times: makespan 33, bubble 3/11, 3/8 over ideal."""
    timed = time_schedule(make_orders("1f1b", pp=4, microbatches=8), Times.of(1, 1, 1))
    assert timed.makespan == 33
    assert timed.bubble_fraction == pytest.approx(3 / 11)
    assert timed.bubble_over_ideal == pytest.approx(3 / 8)
    assert timed.max_rank_span == 33


def test_every_schedule_is_given_the_same_work() -> None:
    """Chunks are divided: the ideal of each is m times a rank's share, whatever its number of chunks."""
    found = compare_schedules(pp=4, microbatches=8, times=Times.of(2, 2, 1))
    timed = [one.timed for one in found if one.timed is not None]
    assert len(timed) >= 5
    assert {one.ideal for one in timed} == {8 * 5.0}
    makespans = [one.makespan for one in timed]
    assert makespans == sorted(makespans)


def test_what_does_not_fit_comes_after_what_does() -> None:
    """A limit of four activations: 1F1B stays, GPipe's eight do not."""
    found = compare_schedules(pp=4, microbatches=8, times=Times.of(1, 1, 1), memory=4)
    reasons = {one.name: one.reason for one in found}
    assert not reasons["1f1b"]
    assert reasons["gpipe"] == "holds 8 activations; 4 fit"
    assert [bool(one.reason) for one in found] == sorted(bool(one.reason) for one in found)


def test_what_cannot_be_built_says_why() -> None:
    """Nine microbatches do not divide into groups for interleaving on four ranks."""
    found = compare_schedules(
        pp=4, microbatches=9, times=Times.of(1, 1, 1), names=["interleaved-1f1b", "1f1b"]
    )
    assert [one.name for one in found] == ["1f1b", "interleaved-1f1b"]
    assert found[1].timed is None
    assert "microbatches" in found[1].reason


def test_no_known_schedule_beats_the_verdict_on_a_searched_one() -> None:
    """On random steps: what is known with as many chunks is never faster, and what is with others is named."""
    rng = random.Random(26)
    for _ in range(4):
        pp, microbatches, chunks = rng.randint(2, 5), rng.randint(2, 10), rng.choice((1, 2))
        times = Times.of(*(rng.randint(1, 4) for _ in range(3)))
        memory = rng.choice((None, pp, pp + 2))
        room = None if memory is None else memory * chunks
        found = synthesise_schedule(
            pp=pp,
            microbatches=microbatches,
            times=times.divided(Fraction(chunks)),
            virtual_stages=chunks,
            memory=room,
            budget=20,
        )
        best = found.best.makespan
        fitting = [
            (choice, choice.timed)
            for choice in compare_schedules(
                pp=pp, microbatches=microbatches, times=times, memory=memory
            )
            if choice.timed is not None and not choice.reason and choice.name != "auto"
        ]
        for choice, timed in fitting:
            # microbatches of seq-1f1b are in parts
            if choice.weight_copies == 1 and choice.name != "seq-1f1b":
                assert timed.orders.virtual_stages != chunks or best <= timed.makespan + 1e-9
        told = found.faster.timed.makespan if found.faster and found.faster.timed else best
        assert told == pytest.approx(min(best, *(timed.makespan for _, timed in fitting)))


def test_a_v_is_searched_beside_a_loop() -> None:
    """In room for six chunks V-Half takes 53 where no order found on a loop takes less than 54."""
    loop = synthesise(
        pp=4,
        microbatches=8,
        virtual_stages=2,
        forward=1,
        backward=1,
        weight=1,
        memory_limit=6,
        budget=50,
    )
    both = synthesise_schedule(
        pp=4, microbatches=8, virtual_stages=2, times=Times.of(1, 1, 1), memory=6, budget=50
    )
    assert loop.makespan > both.best.makespan == 53
    assert both.best.gap == pytest.approx(0, abs=1e-9)
    assert both.best.best_named == ("v-half", 53)
