"""Modules of multi-token prediction: a layer each among the last ones, and a pass of the head of their own."""

from __future__ import annotations

import dataclasses

import pytest

from mpsim.errors import WorkloadError
from mpsim.scenario import Scenario
from mpsim.simulate import simulate
from mpsim.workload import Lowering, Transformer, expand_head

PLAIN = Transformer(
    name="drawn",
    layers=4,
    hidden=256,
    heads=4,
    kv_heads=4,
    head_dim=64,
    ffn_hidden=512,
    vocab=1024,
    tied_embeddings=False,
    norm="rmsnorm",
    bias=False,
)
STEP = {
    "schema": 1,
    "model": {"preset": "llama3-8b", "layers": 8},
    "cluster": {"preset": "dgx-h100", "nodes": 1},
    "parallelism": {"tp": 2, "pp": 4, "dp": 1, "sequence_parallel": True},
    "training": {"global_batch": 16, "micro_batch": 1, "sequence_length": 2048},
}


def _flops(model: Transformer) -> float:
    return expand_head(model, Lowering(), sequences=1, sequence_length=128).forward_flops


@pytest.mark.parametrize("modules", [1, 2])
def test_each_module_projects_states_and_embeddings_and_passes_the_head_again(modules: int) -> None:
    """128 tokens: the head 2 x 128 x 1024 x 256 FLOP a pass, a projection 2 x 128 x 512 x 256."""
    head, projection = 2 * 128 * 1024 * 256, 2 * 128 * 512 * 256
    with_modules = dataclasses.replace(PLAIN, mtp_layers=modules)
    assert _flops(PLAIN) == head
    assert _flops(with_modules) == (1 + modules) * head + modules * projection


def test_a_module_adds_its_projection_and_norms_to_the_parameters() -> None:
    """Embedding and output projection are the model's own: 2 h^2 for the projection, three norms of h."""
    more = dataclasses.replace(PLAIN, mtp_layers=1).parameters().total - PLAIN.parameters().total
    assert more == 2 * 256**2 + 3 * 256


def test_a_model_keeps_a_layer_to_predict_the_next_token() -> None:
    """All layers cannot be further predictions."""
    with pytest.raises(WorkloadError, match="mtp_layers is 4 of 4"):
        dataclasses.replace(PLAIN, mtp_layers=4)


def test_the_last_stage_pays_for_a_module() -> None:
    """The layers are the same, so the step grows by the second pass of the head in every microbatch, and no other stage computes more."""
    plain, more = (
        simulate(Scenario.from_mapping({**STEP, "model": {**STEP["model"], "mtp_layers": modules}}))
        for modules in (0, 1)
    )
    assert more.summary["step_time_s"] > 1.1 * plain.summary["step_time_s"]
    assert more.summary["bubble_fraction"] > plain.summary["bubble_fraction"]
    assert more.summary["model_flops_per_step"] > plain.summary["model_flops_per_step"]
    logits = [one.summary["memory"]["logits"] for one in (plain, more)]
    assert logits[1] >= logits[0]
