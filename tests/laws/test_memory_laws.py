"""Laws of memory: kinds sum to the total, more tokens never take less, what a stack frees or divides is never more than what it keeps, folding changes nothing."""

from __future__ import annotations

import copy
import dataclasses
import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpsim import Scenario, simulate
from mpsim.errors import ScenarioError
from mpsim.framework import framework
from mpsim.simulate import Prepared, resolve
from mpsim.study.fitting import changes_that_fit
from mpsim.study.search.bound import Bounder
from mpsim.study.search.given import ranked_by
from mpsim.study.search.layouts import Layouts
from mpsim.training.intervals import fits_probability, setting_of
from mpsim.training.memory.account import account_memory
from mpsim.training.memory.curve import memory_curve
from mpsim.training.plan import Plan, ReplicaClass
from mpsim.training.planning import make_plan
from tests.nightly import examples
from tests.plans import small_plan

STACKS = (
    "megatron-core",
    "megatron-bridge",
    "torch-ddp",
    "torch-fsdp2",
    "maxtext-tpu",
    "deepspeed",
)
STEPS: dict[str, Any] = {
    "preset": st.sampled_from(STACKS),
    "tp": st.sampled_from([1, 2, 4]),
    "pp": st.sampled_from([1, 2, 4]),
    "dp": st.sampled_from([1, 2, 4]),
    "recompute": st.sampled_from(["none", "selective", "full"]),
    "precision": st.sampled_from(["bf16", "fp8", "fp32"]),
    "microbatches": st.sampled_from([1, 4, 8]),
    "zero": st.sampled_from([0, 1, 3]),
}


def step(sizes: dict[str, Any], **more: Any) -> Plan:
    """A plan of drawn sizes, as much sharded as its stack does."""
    data = framework(sizes["preset"]).data
    most = data.zero_limit if sizes["pp"] == 1 else data.pipeline_zero_limit
    shared = {"zero": min(sizes["zero"], most) if sizes["dp"] > 1 else 0}
    chip = {"cluster": "dgx-h100", "sequence_parallel": sizes["tp"] > 1}
    return small_plan(**{**sizes, **shared, **chip, **more})


def _too_large(seed: int) -> dict[str, Any]:
    """A scenario that does not fit, of a model, a stack, a machine and a layout drawn at random."""
    draw = random.Random(seed)
    while True:
        tp, pp, dp = (draw.choice(degrees) for degrees in ((1, 2, 4), (1, 2), (1, 2, 4)))
        each, method = draw.choice((1, 2, 4, 8)), ("full", "lora", "qlora")[seed % 3]
        chip = draw.choice(("a100-sxm-40", "a100-sxm-80", "h100-sxm"))
        lengths = draw.choice((2048, 4096, 8192))
        data = {
            "schema": 1,
            "model": draw.choice(("llama2-7b", "llama2-13b", "llama3-8b", "llama3-70b")),
            "cluster": {"accelerator": chip, "accelerators_per_node": tp * pp * dp, "nodes": 1},
            "parallelism": {"tp": tp, "pp": pp, "zero": draw.choice((0, 1, 3)) if dp > 1 else 0},
            "training": {"method": method, "global_batch": 4 * dp * each, "micro_batch": each,
                         "sequence_length": lengths, "recompute": draw.choice(("none", "full"))},
            "framework": draw.choice(("megatron-core", "torchtitan-2025", "torch-fsdp2", "peft")),
        }  # fmt: skip
        try:
            memory = account_memory(resolve(Scenario.from_mapping(data)))
        except ScenarioError:
            continue
        if 1.0 < memory.total.max() / memory.capacity < 3.0:
            return data


@pytest.mark.parametrize("seed", range(30))
def test_changes_have_the_odds_that_they_name(seed: int) -> None:
    """`check` of the file with the change written into it finds the peak and the odds that were told, and the surest of equally fast ones leads."""
    data = _too_large(seed)
    found = changes_that_fit(Scenario.from_mapping(data))
    ranked = [ranked_by(change.step_time_s, change.odds) for change in found]
    assert ranked == sorted(ranked)
    for change in found:
        written = copy.deepcopy(data)
        for key, value in change.values.items():
            section, name = key.split(".")
            written[section][name] = value
        plan = resolve(Scenario.from_mapping(written))
        memory = account_memory(plan)
        assert memory.fits
        assert float(memory.total.max()) == change.total
        assert fits_probability(memory, setting_of(plan)) == change.odds


@given(sizes=st.fixed_dictionaries(STEPS))
@settings(max_examples=examples(10, 25), deadline=None)
def test_kinds_sum_to_the_total_and_none_is_negative(sizes: dict[str, Any]) -> None:
    """Of every rank: parameters, gradients, optimizer, activations, logits, buffers and overhead, in this order."""
    memory = account_memory(step(sizes))
    parts = "parameters gradients optimizer activations logits buffers overhead"
    assert " ".join(memory.components) == parts
    parts = np.stack([*memory.components.values()])
    assert (parts >= 0).all()
    assert memory.total.tolist() == pytest.approx(parts.sum(axis=0).tolist())


@given(sizes=st.fixed_dictionaries(STEPS))
@settings(max_examples=examples(10, 25), deadline=None)
def test_more_tokens_never_take_less(sizes: dict[str, Any]) -> None:
    """Twice the sequences of a microbatch, and twice the tokens of a sequence, on every rank."""
    small = account_memory(step(sizes)).total
    for more in ({"micro_batch": 2}, {"sequence_length": 4096}):
        assert (account_memory(step(sizes, **more)).total >= small).all()


@given(sizes=st.fixed_dictionaries(STEPS))
@settings(max_examples=examples(10, 25), deadline=None)
def test_what_is_freed_divided_or_made_again_is_never_more_than_what_is_kept(
    sizes: dict[str, Any],
) -> None:
    """Each habit of keeping less, switched on alone; and two of keeping more."""
    plain = {
        "keeps_narrow": False,
        "divides_kept": False,
        "drops_gradients": False,
        "remade_products": False,
        "remade_norms": False,
        "frees_weights": False,
        "wide_norms": False,
        "transposed_weights": False,
    }
    llama = {"model_name": "llama2-7b"}
    kept = account_memory(step(sizes, overrides=plain, **llama)).total
    for habit in (
        "keeps_narrow",
        "divides_kept",
        "drops_gradients",
        "remade_products",
        "remade_norms",
        "frees_weights",
    ):
        less = account_memory(step(sizes, overrides={**plain, habit: True}, **llama)).total
        assert (less <= kept * (1 + 1e-12)).all(), habit
    for habit in ("wide_norms", "transposed_weights"):
        more = account_memory(step(sizes, overrides={**plain, habit: True}, **llama)).total
        assert (more >= kept).all(), habit


@given(sizes=st.fixed_dictionaries(STEPS), apart=st.integers(1, 3))
@settings(max_examples=examples(10, 25), deadline=None)
def test_replicas_held_apart_take_what_they_take_together(
    sizes: dict[str, Any], apart: int
) -> None:
    """Every class of replicas of a step has the ranks of the folded step, one after the other."""
    plan = step(sizes)
    if plan.layout.mesh.dp <= apart:
        return
    folded = account_memory(plan)
    replicas = tuple(range(plan.layout.mesh.dp))
    classes = tuple(
        ReplicaClass(members, plan.layout.cluster, plan.orders)
        for members in (replicas[:apart], replicas[apart:])
    )
    unfolded = account_memory(dataclasses.replace(plan, classes=classes))
    assert unfolded.total.tolist() == folded.total.tolist() * 2


SINGLE: dict[str, Any] = {
    "schema": 1,
    "model": {"preset": "llama3-8b", "layers": 4},
    "cluster": {"preset": "dgx-h100", "nodes": 1},
    "training": {"global_batch": 8, "sequence_length": 2048},
}


@pytest.mark.parametrize("preset", ["torch-ddp", "torch-fsdp1", "torch-fsdp2", "megatron-core"])
def test_search_knows_the_memory_that_the_account_has(preset: str) -> None:
    """Of every layout of one node: those whose gradients come in the only backward, and those with a sharded root, too."""
    scenario = Scenario.from_mapping({**SINGLE, "framework": preset}, checked=False)
    space = Layouts(scenario, {"schedule": ("1f1b",)})
    legal = [layout for frame in space.frames() for layout in space.layouts(frame)]
    layouts = random.Random(preset).sample(legal, min(40, len(legal)))
    plans = [make_plan(scenario.with_values(layout.values())) for layout in layouts]
    bounder = Bounder(plans[0])
    assert len(layouts) > 20
    for layout, plan in zip(layouts, plans, strict=True):
        (known,) = bounder.bound([layout]).memory
        assert known == pytest.approx(account_memory(plan).total.max(), rel=1e-12), layout


def test_a_curve_over_time_reaches_the_peak_where_gradients_come_in_the_backward() -> None:
    """One device, one microbatch: the highest point of the curve is the accounted total."""
    plan = small_plan(tp=1, pp=1, dp=1, microbatches=1, preset="torch-ddp", recompute="none")
    fresh = account_memory(plan)
    kept = account_memory(
        small_plan(
            tp=1,
            pp=1,
            dp=1,
            microbatches=1,
            preset="torch-ddp",
            recompute="none",
            overrides={"drops_gradients": False},
        )
    )
    assert fresh.total[0] < kept.total[0]
    scenario = Scenario.from_mapping(
        {
            **SINGLE,
            "cluster": {"accelerator": "h100-sxm", "accelerators_per_node": 1, "nodes": 1},
            "training": {"global_batch": 1, "micro_batch": 1, "sequence_length": 2048},
            "framework": "torch-ddp",
        }
    )
    result = simulate(scenario)
    plan = Prepared.of(result).plan
    curve = memory_curve(result.timeline, plan, result.memory, 0)
    assert curve.held.max() == pytest.approx(result.memory.total[0])
