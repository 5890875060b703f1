"""What a command says of the time that it takes yet."""

from __future__ import annotations

import random

from mpsim.cli.console import _Work


class Clock:
    """A clock that is set by hand."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def left_of(pieces: list[float], *, told: float = 0.0) -> list[float | None]:
    """Time left that is told after each piece over that which is left; None where nothing is told."""
    clock, ratios, end = Clock(), list[float | None](), sum(pieces)
    work = _Work("sweep", clock)
    work.report("", 0, len(pieces))
    for done, piece in enumerate(pieces, start=1):
        clock.now += piece
        work.report("", done, len(pieces))
        clock.now += told
        ratios.append(None if work.left is None else work.left / (end - clock.now + told))
        clock.now -= told
    return ratios


def test_time_left_is_within_a_factor_of_two_after_a_tenth() -> None:
    """Nothing is said before a tenth of the rows is there, and what is said then is right."""
    for seed in range(20):
        draw = random.Random(seed)
        ratios = left_of([draw.expovariate(1.0) for _ in range(200)])
        assert ratios[:19] == [None] * 19
        told = [ratio for ratio in ratios[19:180] if ratio is not None]
        assert len(told) > 80
        assert all(0.5 <= ratio <= 2.0 for ratio in told)
    assert [round(ratio or 0.0, 6) for ratio in left_of([1.0] * 100)[9:99]] == [1.0] * 90


def test_a_few_large_pieces_say_as_much() -> None:
    """Sixteen groups of clusters that take about as long each: after two of them the time left is told, and right."""
    for seed in range(50):
        draw = random.Random(seed)
        told = left_of([draw.lognormvariate(0.0, 0.3) for _ in range(16)])
        assert told[0] is None
        right = [ratio for ratio in told[1:15] if ratio is not None]
        assert len(right) >= 5
        assert all(0.5 <= ratio <= 2.0 for ratio in right)


def test_nothing_is_foreseen_while_the_rate_is_not_steady() -> None:
    """Rows of a sweep that get ten times as slow, and one that does not end."""
    slower = left_of([0.1] * 30 + [0.3] * 30 + [1.0] * 60)
    assert all(ratio is None for ratio in slower[34:58])
    assert all(ratio is None for ratio in left_of([1.0] * 100, told=60.0)[9:50])


def test_nothing_is_foreseen_of_the_phases_of_a_search() -> None:
    """Layouts that fit take ten times as long to bound as those that do not: a rate at a tenth would say five times what it takes."""
    clock = Clock()
    work = _Work("search", clock)
    for done in range(1, 1001):
        clock.now += 0.02 if done < 150 else 0.002
        work.report("bounded", done, 1000)
        assert work.left is None
    assert str(work).startswith("search: bounded: 1,000 of 1,000 in ")


def test_nothing_is_foreseen_where_nobody_knows_how_much_there_is() -> None:
    """How many layouts a search still simulates hangs on what these take."""
    clock = Clock()
    work = _Work("search", clock)
    for done in range(1, 100):
        clock.now += 1.0
        work.report("simulated", done, 0)
        assert work.left is None
    assert str(work) == "search: simulated: 99 in 99 s"


def test_rows_of_a_journal_say_nothing_of_the_rate() -> None:
    """Eighty rows that were there take no time: of the twenty left two tell how long each takes."""
    clock = Clock()
    work = _Work("sweep", clock)
    for done in range(80, 84):
        work.report("", done, 100)
        assert work.left == (None if done < 82 else 100 - done)
        clock.now += 1.0
