"""Figures of a finished run, by hand: energy of unlike classes of ranks, bytes of messages and collectives as use of links."""

from __future__ import annotations

import types
from typing import Any, cast

import numpy as np
import pytest

from mpsim.cost import Constant, Status
from mpsim.engine import run
from mpsim.hardware import system
from mpsim.program import TICK, Rows, Stream
from mpsim.result.figures import measure_energy, unsure
from mpsim.result.result import Result
from mpsim.result.utilisation import kernel_seconds, measure_utilisation, used_of
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
    use = measure_utilisation(timeline, [NODE, NODE], used_of(timeline))
    assert use.compute.tolist() == pytest.approx([0.6, 0.0])
    assert use.scale_up.tolist() == pytest.approx([0.4, 0.1])
    assert use.scale_out.tolist() == [0.0, 0.0]


def test_energy_counts_every_rank_of_a_class() -> None:
    """Three accelerators at half load of streams and one that waits for 2 s: 2 (3 (0.5 x 0.5 tdp + awake / 2) + awake) J."""
    chip, timeline = NODE.accelerator, run(_classes())
    result: Any = types.SimpleNamespace(
        utilisation=types.SimpleNamespace(compute=[0.5, 0.0]),
        communication=types.SimpleNamespace(exposed=np.zeros((2, 1))),
        class_clusters=[NODE, NODE],
        timeline=timeline,
        kernel_seconds=kernel_seconds(timeline.program),
    )
    seconds = timeline.step_time_s
    awake = 1.6 * chip.idle_w  # a board with a context open, its clock up
    half = (0.5 * chip.tdp_w + awake) / 2  # rows without a template stream: half the limit
    energy = measure_energy(cast("Result", result))
    assert seconds == 2.0
    assert energy.total == pytest.approx(seconds * (3 * half + awake))
    assert energy.accelerators["idle"] == pytest.approx(seconds * 4 * chip.idle_w)


def test_the_meter_sees_hosts_nics_and_the_building() -> None:
    """One node, so no switches: (boards + 4 x (0.4 x 400 W + NICs)) x PUE 1.15."""
    timeline = run(_classes())
    result: Any = types.SimpleNamespace(
        utilisation=types.SimpleNamespace(compute=[0.5, 0.0]),
        communication=types.SimpleNamespace(exposed=np.zeros((2, 1))),
        class_clusters=[NODE, NODE],
        timeline=timeline,
        kernel_seconds=kernel_seconds(timeline.program),
    )
    energy = measure_energy(cast("Result", result))
    seconds = 4 * timeline.step_time_s
    gigabits = NODE.node.nic_bandwidth / 8 * 8 / 1e9  # an eighth of the node's NICs, in bits
    assert energy.meter["hosts"] == pytest.approx(160.0 * seconds)
    assert energy.meter["nics"] == pytest.approx(0.085 * gigabits * seconds)
    assert energy.meter["switches"] == 0.0
    inside = energy.total + energy.meter["hosts"] + energy.meter["nics"]
    assert energy.at_meter == pytest.approx(1.15 * inside)


def _classes() -> Any:
    """A program of 2 s on a class of three ranks and a class of one."""
    rows = Rows(TRAINING)
    rows.add(1, kind=Kind.FORWARD, rank=0, part=PARTS.index("forward"), duration=2.0 / TICK)
    return rows.finish(rank_name=("pp 0", "pp 1"), class_size=[3, 1])


def test_only_what_a_hundredth_of_the_step_rests_on_is_warned_of() -> None:
    """Constants of other hardware by area, with the share of the step that rests on them; interference only where it is on."""
    borrowed = [
        Constant(f"{name}.x", 1.0, "1", "by hand", "2026", Status.FAMILY_DEFAULT)
        for name in ("straggling.wait", "kernels.gemm", "kernels.core", "interference.any")
    ]
    result = types.SimpleNamespace(constants=borrowed, class_clusters=(NODE,))
    step = {"forward": 0.6, "exposed_tp": 0.391, "straggling": 0.009}
    off = unsure(cast("Result", result), "bf16", step, interference=False)
    assert off == [
        "not measured on this hardware: kernels (core, gemm), on which 60.0 % of the step rests"
    ]
    on = unsure(cast("Result", result), "bf16", step, interference=True)
    assert "beside collectives (any), on which 99.1 %" in on[0]
