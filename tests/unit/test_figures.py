"""Figures of a finished run, by hand: energy of unlike classes of ranks, bytes of messages and collectives as use of links."""

from __future__ import annotations

import types
from typing import Any, cast

import pytest

from mpsim.engine import run
from mpsim.hardware import system
from mpsim.program import TICK, Rows, Stream
from mpsim.result.figures import energy
from mpsim.result.result import Result
from mpsim.result.utilisation import measure_utilisation
from mpsim.training.vocabulary import PARTS, TRAINING, Kind

NODE = system("dgx-a100-80gb", nodes=1)
RATE = NODE.node.scale_up.bandwidth * TICK
"""Bytes that a link of the node could send in a tick."""


def test_a_message_uses_its_senders_link_and_a_collective_those_of_all() -> None:
    """Rank 0 computes 6 of 10 ticks and sends 3 ticks' worth of bytes to rank 1; then both exchange 1 tick's worth for 4 ticks.

    Links of rank 0 carry (3 + 1) / 10 of what they could, those of rank 1 only the 1 / 10 that it sends itself.
    """
    rows = Rows(TRAINING)
    work = rows.add(1, kind=Kind.FORWARD, rank=0, part=PARTS.index("forward"), duration=6.0)
    send = rows.add(
        1,
        kind=Kind.SEND,
        rank=0,
        peer=1,
        stream=Stream.SEND_NEXT,
        duration=6.0,
        up_bytes=3 * RATE,
    )
    rows.occupy(send, 1, Stream.RECV_PREV)
    both = rows.add(
        2, kind=Kind.COLLECTIVE, rank=[0, 1], stream=Stream.DP, duration=4.0, up_bytes=RATE
    )
    rows.depend(both, work)
    rows.depend(both, send)
    timeline = run(rows.finish(rank_name=("pp 0", "pp 1"), class_size=[1, 1]))
    assert timeline.makespan == 10
    use = measure_utilisation(timeline, [NODE, NODE])
    assert use.compute.tolist() == pytest.approx([0.6, 0.0])
    assert use.scale_up.tolist() == pytest.approx([0.4, 0.1])
    assert use.scale_out.tolist() == [0.0, 0.0]


def test_energy_counts_every_rank_of_a_class() -> None:
    """Three accelerators at half load and one idle for 2 s: 2 (3 (idle + (0.82 tdp - idle) / 2) + idle) J."""
    chip = NODE.accelerator
    result: Any = types.SimpleNamespace(
        utilisation=types.SimpleNamespace(compute=[0.5, 0.0]),
        job=types.SimpleNamespace(class_clusters=[NODE, NODE]),
        timeline=run(_classes()),
    )
    seconds = result.timeline.step_time_s
    half = chip.idle_w + (0.82 * chip.tdp_w - chip.idle_w) / 2
    assert seconds == 2.0
    assert energy(cast("Result", result)) == pytest.approx(seconds * (3 * half + chip.idle_w))


def _classes() -> Any:
    """A program of 2 s on a class of three ranks and a class of one."""
    rows = Rows(TRAINING)
    rows.add(1, kind=Kind.FORWARD, rank=0, part=PARTS.index("forward"), duration=2.0 / TICK)
    return rows.finish(rank_name=("pp 0", "pp 1"), class_size=[3, 1])
