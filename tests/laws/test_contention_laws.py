"""Laws of shared links: alone nothing changes, together things only slow down, no link above its bandwidth."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from mpsim.engine import run
from mpsim.errors import ScenarioError
from mpsim.program import Program, Stream
from mpsim.program.expand import expand
from mpsim.program.links import Links, links_of
from mpsim.program.program import TICK
from mpsim.program.rows import Rows
from mpsim.training import build_program
from mpsim.training.result import attribute
from mpsim.training.vocabulary import PARTS, TRAINING, Kind
from tests.plans import small_plan


def two_transfers(first: float, second: float, *, ranks: tuple[int, int] = (0, 0)) -> Program:
    """Two reductions over NICs that start together, of so many bytes, on two streams."""
    rows = Rows(TRAINING)
    for rank, stream, size in zip(ranks, (Stream.DP, Stream.EP), (first, second), strict=True):
        rows.add(
            1,
            rank=rank,
            stream=stream,
            kind=Kind.COLLECTIVE,
            part=PARTS.index("exposed_dp"),
            duration=size,
            out_bytes=size,
        )
    return rows.finish(rank_name=("pp 0", "pp 1"), class_size=[1, 1])


def bare_links(program: Program, capacity: float = 1.0) -> Links:
    """One link a rank, which moves a byte a tick."""
    count = len(program)
    return Links(
        names=tuple(program.rank_name),
        capacity=np.full(program.ranks, capacity),
        row=np.arange(count),
        link=program.rank.astype(np.int64),
        use=np.ones(count),
        cap=np.ones(count),
        work=program.duration,
    )


def test_two_transfers_on_one_nic_take_as_long_as_both_together() -> None:
    """The shorter ends after twice its time, the longer when all bytes are through."""
    program = two_transfers(100.0, 300.0)
    timeline = run(program, links=bare_links(program))
    assert timeline.end.tolist() == [200.0, 400.0]
    assert timeline.program.duration.tolist() == [200.0, 400.0]


def test_transfers_on_different_ranks_do_not_meet() -> None:
    """Each takes the time it has alone."""
    program = two_transfers(100.0, 300.0, ranks=(0, 1))
    assert run(program, links=bare_links(program)).end.tolist() == [100.0, 300.0]


def test_latency_uses_nothing() -> None:
    """Half of a transfer's time is latency: the other half meets the second transfer only for what is left of it."""
    program = two_transfers(100.0, 60.0)
    links = dataclasses.replace(bare_links(program), work=np.array([50.0, 60.0]))
    assert run(program, links=links).end.tolist() == [110.0, 70.0]


@pytest.mark.parametrize(
    "shape",
    [
        {"tp": 2, "pp": 4, "dp": 1},
        {"tp": 8, "pp": 2, "dp": 2},
        {"tp": 1, "pp": 4, "dp": 4, "virtual_stages": 2, "preset": "megatron-core", "zero": 1},
        {"tp": 4, "pp": 2, "dp": 4, "preset": "megatron-core", "zero": 1},
    ],
)  # fmt: skip
def test_sharing_only_slows_and_says_where(shape: dict[str, object]) -> None:
    """No row gets faster, the account still sums exactly, and runs without a meeting are bit-equal to the analytic ones."""
    plan = small_plan(**shape)  # type: ignore[arg-type]
    program = build_program(plan)
    alone = run(program)
    shared = run(program, links=links_of(program, plan))
    assert (shared.end - shared.start >= program.duration).all()
    assert shared.makespan >= alone.makespan
    assert (attribute(shared).sum(axis=1) == shared.makespan).all()
    unmet = shared.program.duration == program.duration
    assert unmet.sum() > 0
    if unmet.all():
        assert (shared.end == alone.end).all()


def test_alone_every_row_takes_exactly_its_analytic_time() -> None:
    """A step whose transfers never meet is the same, bit for bit, under the fluid network."""
    plan = small_plan(tp=2, pp=1, dp=4)
    program = expand(build_program(plan))
    shared = run(program, links=links_of(program, plan))
    assert (shared.end == run(program).end).all()
    assert (shared.program.duration == program.duration).all()


def test_pipeline_messages_meet_gradient_reductions_on_the_nic() -> None:
    """With overlapped reductions and pipeline messages over NICs, a step takes longer than without sharing."""
    every = {"first_chunk_buckets": False}
    plan = small_plan(
        tp=8, pp=4, dp=2, virtual_stages=2, preset="megatron-core", overrides=every, zero=1
    )
    program = build_program(plan)
    shared = run(program, links=links_of(program, plan))
    met = shared.program.duration > program.duration
    assert met.any()
    assert set(np.unique(program.kind[met])) <= {int(Kind.SEND), int(Kind.COLLECTIVE)}


def test_no_port_carries_more_than_its_rate() -> None:
    """Over any interval in which a rank's NIC is used, bytes over time stay within its bandwidth."""
    plan = small_plan(tp=8, pp=2, dp=2, virtual_stages=2, preset="megatron-core", zero=1)
    program = build_program(plan)
    links = links_of(program, plan)
    shared = run(program, links=links)
    rate = plan.layout.cluster.node.nic_bandwidth_per_accelerator * TICK
    sends = (program.out_bytes > 0) & (program.template < 0)
    for rank in range(program.ranks):
        mine = sends & (program.rank == rank)
        busy = shared.end[mine].max() - shared.start[mine].min()
        assert program.out_bytes[mine].sum() <= rate * busy


def test_replay_refuses_to_share() -> None:
    """It evaluates given durations only."""
    program = two_transfers(1.0, 1.0)
    with pytest.raises(ScenarioError, match="replay cannot share links"):
        run(program, "replay", bare_links(program))
