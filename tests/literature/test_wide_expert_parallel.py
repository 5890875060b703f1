"""The published wide expert parallel deployment of DeepSeek-V3: SGLang on nodes of eight H100, a pool for prompts and one that decodes.

LMSYS, Deploying DeepSeek with PD Disaggregation and Large-Scale Expert Parallelism on 96 H100 GPUs (2025): prompts of 2,000 tokens, 4 nodes with EP 32 compute 52.3 thousand tokens/s a node,
9 nodes with EP 72 generate 22.3 thousand. Experts are placed by their load (EPLB), 32 of 288 slots for copies. Batches are assumptions: 16,384 tokens of prompts and
256 sequences an accelerator.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from mpsim.hardware import build_cluster, link
from mpsim.scenario.serving import ServiceLevel, Workload
from mpsim.serving.batching import Batch
from mpsim.serving.engines import engine
from mpsim.serving.plan import ServicePlan
from mpsim.workload import model

PROMPT, SEQUENCES, TOKENS = 2000, 256, 16384


def plan(ranks: int, *, overlap: bool) -> ServicePlan:
    """One instance with requests and experts on every rank."""
    return ServicePlan(
        name="wide",
        model=model("deepseek-v3"),
        cluster=build_cluster(
            accelerator="h100-sxm", accelerators_per_node=8, nodes=ranks // 8, nic=link("ib-ndr")
        ),
        engine=dataclasses.replace(
            engine("sglang"), two_batch_overlap=overlap, eplb=True, redundant_experts=32
        ),
        workload=Workload(rate=1.0),
        slo=ServiceLevel(),
        weights="fp8_block",
        tp=ranks,
        ep=ranks,
        attention_dp=ranks,
    )


def generated(*, overlap: bool) -> float:
    """Tokens a second of a node of nine that decode."""
    sequences = 72 * SEQUENCES
    batch = Batch(sequences, float(sequences * PROMPT))
    return 8 * SEQUENCES / float(plan(72, overlap=overlap).prices.seconds(batch))


def computed(*, overlap: bool) -> float:
    """Tokens of prompts a second of a node of four."""
    tokens = 32 * TOKENS
    batch = Batch(0, 0.0, tokens, tokens * PROMPT / 2)
    seconds = plan(32, overlap=overlap).prices.seconds(batch, tokens // PROMPT)
    return 8 * TOKENS / float(seconds)


@pytest.mark.parametrize(("rate", "published"), [(generated, 22.3e3), (computed, 52.3e3)])
def test_two_batch_overlap_makes_the_published_throughput(rate, published):
    """Within 12 %; without overlap 24 and 42 % short of it."""
    assert rate(overlap=True) == pytest.approx(published, rel=0.12)
    assert 0.55 < rate(overlap=False) / published < 0.8


@pytest.mark.parametrize("tokens", [16.0, 1024.0, 65536.0])
def test_two_batch_overlap_hides_the_lesser_of_compute_and_exchange(tokens):
    """What is left of the exchange of two halves is what their linear layers, experts and norms do not cover; both halves read the weights."""
    half, whole, halves = (
        {name: float(part[0]) for name, part in p.prices.parts(np.array([number])).items()}
        for p, number in (
            (plan(32, overlap=False), tokens / 2.0),
            (plan(32, overlap=False), tokens),
            (plan(32, overlap=True), tokens),
        )
    )
    computed = ("linear", "experts", "streaming")
    hidden = 2.0 * half["exchange"] - halves["exchange"]
    compute = sum(halves[name] for name in computed)
    assert hidden == pytest.approx(min(compute, 2.0 * half["exchange"]))
    assert [halves[name] for name in computed] == pytest.approx([2.0 * half[n] for n in computed])
    assert all(halves[name] >= whole[name] for name in computed)
