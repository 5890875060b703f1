"""Laws of stragglers: what a large step loses to them is a part of its account like any other."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mpsim
from mpsim.engine import run
from mpsim.hardware import accelerator
from mpsim.parallel import FOLDED
from mpsim.program import TICK
from mpsim.program.expand import expand
from mpsim.program.unfold import Unfolding
from mpsim.scenario import Scenario
from mpsim.training.build import build_program
from mpsim.training.plan import PlanCosts
from mpsim.training.result import attribute
from mpsim.training.vocabulary import PARTS
from mpsim.workload import model_flops
from tests.nightly import examples
from tests.plans import small_plan

STRAGGLING = PARTS.index("straggling")
LAYOUTS = st.fixed_dictionaries(
    {
        "tp": st.sampled_from([1, 2]),
        "pp": st.sampled_from([1, 2, 3]),
        "dp": st.sampled_from([1, 4, 16]),
        "zero": st.sampled_from([0, 1, 3]),
        "schedule": st.sampled_from(["1f1b", "gpipe", "zb-h1"]),
        "offload": st.sampled_from(["none", "optimizer"]),
        "overrides": st.sampled_from([{}, {"gradient_norm": False}]),
    }
)
SCENARIO: dict[str, Any] = {
    "schema": 1,
    "model": {"preset": "llama2-7b", "layers": 4},
    "cluster": {"preset": "dgx-h100", "nodes": 8},
    "parallelism": {"tp": 2, "pp": 2},
    "training": {"global_batch": 64, "sequence_length": 2048},
    "framework": "megatron-core",
}


def scenario(**sections: Any) -> Scenario:
    """64 H100 with some sections replaced."""
    return Scenario.from_mapping({**SCENARIO, **sections})


def straggling_of(case: Scenario) -> float:
    """Seconds of the step that are lost to stragglers."""
    return mpsim.simulate(case).breakdown["straggling"]


@settings(max_examples=examples(10, 25), deadline=None)
@given(LAYOUTS)
def test_a_step_is_longer_by_what_it_loses_and_the_account_says_so(layout: dict[str, Any]) -> None:
    """On every rank the part is the loss, all parts sum to the step, and where ranks wait for a norm first the others are what they were."""
    without = run(build_program(small_plan(**layout)))
    plan = small_plan(**layout, straggling=1.0)
    timeline = run(build_program(plan))
    lost = np.rint(PlanCosts(plan).straggling() / TICK)
    assert (lost > 0) == (plan.layout.mesh.world > 8)
    parts, before = attribute(timeline), attribute(without)
    assert (parts[:, STRAGGLING] == lost).all()
    assert timeline.makespan == without.makespan + lost
    assert (parts.sum(axis=1) == timeline.makespan).all()
    if plan.layout.framework.optimizer.gradient_norm:
        others = [np.delete(table, STRAGGLING, axis=1) for table in (parts, before)]
        assert others[0] == pytest.approx(others[1])


@settings(max_examples=10, deadline=None)
@given(LAYOUTS)
def test_engines_and_foldings_agree_on_stragglers(layout: dict[str, Any]) -> None:
    """Replay equals simpy, and the folded rank its copies, bit for bit."""
    plan = small_plan(**{**layout, "dp": 4}, straggling=1.0)
    folded = build_program(plan)
    degrees = {axis.name: plan.layout.mesh.degree(axis.name) for axis in FOLDED}
    step = run(folded, "replay").makespan
    assert run(folded, "simpy").makespan == step
    assert run(Unfolding(expand(folded), degrees).program(), "simpy").makespan == step


def test_three_doublings_beyond_eight_by_hand() -> None:
    """64 H100: 3 doublings of 0.47 % of the model FLOPs of a GPU at 0.66 of 989 TFLOP/s."""
    case = scenario()
    flops = model_flops(case.transformer, 64, 2048) / 64
    rate = 0.66 * accelerator("h100-sxm").peak("bf16")
    assert straggling_of(case) == pytest.approx(3 * 0.0047 * flops / rate, rel=1e-6)


def test_a_narrow_format_loses_the_same_time() -> None:
    """The work is the same, so the loss is a larger share of a shorter step."""
    training = {**SCENARIO["training"], "precision": "fp8"}
    assert straggling_of(scenario(training=training)) == straggling_of(scenario())


@settings(max_examples=examples(8, 20), deadline=None)
@given(st.integers(0, 12))
def test_more_of_the_same_never_loses_less(doublings: int) -> None:
    """At constant work an accelerator the loss grows by as much with every doubling beyond 8, and is nothing up to 8."""
    losses = []
    for dp in (2**doublings, 2 ** (doublings + 1)):
        plan = small_plan(tp=1, pp=1, dp=dp, cluster="dgx-h100", straggling=1.0)
        losses.append(PlanCosts(plan).straggling())
    first, second = losses
    assert second >= first
    assert (first == 0) == (doublings <= math.log2(8))
    if first:
        assert second / first == pytest.approx((doublings - 2) / (doublings - 3))


@pytest.mark.parametrize("figure", ["peak_flops", "memory_bandwidth"])
def test_faster_accelerators_never_lose_more(figure: str) -> None:
    """The loss is of the time that work takes."""
    fast = {
        "peak_flops": {"bf16": "1500 TFLOP/s"},
        "memory_bandwidth": "5 TB/s",
    }[figure]
    cluster = {**SCENARIO["cluster"], "accelerator": {"preset": "h100-sxm", figure: fast}}
    assert straggling_of(scenario(cluster=cluster)) <= straggling_of(scenario())


def test_one_key_turns_it_off_and_a_variation_replaces_it() -> None:
    """Both take the step back to what it is without, and the constants go with it."""
    with_loss = mpsim.simulate(scenario())
    lost = with_loss.breakdown["straggling"]
    assert lost > 0
    for sections in ({"simulation": {"straggling": False}}, {"variation": {"jitter": 0.01}}):
        plain = mpsim.simulate(scenario(**sections))
        assert plain.breakdown["straggling"] == 0
        assert plain.timeline.step_time_s == pytest.approx(
            with_loss.timeline.step_time_s - lost, abs=2 * TICK
        )
        assert not any(constant.name.startswith("straggling.") for constant in plain.constants)
    names = {constant.name for constant in with_loss.constants}
    assert "straggling.wait.h100-sxm.per_doubling" in names


@pytest.mark.parametrize(
    "worse",
    [
        {"links": [{"node": 0, "bandwidth": 0.9}]},
        {"slow": [{"ranks": [5], "speed": 0.999}]},
        {"network_jitter": 0.001, "samples": 2},
    ],
)
def test_a_thin_link_or_a_slow_rank_makes_no_step_faster(worse: dict[str, Any]) -> None:
    """What a variation draws of links, and the rank that it names, leave the others as late as they usually are."""
    usual = mpsim.simulate(scenario()).summary["step_time_s"]
    assert mpsim.simulate(scenario(variation=worse)).summary["step_time_s"] >= usual


def test_a_digest_of_a_scenario_that_does_not_say_is_that_of_the_default() -> None:
    """The key is written only where it is off."""
    assert (
        scenario(simulation={"straggling": True}).digest
        == scenario().digest
        != scenario(simulation={"straggling": False}).digest
    )


def test_the_step_answers_to_the_loss_in_proportion() -> None:
    """The elasticity of `straggling` is its share of the step."""
    result = mpsim.simulate(scenario())
    share = result.breakdown["straggling"] / result.timeline.step_time_s
    assert result.sensitivity()["straggling"].elasticity == pytest.approx(share, rel=1e-3)
