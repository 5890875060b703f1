"""Laws of the replay: whatever the program, whatever the durations, it tells what the simpy engine tells, bit for bit."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpsim.engine import run
from mpsim.engine.structure import Structure
from mpsim.errors import DeadlockError
from mpsim.program import Program, Rows, Stream
from mpsim.schedule import make_orders, schedule_names
from mpsim.training import from_orders
from mpsim.training.vocabulary import TRAINING, Kind
from tests.nightly import examples

RANKS = 4


def _program(seed: int, *, rows: int, forward_only: bool = True, whole: bool = True) -> Program:
    """Rows on random streams of random ranks, some on several, with random dependencies.

    Without `forward_only` a row may wait for a later one.
    """
    draw = np.random.default_rng(seed)
    made = Rows(TRAINING)
    duration = draw.integers(0, 50, rows).astype(float)
    stream = draw.integers(0, 5, rows)
    made.add(
        rows,
        kind=Kind.COLLECTIVE,
        rank=draw.integers(0, RANKS, rows),
        stream=stream,
        duration=duration if whole else duration / 7,
    )
    meets = np.flatnonzero(draw.random(rows) < 0.3)
    for _ in range(2):
        made.occupy(meets, draw.integers(0, RANKS, len(meets)), stream[meets])
    row = draw.integers(1, rows, 2 * rows)
    before = (draw.random(2 * rows) * (row if forward_only else rows)).astype(np.int64)
    made.depend(row[row != before], before[row != before])
    return made.finish(rank_name=[f"pp {r}" for r in range(RANKS)], class_size=[1] * RANKS)


def _assert_same(program: Program) -> None:
    """simpy, the replay, and a structure agree on every start and end."""
    simpy, replay = run(program, "simpy"), run(program, "replay")
    structure = Structure.of(program)
    batch = structure.replay(np.stack([program.duration] * 2))
    for start, end in (
        (replay.start, replay.end),
        structure.replay(program.duration),
        (batch[0][1], batch[1][1]),
    ):
        assert np.array_equal(start, simpy.start)
        assert np.array_equal(end, simpy.end)


@settings(max_examples=examples(80, 200))
@given(st.integers(0, 2**31), st.integers(2, 120), st.booleans())
def test_any_program_replays_as_simpy_simulates_it(seed: int, rows: int, whole: bool) -> None:
    """Random graphs over random streams; whole ticks or not."""
    _assert_same(_program(seed, rows=rows, whole=whole))


@settings(max_examples=examples(24, 60))
@given(st.integers(0, 2**31), st.integers(2, 12))
def test_both_engines_agree_on_what_can_never_finish(seed: int, rows: int) -> None:
    """Dependencies in any direction: the same deadlock in the same words, or the same times."""
    program = _program(seed, rows=rows, forward_only=False)
    try:
        run(program, "simpy")
    except DeadlockError as error:
        for other in (lambda: run(program, "replay"), lambda: Structure.of(program)):
            with pytest.raises(DeadlockError) as caught:
                other()
            assert str(caught.value) == str(error)
    else:
        _assert_same(program)


@pytest.mark.parametrize("name", schedule_names())
def test_every_schedule_replays_as_simpy_simulates_it(name: str) -> None:
    """Jittered times, so that no tie helps anybody; messages take time too, and block in half of the cases."""
    orders = make_orders(name, pp=4, microbatches=8)
    draw = np.random.default_rng(4)
    for overlap, blocking in (("serial", False), ("late-send", True), ("fused", False)):
        program = from_orders(
            orders,
            forward=100,
            backward=100,
            weight=100,
            send=30,
            overlap=overlap,
            blocking=blocking,
        )
        jitter = np.rint(program.duration * draw.lognormal(0, 0.2, len(program)))
        try:
            run(program, "simpy")
        except DeadlockError:
            with pytest.raises(DeadlockError):
                Structure.of(program)
        else:
            _assert_same(dataclasses.replace(program, duration=jitter))


@settings(max_examples=examples(16, 40))
@given(st.integers(0, 2**31), st.integers(2, 80), st.sampled_from([1, 3, 130]))
def test_a_batch_is_its_vectors_one_by_one(seed: int, rows: int, vectors: int) -> None:
    """K duration vectors at once, across the borders of blocks of lanes."""
    program = _program(seed, rows=rows)
    structure = Structure.of(program)
    draw = np.random.default_rng(seed)
    durations = draw.integers(0, 1000, (vectors, rows)).astype(float)
    start, end = structure.replay(durations)
    for one in (0, vectors - 1):
        alone = run(dataclasses.replace(program, duration=durations[one]), "simpy")
        assert np.array_equal(start[one], alone.start)
        assert np.array_equal(end[one], alone.end)
    assert np.array_equal(structure.makespans(durations), end.max(axis=1))
    classes, index = draw.integers(0, 9, (vectors, 5)).astype(float), draw.integers(0, 5, rows)
    spread = structure.makespans(classes[:, index])
    assert np.array_equal(structure.makespans(classes, index=index), spread)


def test_a_structure_replays_other_durations() -> None:
    """Twice the times end twice as late."""
    program = from_orders(make_orders("1f1b", pp=2, microbatches=4), forward=3, backward=4)
    _, end = Structure.of(program).replay(program.duration * 2)
    assert end.max() == 2 * run(program).makespan


def test_the_structure_of_nothing_replays_nothing() -> None:
    """No rows: no starts, and makespans of zero."""
    structure = Structure.of(Rows(TRAINING).finish(rank_name=("pp 0",), class_size=[1]))
    assert structure.replay(np.zeros((3, 0)))[0].shape == (3, 0)
    assert structure.replay(np.zeros(0))[1].shape == (0,)
    assert structure.makespans(np.zeros((3, 0))).tolist() == [0, 0, 0]


def test_rows_without_a_slot_wait_only_for_their_dependencies() -> None:
    """A row on no stream is its own chain."""
    program = from_orders(make_orders("gpipe", pp=2, microbatches=3), forward=3, backward=4)
    bare = dataclasses.replace(
        program, slot_ptr=np.zeros(len(program) + 1, dtype=np.int64), slot=program.slot[:0]
    )
    _assert_same(bare)
    assert run(bare).makespan < run(program).makespan
    assert Stream.COMPUTE == 0
