"""Engines: what an operation waits for, ties, and programs that cannot finish."""

from __future__ import annotations

import numpy as np
import pytest

from mpsim.engine import run
from mpsim.errors import DeadlockError, ScenarioError
from mpsim.program import Rows, Stream
from mpsim.schedule import Orders, make_orders
from mpsim.training import from_orders
from mpsim.training.vocabulary import TRAINING, Kind

ENGINES = ("simpy", "replay")


def _both(rows: Rows, ranks: int = 2) -> list[tuple[float, float]]:
    """Start and end of every row, after checking that both engines agree."""
    program = rows.finish(rank_name=[f"pp {r}" for r in range(ranks)], class_size=[1] * ranks)
    one, other = (run(program, engine) for engine in ENGINES)
    assert np.array_equal(one.start, other.start)
    assert np.array_equal(one.end, other.end)
    return list(zip(one.start.tolist(), one.end.tolist(), strict=True))


def test_rows_of_one_stream_run_one_after_the_other() -> None:
    """Row order is stream order."""
    rows = Rows(TRAINING)
    rows.add(3, kind=Kind.FORWARD, duration=[2.0, 3.0, 1.0])
    assert _both(rows) == [(0, 2), (2, 5), (5, 6)]


def test_streams_of_one_rank_run_side_by_side() -> None:
    """Nothing but order on a stream and dependencies makes a row wait."""
    rows = Rows(TRAINING)
    rows.add(2, kind=Kind.FORWARD, stream=[Stream.COMPUTE, Stream.DP], duration=[2.0, 3.0])
    assert _both(rows) == [(0, 2), (0, 3)]


def test_a_collective_starts_when_its_last_member_arrives() -> None:
    """A row on several ranks waits for the head of every stream it occupies."""
    rows = Rows(TRAINING)
    rows.add(2, kind=Kind.FORWARD, rank=[0, 1], duration=[2.0, 7.0])
    meet = rows.add(1, kind=Kind.COLLECTIVE, rank=0, stream=Stream.COMPUTE, duration=1.0)
    rows.occupy(meet, 1, Stream.COMPUTE)
    rows.add(2, kind=Kind.FORWARD, rank=[0, 1], duration=1.0)
    assert _both(rows) == [(0, 2), (0, 7), (7, 8), (8, 9), (8, 9)]


def test_a_dependency_delays_its_row_and_what_stands_behind_it() -> None:
    """In-order streams: a row that waits holds up the rows after it."""
    rows = Rows(TRAINING)
    far = rows.add(1, kind=Kind.FORWARD, rank=1, duration=5.0)
    near = rows.add(2, kind=Kind.FORWARD, rank=0, duration=1.0)
    rows.depend(near[0], far)
    assert _both(rows) == [(0, 5), (5, 6), (6, 7)]


def test_zero_durations_are_instants() -> None:
    """A row of no duration passes its time on."""
    rows = Rows(TRAINING)
    rows.add(3, kind=Kind.FORWARD, duration=[0.0, 2.0, 0.0])
    assert _both(rows) == [(0, 0), (0, 2), (2, 2)]


def test_two_rows_that_wait_for_each_other_are_named() -> None:
    """A cycle is a DeadlockError that names both operations."""
    rows = Rows(TRAINING)
    first = rows.add(1, kind=Kind.FORWARD, rank=0, stage=0, microbatch=4, duration=1.0)
    second = rows.add(1, kind=Kind.BACKWARD, rank=1, stage=1, microbatch=7, duration=1.0)
    rows.depend(first, second)
    rows.depend(second, first)
    program = rows.finish(rank_name=("pp 0", "pp 1"), class_size=[1, 1])
    for engine in ENGINES:
        with pytest.raises(DeadlockError) as caught:
            run(program, engine)
        assert "forward stage 0 microbatch 4 on pp 0" in str(caught.value)
        assert "backward stage 1 microbatch 7 on pp 1" in str(caught.value)


def test_an_order_that_asks_for_a_gradient_before_it_can_exist_deadlocks() -> None:
    """Stage 0 waits for the gradient of a microbatch whose forward it has not sent."""
    orders = Orders.from_tokens([["0F0", "0B0", "0F1", "0B1"], ["1F0", "1F1", "1B0", "1B1"]])
    program = from_orders(orders, forward=1, backward=1)
    for engine in ENGINES:
        with pytest.raises(DeadlockError, match="wait for each other"):
            run(program, engine)


def test_an_unknown_engine_is_refused() -> None:
    """The message lists the engines."""
    program = Rows(TRAINING).finish(rank_name=(), class_size=[])
    with pytest.raises(ScenarioError, match="replay"):
        run(program, "astra")


def test_an_empty_program_takes_no_time() -> None:
    """No rows, no makespan."""
    program = Rows(TRAINING).finish(rank_name=("pp 0",), class_size=[1])
    assert [run(program, engine).makespan for engine in ENGINES] == [0.0, 0.0]


def test_simpy_fires_exactly_one_event_an_operation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Events per operation is 1.00: the end of each, and nothing else."""
    import simpy

    fired = 0
    step = simpy.Environment.step

    def counting(self: simpy.Environment) -> None:
        nonlocal fired
        step(self)  # raises when nothing is left
        fired += 1

    monkeypatch.setattr(simpy.Environment, "step", counting)
    program = from_orders(
        make_orders("1f1b", pp=4, microbatches=8), forward=1, backward=1, weight=1, send=0.5
    )
    run(program, "simpy")
    assert fired == len(program) == 2 * 4 * 8 + 2 * 3 * 8


def test_1f1b_on_two_stages_starts_exactly_when_drawn_by_hand() -> None:
    """p = 2, m = 2, forward 1, backward 2, no transfer time.

    Stage 0: F0 0-1, F1 1-2, B0 when stage 1 ended it at 4: 4-6, B1 7-9. Stage 1: F0 1-2, B0 2-4, F1 4-5, B1 5-7.
    """
    orders = make_orders("1f1b", pp=2, microbatches=2)
    timeline = run(from_orders(orders, forward=1, backward=1, weight=1), "simpy")
    compute = timeline.program.stream == Stream.COMPUTE
    drawn = {
        (int(timeline.program.rank[i]), orders_token(timeline, i)): (
            timeline.start[i],
            timeline.end[i],
        )
        for i in np.flatnonzero(compute)
    }
    assert drawn == {
        (0, "F0"): (0, 1),
        (0, "F1"): (1, 2),
        (0, "B0"): (4, 6),
        (0, "B1"): (7, 9),
        (1, "F0"): (1, 2),
        (1, "B0"): (2, 4),
        (1, "F1"): (4, 5),
        (1, "B1"): (5, 7),
    }


def orders_token(timeline: object, row: int) -> str:
    """``F0`` and the like."""
    program = timeline.program  # type: ignore[attr-defined]
    letter = "F" if program.kind[row] == Kind.FORWARD else "B"
    return f"{letter}{program.microbatch[row]}"
