"""Laws that hold for every step, whatever its configuration."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpsim.engine import run
from mpsim.engine.timeline import Timeline
from mpsim.framework import ContextExchange, TensorOverlap
from mpsim.hardware import Cluster
from mpsim.parallel import FOLDED
from mpsim.program import Program, Stream
from mpsim.program.expand import expand
from mpsim.program.unfold import Unfolding
from mpsim.training.build import build_program
from mpsim.training.plan import Plan
from mpsim.training.result import attribute
from mpsim.training.vocabulary import PARTS
from tests.nightly import examples
from tests.plans import small_plan

layouts = st.fixed_dictionaries(
    {
        "tp": st.sampled_from([1, 2, 4]),
        "pp": st.sampled_from([1, 2, 4]),
        "dp": st.sampled_from([1, 2, 4]),
        "cp": st.sampled_from([1, 2]),
        "virtual_stages": st.sampled_from([1, 2, 3]),
        "microbatches": st.sampled_from([4, 8]),
        "preset": st.sampled_from(["megatron-2021", "megatron-2022", "megatron-core", "torch-ddp"]),
        "recompute": st.sampled_from(["none", "selective", "full"]),
        "sequence_parallel": st.booleans(),
        "zero": st.sampled_from([0, 1]),
        "cluster": st.sampled_from(["dgx-a100-80gb", "dgx-h100", "aws-p4d"]),
        "overrides": st.fixed_dictionaries(
            {
                "context_exchange": st.sampled_from(list(ContextExchange)),
                "tensor_overlap": st.sampled_from(list(TensorOverlap)),
            }
        ),
    }
)


def _plan(layout: dict[str, Any]) -> Plan:
    one = dict(layout)
    one["sequence_parallel"] = one["sequence_parallel"] and one["tp"] > 1
    if one["pp"] == 1:
        one["virtual_stages"] = 1
    if one["cp"] > 1:  # a ring needs a fused kernel
        one["overrides"] = {**one["overrides"], "fused_attention": True}
    return small_plan(**one)


def _step(plan: Plan) -> Timeline:
    return run(build_program(plan), "replay")


@settings(max_examples=examples(16, 40), deadline=None)
@given(layouts)
def test_the_account_of_every_rank_sums_to_the_step_and_no_part_is_negative(
    layout: dict[str, Any],
) -> None:
    """Whole ticks, so the sum is exact."""
    timeline = _step(_plan(layout))
    parts = attribute(timeline)
    assert (parts.sum(axis=1) == timeline.makespan).all()
    assert (parts >= 0).all()


@settings(max_examples=examples(10, 25), deadline=None)
@given(layouts)
def test_one_operation_a_stream_at_a_time(layout: dict[str, Any]) -> None:
    """Rows that share a slot never overlap, kernels included."""
    program = expand(build_program(_plan(layout)))
    timeline = run(program, "replay")
    owner = np.repeat(np.arange(len(program)), np.diff(program.slot_ptr))
    order = np.lexsort((owner, program.slot))
    row, slot = owner[order], program.slot[order]
    same = slot[1:] == slot[:-1]
    assert (timeline.start[row[1:][same]] >= timeline.end[row[:-1][same]]).all()


@settings(max_examples=examples(10, 25), deadline=None)
@given(layouts)
def test_engines_and_grains_agree_bit_for_bit(layout: dict[str, Any]) -> None:
    """simpy and replay, an action a row or a kernel a row: one step time."""
    program = build_program(_plan(layout))
    fine = expand(program)
    coarse = run(program, "simpy")
    assert np.array_equal(coarse.end, run(program, "replay").end)
    assert run(fine, "replay").makespan == coarse.makespan
    assert run(fine, "simpy").makespan == coarse.makespan


@settings(max_examples=examples(10, 25), deadline=None)
@given(layouts)
def test_nothing_starts_before_what_it_waits_for_has_ended(layout: dict[str, Any]) -> None:
    """Dependencies hold in the timeline."""
    timeline = _step(_plan(layout))
    program = timeline.program
    row = np.repeat(np.arange(len(program)), np.diff(program.dep_ptr))
    assert (timeline.start[row] >= timeline.end[program.dep]).all()


def _faster(cluster: Cluster, what: str, factor: float) -> Cluster:
    node = cluster.node
    chip = node.accelerator
    if what == "flops":
        chip = dataclasses.replace(
            chip, peak_flops={k: v * factor for k, v in chip.peak_flops.items()}
        )
    elif what == "memory":
        chip = dataclasses.replace(chip, memory_bandwidth=chip.memory_bandwidth * factor)
    links = {
        "scale_up": dataclasses.replace(node.scale_up, bandwidth=node.scale_up.bandwidth * factor),
        "nic": dataclasses.replace(node.nic, bandwidth=node.nic.bandwidth * factor),
    }
    changed = {what: links[what]} if what in links else {}
    return dataclasses.replace(cluster, node=dataclasses.replace(node, accelerator=chip, **changed))


@settings(max_examples=examples(10, 25), deadline=None)
@given(
    layouts,
    st.sampled_from(["flops", "memory", "scale_up", "nic"]),
    st.sampled_from([1.01, 1.5, 4.0]),
)
def test_faster_hardware_never_slows_a_step(
    layout: dict[str, Any], what: str, factor: float
) -> None:
    """Chip, memory, scale-up link or NIC made faster: the step is no longer than before."""
    plan = _plan(layout)
    cluster = _faster(plan.layout.cluster, what, factor)
    better = plan.on(dataclasses.replace(plan.layout, cluster=cluster))
    assert _step(better).makespan <= _step(plan).makespan


@settings(max_examples=examples(8, 20), deadline=None)
@given(layouts)
def test_no_link_carries_more_than_its_bandwidth(layout: dict[str, Any]) -> None:
    """Every collective and message takes at least its bytes over the link's rate in one direction."""
    plan = _plan(layout)
    program = expand(build_program(plan))
    node = plan.layout.cluster.node
    up = program.up_bytes / node.scale_up.bandwidth
    out = program.out_bytes / node.nic_bandwidth_per_accelerator
    assert (program.duration * 1e-12 >= np.maximum(up, out) * (1 - 1e-9) - 1e-12).all()


@settings(max_examples=examples(8, 20), deadline=None)
@given(layouts)
def test_the_same_plan_gives_the_same_program(layout: dict[str, Any]) -> None:
    """Building twice gives equal columns."""
    one, other = build_program(_plan(layout)), build_program(_plan(layout))
    for field in dataclasses.fields(Program):
        if field.name not in ("templates", "labels", "rank_name"):
            assert np.array_equal(getattr(one, field.name), getattr(other, field.name)), field.name


@settings(max_examples=examples(8, 20), deadline=None)
@given(layouts)
def test_tensor_parallelism_divides_the_work_and_never_loses_any(layout: dict[str, Any]) -> None:
    """FLOPs summed over all ranks do not depend on tp (same padded vocabulary)."""
    layout = {**layout, "model_name": "gpt-1.7b", "cp": 1}
    flops = [_flops(_plan({**layout, "tp": tp, "sequence_parallel": False})) for tp in (1, 2, 4)]
    assert flops[1] == pytest.approx(flops[0], rel=1e-12)
    assert flops[2] == pytest.approx(flops[0], rel=1e-12)


def _flops(plan: Plan) -> float:
    program = build_program(plan)
    chosen = program.template >= 0
    inside = np.array([one.flops.sum() for one in program.templates])
    return float(
        (inside[program.template[chosen]] * program.class_size[program.rank[chosen]]).sum()
    )


def test_overlapped_gradients_are_never_slower_than_blocking_ones() -> None:
    """The same bytes beside the last backward, or after it."""
    shape: dict[str, Any] = {"tp": 1, "pp": 1, "dp": 8, "microbatches": 2, "preset": "torch-ddp"}
    beside = _step(small_plan(**shape))
    after = _step(small_plan(**shape, overrides={"gradient_overlap": "never"}))
    assert beside.makespan < after.makespan
    exposed = [attribute(one)[0, PARTS.index("exposed_dp")] for one in (beside, after)]
    assert exposed[0] < exposed[1]


def test_gradient_buckets_leave_in_the_order_their_gradients_complete() -> None:
    """Bucket collectives of one rank start in order, each after its piece of the last backward."""
    plan = small_plan(tp=1, pp=1, dp=8, microbatches=2, preset="torch-ddp")
    timeline = _step(plan)
    rows = timeline.rows(0, Stream.DP)
    assert len(rows) > 10
    assert (np.diff(timeline.start[rows]) >= 0).all()


@settings(max_examples=15, deadline=None)
@given(layouts)
def test_folded_equals_unfolded(layout: dict[str, Any]) -> None:
    """Every rank simulated by itself: each does what its class's representative does, at the same time."""
    layout = {**layout, "model_name": "gpt2-medium", "sequence_length": 1024, "microbatches": 4}
    plan = _plan(layout)
    folded = expand(build_program(plan))
    mesh = plan.layout.mesh
    everyone = Unfolding(folded, {axis.name: mesh.degree(axis.name) for axis in FOLDED}).program()
    assert everyone.ranks == mesh.world
    one, other = run(folded, "replay"), run(everyone, "replay")
    assert other.makespan == one.makespan
    copies = mesh.world // mesh.pp
    for rank in range(mesh.pp):
        mine = one.start[one.rows(rank)]
        for copy in (0, copies // 2, copies - 1):
            assert np.array_equal(other.start[other.rows(rank * copies + copy)], mine)


def test_a_slow_rank_slows_everyone_it_meets() -> None:
    """One of eight unfolded ranks computes 10 % slower: the step is longer, its tensor peers wait for it."""
    plan = small_plan(
        tp=2, pp=2, dp=2, microbatches=4, model_name="gpt2-small", sequence_length=1024
    )
    everyone = Unfolding(expand(build_program(plan)), {"tp": 2, "dp": 2}).program()
    slow = (everyone.rank == 0) & (everyone.stream == Stream.COMPUTE)
    slowed = dataclasses.replace(
        everyone, duration=np.where(slow, np.rint(everyone.duration * 1.1), everyone.duration)
    )
    before, after = run(everyone, "simpy"), run(slowed, "simpy")
    assert before.makespan < after.makespan < 1.1 * before.makespan
