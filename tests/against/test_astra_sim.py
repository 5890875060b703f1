"""Against ASTRA-sim: its ring all-reduce, step by step, on the fluid network.

ASTRA-sim's runs (analytic network, version 518bd51) of a ring of N ranks with a payload of S bytes in 4 chunks follow, within 0.2 %,

    T = 4 * 2 (N - 1) * [floor(L + m / BW) + 10 ns + 1.5 m / 1600],  m = S / (4 N),

with times in ns, BW in 2^30 B/s, an endpoint delay of 10 ns a message and 1.5 accesses of memory at 1600 GB/s a byte. Here every message of
every chunk is a row: its latency and endpoint delay are paid first, then it flows over its link, then memory is read and written.
"""

from __future__ import annotations

import math
import time

import numpy as np
import pytest

from mpsim.engine import run
from mpsim.program import Program, Rows, Stream
from mpsim.program.links import Links
from mpsim.program.program import TICK
from mpsim.training.vocabulary import TRAINING, Kind

NS = 1e-9 / TICK
CHUNKS, ENDPOINT_NS, ACCESSES, MEMORY_B_PER_NS = 4, 10.0, 1.5, 1600.0
RANKS = [2**power for power in range(2, 11)]
SIZES = [2.0**power for power in range(20, 31)]
NETWORKS = [(500.0, 50.0), (1000.0, 100.0), (20.0, 400.0)]
"""Latency [ns] and bandwidth [2^30 B/s]."""


def formula(ranks: int, size: float, latency_ns: float, bandwidth: float) -> float:
    """What ASTRA-sim says [s]."""
    m = size / (CHUNKS * ranks)
    wire = math.floor(latency_ns + m / (bandwidth * 2**30) * 1e9)
    step = wire + ENDPOINT_NS + ACCESSES * m / MEMORY_B_PER_NS
    return CHUNKS * 2 * (ranks - 1) * step * 1e-9


def ring(
    ranks: int, size: float, latency_ns: float, bandwidth: float, *, members: int = 1
) -> tuple[Program, Links]:
    """Messages of a ring all-reduce; `members` of its ranks, each of which stands for as many others."""
    m = size / (CHUNKS * ranks)
    steps = CHUNKS * 2 * (ranks - 1)
    wire = math.floor(m / (bandwidth * 2**30) * 1e9) * round(NS)  # its clock ticks in whole ns
    fixed = round((latency_ns + ENDPOINT_NS) * NS)
    memory = round(ACCESSES * m / MEMORY_B_PER_NS * NS)
    rows = Rows(TRAINING)
    moved = [
        rows.add(steps, rank=rank, stream=Stream.SEND_NEXT, kind=Kind.SEND, peer=(rank + 1) % members,
                 duration=fixed + wire, out_bytes=m)
        for rank in range(members)
    ]  # fmt: skip
    summed = [
        rows.add(steps, rank=rank, stream=Stream.COMPUTE, kind=Kind.COLLECTIVE, duration=memory)
        for rank in range(members)
    ]
    for rank in range(members):
        before = (rank - 1) % members
        rows.depend(summed[rank], moved[before])  # what arrives is summed
        rows.depend(moved[rank][1:], summed[rank][:-1])  # and passed on
    program = rows.finish(
        rank_name=[f"rank {rank}" for rank in range(members)],
        class_size=[ranks // members] * members,
    )
    sends = np.flatnonzero(program.kind == Kind.SEND)
    work = np.where(program.kind == Kind.SEND, float(wire), 0.0)
    rate = m / max(wire, 1)
    links = Links(
        names=tuple(f"link {rank}" for rank in range(members)),
        capacity=np.full(members, rate),
        row=sends,
        link=program.rank[sends].astype(np.int64),
        use=np.ones(len(sends)),
        cap=np.where(work > 0, rate, 0.0),
        work=work,
    )
    return program, links


def test_the_whole_grid_is_within_two_thousandths_in_about_a_second():
    """99 rings of 4 to 1,024 ranks and 1 MiB to 1 GiB, every message an event."""
    begin = time.process_time()
    worst = 0.0
    for ranks in RANKS:
        for size in SIZES:
            program, _ = ring(ranks, size, *NETWORKS[0])
            got = run(program, "replay").step_time_s
            worst = max(worst, abs(got / formula(ranks, size, *NETWORKS[0]) - 1))
    assert worst < 0.002
    assert time.process_time() - begin < 4.0  # about one on a quiet machine


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("ranks", [4, 64, 256])
def test_flows_over_links_say_the_same(network, ranks):
    """Under simpy with shared links, to the tick what replay gives, and within two thousandths of ASTRA-sim."""
    for size in SIZES[::5]:
        program, links = ring(ranks, size, *network)
        flowed = run(program, links=links)
        assert flowed.makespan == run(program).makespan
        assert flowed.step_time_s == pytest.approx(formula(ranks, size, *network), rel=0.002)


@pytest.mark.parametrize("ranks", [4, 16, 32])
def test_every_rank_by_itself_gives_what_one_for_all_gives(ranks):
    """Unfolded: as many classes as ranks, each with its link."""
    for size in SIZES[::5]:
        folded, _ = ring(ranks, size, *NETWORKS[0])
        program, links = ring(ranks, size, *NETWORKS[0], members=ranks)
        assert run(program, links=links).makespan == run(folded).makespan
