"""Laws of folding: one rank for its class, some ranks alone, or every rank by itself: the same times."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpsim.engine import run
from mpsim.engine.kernels import kernel_times
from mpsim.engine.structure import Structure
from mpsim.errors import ScenarioError
from mpsim.parallel import FOLDED
from mpsim.program import Program, Rows, Span, Stream
from mpsim.program.expand import expand
from mpsim.program.unfold import Unfolding
from mpsim.scenario import Scenario
from mpsim.schedule import make_orders, schedule, schedule_names
from mpsim.simulate import prepare
from mpsim.training import from_orders
from mpsim.training.build import build_program
from mpsim.training.vocabulary import TRAINING, Kind
from tests.nightly import examples, some
from tests.plans import small_plan

degrees = st.fixed_dictionaries(
    {"tp": st.integers(1, 4), "cp": st.integers(1, 2), "dp": st.integers(1, 4)}
)
SPANS = [Span.NONE, Span.TP, Span.CP, Span.DP, Span.DP | Span.CP, Span.TP | Span.DP]


def _uniform(seed: int, *, rows: int = 60, ranks: int = 3) -> Program:
    """Rows on random streams with random spans; some between two ranks, with random dependencies."""
    draw = np.random.default_rng(seed)
    made = Rows(TRAINING)
    stream = draw.integers(0, 5, rows)
    made.add(
        rows,
        kind=Kind.COLLECTIVE,
        rank=draw.integers(0, ranks, rows),
        stream=stream,
        span=draw.choice(SPANS, rows),
        duration=draw.integers(0, 50, rows).astype(float),
    )
    meets = np.flatnonzero(draw.random(rows) < 0.3)
    made.occupy(meets, draw.integers(0, ranks, len(meets)), stream[meets])
    row = draw.integers(1, rows, rows)
    made.depend(row, (draw.random(rows) * row).astype(np.int64))
    return made.finish(rank_name=[f"pp {r}" for r in range(ranks)], class_size=[1] * ranks)


@settings(max_examples=examples(80, 200))
@given(st.integers(0, 2**31), degrees)
def test_every_copy_does_what_the_folded_rank_does(seed: int, degree: dict[str, int]) -> None:
    """Uniform durations: each unfolded row starts and ends when its folded one does, bit for bit."""
    folded = _uniform(seed)
    unfolding = Unfolding(folded, degree)
    unfolded = unfolding.program()
    one, other = run(folded), run(unfolded, "simpy")
    assert np.array_equal(other.start, np.repeat(one.start, unfolding.count))
    assert np.array_equal(other.end, np.repeat(one.end, unfolding.count))
    start, end = Structure.unfolded(folded, unfolding).replay(unfolded.duration)
    assert np.array_equal(start, other.start)
    assert np.array_equal(end, other.end)


def test_a_message_goes_to_the_rank_in_its_own_place() -> None:
    """One message from pp 0 to pp 1 of three replicas: ranks 0, 1, 2 send to 3, 4, 5, whose receiving streams it takes."""
    rows = Rows(TRAINING)
    row = rows.add(
        1, kind=Kind.SEND, rank=0, peer=1, stream=Stream.SEND_NEXT, duration=7.0, up_bytes=1.0
    )
    rows.occupy(row, 1, Stream.RECV_PREV)
    unfolded = Unfolding(
        rows.finish(rank_name=["pp 0", "pp 1"], class_size=[3, 3]), {"dp": 3}
    ).program()
    assert unfolded.rank.tolist() == [0, 1, 2]
    assert unfolded.peer.tolist() == [3, 4, 5]
    places = [slot.tolist() for slot in np.divmod(unfolded.slot, len(Stream))]
    assert sorted(zip(*places, strict=True)) == sorted(
        [(rank, Stream.SEND_NEXT) for rank in (0, 1, 2)]
        + [(rank, Stream.RECV_PREV) for rank in (3, 4, 5)]
    )


def _slowed(program: Program, rank: str, factor: float) -> Program:
    """The program with the compute rows of one rank slower."""
    mine = (program.rank == program.rank_name.index(rank)) & (program.stream == Stream.COMPUTE)
    mine &= program.span == Span.NONE
    return dataclasses.replace(
        program, duration=np.where(mine, np.rint(program.duration * factor), program.duration)
    )


@settings(max_examples=examples(40, 100))
@given(st.integers(0, 2**31), degrees, st.integers(0, 2**31), st.sampled_from([0.5, 1.1, 3.0]))
def test_partly_folded_equals_fully_unfolded(
    seed: int, degree: dict[str, int], choice: int, factor: float
) -> None:
    """One rank slowed or sped up: unfolding what it touches gives the times of unfolding everything."""
    draw = np.random.default_rng(choice)
    folded = _uniform(seed)
    tp, cp, dp = (int(draw.integers(0, degree[axis])) for axis in ("tp", "cp", "dp"))
    rank = f"pp {draw.integers(0, folded.ranks)} dp {dp} cp {cp} tp {tp}"
    partly = _slowed(
        Unfolding(folded, degree, touched={"tp": [tp], "cp": [cp], "dp": [dp]}).program(),
        rank,
        factor,
    )
    fully = _slowed(Unfolding(folded, degree).program(), rank, factor)
    one, other = run(partly), run(fully)
    assert one.makespan == other.makespan
    assert partly.ranks <= 8 * folded.ranks
    assert partly.class_size.sum() == fully.class_size.sum()
    ends = {name: _ends(other, number) for number, name in enumerate(fully.rank_name)}
    for number, name in enumerate(partly.rank_name):
        for member in _members(name):
            assert np.array_equal(_ends(one, number), ends[member])


def _ends(timeline: Any, rank: int) -> np.ndarray:
    """Ends of all rows on any stream of a rank, stream by stream."""
    return np.concatenate([timeline.end[timeline.rows(rank, one)] for one in Stream])


def _members(name: str) -> list[str]:
    """Names of the ranks in a part such as ``pp 0 dp 1 cp 0 tp 0,2-3``."""
    words = name.split()
    numbers = [
        [
            n
            for run in word.split(",")
            for n in range(int(run.split("-")[0]), int(run.split("-")[-1]) + 1)
        ]
        for word in words[3::2]
    ]
    return [
        f"{words[0]} {words[1]} dp {d} cp {c} tp {t}"
        for d in numbers[0]
        for c in numbers[1]
        for t in numbers[2]
    ]


def test_a_touched_rank_unfolds_exactly_what_it_touches() -> None:
    """One of 8 x 16: alone, its tensor peers, its replicas, and all the rest; two touched coordinates share an axis."""
    folded = from_orders(make_orders("1f1b", pp=2, microbatches=2), forward=1, backward=1)
    one = Unfolding(folded, {"tp": 8, "dp": 16}, touched={"tp": [3], "dp": [0]}).program()
    assert one.rank_name[:4] == (
        "pp 0 dp 0 cp 0 tp 0-2,4-7",
        "pp 0 dp 0 cp 0 tp 3",
        "pp 0 dp 1-15 cp 0 tp 0-2,4-7",
        "pp 0 dp 1-15 cp 0 tp 3",
    )
    assert one.class_size.tolist() == [7, 1, 105, 15] * 2
    nobody = Unfolding(folded, {"tp": 8, "dp": 16}, touched={}).program()
    assert nobody.class_size.tolist() == [128, 128]
    with pytest.raises(ValueError, match="axis of 8"):
        Unfolding(folded, {"tp": 8, "dp": 16}, touched={"tp": [8]}).program()


@settings(max_examples=examples(10, 25))
@given(
    st.sampled_from([1, 2, 4]),
    st.sampled_from([1, 2]),
    st.sampled_from(["none", "selective", "full"]),
    st.sampled_from(["megatron-2021", "megatron-core", "torch-ddp"]),
    st.sampled_from(["1f1b", "interleaved-1f1b", "zb-h1", "gpipe"]),
)
def test_kernels_run_when_their_rows_say(
    tp: int, cp: int, recompute: str, preset: str, schedule: str
) -> None:
    """Times of kernels without a row for each equal those of the expanded program in either engine."""
    plan = small_plan(
        tp=tp,
        cp=cp if preset == "megatron-core" else 1,  # a ring needs fused attention
        recompute=recompute,
        preset=preset,
        schedule=schedule,
        virtual_stages=2 if schedule == "interleaved-1f1b" else 1,
        model_name="gpt2-medium",
        sequence_length=1024,
    )
    program = build_program(plan)
    times = kernel_times(run(program))
    fine = run(expand(program), "simpy")
    assert np.array_equal(times.start, fine.start)
    assert np.array_equal(times.end, fine.end)
    assert len(times.row) == len(times.kernel) == len(fine.end)


@pytest.mark.parametrize(
    "name", some([name for name in schedule_names() if schedule(name).trains], 6)
)
def test_every_schedule_takes_one_time_however_states_are_shared(name: str) -> None:
    """Actions as rows, kernels as rows and every rank by itself: one step time with ZeRO 0 to 3, whether gathers and reductions hold kernels up or not."""
    facts = schedule(name)
    chunks = facts.chunks or 2
    tried = 0
    for zero, pp, nic in itertools.product(range(4), (1, 2), ("10 Gb/s", "400 Gb/s")):
        scenario = {
            "schema": 1,
            "model": {"layers": 2 * pp * chunks, "hidden": 2048, "heads": 16, "vocab": 1024},
            "cluster": {
                "accelerator": "h100-sxm",
                "accelerators_per_node": 4,
                "nodes": 2,
                "nic": nic,
            },
            "parallelism": {"tp": 2, "pp": pp, "zero": zero, "sequence_parallel": True},
            "schedule": {"name": name, **({} if facts.chunks else {"virtual_stages": chunks})},
            "training": {"global_batch": 16, "sequence_length": 2048},
            "framework": {"preset": "llm-foundry-2023", "pipeline_unsharded": False},
        }
        try:
            prepared = prepare(Scenario.from_mapping(scenario))
        except ScenarioError:  # a schedule for pipelines alone, or of parts of sequences
            continue
        fine = expand(prepared.program)
        mesh = prepared.plan.layout.mesh
        everyone = Unfolding(fine, {axis.name: mesh.degree(axis.name) for axis in FOLDED}).program()
        spans = {run(program).makespan for program in (prepared.program, fine, everyone)}
        assert len(spans) == 1, (zero, pp, nic, spans)
        tried += 1
    assert tried >= 4 or name == "seq-1f1b"
