"""Torch's caching allocator, and the trace of a rank that is played through it."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpsim import Scenario, simulate
from mpsim.training.memory.allocator import CachingAllocator
from mpsim.training.memory.trace import allocation_trace, play
from mpsim.training.result import TrainingResult

MIB = 2**20
SMALL = {
    "schema": 1,
    "model": "gpt2-large",
    "cluster": {"preset": "dgx-a100-80gb", "nodes": 1},
    "parallelism": {"tp": 2, "pp": 2},
    "training": {"global_batch": 16, "sequence_length": 1024, "recompute": "none"},
    "framework": "megatron-core",
}


@pytest.fixture(scope="module")
def step() -> TrainingResult:
    """A small step."""
    result = simulate(Scenario.from_mapping(SMALL))
    assert isinstance(result, TrainingResult)
    return result


@pytest.mark.parametrize(
    ("size", "allocated", "reserved"),
    [
        (1, 512, 2 * MIB),
        (MIB, MIB, 2 * MIB),
        (MIB + 1, MIB + 512, 20 * MIB),
        (10 * MIB, 10 * MIB, 10 * MIB),
        (11 * MIB + 1, 12 * MIB, 12 * MIB),  # less than 1 MiB is left: the block keeps it
    ],
)
def test_first_allocation_takes_the_segment_of_its_size(
    size: int, allocated: int, reserved: int
) -> None:
    """512 B steps; segments of 2 MiB to 1 MiB, of 20 MiB below 10 MiB, then of their own in steps of 2 MiB."""
    allocator = CachingAllocator()
    allocator.allocate(size)
    assert (allocator.allocated, allocator.reserved) == (allocated, reserved)


@pytest.mark.parametrize(("kept", "limit"), [(0, 60), (11, 90)])
def test_only_segments_that_nothing_lies_in_are_given_back(kept: int, limit: int) -> None:
    """Two blocks of 30 MiB freed make room for one of 60 on a device of 60; if 11 MiB of something else lie in the place of one, it needs 30 MiB more."""

    def run(device: int) -> int:
        allocator = CachingAllocator(limit=device * MIB)
        for block in [allocator.allocate(30 * MIB) for _ in range(2)]:
            allocator.free(block)
        if kept:
            allocator.allocate(kept * MIB)
        allocator.allocate(60 * MIB)
        return allocator.reserved

    assert run(limit) == limit * MIB
    with pytest.raises(MemoryError):
        run(limit - 2)


def test_a_hole_too_small_is_lost_without_expandable_segments() -> None:
    """Two blocks of 30 MiB freed make no room for one of 60 in segments of their own; in one range of addresses they do."""
    reserved = []
    for expandable in (False, True):
        allocator = CachingAllocator(expandable=expandable)
        for block in [allocator.allocate(30 * MIB) for _ in range(2)]:
            allocator.free(block)
        allocator.allocate(60 * MIB)
        reserved.append(allocator.reserved)
    assert reserved == [120 * MIB, 60 * MIB]


@given(
    st.lists(st.integers(1, 40 * MIB), min_size=1, max_size=40),
    st.lists(st.integers(0, 39), max_size=60),
    st.booleans(),
)
def test_blocks_tile_their_segments(sizes: list[int], freed: list[int], expandable: bool) -> None:
    """Whatever comes and goes, blocks follow each other without gap, no two free ones touch, and sums are those told."""
    allocator = CachingAllocator(expandable=expandable)
    alive = [allocator.allocate(size, stream=size % 2) for size in sizes]
    for place in freed:
        if place < len(alive):
            allocator.free(alive.pop(place))
    for segment in allocator.segments:
        at = segment.address
        for before, block in zip([None, *segment.blocks], segment.blocks, strict=False):
            assert block.address == at
            assert block.requested or before is None or before.requested
            at += block.size
        assert at == segment.address + segment.size
    assert allocator.allocated == sum(block.size for block in alive)
    assert allocator.reserved == sum(segment.size for segment in allocator.segments)


@pytest.mark.parametrize("rank", [0, 1])
def test_the_trace_reaches_the_accounted_peak(step: TrainingResult, rank: int) -> None:
    """What is allocated at most is the account without what lies beside the allocator, but for rounding; reserved is no less."""
    memory = step.memory
    accounted = float(memory.total[rank] - memory.components["overhead"][rank])
    played = play(allocation_trace(step.timeline, step.plan, memory, rank), expandable=True)
    assert played.allocated == pytest.approx(accounted, rel=0.003)
    assert played.reserved >= played.allocated


def test_torch_reads_the_snapshot(step: TrainingResult, tmp_path: Path) -> None:
    """torch's own parser adds up what was reserved and allocated, lists every event, and draws the page."""
    viz = pytest.importorskip("torch.cuda._memory_viz", reason="torch is not installed")
    path = tmp_path / "rank.pickle"
    played = step.write_memory_snapshot(path)
    snapshot = pickle.loads(path.read_bytes())
    assert sum(segment["total_size"] for segment in snapshot["segments"]) == played.reserved
    assert "cudaMalloc" in viz.trace(snapshot)
    assert "<html" in viz.trace_plot(snapshot)
    assert viz.segsum(snapshot)


def test_halves_of_a_block_allocate_no_more_than_one_microbatch_keeps() -> None:
    """Four microbatches of experts, each forward beside the backward before it: what is played is the account, which counts no second microbatch."""
    scenario = {
        "schema": 1,
        "model": "qwen3-30b-a3b",
        "cluster": {"preset": "dgx-h100", "nodes": 1},
        "parallelism": {"ep": 8, "zero": 1},
        "training": {"global_batch": 32, "micro_batch": 1, "sequence_length": 4096},
        "framework": {"preset": "megatron-core-2026", "expert_overlap": "microbatch"},
    }
    result = simulate(Scenario.from_mapping(scenario))
    memory = result.memory
    assert result.plan.fuses_blocks
    played = play(allocation_trace(result.timeline, result.plan, memory, 0))
    counted = float(memory.total[0] - memory.components["overhead"][0])
    assert played.allocated == pytest.approx(counted, rel=2e-3)
    apart = scenario | {"framework": "megatron-core-2026"}
    alone = simulate(Scenario.from_mapping(apart)).memory
    assert memory.components["activations"][0] == alone.components["activations"][0]
