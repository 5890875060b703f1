"""Laws of data parallelism, whatever is shared among how many and wherever it is kept."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpsim.engine import run
from mpsim.program import Program, Stream
from mpsim.program.expand import expand
from mpsim.training import build_program
from mpsim.training.plan import Plan
from mpsim.training.result import attribute
from mpsim.training.vocabulary import PARTS
from tests.nightly import examples
from tests.plans import small_plan

habits = st.fixed_dictionaries(
    {
        "gradient_overlap": st.sampled_from(["never", "without-pipeline", "shards", "always"]),
        "gradient_reduction": st.sampled_from(["reduce-scatter", "all-reduce", "rooted-reduce"]),
        "reduce_every_microbatch": st.booleans(),
        "defer_reduction": st.booleans(),
        "bucket_bytes": st.sampled_from(["1 MiB", "300 MB", "1 TB"]),
        "first_bucket_bytes": st.sampled_from(["0 B", "1 MiB"]),
        "first_chunk_buckets": st.booleans(),
        "buckets_in_flight": st.sampled_from([0, 1, 2]),
        "parameter_gather": st.sampled_from(["all-gather", "broadcast"]),
        "parameter_gather_overlap": st.booleans(),
        "unit_layers": st.sampled_from([1, 3]),
        "units_in_flight": st.sampled_from([1, 2, 3]),
        "prefetch_backward": st.booleans(),
        "reshard_after_forward": st.booleans(),
        "root_unit": st.booleans(),
        "pipeline_unsharded": st.booleans(),
        "gather_copy_traffic": st.sampled_from([0.0, 4.0]),
        "reduce_copy_traffic": st.sampled_from([0.0, 6.0]),
        "accumulation_traffic": st.sampled_from([0.0, 12.0]),
        "fusion_cycle": st.sampled_from(["0 s", "1 ms"]),
        "launch_blocking": st.booleans(),
        "gradient_norm": st.booleans(),
    }
)
layouts = st.fixed_dictionaries(
    {
        "tp": st.sampled_from([1, 2]),
        "pp": st.sampled_from([1, 2, 4]),
        "dp": st.sampled_from([1, 2, 4]),
        "cp": st.sampled_from([1, 2]),
        "schedule": st.sampled_from(["1f1b", "gpipe", "zb-h1", "interleaved-1f1b"]),
        "microbatches": st.sampled_from([4, 8]),
        "flushes": st.sampled_from([1, 1, 2]),
        "recompute": st.sampled_from(["none", "full"]),
        "zero": st.sampled_from([0, 1, 2, 3]),
        "shard": st.sampled_from([None, 2]),
        "offload": st.sampled_from(["none", "optimizer", "parameters"]),
        "offload_to": st.sampled_from(["host", "nvme"]),
        "cluster": st.sampled_from(["dgx-a100-80gb", "aws-p4d"]),
    }
)


def plan_of(layout: dict[str, Any], overrides: dict[str, Any]) -> Plan:
    """A legal plan near the drawn one."""
    one = dict(layout)
    if one["pp"] == 1:
        one["schedule"] = "1f1b"
    if one["schedule"] == "interleaved-1f1b":
        one["virtual_stages"] = 2
    if one["zero"] == 0 or one["dp"] * one["cp"] % 2:
        one["shard"] = None
    if one["zero"] == 0:
        one["offload"] = "none"
    if one["offload"] == "parameters" and one["zero"] < 3:
        one["offload"] = "optimizer"
    return small_plan(**one, preset="torch-ddp", overrides=overrides)


@settings(max_examples=examples(20, 50), deadline=None)
@given(layouts, habits)
def test_every_step_ends_and_both_engines_agree_when(
    layout: dict[str, Any], overrides: dict[str, Any]
) -> None:
    """No queue of a communicator waits for itself: the reference engine would raise a DeadlockError."""
    program = build_program(plan_of(layout, overrides))
    assert np.array_equal(run(program, "simpy").end, run(program, "replay").end)


@settings(max_examples=examples(20, 50), deadline=None)
@given(layouts, habits)
def test_the_account_of_every_rank_sums_to_the_step(
    layout: dict[str, Any], overrides: dict[str, Any]
) -> None:
    """Whole ticks, so the sum is exact, and no part is negative."""
    timeline = run(build_program(plan_of(layout, overrides)), "replay")
    parts = attribute(timeline)
    assert (parts.sum(axis=1) == timeline.makespan).all()
    assert (parts >= 0).all()


@settings(max_examples=examples(8, 20), deadline=None)
@given(layouts, habits)
def test_kernels_by_themselves_take_as_long_as_their_action(
    layout: dict[str, Any], overrides: dict[str, Any]
) -> None:
    """Copies inside a template expand like kernels."""
    program = build_program(plan_of(layout, overrides))
    assert run(expand(program), "replay").makespan == run(program, "replay").makespan


@settings(max_examples=examples(20, 50), deadline=None)
@given(layouts, habits)
def test_all_gradients_are_reduced_once_a_step_a_flush_or_a_microbatch(
    layout: dict[str, Any], overrides: dict[str, Any]
) -> None:
    """What the ranks of a stage reduce is every parameter they hold, as often as they reduce."""
    plan = plan_of(layout, overrides)
    program = build_program(plan)
    times = plan.orders.microbatches if plan.reduces_every_microbatch else 1
    if plan.keeps_gathered and not plan.layout.framework.data.defer_reduction:
        times = plan.orders.flushes  # a pipeline of whole units reduces as each schedule ends
    expected = (
        plan.layout.rank_parameters * times if plan.replicas > 1 else np.zeros(plan.layout.mesh.pp)
    )
    assert _reduced(program, plan) == _close(expected)


def _reduced(program: Program, plan: Plan) -> list[float]:
    """Parameters reduced by each rank, from the bytes it sends."""
    names = {
        "all-reduce gradients": 2.0,
        "reduce-scatter gradients": 1.0,
        "reduce gradients to their owners": 1.0,
    }
    total = np.zeros(plan.layout.mesh.pp)
    for label, passes in names.items():
        if label not in program.labels:
            continue
        rows = np.flatnonzero(program.label == program.labels.index(label))
        members = plan.replicas if label.startswith("all") else plan.sharers
        if members == 1:
            continue
        sent = program.up_bytes[rows] + program.out_bytes[rows]
        each = passes * (members - 1) / members * plan.layout.framework.optimizer.gradient_bytes
        np.add.at(total, program.rank[rows], sent / each)
    return total.tolist()


def _close(expected: np.ndarray) -> Any:
    return pytest.approx(expected.tolist(), rel=1e-6)


@settings(max_examples=examples(12, 30), deadline=None)
@given(layouts, habits)
def test_more_gathered_units_in_flight_never_slow_a_step(
    layout: dict[str, Any], overrides: dict[str, Any]
) -> None:
    """A gather that may start earlier, in a queue of gathers alone, ends no later; so with nothing to reduce until the end."""
    alone = {"defer_reduction": True, "launch_blocking": False, "buckets_in_flight": 0}
    ends = []
    for units in (1, 2, 4):
        plan = plan_of(
            layout | {"zero": 3, "pp": 1, "offload": "none", "schedule": "1f1b"},
            overrides | alone | {"units_in_flight": units},
        )
        timeline = run(build_program(plan), "replay")
        ends.append(timeline.end[timeline.program.stream == Stream.COMPUTE].max())
    assert ends[0] >= ends[1] >= ends[2]
    assert PARTS[8] == "exposed_dp"
