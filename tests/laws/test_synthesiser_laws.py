"""Laws of the synthesiser, on 200 random settings: never worse than the best named schedule, never above memory."""

from __future__ import annotations

import random

import pytest

from mpsim.engine import run
from mpsim.schedule.search.evaluate import Room, peak_held
from mpsim.schedule.search.synthesise import Synthesis, synthesise
from mpsim.schedule.tape import steps_of
from mpsim.training import from_orders
from tests.nightly import some

_SETTINGS, _GROUPS = 200, 20
_BUDGET = 40


def random_setting(seed: int) -> dict[str, object]:
    """A step of up to 8 ranks and 32 microbatches, mostly with uneven stages, transfers and little memory."""
    rng = random.Random(seed)
    pp, microbatches = rng.randint(1, 8), rng.randint(1, 32)
    stage_map, virtual = rng.choice([("loop", 1), ("loop", 1), ("loop", 2), ("v", 2)])
    stages = pp * virtual
    uneven = rng.random() < 0.7

    def times(least: int, most: int) -> list[float]:
        same = float(rng.randint(least, most))
        return [float(rng.randint(least, most)) if uneven else same for _ in range(stages)]

    return {
        "pp": pp,
        "microbatches": microbatches,
        "virtual_stages": virtual,
        "stage_map": stage_map,
        "forward": times(2, 8),
        "backward": times(2, 9),
        "weight": times(0, 8),
        "send": rng.choice([0.0, 0.0, 0.25, 1.0, 3.0]),
        "held_until_input": [float(rng.randint(0, 2)) for _ in range(stages)],
        "held_until_weight": [float(rng.randint(1, 2)) for _ in range(stages)],
        # from room for the largest microbatch alone (4 a chunk) to more than most schedules need
        "memory_limit": rng.choice(
            [None, *(virtual * max(4.0, part * pp) for part in (0, 2, 3, 4, 6, 12))]
        ),
    }


def solve(seed: int, budget: int) -> tuple[dict[str, object], Synthesis]:
    """Synthesise for a random setting."""
    given = random_setting(seed)
    return given, synthesise(**given, budget=budget, seed=seed)  # type: ignore[arg-type]


@pytest.mark.parametrize("group", some(range(_GROUPS), 1))
def test_the_synthesiser_keeps_its_promises(group: int) -> None:
    """Whole step, within memory, makespan of the engine, between the lower bound and the best named schedule."""
    for seed in range(group, _SETTINGS, _GROUPS):
        given, found = solve(seed, _BUDGET)
        found.orders.validate()
        _within_memory(given, found)
        times = {key: given[key] for key in ("forward", "backward", "weight", "send")}
        timeline = run(from_orders(found.orders, **times))  # type: ignore[arg-type]
        assert timeline.makespan == pytest.approx(found.makespan, rel=1e-12), seed
        assert found.lower_bound <= found.makespan * (1 + 1e-12), seed
        if found.best_named:
            assert found.makespan <= found.best_named[1], seed
        assert found.evaluations <= _BUDGET, seed


def _within_memory(given: dict[str, object], found: Synthesis) -> None:
    limit = given["memory_limit"]
    if limit is None:
        return
    orders = found.orders
    room = Room(
        [limit] * orders.pp,  # type: ignore[list-item]
        given["held_until_input"],  # type: ignore[arg-type]
        given["held_until_weight"],  # type: ignore[arg-type]
    )
    for steps in steps_of(orders):
        assert peak_held(room, steps) <= limit * (1 + 1e-9)  # type: ignore[operator]


def test_the_same_call_gives_the_same_order() -> None:
    """Nothing but the arguments decides."""
    for seed in (3, 8, 21):
        assert solve(seed, 60)[1].orders.tokens() == solve(seed, 60)[1].orders.tokens()


def test_what_an_activation_takes_is_what_the_named_peaks_count() -> None:
    """With one unit held until W a limit of p activations admits 1f1b, and of p - 1 does not."""
    given = {"pp": 4, "microbatches": 8, "forward": 1, "backward": 1, "weight": 1, "budget": 1}
    assert synthesise(**given, memory_limit=4).best_named is not None
    assert synthesise(**given, memory_limit=3).best_named is None
