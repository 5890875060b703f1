"""Laws of interference: hand-solved slowdowns, nothing without constants, and communication that is hidden or exposed."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import mpsim
from mpsim.cost import interference_of
from mpsim.engine import run, run_interfering
from mpsim.errors import ScenarioError
from mpsim.hardware import accelerator
from mpsim.parallel import AXIS_NAMES
from mpsim.program import Stream
from mpsim.program.devices import Devices, devices_of
from mpsim.program.expand import expand
from mpsim.program.links import links_of
from mpsim.program.rows import Rows
from mpsim.result.communication import communication_time
from mpsim.scenario import Scenario
from mpsim.training.build import build_program
from mpsim.training.planning import make_plan
from mpsim.training.vocabulary import TRAINING, Kind
from tests.nightly import examples

MODEL = {"preset": "gpt3-175b", "layers": 8, "hidden": 4096, "heads": 32, "ffn_hidden": 16384}
BASE: dict[str, Any] = {
    "schema": 1,
    "model": MODEL,
    "cluster": {"preset": "dgx-h100", "nodes": 2},
    "parallelism": {"tp": 4, "pp": 2, "sequence_parallel": True},
    "training": {"global_batch": 16, "sequence_length": 2048},
    "framework": "megatron-core",
}


def scenario(**simulation: object) -> Scenario:
    """The base, simulated as asked."""
    return Scenario.from_mapping({**BASE, "simulation": simulation})


def side_by_side(
    *,
    held: float = 0.0,
    traffic: float = 0.0,
    drag: float = 0.0,
    most: float = 0.9,
    alone: float = 1.0,
    product: bool = True,
    moves: int = 1,
) -> list[float]:
    """Ends of a kernel of 100 ticks and of collectives of 50 that start with it on one rank."""
    rows = Rows(TRAINING)
    rows.add(1, kind=Kind.FORWARD, stream=Stream.COMPUTE, duration=100.0)
    for stream in (Stream.DP, Stream.EP)[:moves]:
        rows.add(1, kind=Kind.COLLECTIVE, stream=stream, duration=50.0, up_bytes=1.0)
    program = rows.finish(rank_name=["pp 0"], class_size=[1])
    computes = program.stream == Stream.COMPUTE
    devices = Devices(
        program=program,
        computes=computes,
        product=computes & product,
        held=np.where(computes, 0.0, held),
        traffic=np.where(computes, 0.0, traffic),
        drag=np.where(computes, 0.0, drag),
        most=most,
        alone=np.where(computes, alone, 1.0),
    )
    ends: list[float] = run_interfering(devices).end.tolist()
    return ends


@pytest.mark.parametrize(
    ("taken", "ends"),
    [
        # nothing taken, nothing lost
        ({}, [100, 50]),
        # 50 ticks at 3/4 do 37.5; 62.5 are left: 112.5, up to a whole tick
        ({"held": 0.25}, [113, 50]),
        # a product does not wait for memory, nor any other kernel for processors
        ({"traffic": 0.25}, [100, 50]),
        ({"held": 0.25, "product": False}, [100, 50]),
        ({"traffic": 0.5, "product": False}, [125, 50]),
        # dragged by a fifth as long as the kernel runs: 60
        ({"drag": 0.2}, [100, 60]),
        # 60 ticks at 1/2 do 30; 70 are left
        ({"drag": 0.2, "held": 0.5}, [130, 60]),
        # two take twice as much; at most 0.9 of the device: 50 ticks at 0.1 do 5
        ({"held": 0.25, "moves": 2}, [125, 50, 50]),
        ({"held": 0.8, "moves": 2}, [145, 50, 50]),
        # of 100 ticks a fifth is lost on average already: a tenth is less, a quarter leaves 0.75 / 0.8 of the rate, 50 do 46.9
        ({"held": 0.1, "alone": 0.8}, [100, 50]),
        ({"held": 0.25, "alone": 0.8}, [104, 50]),
    ],
)
def test_a_kernel_beside_a_collective_is_what_the_hand_says(
    taken: dict[str, Any], ends: list[float]
):
    """Work done at the share that is left, then the rest at full speed."""
    assert side_by_side(**taken) == ends


def test_a_collective_longer_than_the_kernel_is_dragged_only_beside_it():
    """40 ticks beside at 1/1.25 do 32 of 50; 18 remain: it ends at 58."""
    rows = Rows(TRAINING)
    rows.add(1, kind=Kind.FORWARD, stream=Stream.COMPUTE, duration=40.0)
    rows.add(1, kind=Kind.COLLECTIVE, stream=Stream.DP, duration=50.0, up_bytes=1.0)
    program = rows.finish(rank_name=["pp 0"], class_size=[1])
    nothing = np.zeros(2)
    devices = Devices(
        program=program,
        computes=np.array([True, False]),
        product=np.array([True, False]),
        held=nothing,
        traffic=nothing,
        drag=np.array([0.0, 0.25]),
        most=0.9,
        alone=np.ones(2),
    )
    assert run_interfering(devices).end.tolist() == [40, 58]


@pytest.mark.parametrize("network", ["analytic", "flow"])
def test_without_constants_it_is_bit_equal_to_the_run_without(network: str):
    """Kernels as flows on devices that nobody else uses end when they would alone."""
    plan = make_plan(scenario(network=network, interference=True))
    program = build_program(plan)
    devices = devices_of(program, plan)
    nothing = np.zeros(len(devices.program))
    free = dataclasses.replace(devices, held=nothing, traffic=nothing, drag=nothing)
    links = links_of(devices.program, plan) if network == "flow" else None
    plain = run(expand(program), "simpy", links)
    shared = run_interfering(free, links)
    np.testing.assert_array_equal(shared.start, plain.start)
    np.testing.assert_array_equal(shared.end, plain.end)
    np.testing.assert_array_equal(shared.program.duration, plain.program.duration)


@pytest.mark.parametrize("network", ["analytic", "flow"])
def test_no_row_gets_shorter_and_the_account_sums(network: str):
    """Whatever runs beside it, nothing ends sooner than alone; parts still sum to the step."""
    result = mpsim.simulate(scenario(network=network, interference=True))
    alone = expand(result.program).duration
    assert (result.timeline.program.duration >= alone).all()
    assert (result.timeline.program.duration > alone).any()
    np.testing.assert_array_equal(result.parts.sum(axis=1), result.timeline.makespan)
    plain = mpsim.simulate(scenario(network=network))
    assert result.timeline.makespan > plain.timeline.makespan


def test_off_is_the_default_and_leaves_no_trace():
    """Writing false gives the same digest and the same summary as writing nothing."""
    off, silent = scenario(interference=False), scenario()
    assert off.digest == silent.digest != scenario(interference=True).digest
    assert mpsim.simulate(off).summary == mpsim.simulate(silent).summary


def test_it_is_deterministic():
    """The same scenario gives the same bytes."""
    one, other = (mpsim.simulate(scenario(interference=True)).to_json() for _ in range(2))
    assert one == other


def test_replay_is_refused():
    """Rates that change while it runs are not the replay's."""
    with pytest.raises(ScenarioError, match="interference"):
        scenario(interference=True, engine="replay")


def test_constants_are_told_and_recalled_ones_are_labelled():
    """A result with interference lists what it used; none of it is called calibrated."""
    told = mpsim.simulate(scenario(interference=True)).summary["calibration"]["constants"]
    mine = [one for one in told if one["name"].startswith("interference.")]
    assert {one["status"] for one in mine} == {"family default"}
    assert all("recalled" in one["source"] for one in mine)


def test_frameworks_and_accelerators_have_constants_of_their_own():
    """MLPerf's scripts cap the blocks of a group; chips whose collectives have engines of their own hold no processors."""
    chip = accelerator("h100-sxm")
    assert interference_of("mlperf-nvidia-2024", chip).held["dp"] == 8 / 132
    assert interference_of("megatron-core", chip).held["dp"] == 16 / 132
    assert interference_of("mlperf-nvidia-2024", accelerator("a100-sxm-80")).held["dp"] == 16 / 108
    assert set(interference_of("maxtext", accelerator("tpu-v4")).held.values()) == {0.0}


def test_hidden_and_exposed_are_all_of_the_time_transfers_run():
    """With templates or with a row a kernel, bit for bit."""
    timeline = mpsim.simulate(scenario()).timeline
    fine = run(expand(timeline.program), "replay")
    coarse, other = communication_time(timeline), communication_time(fine)
    np.testing.assert_array_equal(coarse.hidden, other.hidden)
    np.testing.assert_array_equal(coarse.exposed, other.exposed)
    assert (coarse.hidden >= 0).all()
    assert (coarse.exposed >= 0).all()
    tp = fine.program.slot % len(Stream) == Stream.TP
    row = np.searchsorted(fine.program.slot_ptr, np.flatnonzero(tp), side="right") - 1
    total = fine.program.duration[row].sum()
    assert (coarse.hidden + coarse.exposed)[:, AXIS_NAMES.index("tp")].sum() == total


def test_hidden_is_the_overlap_with_kernels():
    """A collective from 30 to 80 beside kernels from 0 to 40 and 60 to 100 is hidden for 30 ticks."""
    rows = Rows(TRAINING)
    first = rows.add(1, kind=Kind.FORWARD, stream=Stream.COMPUTE, duration=40.0)
    wait = rows.add(1, kind=Kind.COLLECTIVE, stream=Stream.HOST, duration=30.0)
    pause = rows.add(1, kind=Kind.COLLECTIVE, stream=Stream.COPY, duration=60.0)
    second = rows.add(1, kind=Kind.FORWARD, stream=Stream.COMPUTE, duration=40.0)
    moved = rows.add(1, kind=Kind.COLLECTIVE, stream=Stream.DP, duration=50.0)
    rows.depend(second, pause)
    rows.depend(second, first)
    rows.depend(moved, wait)
    found = communication_time(run(rows.finish(rank_name=["pp 0"], class_size=[1])))
    place = AXIS_NAMES.index("dp")
    assert (found.hidden[0, place], found.exposed[0, place]) == (30, 20)
    assert found.hidden.sum() + found.exposed.sum() == 50


@given(
    axis=st.sampled_from(["dp", "ep"]),
    chip=st.sampled_from(["h100-sxm", "a100-sxm-80", "mi300x", "tpu-v5p"]),
    latency=st.floats(0.0, 1e-2),
    size=st.floats(1e3, 1e11),
    rates=st.tuples(st.floats(1e8, 1e13), st.floats(1e8, 1e13)).map(sorted),
)
def test_no_slower_link_loses_less(
    axis: str, chip: str, latency: float, size: float, rates: list[float]
):
    """What a kernel loses in the whole time of a collective of some bytes never grows with the rate of its link."""
    taken = interference_of("torchtitan", accelerator(chip))
    seconds = [latency + size / rate for rate in rates]
    slow, fast = (each * taken.lost_at(axis, size / each) for each in seconds)
    assert fast <= slow * (1 + 1e-12)


_STACKS = st.sampled_from(
    [
        ("torchtitan", 3),
        ("torchtitan", 2),
        ("torch-fsdp1", 3),
        ("torch-ddp", 0),
        ("megatron-core", 1),
    ]
)


@settings(max_examples=examples(12, nightly=200), deadline=None)
@given(
    stack=_STACKS,
    layers=st.sampled_from([2, 4, 8]),
    heads=st.sampled_from([8, 16, 32, 64]),
    nodes=st.sampled_from([2, 4, 16, 64]),
    batches=st.tuples(st.sampled_from([1, 2, 4]), st.sampled_from([1, 2, 4])),
    sequence_length=st.sampled_from([512, 2048, 8192]),
    recompute=st.sampled_from(["none", "selective", "full"]),
    nic=st.sampled_from(["50 Gb/s", "100 Gb/s", "400 Gb/s"]),
)
@example(("torchtitan", 3), 80, 64, 64, (1, 1), 8192, "selective", "400 Gb/s")
def test_half_the_nics_are_never_faster(
    stack: tuple[str, int],
    layers: int,
    heads: int,
    nodes: int,
    batches: tuple[int, int],
    sequence_length: int,
    recompute: str,
    nic: str,
):
    """Data parallelism over 8, 4, 2 and 1 NICs a node: what kernels lose beside slower exchanges does not fall by more than these are exposed."""
    name, zero = stack
    micro, times = batches
    sizes = {"layers": layers, "heads": heads, "kv_heads": 8}
    widths = {"hidden": 128 * heads, "ffn_hidden": 448 * heads}
    one = {
        "schema": 1,
        "model": {"preset": "llama3-8b", **sizes, **widths},
        "parallelism": {"zero": zero},
        "training": {
            "global_batch": 8 * nodes * micro * times,
            "micro_batch": micro,
            "sequence_length": sequence_length,
            "recompute": recompute,
        },
        "framework": name,
    }
    system = {"preset": "dgx-h100", "nodes": nodes, "nic": nic}
    steps = [
        mpsim.simulate(
            Scenario.from_mapping({**one, "cluster": {**system, "nics_per_node": nics}})
        ).timeline.makespan
        for nics in (8, 4, 2, 1)
    ]
    assert steps == sorted(steps)
