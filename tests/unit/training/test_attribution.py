"""Attribution: idle time is charged to what ended it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mpsim
from mpsim.engine import run
from mpsim.program import Program, Rows, Stream
from mpsim.result.words import summary_sheet
from mpsim.scenario import Scenario
from mpsim.schedule import make_orders
from mpsim.training import from_orders
from mpsim.training.result import attribute
from mpsim.training.vocabulary import PARTS, TRAINING, Kind


def _account(program: Program) -> list[dict[str, float]]:
    parts = attribute(run(program))
    return [{n: v for n, v in zip(PARTS, row.tolist(), strict=True) if v} for row in parts]


@pytest.mark.parametrize("name", ["gpipe", "1f1b"])
def test_the_bubble_of_every_rank_is_p_minus_1_slots(name: str) -> None:
    """p = 4, m = 8, unit times: (p - 1)(tF + tB + tW) = 9 idle, whatever the rank."""
    orders = make_orders(name, pp=4, microbatches=8)
    for account in _account(from_orders(orders, forward=1, backward=1, weight=1)):
        assert account == {"forward": 8, "backward": 16, "bubble": 9}


def test_a_transfer_is_exposed_from_the_moment_its_data_is_ready() -> None:
    """p = 2, m = 1, forward 3, backward 4, transfer 5.

    Rank 1 idles 0-8: until 3 rank 0 computes (bubble), until 8 the activation travels (exposed). It works 8-15. Rank 0 idles
    3-20: until 15 rank 1 works or receives (12 of bubble), until 20 the gradient travels.
    """
    orders = make_orders("1f1b", pp=2, microbatches=1)
    first, second = _account(from_orders(orders, forward=3, backward=4, weight=0, send=5))
    assert second == {"forward": 3, "backward": 4, "exposed_pp": 5, "bubble": 3 + (24 - 15)}
    assert first == {"forward": 3, "backward": 4, "exposed_pp": 5, "bubble": 12}


def _ending(**gradient: float) -> Program:
    """Two ranks: computing 2 and 6, each then reducing gradients, then meeting, then an optimizer of 1."""
    rows = Rows(TRAINING)
    work = rows.add(
        2, kind=Kind.BACKWARD, rank=[0, 1], part=PARTS.index("backward"), duration=[2.0, 6.0]
    )
    reduce = rows.add(
        2,
        kind=Kind.COLLECTIVE,
        rank=[0, 1],
        stream=Stream.DP,
        part=PARTS.index("exposed_dp"),
        duration=[gradient["first"], gradient["second"]],
    )
    rows.depend(reduce, work)
    step = rows.add(
        2, kind=Kind.OPTIMIZER, rank=[0, 1], part=PARTS.index("optimizer"), duration=1.0
    )
    for row in reduce:
        rows.depend(step, row)
    return rows.finish(rank_name=("pp 0", "pp 1"), class_size=[1, 1])


def test_gradient_reduction_after_the_last_backward_is_exposed() -> None:
    """Rank 0: own reduction 2-5, waiting for rank 1's backward 5-6, for its reduction 6-8."""
    first, second = _account(_ending(first=3.0, second=2.0))
    assert first == {"backward": 2, "exposed_dp": 3 + 2, "bubble": 1, "optimizer": 1}
    assert second == {"backward": 6, "exposed_dp": 2, "optimizer": 1}


def test_a_reduction_beside_another_ranks_backward_is_not_ones_own() -> None:
    """Rank 1 works 0-8 and reduces 3-7 beside that; rank 0 works 0-2, reduces nothing and waits for rank 1 to compute: 6 of bubble."""
    rows = Rows(TRAINING)
    backward = {"kind": Kind.BACKWARD, "part": PARTS.index("backward")}
    rows.add(2, rank=[0, 1], duration=[2.0, 3.0], **backward)
    rows.add(1, rank=1, duration=5.0, **backward)
    reduce = rows.add(
        1,
        kind=Kind.COLLECTIVE,
        rank=1,
        stream=Stream.DP,
        part=PARTS.index("exposed_dp"),
        duration=4.0,
    )
    rows.depend(reduce, 1)
    step = rows.add(
        2, kind=Kind.OPTIMIZER, rank=[0, 1], part=PARTS.index("optimizer"), duration=1.0
    )
    for row in (2, reduce):
        rows.depend(step, row)
    first, second = _account(rows.finish(rank_name=("pp 0", "pp 1"), class_size=[1, 1]))
    assert first == {"backward": 2, "bubble": 6, "optimizer": 1}
    assert second == {"backward": 8, "optimizer": 1}


def test_waiting_for_a_slower_optimizer_is_other() -> None:
    """Nothing runs on any communicator: not bubble, not exposed."""
    rows = Rows(TRAINING)
    rows.add(2, kind=Kind.FORWARD, rank=[0, 1], part=PARTS.index("forward"), duration=2.0)
    rows.add(
        2, kind=Kind.OPTIMIZER, rank=[0, 1], part=PARTS.index("optimizer"), duration=[1.0, 4.0]
    )
    first, _ = _account(rows.finish(rank_name=("pp 0", "pp 1"), class_size=[1, 1]))
    assert first == {"forward": 2, "optimizer": 1, "other": 3}


def test_parts_are_whole_ticks_that_sum_exactly() -> None:
    """Also for awkward durations."""
    orders = make_orders("interleaved-1f1b", pp=4, microbatches=12, virtual_stages=3)
    rng = np.random.default_rng(0)
    times = [np.rint(rng.lognormal(20, 1, 12)) for _ in range(3)]
    timeline = run(
        from_orders(orders, forward=times[0], backward=times[1], weight=times[2], send=12345)
    )
    assert (attribute(timeline).sum(axis=1) == timeline.makespan).all()


def test_a_wait_for_the_host_is_told_and_whose_micro_batch_it_is() -> None:
    """Small experts wait for their launches with one sequence at a time, whoever chose it; few launches say nothing."""
    data: dict[str, Any] = {
        "schema": 1,
        "model": {"preset": "gpt-oss-20b", "layers": 2},
        "cluster": {"preset": "dgx-b200", "nodes": 1},
        "parallelism": {"ep": 8},
        "training": {"global_batch": 32, "sequence_length": 1024},
    }
    stated = {**data, "training": {**data["training"], "micro_batch": 1}}
    long = {**data["training"], "sequence_length": 8192}
    large = {**data, "model": "llama3-8b", "parallelism": {"zero": 3}, "training": long}
    told = [
        " ".join(mpsim.simulate(Scenario.from_mapping(case)).summary["warnings"])
        for case in (data, stated, large)
    ]
    assert ["waits for the host" in words for words in told] == [True, True, False]
    assert ["mpsim's own" in words for words in told] == [True, False, False]


@pytest.mark.parametrize(
    ("training", "words"),
    [
        ({"sequence_length": 1024}, ""),
        (
            {"sequence_length": 1024, "method": "lora"},
            "; MFU counts gradients of frozen weights too",
        ),
        ({"sequence_length": 262144}, "; MFU and HFU count the attention that masks skip"),
    ],
)
def test_a_utilisation_that_looks_impossible_says_what_it_counts(training, words) -> None:
    """MFU above HFU, or HFU above what matrix units do, are conventions of papers."""
    data = {
        "schema": 1,
        "model": {"preset": "llama3-8b", "layers": 2},
        "cluster": {"preset": "dgx-h100", "nodes": 1},
        "training": {"global_batch": 8, "micro_batch": 1, **training},
    }
    rows = dict(summary_sheet(mpsim.simulate(Scenario.from_mapping(data)).summary).sections[0].rows)
    assert rows["utilisation"].partition("matrix units")[2].partition("%")[2] == words


def test_a_stack_that_shards_parameters_does_unless_the_file_says_otherwise() -> None:
    """FSDP without a `zero` shards and says so; what is written wins, and 2 as its users call what stays gathered says what to write."""
    data: dict[str, Any] = {
        "schema": 1,
        "model": {"preset": "llama3-8b", "layers": 2},
        "cluster": {"preset": "dgx-h100", "nodes": 1},
        "training": {"global_batch": 8, "micro_batch": 1, "sequence_length": 1024},
        "framework": "torch-fsdp2",
    }
    bare, whole, gathered, shards = (
        mpsim.simulate(Scenario.from_mapping({**data, "parallelism": written})).summary
        for written in ({}, {"zero": 0}, {"zero": 2}, {"zero": 3})
    )
    assert bare["taken_by_default"] == ["parallelism.zero: 3"]
    assert bare["memory"] == shards["memory"] != whole["memory"]
    assert not {"taken_by_default"} & (whole.keys() | shards.keys())
    assert "reshard_after_forward: false" in str(gathered["warnings"])
    rows = dict(summary_sheet(bare, long=False).sections[0].rows)
    assert rows["taken by default"] == "parallelism.zero: 3"
    plain = Scenario.from_mapping({**data, "framework": "torch-ddp"})
    assert (plain.parallelism.zero, plain.told) == (0, {})
