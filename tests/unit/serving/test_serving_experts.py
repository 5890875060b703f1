"""Experts of served models: how many a batch touches, what is stored wide, and what kernels add."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from mpsim.errors import ScenarioError
from mpsim.hardware import build_cluster, system
from mpsim.scenario import Scenario
from mpsim.scenario.serving import ServiceLevel, Workload
from mpsim.serving.engines import engine
from mpsim.serving.plan import ServicePlan
from mpsim.serving.planning import make_service
from mpsim.serving.work import ExpertWork, wide_in
from mpsim.workload import Module, Role, model

TOKENS = np.array([1.0, 4.0, 32.0, 256.0, 8192.0])


def _plan(**fields: object) -> ServicePlan:
    """DeepSeek-V3 in 8 bits on one node of H200."""
    common = {
        "name": "experts",
        "model": model("deepseek-v3"),
        "cluster": system("dgx-h200", nodes=1),
        "engine": engine("sglang"),
        "workload": Workload(rate=1.0),
        "slo": ServiceLevel(),
        "weights": "fp8_block",
        "tp": 8,
    }
    return ServicePlan(**{**common, **fields})  # type: ignore[arg-type]


def _touched(plan: ServicePlan, **fields: float) -> np.ndarray:
    routed: ExpertWork = dataclasses.replace(plan.work.experts[0], **fields)  # type: ignore[arg-type]
    return routed.touched(TOKENS)


def test_equally_popular_experts_are_missed_independently() -> None:
    """Of 256 experts, eight a token: 256 (1 - (31 / 32)^m)."""
    found = _touched(_plan(), spread=0.0)
    assert found == pytest.approx(256 * (1 - (31 / 32) ** TOKENS))


def test_unequal_experts_are_touched_less_but_never_below_a_tokens_own() -> None:
    """The more popularity is spread, the fewer many tokens touch; one token touches eight."""
    even, some, much = (_touched(_plan(), spread=spread) for spread in (0.0, 1.0, 2.0))
    assert (some[1:] < even[1:]).all()
    assert (much[1:] < some[1:]).all()
    assert even[0] == some[0] == much[0] == 8


@pytest.mark.parametrize(("ranks", "tokens"), [(8, 1), (8, 9), (8, 128), (32, 64), (4, 512)])
def test_the_busiest_rank_is_that_of_drawn_tokens(ranks: int, tokens: int) -> None:
    """Experts of gamma popularity, eight drawn without replacement for a token: the most touched and the most rows of a rank within a tenth of the mean of 200 draws, one in seven where chance alone decides."""
    draw, spread, experts, top_k = np.random.default_rng(0), 1.2, 256, 8
    touched, rows = [], []
    for _ in range(200):
        popular = np.log(draw.gamma(spread**-2, size=experts) + 1e-9)
        keys = popular + draw.gumbel(size=(tokens, experts))
        chosen = np.argpartition(-keys, top_k, axis=1)[:, :top_k]
        count = np.bincount(chosen.ravel(), minlength=experts).reshape(ranks, -1)
        touched.append((count > 0).sum(axis=1).max())
        rows.append(count.sum(axis=1).max())
    plan = _plan(tp=ranks, ep=ranks, cluster=system("dgx-h200", nodes=4))
    routed = dataclasses.replace(plan.work.experts[0], spread=spread)
    number, within = np.array([float(tokens)]), 0.15 if tokens == 1 else 0.1
    assert routed.touched(number)[0] == pytest.approx(np.mean(touched), rel=within)
    assert routed.rows(number)[0] == pytest.approx(np.mean(rows), rel=within)


def test_shared_experts_are_whole_where_ranks_divide_experts_and_keep_requests() -> None:
    """Of 2,048 features, gate beside up, a rank has all for its own tokens; an eighth for all tokens where one of both is not so."""

    def shared(**fields: int) -> tuple[int, float]:
        linears = _plan(**fields).work.linears
        up = next(x for x in linears if x.product.module is Module.SHARED_EXPERTS)
        return up.product.n, up.share

    assert shared(ep=8, attention_dp=8) == (4096, 0.125)
    assert shared(ep=8) == shared(attention_dp=8) == (512, 1.0)


def test_the_busiest_rank_touches_more_than_its_share() -> None:
    """With experts divided among eight ranks all wait for the fullest; none has more than its 32."""
    one, divided = _touched(_plan()), _touched(_plan(ep=8))
    assert (divided[:4] > one[:4] / 8).all()
    assert divided.max() <= 32


def test_four_bit_mixtures_keep_what_makes_queries_and_keys_wide() -> None:
    """NVFP4 narrows the projection out of attention, MXFP4 nothing around it; dense models and 8 bits all."""
    dense, mixture = model("llama3-8b"), model("deepseek-v3")
    assert Role.QUERY_DOWN in wide_in(mixture, "nvfp4")
    assert Role.PROJECTION not in wide_in(mixture, "nvfp4")
    assert Role.PROJECTION in wide_in(mixture, "mxfp4")
    assert not wide_in(dense, "nvfp4")
    assert not wide_in(mixture, "fp8_block")


def test_launches_of_shared_experts_hide_behind_the_routed_ones() -> None:
    """A shared expert adds no more than the time in which its weights are read, twice over."""
    shared = _plan()
    moe = shared.model.moe
    assert moe is not None
    bare = _plan(
        model=dataclasses.replace(shared.model, moe=dataclasses.replace(moe, shared_experts=0))
    )
    extra = shared.prices.parts(TOKENS[:1])["linear"] - bare.prices.parts(TOKENS[:1])["linear"]
    read = 58 * 3 * 7168 * 2048 / 8 / shared.rates.bandwidth
    assert 0 < float(extra[0]) < 2 * read


def test_weights_of_four_bits_wait_for_multiprocessors_not_for_memory() -> None:
    """Eight bits come faster from H200's memory than from H100's; four are widened no faster, one a multiprocessor after the other."""
    seconds: dict[tuple[str, str], float] = {}
    for weights in ("fp8_block", "w4a16"):
        for node in ("dgx-h100", "dgx-h200"):
            plan = _plan(weights=weights, cluster=system(node, nodes=1))
            seconds[weights, node] = plan.prices.parts(TOKENS)["experts"][2]
    assert seconds["fp8_block", "dgx-h200"] < 0.8 * seconds["fp8_block", "dgx-h100"]
    assert seconds["w4a16", "dgx-h200"] == pytest.approx(seconds["w4a16", "dgx-h100"], rel=0.02)


def test_openais_kernels_route_longer_than_marlin_and_widen_as_fast() -> None:
    """Some 30 us a layer more on a Hopper, whatever the tokens; in 16 bits the word triton means another kernel."""
    longer = {}
    for form in ("mxfp4", "bf16"):
        own, marlin = (
            _plan(
                model=model("gpt-oss-120b"),
                weights=form,
                engine=dataclasses.replace(engine("vllm-async"), expert_kernel=kernel),
            ).prices.parts(TOKENS[:3])["experts"]
            for kernel in ("triton", "marlin")
        )
        longer[form] = (own - marlin) / 36
    assert longer["mxfp4"] == pytest.approx(29e-6)
    assert not longer["bf16"].any()


def test_experts_in_mxfp4_multiply_at_eight_bits() -> None:
    """Their activations have eight: many tokens take longer than in NVFP4, few are bound by memory alike."""
    chip = build_cluster(accelerator="b200-sxm", accelerators_per_node=8, nodes=1)
    few, many = (
        [
            _plan(weights=form, cluster=chip).prices.parts(TOKENS)["experts"][at]
            for form in ("nvfp4", "mxfp4")
        ]
        for at in (0, 4)
    )
    assert few[1] == pytest.approx(few[0], rel=0.1)
    assert many[1] > 1.1 * many[0]


def test_experts_with_scales_of_blocks_lose_arithmetic_on_blackwell_alone() -> None:
    """Many tokens take a quarter longer than with a scale a tensor on B200, hardly on H200; a few are bound by memory."""
    tokens, longer = np.array([32.0, 131072.0]), dict[str, np.ndarray]()
    for chip in ("h200-sxm", "b200-sxm"):
        cluster = build_cluster(accelerator=chip, accelerators_per_node=8, nodes=1)
        blocks, tensors = (
            _plan(weights=form, cluster=cluster).prices.parts(tokens)["experts"]
            for form in ("fp8_block", "fp8")
        )
        longer[chip] = blocks / tensors
    assert longer["b200-sxm"][1] > 1.2
    assert longer["h200-sxm"][1] < 1.1
    assert longer["b200-sxm"][0] < 1.15


def test_cutlass_is_slower_with_four_bits_on_blackwell() -> None:
    """Grouped NVFP4 products of 64 tokens take CUTLASS half as long again as TensorRT-LLM's own kernel on B200; in eight bits the two differ by what they launch."""
    cluster = build_cluster(accelerator="b200-sxm", accelerators_per_node=8, nodes=1)
    ratios = {}
    for form in ("nvfp4", "fp8"):
        own, cutlass = (
            _plan(
                cluster=cluster,
                weights=form,
                ep=8,
                engine=dataclasses.replace(engine("tensorrt-llm-1.x"), expert_kernel=kernel),
            ).prices.parts(np.array([64.0]))["experts"][0]
            for kernel in ("trtllm", "cutlass")
        )
        ratios[form] = cutlass / own
    assert ratios["fp8"] < 1.3 < 1.5 < ratios["nvfp4"]


def test_experts_launched_before_they_are_counted_take_as_long_for_one_token() -> None:
    """Tiles of all experts pass, so that few tokens save little; where tokens are many, padding is a small part."""
    known, padded = (
        _plan(tp=4, engine=dataclasses.replace(engine("vllm-v1"), expert_padding=rows))
        for rows in (0, 64)
    )
    each, all_tiles = (plan.prices.parts(TOKENS)["experts"] for plan in (known, padded))
    assert each[2] > 3 * each[0]
    assert all_tiles[2] < 1.3 * all_tiles[0]
    assert (all_tiles[:3] > 1.2 * each[:3]).all()
    assert all_tiles[4] < 1.3 * each[4]
    wide = [
        dataclasses.replace(plan, weights="bf16").prices.parts(TOKENS) for plan in (known, padded)
    ]
    assert (wide[0]["experts"] == wide[1]["experts"]).all()


@pytest.mark.parametrize(
    ("chip", "divided", "name", "padded"),
    [
        ("h200-sxm", {"tp": 4}, "vllm-v1", True),
        ("h200-sxm", {"tp": 8}, "vllm-v1", False),
        ("h200-sxm", {"tp": 8, "ep": 8}, "vllm-v1", True),
        ("mi300x", {"tp": 4}, "vllm-v1", False),
        ("h200-sxm", {"tp": 4}, "vllm-0.8", False),
    ],
)
def test_rows_are_padded_where_deepgemm_runs(chip, divided, name, padded) -> None:
    """Triton's kernel takes over where experts are divided by 8, on other vendors' chips and in older releases."""
    cluster = build_cluster(accelerator=chip, accelerators_per_node=8, nodes=1)
    shape = {"weights": "fp8_block", "cluster": cluster, **divided}
    plans = [
        _plan(**shape, engine=dataclasses.replace(engine(name), **change))
        for change in ({}, {"expert_padding": 0})
    ]
    with_tiles, without = (plan.prices.parts(TOKENS)["experts"] for plan in plans)
    assert (with_tiles > without).any() == padded


def test_copies_of_experts_fill_ranks_that_experts_alone_do_not() -> None:
    """256 experts and 32 copies are four on each of 72 ranks; without copies 72 divides nothing."""
    engine_of = {"preset": "sglang", "eplb": True, "redundant_experts": 32}
    given = {
        "schema": 1,
        "model": "deepseek-v3",
        "cluster": {"preset": "gb200-nvl72", "nodes": 18},
        "parallelism": {"tp": 72, "ep": 72},
        "serving": {"engine": engine_of, "attention_dp": 72, "workload": {"rate": 1.0}},
    }
    assert make_service(Scenario.from_mapping(given)).ep == 72
    engine_of["eplb"] = False
    with pytest.raises(ScenarioError, match="72, which does not divide 256 experts"):
        Scenario.from_mapping(given)
    engine_of |= {"eplb": True, "redundant_experts": 16}
    with pytest.raises(ScenarioError, match="divide by ep 72, such as 32"):
        make_service(Scenario.from_mapping(given))
