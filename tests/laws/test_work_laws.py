"""Laws of what matrix units execute: never more than papers count, and never more than they could do in the step."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mpsim
from mpsim.scenario import Scenario
from tests.nightly import examples

# a chip of each kind, and formats that it runs
CHIPS = [
    ("dgx-1v", ("fp16",)),
    ("dgx-a100-80gb", ("bf16", "tf32")),
    ("dgx-h100", ("bf16", "fp8", "fp8_block")),
    ("dgx-b200", ("bf16", "mxfp8", "nvfp4")),
    ("mi300x-8", ("bf16", "fp8")),
    ("tpu-v5p-pod", ("bf16",)),
    ("gaudi3-hlb325", ("bf16", "fp8")),
]
MOE = {"experts": 8, "top_k": 2, "ffn_hidden": 1024}

scenarios = st.fixed_dictionaries(
    {
        "chip": st.sampled_from([(name, kind) for name, kinds in CHIPS for kind in kinds]),
        "hidden": st.sampled_from([1024, 4096]),
        "experts": st.booleans(),
        "mask": st.sampled_from(["causal", "full", "sliding"]),
        "sequence": st.sampled_from([256, 4096, 65536]),
        "axis": st.sampled_from(["tp", "pp", "cp", "dp"]),
        "exchange": st.sampled_from(["ring", "all-gather", "ulysses"]),
        "fused": st.booleans(),
        "recompute": st.sampled_from(["none", "selective", "full"]),
    }
)


def _scenario(drawn: dict[str, Any]) -> Scenario:
    cluster, precision = drawn["chip"]
    sliding = {"window": 128} if drawn["mask"] == "sliding" else {}
    model = {"layers": 4, "hidden": drawn["hidden"], "heads": 16, "vocab": 32000}
    experts = {"moe": MOE} if drawn["experts"] else {}
    axis = drawn["axis"]
    context = axis == "cp"
    skipped = drawn["exchange"] == "ring" and context and sliding  # no ring skips to a window
    return Scenario.from_mapping(
        {
            "schema": 1,
            "model": {**model, "attention": drawn["mask"], **sliding, **experts},
            "cluster": {"preset": cluster, "nodes": 1},
            "parallelism": {
                **({axis: 4} if axis != "dp" else {}),
                "sequence_parallel": axis == "tp" and drawn["experts"],
            },
            "training": {
                "global_batch": 16,
                "sequence_length": drawn["sequence"],
                "precision": precision,
                "recompute": drawn["recompute"],
            },
            "framework": {
                "preset": "megatron-core",
                "fused_attention": drawn["fused"] or context,
                "context_exchange": "all-gather" if skipped else drawn["exchange"],
            },
        },
        checked=False,
    )


@settings(max_examples=examples(24, 60), deadline=None)
@given(scenarios)
def test_matrix_units_never_do_more_than_they_could(drawn: dict[str, Any]) -> None:
    """Executed FLOPs are at most those that papers count, and take at most the step at the peaks; unmasked they are the same."""
    summary = mpsim.simulate(_scenario(drawn)).summary
    assert 0 < summary["tensor_utilisation"] <= 1
    hardware, executed = summary["hardware_flops_per_step"], summary["executed_flops_per_step"]
    assert 0 < executed <= hardware * (1 + 1e-12)
    if drawn["mask"] == "full":
        assert executed == pytest.approx(hardware, rel=1e-12)
