"""Laws of mixed clusters: parts that are equal change nothing, slower ones never help, and every account adds up."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

import mpsim
from mpsim.engine import run
from mpsim.errors import ScenarioError
from mpsim.result import Result
from mpsim.scenario import Scenario
from mpsim.training.build import build_program
from mpsim.training.plan import Plan, ReplicaClass
from mpsim.training.planning import make_plan

MODEL = {"preset": "gpt3-175b", "layers": 16, "hidden": 8192, "heads": 64, "ffn_hidden": 32768}
BASE: dict[str, Any] = {
    "schema": 1,
    "model": MODEL,
    "cluster": {"preset": "dgx-h100", "nodes": 8},
    "parallelism": {"tp": 8, "pp": 4},
    "training": {"global_batch": 32, "sequence_length": 2048},
    "framework": {"preset": "megatron-core"},
}
SLOW = {"accelerator": "a100-sxm-80", "nic": "ib-hdr"}


def scenario(**sections: dict[str, Any]) -> Scenario:
    """The base with some keys of some sections replaced."""
    changed = {key: {**BASE.get(key, {}), **more} for key, more in sections.items()}
    return Scenario.from_mapping({**BASE, **changed})


def simulated(**sections: dict[str, Any]) -> Result:
    """The result of the base with some keys replaced."""
    return mpsim.simulate(scenario(**sections))


@pytest.fixture(scope="module")
def uniform() -> Result:
    """The base on one kind of node."""
    return simulated()


@pytest.mark.parametrize("key", ["stages", "replicas"])
def test_equal_parts_are_bit_equal_to_the_uniform_cluster(uniform: Result, key: str):
    """Writing the same nodes in several parts gives the same summary."""
    count = {"stages": 2, "replicas": 1}[key]
    parts = [{"count": count}, {"count": count, "nic": "ib-ndr"}]
    assert simulated(cluster={key: parts}).summary == uniform.summary


def _apart(plan: Plan) -> list[Plan]:
    """The plan with its equal parts held apart: cost models or classes of their own."""
    twin = dataclasses.replace(plan.layout.cluster, name="twin")
    halves = tuple(
        ReplicaClass((one,), plan.layout.cluster, plan.orders) for one in range(plan.layout.mesh.dp)
    )
    clusters = (plan.layout.cluster, twin, plan.layout.cluster, twin)
    return [
        plan.on(dataclasses.replace(plan.layout, stage_clusters=clusters)),
        dataclasses.replace(plan, classes=halves),
    ]


@pytest.mark.parametrize("zero", [0, 1])
@pytest.mark.parametrize("engine", ["simpy", "replay"])
def test_parts_held_apart_give_the_same_times(zero: int, engine: str):
    """Cost models by stage and programs by replica, joined, end when the folded program of the uniform cluster does."""
    plan = make_plan(scenario(parallelism={"zero": zero}))
    whole = run(build_program(plan), engine)
    by_stage, by_replica = (run(build_program(one), engine) for one in _apart(plan))
    np.testing.assert_array_equal(by_stage.end, whole.end)
    assert by_replica.makespan == whole.makespan
    each = [np.sort(whole.end[whole.program.rank == rank]) for rank in range(plan.layout.mesh.pp)]
    joined = by_replica.program
    for rank in range(plan.layout.mesh.pp):
        # rows in which the replicas meet are of the first class
        np.testing.assert_array_equal(np.sort(by_replica.end[joined.rank == rank]), each[rank])


@pytest.mark.parametrize("where", range(4))
def test_a_slower_stage_never_speeds_up_the_step(uniform: Result, where: int):
    """One pipeline rank on slower nodes makes the step longer, wherever it is."""
    parts = [{"count": 1, **(SLOW if rank == where else {})} for rank in range(4)]
    mixed = simulated(cluster={"stages": parts})
    assert mixed.timeline.makespan > uniform.timeline.makespan
    slowest = simulated(cluster=SLOW)
    assert mixed.timeline.makespan < slowest.timeline.makespan


@pytest.mark.parametrize(
    "sections",
    [
        {"cluster": {"stages": [{"count": 2}, {"count": 2, **SLOW}]}},
        {"cluster": {"replicas": [{"count": 1}, {"count": 1, **SLOW}]}},
        {"training": {"batch_per_replica": [20, 12]}},
        {
            "cluster": {"replicas": [{"count": 1}, {"count": 1, **SLOW}]},
            "training": {"batch_per_replica": [22, 10]},
        },
    ],
    ids=["stages", "replicas", "batches", "both"],
)
def test_the_account_of_a_mixed_cluster_sums(sections: dict[str, Any]):
    """Parts of every rank class sum to the step, classes to all ranks, and energy and price are sums over parts."""
    result = simulated(**sections)
    np.testing.assert_array_equal(result.parts.sum(axis=1), result.timeline.makespan)
    assert result.program.class_size.sum() == result.plan.layout.mesh.world
    assert sum(result.breakdown.values()) == pytest.approx(result.summary["step_time_s"])
    prices = [one.accelerator.price_per_hour for one in result.plan.class_clusters]
    hours = result.summary["step_time_s"] / 3600
    assert result.summary["cost_per_step"] == pytest.approx(
        hours * sum(np.array(prices) * result.program.class_size)
    )


def test_a_class_stands_for_the_replicas_that_are_alike():
    """One replica of eleven microbatches and three of seven: 8 tensor-parallel ranks each, so 8 and 24 ranks a stage."""
    sections = {"parallelism": {"pp": 2}, "training": {"batch_per_replica": [11, 7, 7, 7]}}
    program = simulated(**sections).program
    assert program.class_size.tolist() == [8, 8, 24, 24]


def test_mfu_counts_against_the_sum_of_peaks():
    """Half the ranks at 989, half at 312 TFLOP/s: the mean peak is 650.7."""
    result = simulated(cluster={"stages": [{"count": 2}, {"count": 2, **SLOW}]})
    one = result.summary
    peak = (989.4e12 + 312e12) / 2
    achieved = one["model_tflops_per_accelerator"] * 1e12
    assert one["mfu"] == pytest.approx(achieved / peak, rel=1e-3)


def test_a_batch_that_follows_speed_helps():
    """With a replica at a third of the speed, giving it a third of the other's microbatches beats halves."""
    replicas = {"replicas": [{"count": 1}, {"count": 1, **SLOW}]}
    even = simulated(cluster=replicas)
    uneven = simulated(cluster=replicas, training={"batch_per_replica": [22, 10]})
    assert uneven.timeline.makespan < even.timeline.makespan


def test_an_uneven_batch_on_equal_nodes_never_helps(uniform: Result):
    """Moving microbatches from one of two equal replicas to the other makes the step longer."""
    assert simulated(training={"batch_per_replica": [20, 12]}).timeline.makespan > (
        uniform.timeline.makespan
    )


def test_replicas_end_their_reductions_together():
    """A reduction of gradients ends at one time for both classes: it is one row on the streams of both."""
    result = simulated(cluster={"replicas": [{"count": 1}, {"count": 1, **SLOW}]})
    program = result.timeline.program
    last = [result.timeline.end[result.timeline.rows(rank)].max() for rank in range(program.ranks)]
    assert max(last) == result.timeline.makespan
    shared = np.diff(program.slot_ptr)[program.span > 0]
    assert shared.min() >= 2


def test_memory_is_held_against_the_capacity_of_each_rank():
    """The fullest rank is the one nearest to its own capacity."""
    small = {"accelerator": {"preset": "h100-sxm", "memory": "20 GB"}}
    result = simulated(cluster={"stages": [{"count": 3}, {"count": 1, **small}]})
    assert result.memory.fullest == 3
    assert result.summary["memory"]["capacity"] == 20e9


def test_a_mixed_scenario_is_the_same_after_resolving():
    """Resolved data gives the same digest, and the same parts."""
    one = scenario(
        cluster={"replicas": [{"count": 1}, {"count": 1, **SLOW}]},
        training={"batch_per_replica": [22, 10]},
    )
    again = Scenario.from_mapping(one.resolved())
    assert again.digest == one.digest
    assert again.digest != scenario().digest


@pytest.mark.parametrize(
    ("sections", "key", "words"),
    [
        ({"cluster": {"stages": [{"count": 3}]}}, "cluster.stages", "sum to 3, but pp is 4"),
        ({"cluster": {"replicas": [{"count": 3}]}}, "cluster.replicas", "sum to 3, but dp is 2"),
        (
            {"cluster": {"stages": [{"count": 4}], "replicas": [{"count": 2}]}},
            "cluster.replicas",
            "got stages and replicas",
        ),
        (
            {"cluster": {"stages": [{"count": 4, "accelerator": "a1000"}]}},
            "cluster.stages.0.accelerator.preset",
            "unknown accelerator",
        ),
        ({"cluster": {"stages": [{"cont": 4}]}}, "cluster.stages.0.cont", "did you mean 'count'"),
        (
            {"training": {"batch_per_replica": [16, 8]}},
            "training.batch_per_replica",
            "sums to 24, but global_batch is 32",
        ),
        (
            {"training": {"batch_per_replica": [16, 8, 8]}},
            "training.batch_per_replica",
            "3 batches for dp 2",
        ),
        (
            {
                "cluster": {"replicas": [{"count": 1}, {"count": 1, **SLOW}]},
                "simulation": {"network": "flow"},
            },
            "simulation.network",
            "replicas differ",
        ),
    ],
)
def test_mistakes_say_where_and_what(sections: dict[str, Any], key: str, words: str):
    """A mixed cluster that does not fit its degrees is refused at its own key."""
    with pytest.raises(ScenarioError) as caught:
        scenario(**sections)
    assert any(key == one.key and words in one.message for one in caught.value.problems), str(
        caught.value
    )


def test_a_domain_of_two_kinds_is_refused():
    """Stages of four ranks share nodes of eight: a node cannot be two things."""
    one = scenario(
        cluster={"stages": [{"count": 1}, {"count": 3, **SLOW}], "nodes": 4},
        parallelism={"tp": 4, "pp": 4, "dp": 2, "order": "tp-cp-ep-pp-dp"},
    )
    with pytest.raises(ScenarioError, match="two parts"):
        make_plan(one)


def test_replicas_that_could_not_meet_are_refused():
    """Reductions after every microbatch cannot pair up where replicas run different numbers of them."""
    with pytest.raises(ScenarioError, match="as many microbatches"):
        simulated(
            parallelism={"tp": 8, "pp": 1, "zero": 3},
            framework={"preset": "torch-fsdp2"},
            cluster={"preset": "dgx-h100", "nodes": 2},
            training={"global_batch": 8, "batch_per_replica": [6, 2]},
        )


def test_studies_take_replicas_that_differ():
    """Sensitivity lists every parameter."""
    result = simulated(cluster={"replicas": [{"count": 1}, {"count": 1, **SLOW}]})
    assert result.sensitivity().rows
