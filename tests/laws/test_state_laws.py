"""Laws of state mixers: their parameters are those published, their work is linear in the sequence, and they keep no keys and values."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

import mpsim
from mpsim.errors import ScenarioError, WorkloadError
from mpsim.scenario import Scenario
from mpsim.training import make_plan
from mpsim.workload import Lowering, Role, StateMixer, expand_layer, model, part_flops

MAMBA, DELTA = model("nemotron-h-8b"), model("qwen3-next-80b-a3b")


def test_a_gated_delta_hybrid_has_the_parameters_that_are_published() -> None:
    """79,674,391,296 of Qwen3-Coder-Next, of which 48 x 2,048 are gates of shared experts that are not counted; 3,874,929,408 active."""
    assert DELTA.parameters().total == 79_674_391_296 - 48 * 2048
    assert DELTA.active_parameters(lookup=True) == 3_874_929_408 - 48 * 2048


def test_a_mamba_hybrid_has_the_parameters_of_its_name() -> None:
    """Nemotron-H: 8.1 billion in 24 mixers, 24 MLPs and 4 attentions; 56.3 billion in 54, 54 and 10."""
    large = model("nemotron-h-56b")
    assert [round(each.parameters().total / 1e9, 1) for each in (MAMBA, large)] == [8.1, 56.3]
    counts = [large.layer_kinds.count(kind) for kind in ("state", "dense-alone", "attention")]
    assert counts == [54, 54, 10]


@pytest.mark.parametrize(("whole", "kind"), [(MAMBA, "state"), (DELTA, "moe-state")])
def test_a_scan_is_linear_in_the_sequence_and_attention_is_not(whole: Any, kind: str) -> None:
    """Twice the tokens are twice the FLOPs of a layer with a state."""
    short, long = (part_flops(whole, 1, tokens)[0] for tokens in (4096, 8192))
    assert long[kind] == pytest.approx(2 * short[kind])
    other = "attention" if kind == "state" else "moe"
    assert long[other] > 2.1 * short[other]


def test_a_scan_of_ssd_has_the_flops_of_its_kernels() -> None:
    """A token of 2 heads of 3, one group of keys of 5, in chunks of 7: 2 x 7 x 5 + 2 x 7 x 6 + 4 x 5 x 6 = 274."""
    mixer = StateMixer(kind="mamba2", heads=2, head_dim=3, state=5, groups=1, chunk=7)
    assert mixer.scan_flops(1, 7) == 274
    assert mixer.features == 6 + 2 * 5 + 6 + 2
    assert mixer.state_bytes() == 4 * 6 * 5 + 2 * (6 + 10) * 3


def test_a_state_layer_keeps_what_its_first_projection_returned() -> None:
    """zxbcdt, from which the backward makes the convolution and the states anew (mamba_split_conv1d_scan_combined), and the input of the last projection."""
    layer = expand_layer(MAMBA, Lowering(), sequences=1, sequence_length=1024, kind="state")
    kept = {each.role: each.saved + each.saved_for_weight for each in layer.forward}
    assert MAMBA.state is not None
    assert kept[Role.STATE_IN] == 2 * 1024 * MAMBA.state.features
    assert kept[Role.SCAN] == 0
    assert kept[Role.STATE_OUT] == 2 * 1024 * MAMBA.state.inner


def step(parallelism: dict[str, Any], **training: object) -> Scenario:
    """A step of Nemotron-H 8B on eight GPUs."""
    return Scenario.model_validate(
        {
            "schema": 1,
            "model": "nemotron-h-8b",
            "cluster": {"preset": "dgx-h100", "nodes": 1},
            "framework": "megatron-core",
            "parallelism": parallelism,
            "training": {"global_batch": 8, "sequence_length": 4096, **training},
        }
    )


@pytest.mark.parametrize(
    ("parallelism", "training"),
    [
        ({"tp": 2, "sequence_parallel": True, "zero": 1}, {"recompute": "selective"}),
        ({"tp": 2, "pp": 4}, {"precision": "fp8"}),
        ({"zero": 3}, {"recompute": "full", "method": "lora"}),
    ],
)
def test_hybrids_train_as_other_models_do(
    parallelism: dict[str, Any], training: dict[str, object]
) -> None:
    """Under tensor and pipeline parallelism, sharded, recomputed, narrow and with adapters parts sum to the step."""
    told = mpsim.simulate(step(parallelism, **training)).summary
    assert sum(told["breakdown_s"].values()) == pytest.approx(told["step_time_s"])
    assert told["memory"]["total"] > 0


def test_tensor_parallel_ranks_share_a_scan() -> None:
    """Half the heads take half the time of every kernel of a state layer but its norms and what enters whole."""
    one, two = (make_plan(step({"tp": tp})) for tp in (1, 2))
    assert two.layout.parameter_kinds.dense[0] < 0.51 * one.layout.parameter_kinds.dense[0]


@pytest.mark.parametrize(
    ("parallelism", "training", "word"),
    [
        ({"cp": 2}, {}, "carry a state"),
        ({}, {"recompute": "per-op"}, "layers differ"),
    ],
)
def test_what_a_state_cannot_be_divided_by_is_refused(
    parallelism: dict[str, Any], training: dict[str, object], word: str
) -> None:
    """Each mistake is told at its key with what would do."""
    with pytest.raises(ScenarioError, match=word):
        make_plan(step(parallelism, **training))


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"layer_pattern": "MX"}, "has 'X'"),
        ({"layer_pattern": "A"}, "exactly where state"),
        ({"state": None}, "exactly where state"),
        ({"parallel_block": True}, "leave out full_every"),
    ],
)
def test_a_pattern_that_says_nothing_is_refused(changes: dict[str, Any], word: str) -> None:
    """Letters and the mixer come together."""
    with pytest.raises(WorkloadError, match=word):
        dataclasses.replace(MAMBA, **changes)
