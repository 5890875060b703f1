"""Messages between stages: what blocks whom."""

from __future__ import annotations

import numpy as np
import pytest

from mpsim.engine import run
from mpsim.engine.timeline import Timeline
from mpsim.program import Stream
from mpsim.schedule import make_orders
from mpsim.training import from_orders
from mpsim.training.pipeline import warmup_and_flush
from mpsim.training.vocabulary import Kind


def _drawn(timeline: Timeline) -> dict[tuple[str, int, int], tuple[float, float]]:
    """(kind letter, stage, microbatch) to start and end; lower case for messages."""
    program = timeline.program
    result = {}
    for row in range(len(program)):
        compute = program.stream[row] == Stream.COMPUTE
        gradient = program.labels[program.label[row]] == "send gradient"
        letter = "B" if program.kind[row] == Kind.BACKWARD or gradient else "F"
        key = (
            letter if compute else letter.lower(),
            int(program.stage[row]),
            int(program.microbatch[row]),
        )
        result[key] = (timeline.start[row], timeline.end[row])
    return result


def test_blocking_exchanges_of_1f1b_drawn_by_hand() -> None:
    """p = 2, m = 2, forward 1, backward 2, message 1.

    Rank 0 sends F0 at 1-2 and only then runs F1 at 2-3. Rank 1 runs F0 2-3, B0 3-5; only at 5 does it post the receive of F1, in one exchange
    with the send of B0, both 5-6. Then rank 0 runs B0 6-8, rank 1 F1 6-7 and B1 7-9, whose gradient travels 9-10, and rank 0 ends with B1 10-12.
    """
    orders = make_orders("1f1b", pp=2, microbatches=2)
    for engine in ("simpy", "replay"):
        timeline = run(from_orders(orders, forward=1, backward=2, send=1, blocking=True), engine)
        assert _drawn(timeline) == {
            ("F", 0, 0): (0, 1),
            ("f", 0, 0): (1, 2),
            ("F", 0, 1): (2, 3),
            ("F", 1, 0): (2, 3),
            ("B", 1, 0): (3, 5),
            ("f", 0, 1): (5, 6),
            ("b", 1, 0): (5, 6),
            ("B", 0, 0): (6, 8),
            ("F", 1, 1): (6, 7),
            ("B", 1, 1): (7, 9),
            ("b", 1, 1): (9, 10),
            ("B", 0, 1): (10, 12),
        }


@pytest.mark.parametrize(("name", "virtual"), [("gpipe", 1), ("1f1b", 1), ("interleaved-1f1b", 2)])
@pytest.mark.parametrize("pp", [2, 4, 8])
def test_blocking_is_never_faster_and_free_without_latency(
    name: str, virtual: int, pp: int
) -> None:
    """More waits can only delay, and with messages of no duration 1F1B is the same either way."""
    orders = make_orders(name, pp=pp, microbatches=3 * pp, virtual_stages=virtual)
    slow, fast = (
        run(
            from_orders(orders, forward=4, backward=5, weight=3, send=2, blocking=blocking)
        ).makespan
        for blocking in (True, False)
    )
    assert slow >= fast
    bare = [
        run(from_orders(orders, forward=4, backward=5, weight=3, blocking=blocking)).makespan
        for blocking in (True, False)
    ]
    assert bare[0] == bare[1]


def test_steady_1f1b_pays_two_messages_a_microbatch_when_they_block() -> None:
    """Each exchange stands between two actions of every rank: the period grows by 2 c, not 2 c (p - 1) / p."""
    times = {"forward": 10, "backward": 10, "weight": 10, "send": 1}
    spans = [
        run(from_orders(make_orders("1f1b", pp=4, microbatches=m), **times, blocking=True)).makespan  # type: ignore[arg-type]
        for m in (16, 32)
    ]
    assert spans[1] - spans[0] == 16 * (30 + 2)


def test_one_way_messages_follow_each_other_on_both_sides_of_a_rank() -> None:
    """Activation and gradient of each of two neighbours stand between the actions of a middle rank: the period grows by 4 c; in each pair the activation is first."""
    times = {"forward": 10, "backward": 10, "weight": 10, "send": 1}
    runs = [
        run(
            from_orders(
                make_orders("1f1b", pp=4, microbatches=m),
                **times,  # type: ignore[arg-type]
                blocking=True,
                one_way=True,
            )
        )
        for m in (16, 32)
    ]
    assert runs[1].makespan - runs[0].makespan == 16 * (30 + 4)
    drawn = _drawn(runs[0])
    assert drawn["b", 2, 5][0] == drawn["f", 1, 7][1]


def test_orders_that_no_framework_runs_as_exchanges_hold_only_the_sender() -> None:
    """Eager 1F1B has to receive ahead: with exchanges its ranks would run one after the other."""
    orders = make_orders("eager-1f1b", pp=4, microbatches=16)
    free, held = (
        run(from_orders(orders, forward=10, backward=10, weight=10, send=1, blocking=b)).makespan
        for b in (False, True)
    )
    assert free <= held <= free + 2 * 16


def test_warm_up_and_flush_are_what_lies_outside_the_pairs() -> None:
    """1F1B, p = 4, rank 1: three forwards before the first backward, three backwards after the last forward."""
    orders = make_orders("1f1b", pp=4, microbatches=6)
    rows = slice(int(orders.rank_ptr[1]), int(orders.rank_ptr[2]))
    marked = warmup_and_flush(orders)[rows]
    assert np.flatnonzero(marked).tolist() == [0, 1, 2, 9, 10, 11]
