"""What a command says of the time that it takes yet."""

from __future__ import annotations

import random

from mpsim.cli.progress import _Work


class Clock:
    """A clock that is set by hand."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_time_left_is_that_of_the_present_phase_and_within_a_factor_of_two() -> None:
    """Fast bounding says nothing of slow simulating: nothing is said before a tenth of that, and what is said then is right."""
    for seed in range(20):
        draw, clock = random.Random(seed), Clock()
        work = _Work("search", clock)
        for done in range(1, 1001):
            clock.now += 0.001
            work.report("bounded", done, 1000)
        ends = [clock.now]
        for _ in range(200):
            ends.append(ends[-1] + draw.expovariate(1.0))
        for done, end in enumerate(ends[1:], start=1):
            clock.now = end
            work.report("simulated", done, 200)
            if done < 20:
                assert work.left is None
                assert "more" not in str(work)
            elif done < 180:
                assert work.left is not None
                assert 0.5 <= work.left / (ends[-1] - end) <= 2.0


def test_nothing_is_foreseen_where_nobody_knows_how_much_there_is() -> None:
    """How many layouts a search still simulates hangs on what these take."""
    clock = Clock()
    work = _Work("search", clock)
    for done in range(1, 100):
        clock.now += 1.0
        work.report("simulated", done, 0)
        assert work.left is None
    assert str(work) == "search: simulated: 99 in 99 s"
