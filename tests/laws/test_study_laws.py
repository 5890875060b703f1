"""Laws of studies of one step: they hold whatever the network, the devices and the mixture of nodes."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

import mpsim
from mpsim.scenario import Scenario
from mpsim.scenario.sections import Variation
from mpsim.simulate import prepare
from mpsim.study import VariedSteps, simulate_variation
from tests.nightly import some

QUICKSTART = Path(__file__).resolve().parents[2] / "scenarios" / "quickstart.yaml"
FLOW = {"simulation.network": "flow"}
BESIDE = {"simulation.interference": True}
MIXED: dict[str, Any] = {
    "schema": 1,
    "model": {
        "preset": "gpt3-175b",
        "layers": 8,
        "hidden": 4096,
        "heads": 32,
        "ffn_hidden": 16384,
    },
    "cluster": {"preset": "dgx-h100", "nodes": 4},
    "parallelism": {"tp": 8, "pp": 2},
    "training": {"global_batch": 8, "sequence_length": 1024},
    "framework": {"preset": "megatron-core"},
}
SLOW = {"accelerator": "a100-sxm-80", "nic": "ib-hdr"}


def small(**values: object) -> Scenario:
    """The quickstart with few layers and microbatches, and some keys replaced."""
    few = {"training.global_batch": 8, "model.layers": 8}
    return mpsim.load(QUICKSTART).with_values({**few, **values})


def mixed(key: str, slow: dict[str, Any] | None = None) -> Scenario:
    """Two parts, by stages or by replicas; the second with other nodes."""
    parts = [{"count": 1}, {"count": 1, **(SLOW if slow is None else slow)}]
    return Scenario.from_mapping({**MIXED, "cluster": {**MIXED["cluster"], key: parts}})


@pytest.mark.parametrize("values", some([FLOW, BESIDE, {**FLOW, **BESIDE}], 1))
@pytest.mark.parametrize("name", ["nic", "scale_up"])
def test_an_elasticity_is_that_of_whole_simulations(values: dict[str, object], name: str):
    """Where rates change while the step runs, each variant is the simulation of a scenario with that link."""
    scenario = small(**values)
    row = mpsim.simulate(scenario).sensitivity()[f"{name}.bandwidth"]
    link = getattr(scenario.hardware.node, name)
    # the nameplate in bits or bytes a second, as the scenario spells it
    for share, seconds in ((0.99, row.less_s), (1.01, row.more_s)):
        prepared = prepare(scenario)
        plan = prepared.plan
        faster = dataclasses.replace(link, bandwidth=link.bandwidth * share)
        node = dataclasses.replace(plan.layout.cluster.node, **{name: faster})
        cluster = dataclasses.replace(plan.layout.cluster, node=node)
        costs = type(prepared.costs)(plan.on(dataclasses.replace(plan.layout, cluster=cluster)))
        assert prepared.at(costs).timeline().step_time_s == seconds


@pytest.mark.parametrize("values", [FLOW, BESIDE])
def test_everything_faster_is_a_faster_step_where_rates_change(values: dict[str, object]):
    """The sum rule: rates and times together are all that a step takes, but for what formulas fix."""
    sensitivity = mpsim.simulate(small(**values)).sensitivity()
    for row in sensitivity.rows:
        helps = row.name.endswith(("bandwidth", "flops"))
        assert row.elasticity <= 1e-3 if helps else row.elasticity >= -1e-3, row.name
    assert 0.85 < sum(abs(row.elasticity) for row in sensitivity.rows) < 1.05


@pytest.mark.parametrize("key", ["stages", "replicas"])
def test_elasticities_of_equal_parts_sum_to_that_of_the_whole(key: str):
    """Two parts whose nodes differ in nothing that takes time share what one kind has."""
    scenario = mixed(key, {"price_per_hour": "1 USD/h"})
    assert scenario.is_mixed
    whole = mpsim.simulate(Scenario.from_mapping(MIXED)).sensitivity()
    parts = mpsim.simulate(scenario).sensitivity()
    assert parts.step_time_s == whole.step_time_s
    for row in whole.rows:
        shares = [one.elasticity for one in parts.rows if one.name.startswith(row.name)]
        assert len(shares) in (1, 2)
        assert sum(shares) == pytest.approx(row.elasticity, abs=5e-3), row.name


@pytest.mark.parametrize("key", ["stages", "replicas"])
def test_only_what_a_step_waits_for_is_worth_more(key: str):
    """Where replicas differ in speed, the slower ones' processors decide and the others' are worth nothing."""
    sensitivity = mpsim.simulate(mixed(key)).sensitivity()
    fast, slow = (
        sensitivity[f"accelerator.peak_flops of {name}"].elasticity
        for name in ("h100-sxm", "a100-sxm-80")
    )
    assert slow < -0.01
    if key == "replicas":
        assert fast == pytest.approx(0.0, abs=1e-3)


@pytest.mark.parametrize("values", [FLOW, BESIDE])
def test_a_sweep_gives_what_single_runs_give(values: dict[str, object]):
    """Points whose rates change while they run are not replayed."""
    scenario = small(**values)
    for row in mpsim.sweep(scenario, {"parallelism.tp": [2, 4]}):
        alone = mpsim.simulate(scenario.with_values(row.values)).summary
        assert row.summary is not None
        assert row.summary["engine"] == alone["engine"]
        assert row.number("step_time_s") == alone["step_time_s"]


def varied(result: mpsim.Result, **section: Any) -> VariedSteps:
    """What a ``variation:`` section gives."""
    return simulate_variation(result, Variation.model_validate(section))


@pytest.mark.parametrize("values", [FLOW, BESIDE, {**FLOW, **BESIDE}])
def test_without_anything_to_vary_the_step_is_the_plain_one(values: dict[str, object]):
    """An empty section, a speed of 1 and a link with all its bandwidth change nothing, and nobody is to blame."""
    result = mpsim.simulate(small(**values))
    for section in (
        {},
        {"slow": [{"node": 1, "speed": 1.0}]},
        {"links": [{"node": 0, "bandwidth": 1.0}]},
    ):
        steps = varied(result, **section)
        assert steps.step_times_s.tolist() == [result.timeline.step_time_s]
        assert steps.blame.worst() == []


@pytest.mark.parametrize("values", [FLOW, BESIDE])
def test_a_slow_rank_is_to_blame_whatever_else_meets(values: dict[str, object]):
    """The class of the slow rank (the sixth: second stage, first replica) causes most of the waiting; a slower one makes a longer step."""
    result = mpsim.simulate(small(**values))
    slow, slower = (varied(result, slow=[{"ranks": [5], "speed": speed}]) for speed in (0.8, 0.5))
    assert 1.0 < slow.slowdown < slower.slowdown
    assert slower.blame.worst(1)[0][0].startswith("pp 1 dp 0")


def test_variation_is_the_same_where_no_two_transfers_meet():
    """The same draws give the same steps, replayed or simulated."""
    alone = {"parallelism.pp": 2, "parallelism.tp": 8, "training.micro_batch": 4}
    section = {"speed": 0.05, "jitter": 0.05, "network_jitter": 0.05, "samples": 5}
    first, second = (
        varied(mpsim.simulate(small(**alone, **values)), **section) for values in ({}, FLOW)
    )
    assert first.step_times_s == pytest.approx(second.step_times_s, rel=1e-9)


@pytest.mark.parametrize("values", [FLOW, BESIDE])
def test_a_thin_link_is_as_slow_as_half_the_nodes_links(values: dict[str, object]):
    """A node with half its bandwidth is slower than none and no slower than a cluster with half of it everywhere."""
    plain = mpsim.simulate(small(**values))
    thin = varied(plain, links=[{"node": 0, "bandwidth": 0.25}])
    assert thin.slowdown > 1.0
    everywhere = varied(plain, links=[{"node": node, "bandwidth": 0.25} for node in (0, 1)])
    assert thin.mean_s <= everywhere.mean_s * (1 + 1e-9)


@pytest.mark.parametrize("values", [FLOW, BESIDE])
def test_experts_with_more_to_do_take_as_much_longer_where_rates_change(values: dict[str, object]):
    """The same draws of loads slow the step down by the same share, whether actions are replayed whole or their kernels meet."""
    scenario = mpsim.load(QUICKSTART.parent / "mixtral-8x7b-h100.yaml")
    cut = {"model.layers": 4, "training.global_batch": 32, "parallelism.pp": 1}
    plain, changed = (
        varied(mpsim.simulate(scenario.with_values({**cut, **more})), experts=0.3, samples=3)
        for more in ({}, values)
    )
    assert plain.slowdown != 1.0
    assert changed.slowdown == pytest.approx(plain.slowdown, abs=2e-3)
