"""Sharded data parallelism: units, queues, copies and traffic of small steps."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import numpy as np
import pytest

from mpsim.engine import run
from mpsim.engine.timeline import Timeline
from mpsim.hardware import host_of
from mpsim.program import TICK, Program, Stream
from mpsim.schedule import Action
from mpsim.training import build_program
from mpsim.training.memory.account import account_memory
from mpsim.training.memory.fresh import fresh_gradients
from mpsim.training.memory.states import buffers, model_states
from mpsim.training.plan import Plan
from mpsim.training.replicas.residency import largest_weight
from mpsim.training.result import attribute
from mpsim.training.vocabulary import PARTS, Kind
from tests.plans import small_plan

# Collectives run beside computing and nothing else takes time on the host: what a formula by hand needs.
QUIET = {
    "launch_cost": "0 s",
    "step_overhead": "0 s",
    "gradient_norm": False,
    "gradient_overlap": "always",
    "optimizer_traffic": 0.0,
}


def plan_of(**changes: Any) -> Plan:
    """One stage on eight GPUs of two nodes, all of them replicas."""
    usual: dict[str, Any] = {
        "tp": 1,
        "pp": 1,
        "dp": 16,
        "microbatches": 1,
        "preset": "torch-ddp",
        "recompute": "none",
        "zero": 3,
    }
    overrides = QUIET | changes.pop("overrides", {})
    return small_plan(**(usual | changes), overrides=overrides)


def unhindered(plan: Plan) -> Plan:
    """The same plan with kernels as long as they are alone: the engine would find out what slows them down."""
    return dataclasses.replace(plan, interference=True)


def labelled(program: Program, text: str) -> np.ndarray:
    """Rows whose label begins with `text`."""
    names = [one.startswith(text) for one in program.labels]
    return np.flatnonzero(np.array(names)[program.label] & (program.template < 0))


def step(plan: Plan) -> Timeline:
    """Both engines agree on every row."""
    program = build_program(plan)
    timeline = run(program, "replay")
    assert np.array_equal(run(program, "simpy").end, timeline.end)
    return timeline


def sent(program: Program, text: str) -> float:
    """Bytes a rank sends for rows with that label."""
    rows = labelled(program, text)
    return float((program.up_bytes[rows] + program.out_bytes[rows]).sum())


@pytest.mark.parametrize(("zero", "factor"), [(0, 2.0), (1, 2.0), (2, 2.0), (3, 3.0)])
def test_traffic_of_a_step_is_two_or_three_times_the_parameters(zero: int, factor: float) -> None:
    """ZeRO paper, section 7: Psi to reduce-scatter, Psi to gather, and Psi to gather once more where parameters are sharded.

    A ring sends (n - 1) / n of the tensor; bf16 gradients and parameters; the root is gathered once.
    """
    plan = plan_of(zero=zero, overrides={"bucket_bytes": "1 TB"})
    program = build_program(plan)
    total = sum(
        sent(program, name) for name in ("gather", "reduce-scatter", "all-reduce gradients")
    )
    ring = (plan.replicas - 1) / plan.replicas * 2.0
    stage = plan.layout.stages[0]
    parts = {name: one.per_rank(1) for name, one in plan.layout.stage_parameters(stage).items()}
    everything = sum(parts.values())
    again = parts["layers"] if zero == 3 else 0.0
    expected = ring * ((2.0 if zero == 3 else factor) * everything + again)
    assert total == pytest.approx(expected, rel=1e-9)
    assert again <= everything * (factor - 2.0)


def test_gathers_and_reductions_of_a_backward_alternate_in_one_queue() -> None:
    """Forward: the root, then a gather a layer. Backward: gather (n - 1), reduce (n), gather (n - 2), ...

    torch FSDP1 with BACKWARD_PRE and FSDP2 issue them so on one communicator.
    """
    plan = plan_of()
    program = build_program(plan)
    timeline = run(program, "replay")
    rows = timeline.rows(0, Stream.DP)
    kinds = "".join(program.labels[one][0] for one in program.label[rows])
    layers = plan.layout.model.layers
    # root and layers, then two gathers ahead of the first reduction, then in turn, last the reduction of layer 0 and of the root
    assert kinds == "g" * (1 + layers) + "gg" + "rg" * (layers - 2) + "rr" + "r"


def test_no_more_than_two_units_are_gathered_at_a_time() -> None:
    """The gather of a unit begins only when the one before the last has been computed with."""
    timeline = step(plan_of(cluster="aws-p4d"))
    gathers = labelled(timeline.program, "gather")
    visits = timeline.program.template[:] >= 0
    ends = timeline.end[visits]
    starts = timeline.start[gathers]
    # visit k computes as row k; the root is gathered with visit 0, gather k + 1 belongs to visit k + 1
    forward = range(2, 20)
    assert all(starts[k + 1] >= ends[k - 2 + 1] or starts[k + 1] >= ends[k - 2] for k in forward)
    assert (starts[3:20] >= ends[0:17]).all()


def test_one_unit_in_flight_exposes_every_gather() -> None:
    """Nothing is gathered ahead, so every gather lies between two computations."""
    timeline = step(plan_of(overrides={"units_in_flight": 1, "reshard_after_forward": True}))
    gathers = labelled(timeline.program, "gather")
    computing = np.flatnonzero(timeline.program.stream == Stream.COMPUTE)
    for row in gathers:
        beside = (timeline.start[computing] < timeline.end[row]) & (
            timeline.end[computing] > timeline.start[row]
        )
        assert not (beside & (timeline.program.duration[computing] > 0)).any()


def test_exposed_time_of_sharded_units_is_what_the_formula_says() -> None:
    """With equal layers whose backward B is shorter than its gather G and reduction R together, the queue rules.

    Solved by hand: queued work of the backward is G + R a unit once it is busy, so a step takes the forward, then the queue.
    Forward of L layers with gathers G > F: root A, then G each; backward: the queue is never idle from the first gather of the
    forward on if G > F and G + R > B. So the last reduction ends at A + L G (forward) + (queue of the backward) where the only
    gaps are waits for memory: gather k + 1 waits for visit k - 1.
    """
    plan = plan_of(cluster="aws-p4d", dp=16, overrides={"reshard_after_forward": False})
    timeline = step(plan)
    program = timeline.program
    gathers = labelled(program, "gather")
    duration, end = program.duration, 0.0
    compute = np.flatnonzero(program.template >= 0)
    forward = [i for i in compute if program.kind[i] == 0]
    # visit 0: embedding (root), visits 1..L: layers, visit L + 1: head
    gathered = 0.0
    finished: list[float] = []
    for visit, row in enumerate(forward):
        if visit < len(gathers):
            free = finished[visit - 2] if visit >= 2 else 0.0
            gathered = max(gathered, free) + duration[gathers[visit]]
            end = max(end, gathered)
        end += duration[row]
        finished.append(end)
        assert timeline.end[row] == end


def test_hybrid_shards_gather_inside_a_group_and_sum_between_groups() -> None:
    """Each rank reduce-scatters with its 8 peers and all-reduces an eighth of the gradient with the other group."""
    plan = plan_of(shard=8)
    program = build_program(plan)
    layers = plan.layout.model.layers
    total = float(plan.layout.rank_parameters[0])
    replica = labelled(program, "all-reduce gradients between copies")
    assert len(replica) == layers + 1
    assert (program.stream[replica] == Stream.REPLICA).all()
    # an all-reduce among 2 sends each byte once: 2 (n - 1) / n = 1
    moved = program.up_bytes[replica] + program.out_bytes[replica]
    assert moved.sum() == pytest.approx(2 * total / 8, rel=1e-9)
    inside = labelled(program, "reduce-scatter")
    assert program.out_bytes[inside].sum() == 0.0  # a node is a scale-up domain
    assert program.out_bytes[replica].sum() > 0.0


@pytest.mark.parametrize("overlap", ["always", "shards", "never"])
def test_sums_between_copies_stand_behind_a_backward_they_may_not_run_beside(overlap: str) -> None:
    """The first of them starts when the last backward has ended, or long before."""
    plan = plan_of(shard=8, overrides={"gradient_overlap": overlap})
    program = build_program(plan)
    timeline = run(program, "replay")
    sums = labelled(program, "all-reduce gradients between copies")
    last = timeline.end[np.isin(program.kind, [Kind.BACKWARD])].max()
    assert (timeline.start[sums].min() >= last) == (overlap != "always")
    assert timeline.start[labelled(program, "reduce-scatter")].min() < last


def test_a_whole_group_of_sharers_is_no_hybrid() -> None:
    """shard = all replicas is what leaving it out means."""
    whole, given = (build_program(plan_of(shard=one)) for one in (None, 16))
    assert np.array_equal(run(whole, "replay").end, run(given, "replay").end)
    assert len(whole) == len(given)


@pytest.mark.parametrize(
    ("changes", "gathers", "reductions"),
    [
        ({}, 4 * (2 * 24 + 1), 4 * 25),
        ({"overrides": {"reshard_after_forward": False}}, 4 * 25, 4 * 25),
        ({"overrides": {"defer_reduction": True}}, 4 * (2 * 24 + 1), 25),
        ({"overrides": {"root_unit": False}}, 4 * (2 * 24 + 2), 4 * 26),
        ({"overrides": {"unit_layers": 4}}, 4 * (2 * 6 + 1), 4 * 7),
        ({"recompute": "full"}, 4 * (2 * 24 + 1), 4 * 25),
        ({"pp": 2, "dp": 8}, 24 + 2, 24 + 2),
        ({"pp": 2, "dp": 8, "overrides": {"pipeline_unsharded": False}}, 4 * (48 + 2), 4 * 26),
        ({"pp": 2, "dp": 8, "flushes": 2}, 2 * (24 + 2), 2 * (24 + 2)),
        ({"pp": 2, "dp": 8, "flushes": 2, "overrides": {"defer_reduction": True}}, 24 + 2, 24 + 2),
    ],
)
def test_every_unit_travels_as_often_as_its_stack_has_it(
    changes: dict[str, Any], gathers: int, reductions: int
) -> None:
    """24 layers and a root, 4 microbatches; recomputing gathers nothing again, a pipeline keeps what a stage has gathered until the end of each schedule, or of the step where it defers."""
    program = build_program(plan_of(microbatches=4, **changes))
    assert len(labelled(program, "gather")) == gathers
    assert len(labelled(program, "reduce-scatter")) == reductions


def test_sharded_gradients_are_reduced_after_every_microbatch() -> None:
    """ZeRO 2 moves its gradients m times as often as ZeRO 1."""
    one, two = (build_program(plan_of(zero=zero, microbatches=4)) for zero in (1, 2))
    assert sent(two, "reduce-scatter") == pytest.approx(4 * sent(one, "reduce-scatter"))
    assert sent(two, "gather") == pytest.approx(sent(one, "gather"))


@pytest.mark.parametrize("stack", ["reduce-scatter", "all-reduce", "rooted-reduce"])
def test_what_sums_gradients_of_a_sharded_optimizer_is_the_stacks_choice(stack: str) -> None:
    """An all-reduce moves twice the bytes of a reduce-scatter, a reduce to each owner as many."""
    usual = build_program(plan_of(zero=1))
    program = build_program(plan_of(zero=1, overrides={"gradient_reduction": stack}))
    names = {
        "reduce-scatter": "reduce-scatter",
        "all-reduce": "all-reduce",
        "rooted-reduce": "reduce",
    }
    factor = {"reduce-scatter": 1.0, "all-reduce": 2.0, "rooted-reduce": 1.0}[stack]
    moved, whole = sent(program, names[stack] + " gradients"), sent(usual, "reduce-scatter")
    assert moved == pytest.approx(factor * whole, rel=1e-9)


def test_compute_waits_for_the_bucket_before_the_last() -> None:
    """With one bucket in flight a backward goes on only when the bucket before the one just issued has been reduced."""
    slow = {"reduced_bytes": 8}
    plan = plan_of(cluster="aws-p4d", zero=0, overrides=slow | {"buckets_in_flight": 1})
    timeline = step(plan)
    reduced = labelled(timeline.program, "all-reduce")
    pieces = np.flatnonzero(timeline.program.kind == Kind.BACKWARD)
    assert len(pieces) == len(reduced)
    for bucket in range(len(reduced) - 2):
        assert timeline.start[pieces[bucket + 2]] >= timeline.end[reduced[bucket]]
    free = run(build_program(plan_of(cluster="aws-p4d", zero=0, overrides=slow)), "replay")
    assert timeline.end[pieces[-1]] > free.end[pieces[-1]]


def test_copies_around_units_run_on_the_compute_stream_and_count_as_data_parallel() -> None:
    """FSDP2: 4 B a parameter after a gather, 6 B before a reduction, at the optimizer's rate of memory."""
    traffic = {"gather_copy_traffic": 4.0, "reduce_copy_traffic": 6.0}
    plain, copied = plan_of(), plan_of(overrides=traffic)
    layers = plan_layers(plain)
    moved = 4.0 * (layers["all"] + layers["layers"]) + 6.0 * layers["all"]
    expected = moved / (0.8 * plain.layout.cluster.accelerator.memory_bandwidth)
    busy = [
        attribute_busy(build_program(unhindered(one))).get("exposed_dp", 0.0) * TICK
        for one in (plain, copied)
    ]
    assert busy[0] == 0.0
    assert busy[1] == pytest.approx(expected, rel=1e-6)


def plan_layers(plan: Plan) -> dict[str, float]:
    """Parameters of the layers, and of everything."""
    parts = {
        k: v.per_rank(1) for k, v in plan.layout.stage_parameters(plan.layout.stages[0]).items()
    }
    return {"layers": parts["layers"], "all": sum(parts.values())}


def attribute_busy(program: Program) -> dict[str, float]:
    """Ticks of every part inside templates, all rows of one rank."""
    parts = sum(program.templates[one].parts for one in program.template if one >= 0)
    return {name: float(value) for name, value in zip(PARTS, parts, strict=True) if value}


@pytest.mark.parametrize(
    ("zero", "drops", "added"), [(1, False, 3), (1, True, 2), (2, True, 0), (3, True, 0)]
)
def test_whole_gradients_are_added_up_after_every_backward(
    zero: int, drops: bool, added: int
) -> None:
    """12 B a parameter and microbatch of 3, as DeepSpeed's BF16_Optimizer casts and adds; autograd keeps the first as it is, and shares are no whole gradients."""
    plan = plan_of(
        zero=zero,
        microbatches=3,
        overrides={"accumulation_traffic": 12.0, "drops_gradients": drops},
    )
    busy = attribute_busy(build_program(unhindered(plan))).get("other", 0.0) * TICK
    expected = (
        added
        * 12.0
        * plan_layers(plan)["all"]
        / (0.8 * plan.layout.cluster.accelerator.memory_bandwidth)
    )
    assert busy == pytest.approx(expected, rel=1e-6)


def test_only_the_first_chunk_has_buckets_where_the_stack_has_it_so() -> None:
    """Megatron-Core: ranks after the first, and chunks after the first, reduce one bucket each."""
    usual = {"bucket_bytes": "25 MiB", "gradient_overlap": "always"}
    plan = plan_of(pp=2, dp=2, virtual_stages=2, zero=1, microbatches=4, overrides=usual)
    only = plan_of(
        pp=2,
        dp=2,
        virtual_stages=2,
        zero=1,
        microbatches=4,
        overrides=usual | {"first_chunk_buckets": True},
    )
    counts = []
    for one in (plan, only):
        program = build_program(one)
        rows = labelled(program, "reduce-scatter")
        counts.append(np.bincount(program.stage[rows], minlength=4).tolist())
    assert counts[1][1:] == [1, 1, 1]
    assert counts[1][0] == counts[0][0] > 1
    assert min(counts[0]) > 1


def test_buckets_grow_with_the_replicas_and_the_first_may_be_small() -> None:
    """Megatron-Core takes max(40e6, 1e6 x dp) elements; torch DDP begins with 1 MiB."""
    few = build_program(plan_of(zero=0, overrides={"bucket_bytes_per_replica": "1 GB"}))
    assert len(labelled(few, "all-reduce")) == 1
    large = {"bucket_bytes": "500 MB"}
    sizes = []
    for more in ({}, {"first_bucket_bytes": "1 MiB"}):
        program = build_program(plan_of(zero=0, overrides=large | more))
        sizes.append(program.up_bytes[labelled(program, "all-reduce")])
    assert sizes[1][0] < sizes[1][1]
    assert sizes[0][0] > sizes[0][1]  # the final norm comes with the first layers
    assert sizes[0].sum() == pytest.approx(sizes[1].sum())


def test_a_fusion_cycle_delays_every_reduction_by_half_of_it() -> None:
    """Horovod looks for ready gradients once a cycle: half a cycle late on average."""
    plan = plan_of(zero=0, overrides={"fusion_cycle": "2 ms"})
    timeline = step(plan)
    waits, reduced = (labelled(timeline.program, name) for name in ("wait", "all-reduce"))
    assert len(waits) == len(reduced)
    assert (timeline.program.duration[waits] * TICK == 1e-3).all()
    assert (timeline.start[reduced] >= timeline.end[waits]).all()


def test_an_offloaded_optimizer_runs_on_the_host_after_its_gradients_came() -> None:
    """Each GPU takes its share down, each of the node's 8 ranks steps on a core, and the share returns: all in a row by hand."""
    plan = plan_of(offload="optimizer", overrides={"host_optimizer_traffic": 40.0})
    timeline = step(plan)
    program, host = timeline.program, host_of(plan.layout.cluster)
    share = float(plan.layout.rank_parameters[0]) / 16
    (adam,) = labelled(program, "optimizer step on host")
    (back,) = labelled(program, "return parameters")
    down = labelled(program, "take gradients")
    rate = min(host.memory_bandwidth, 8 * host.core)
    assert program.duration[adam] * TICK == pytest.approx(40.0 * share * 8 / rate)
    assert program.duration[back] * TICK == pytest.approx(2.0 * share / host.link_bandwidth)
    assert program.duration[down].sum() * TICK == pytest.approx(
        2.0 * share / host.link_bandwidth, rel=1e-6
    )
    assert timeline.start[adam] == timeline.end[down[-1]]
    assert timeline.makespan == timeline.end[back]
    parts = attribute(timeline)[0]
    assert parts[PARTS.index("optimizer")] == program.duration[adam]


def test_a_lone_accelerator_steps_on_the_host_after_its_last_backward() -> None:
    """One rank shares nothing, and yet its gradients have to come down before the host's step, which the step waits for; its parameters go up for every unit."""
    timeline = step(plan_of(dp=1, offload="optimizer"))
    program = timeline.program
    (adam,), down = labelled(program, "optimizer step on host"), labelled(program, "take gradients")
    assert timeline.start[adam] == timeline.end[down[-1]]
    assert timeline.start[adam] >= timeline.end[program.kind == Kind.BACKWARD].max()
    assert timeline.makespan > timeline.end[adam]
    kept = step(plan_of(dp=1, offload="parameters")).program
    layers = plan_layers(plan_of())
    moved = 2.0 * (layers["all"] + layers["layers"])
    fetched = labelled(kept, "fetch")
    link = host_of(plan_of().layout.cluster).link_bandwidth
    assert kept.duration[fetched].sum() * TICK == pytest.approx(moved / link, rel=1e-6)


def test_offloaded_parameters_are_fetched_before_every_gather() -> None:
    """From drives at the node's rate over 8, or over the accelerator's own link, whichever is slower; none return afterwards."""
    plan = plan_of(offload="parameters", offload_to="nvme")
    timeline = step(plan)
    program, host = timeline.program, host_of(plan.layout.cluster)
    fetched, gathers = labelled(program, "fetch"), labelled(program, "gather")
    assert len(fetched) == len(gathers)
    assert (timeline.start[gathers] >= np.sort(timeline.end[fetched])).all()
    layers = plan_layers(plan)
    rate = min(host.link_bandwidth, host.nvme_read / 8)
    moved = 2.0 * (layers["all"] + layers["layers"]) / 16
    assert program.duration[fetched].sum() * TICK == pytest.approx(moved / rate, rel=1e-6)
    assert not len(labelled(program, "return"))
    assert len(labelled(program, "read states")) == len(labelled(program, "write states")) == 1


def test_the_first_gather_of_a_step_is_exposed() -> None:
    """Sharded parameters exist in pieces until the optimizer of the step before has ended."""
    plan = plan_of(overrides={"step_overhead": "3 ms"})
    timeline = step(plan)
    first = labelled(timeline.program, "gather")[0]
    assert timeline.start[first] * TICK == pytest.approx(3e-3)
    compute = np.flatnonzero(timeline.program.template >= 0)
    assert timeline.start[compute[0]] == timeline.end[first]


def test_launch_blocking_leaves_nothing_beside_a_backward() -> None:
    """CUDA_LAUNCH_BLOCKING: reductions come after the step's last backward, and a unit is gathered when it is needed."""
    timeline = step(plan_of(zero=0, overrides={"launch_blocking": True}))
    reduced = labelled(timeline.program, "all-reduce")
    last = timeline.end[timeline.program.template >= 0].max()
    assert (timeline.start[reduced] >= last).all()
    assert plan_of(overrides={"launch_blocking": True}).units_in_flight == 1


def test_no_gather_follows_the_step_of_sharded_parameters() -> None:
    """The next forward gathers them anyway."""
    timeline = step(plan_of())
    (optimizer,) = labelled(timeline.program, "optimizer step")
    assert (timeline.end[labelled(timeline.program, "gather")] <= timeline.start[optimizer]).all()


def test_every_action_keeps_its_kernels_when_it_is_cut() -> None:
    """Cutting into units changes neither forward nor backward time of a rank, but for what runs beside them."""
    none = {"accumulation_traffic": 0.0}
    busy = [
        attribute_busy(
            build_program(unhindered(plan_of(zero=zero, microbatches=2, overrides=none)))
        )
        for zero in (0, 1, 2, 3)
    ]
    for one, other in itertools.pairwise(busy):
        assert one == other
    assert set(busy[0]) == {"forward", "backward", "weight_gradient"}
    assert Action.F == 0


def test_states_on_a_device_are_those_of_the_zero_paper() -> None:
    """ZeRO paper, figure 1: (2 + 2 + 12) Psi whole; 12 / N, then (2 + 12) / N, then all 16 / N with each stage.

    Whatever is gathered or reduced for the moment is a buffer.
    """
    psi, n = float(plan_of().layout.rank_parameters[0]), 16
    expected = {
        0: (2 * psi, 2 * psi, 12 * psi),
        1: (2 * psi, 2 * psi, 12 * psi / n),
        2: (2 * psi, 2 * psi / n, 12 * psi / n),
        3: (2 * psi / n, 2 * psi / n, 12 * psi / n),
    }
    for zero, states in expected.items():
        held = model_states(plan_of(zero=zero))
        got = [float(held[name][0]) for name in ("parameters", "gradients", "optimizer")]
        assert got == pytest.approx(states)


def test_gathered_units_are_buffers_and_hybrid_shards_keep_more() -> None:
    """The root is gathered all the time, a layer and the next while one is differentiated, beside the gradient of its largest weight, and the layer before is reduced."""
    plan = plan_of(overrides={"reduce_copy_traffic": 4, "reduced_bytes": 4})
    layers = plan_layers(plan)
    layer = layers["layers"] / plan.layout.model.layers
    root = layers["all"] - layers["layers"]
    element = plan.layout.framework.lowering.weight_grad_bytes
    fresh = fresh_gradients(plan)
    assert buffers(plan)[0] == pytest.approx(2 * root)
    assert fresh.gathered == pytest.approx(2 * 2 * layer + element * largest_weight(plan))
    assert fresh.passing == pytest.approx(fresh.gathered + 4 * layer)
    kept = plan_of(overrides={"reshard_after_forward": False})
    assert buffers(kept)[0] == pytest.approx(2 * layers["all"])
    hybrid = account_memory(plan_of(shard=8)).components["optimizer"][0]
    assert hybrid == pytest.approx(12 * layers["all"] / 8)


def test_what_the_host_keeps_is_not_on_the_device() -> None:
    """Neither state nor finished gradients; parameters too where they are offloaded."""
    states = account_memory(plan_of(offload="parameters", offload_to="nvme")).components
    assert all(states[name][0] == 0.0 for name in ("parameters", "gradients", "optimizer"))
    some = account_memory(plan_of(offload="optimizer")).components
    assert some["optimizer"][0] == 0.0 < some["parameters"][0]


def test_a_reduction_waits_for_the_copy_of_its_gradients() -> None:
    """Where gradients are laid out before they are reduced, every reduction is behind a row of such a copy."""
    program = build_program(plan_of(overrides={"reduce_copy_traffic": 4}))
    copies = [
        template >= 0 and "copy gradients" in program.templates[template].names
        for template in program.template.tolist()
    ]
    reductions = labelled(program, "reduce-scatter")
    assert len(reductions) > 20
    for row in reductions.tolist():
        waits = program.dep[program.dep_ptr[row] : program.dep_ptr[row + 1]]
        assert any(copies[before] for before in waits.tolist()), row
