"""Laws of steps with experts: accounts that add up, streams in order, engines and foldings that agree, overlap that helps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from mpsim.engine import Timeline, run
from mpsim.framework import ExpertDispatch, ExpertOverlap
from mpsim.parallel import FOLDED, rank_load
from mpsim.parallel.experts import busiest_rank, expected_maximum
from mpsim.program.expand import expand
from mpsim.program.unfold import Unfolding
from mpsim.training import Plan, build_program
from mpsim.training.result import attribute
from mpsim.training.vocabulary import PARTS
from mpsim.workload import Experts
from tests.nightly import examples
from tests.plans import small_plan

MOE = Experts(experts=8, top_k=2, ffn_hidden=1024, shared_experts=1)
EP = PARTS.index("exposed_ep")

layouts = st.fixed_dictionaries(
    {
        "tp": st.sampled_from([1, 2]),
        "pp": st.sampled_from([1, 2]),
        "dp": st.sampled_from([2, 4]),
        "cp": st.sampled_from([1, 2]),
        "ep": st.sampled_from([1, 2, 4]),
        "etp": st.sampled_from([None, 1]),
        "schedule": st.sampled_from(["1f1b", "dualpipe-v", "zb-v"]),
        "recompute": st.sampled_from(["none", "selective"]),
        "overrides": st.fixed_dictionaries(
            {
                "expert_overlap": st.sampled_from([one.value for one in ExpertOverlap]),
                "expert_dispatch": st.sampled_from([one.value for one in ExpertDispatch]),
                "grouped_gemm": st.booleans(),
            }
        ),
    }
)


def _plan(layout: dict[str, Any]) -> Plan:
    etp = layout["tp"] if layout["etp"] is None else layout["etp"]
    assume(layout["tp"] * layout["cp"] * layout["dp"] % (etp * layout["ep"]) == 0)
    return small_plan(
        **layout,
        virtual_stages=1 if layout["schedule"] == "1f1b" else 2,
        model_name="gpt2-medium",
        sequence_length=1024,
        moe=MOE,
        preset="megatron-core",
        sequence_parallel=layout["tp"] > 1,
        cluster="dgx-h100",
    )


def _step(**overrides: str | float) -> Timeline:
    plan = small_plan(
        tp=1,
        pp=2,
        dp=16,
        ep=16,
        schedule="dualpipe-v",
        virtual_stages=2,
        microbatches=16,
        moe=Experts(experts=16, top_k=2, ffn_hidden=4096, shared_experts=1),
        preset="megatron-core",
        recompute="none",
        cluster="dgx-h100",
        overrides={"expert_dispatch": "all-to-all", **overrides},
    )
    return run(build_program(plan), "replay")


@settings(max_examples=examples(16, 40), deadline=None)
@given(layouts)
def test_the_account_of_every_rank_sums_to_the_step(layout: dict[str, Any]) -> None:
    """Whole ticks, no part negative, and nothing travels without expert parallelism."""
    plan = _plan(layout)
    timeline = run(build_program(plan), "replay")
    parts = attribute(timeline)
    assert (parts.sum(axis=1) == timeline.makespan).all()
    assert (parts >= 0).all()
    if plan.layout.mesh.ep * plan.layout.mesh.expert_tp == 1:
        assert not parts[:, EP].any()


@settings(max_examples=15, deadline=None)
@given(layouts)
def test_kernels_take_turns_and_engines_agree(layout: dict[str, Any]) -> None:
    """Expanded, both engines start and end every kernel at the same tick; folded, the step takes as long."""
    whole = build_program(_plan(layout))
    program = expand(whole)
    replayed, simulated = run(program, "replay"), run(program, "simpy")
    assert np.array_equal(replayed.start, simulated.start)
    assert replayed.makespan == run(whole, "replay").makespan


@settings(max_examples=10, deadline=None)
@given(layouts)
def test_folded_equals_unfolded(layout: dict[str, Any]) -> None:
    """Every rank by itself ends the step when its class does."""
    plan = _plan(layout)
    folded = expand(build_program(plan))
    mesh = plan.layout.mesh
    everyone = Unfolding(folded, {axis.name: mesh.degree(axis.name) for axis in FOLDED}).program()
    assert run(everyone, "replay").makespan == run(folded, "replay").makespan


def test_what_runs_beside_dispatch_and_combine_hides_them() -> None:
    """Blocking exposes most, the shared expert hides some, another microbatch the most; the same bytes travel."""
    steps = [_step(expert_overlap=one.value) for one in ExpertOverlap]
    exposed = [attribute(one)[:, EP].mean() for one in steps]
    assert exposed[0] > exposed[1] > exposed[2]
    sent = {round(float((one.program.up_bytes + one.program.out_bytes).sum())) for one in steps}
    assert len(sent) == 1


def test_a_fused_dispatch_across_nodes_sends_less_over_nics_and_takes_less_time() -> None:
    """Eight of 16 experts' ranks share a node: of four copies a token, at most one leaves for the other node."""

    def step(dispatch: str) -> Timeline:
        plan = small_plan(
            tp=1,
            pp=1,
            dp=16,
            ep=16,
            moe=Experts(experts=16, top_k=4, ffn_hidden=1024),
            preset="megatron-core",
            cluster="dgx-h100",
            # a host that is behind would hide both
            overrides={"expert_dispatch": dispatch, "launch_cost": 0.0},
        )
        return run(build_program(plan), "replay")

    def outside(one: Timeline) -> float:
        return float(one.program.out_bytes[one.program.template >= 0].sum())

    plain, fused = step("all-to-all"), step("fused")
    once = 1 - 70 / 1820  # C(8,4) / C(16,4)
    np.testing.assert_allclose(outside(fused) / outside(plain), once / (4 * 8 / 16), rtol=1e-9)
    assert fused.makespan < plain.makespan


def test_rows_put_in_order_beside_the_exchange_take_as_long_unless_they_hide() -> None:
    """Exposed, a kernel takes its time on either stream, HybridEP's longer for its sums, and none inside the exchange; behind another microbatch it takes less on that of the exchange."""

    def step(regrouping: str, overlap: str) -> float:
        plain: dict[str, str | float] = {"expert_dispatch": "fused", "launch_cost": 0.0}
        timed = _step(expert_regrouping=regrouping, expert_overlap=overlap, **plain)
        return float(timed.makespan)

    kernel, beside, fused = (step(one, "none") for one in ("kernel", "beside", "fused"))
    assert fused < kernel < beside < 1.01 * kernel
    assert (
        step("fused", "microbatch") <= step("beside", "microbatch") < step("kernel", "microbatch")
    )


def test_the_busiest_expert_is_what_a_step_waits_for() -> None:
    """Imbalance 1.5 takes longer, and not by more than half."""

    def makespan(imbalance: float) -> float:
        moe = Experts(experts=8, top_k=2, ffn_hidden=4096, imbalance=imbalance)
        plan = small_plan(tp=1, pp=1, dp=8, ep=8, moe=moe, preset="megatron-core")
        return float(run(build_program(plan), "replay").makespan)

    assert makespan(1.0) < makespan(1.5) < 1.5 * makespan(1.0)


@settings(max_examples=examples(12, 30), deadline=None)
@given(st.sampled_from([1, 2, 4, 8, 16]), st.floats(0.0, 1.0))
def test_more_experts_on_a_rank_even_out(ranks: int, spread: float) -> None:
    """The busiest rank has at least the mean, and no more with four times the experts; half the excess, as deviations go by the root."""
    few, many = rank_load(16, ranks, spread), rank_load(64, ranks, spread)
    assert 1.0 <= many <= few <= ranks
    if few < ranks:
        np.testing.assert_allclose(many - 1.0, (few - 1.0) / 2.0, atol=1e-12)


@pytest.mark.parametrize("ranks", [2, 4, 16])
def test_the_busiest_rank_is_that_of_random_draws(ranks: int) -> None:
    """Ranks of 4 experts, spread 0.1: the mean busiest of 20,000 draws of shares that sum to the whole, its excess within 2 %."""
    shares = 1.0 + 0.1 * np.random.default_rng(0).standard_normal((20_000, ranks, 4))
    loads = shares.mean(axis=2) / shares.mean(axis=(1, 2))[:, None]
    np.testing.assert_allclose(
        rank_load(4 * ranks, ranks, 0.1) - 1.0, loads.max(axis=1).mean() - 1.0, rtol=0.02
    )


def test_chance_alone_makes_a_rank_the_busiest() -> None:
    """32,768 choices among 16 ranks alike: the mean busiest of 4,000 draws."""
    draws = np.random.default_rng(0).multinomial(32_768, [1 / 16] * 16, 4000).max(axis=1)
    np.testing.assert_allclose(
        float(busiest_rank(1.0, 16, 32_768)) - 1.0, draws.mean() * 16 / 32_768 - 1.0, rtol=0.02
    )


def test_steps_wait_for_the_rank_that_chance_makes_the_busiest() -> None:
    """Eight ranks of equally popular experts: not where experts have a capacity, nor where a forced routing deals them out."""

    def load(*, capacity: float = 0.0, dealt: bool = False) -> float:
        moe = Experts(experts=8, top_k=2, ffn_hidden=4096, capacity_factor=capacity)
        overrides = {"consecutive_experts": dealt}
        plan = small_plan(
            tp=1, pp=1, dp=8, ep=8, moe=moe, preset="megatron-core", overrides=overrides
        )
        assert plan.sharding.routing is not None
        return plan.sharding.routing.load

    assert 1.0 < load() < 1.1
    assert load(capacity=1.0) == load(dealt=True) == 1.0


@pytest.mark.parametrize(
    ("count", "expected"),
    [(1, 0.0), (2, 1 / np.sqrt(np.pi)), (3, 1.5 / np.sqrt(np.pi)), (4, 1.02938)],
)
def test_expected_maxima_of_normal_numbers_are_the_known_ones(count: int, expected: float) -> None:
    """Closed forms for 1, 2 and 3; Harter (1961), table 1, for 4."""
    np.testing.assert_allclose(expected_maximum(count), expected, atol=1e-5)
