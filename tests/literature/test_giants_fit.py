"""Published giants that ran fit into the memory of what they ran on."""

from __future__ import annotations

from typing import Any

import pytest

from mpsim import Scenario
from mpsim.result.memory import Memory
from mpsim.simulate import resolve
from mpsim.training.memory.account import account_memory

H800 = {
    "accelerator": "h800-sxm",
    "accelerators_per_node": 8,
    "nodes": 256,
    "nics_per_node": 8,
    "nic": "400 Gb/s",
    "scale_up": "nvlink4-h800",
    "fabric": {"kind": "fat-tree"},
}


def account(**sections: Any) -> Memory:
    """Memory of a scenario."""
    return account_memory(resolve(Scenario.from_mapping({"schema": 1, **sections})))


@pytest.mark.parametrize(("virtual_stages", "dp"), [(8, 128), (4, 128)])
def test_llama3_405b_fits_without_recomputation(virtual_stages: int, dp: int) -> None:
    """Llama 3 (arXiv 2407.21783) table 4: tp 8, pp 16, dp 128, 8,192 tokens, 16M tokens a step, no activation checkpointing (section 3.3.2).

    What fused gated activations keep is gate and up (xFormers ``SwiGLUPackedFusedOp``); kept too, their product would take 2 ffn tokens / tp of each of up to
    128 chunks of a layer in flight, 13.96 GB, and the run 94 of 86 GB.
    """
    shape: dict[str, Any] = {
        "model": "llama3-405b",
        "cluster": {"preset": "dgx-h100", "nodes": 16 * dp},
        "parallelism": {
            "tp": 8,
            "pp": 16,
            "dp": dp,
            "zero": 1,
            "sequence_parallel": True,
            "embedding_counts_as_layer": True,
            "loss_counts_as_layer": True,
        },
        "schedule": {"name": "interleaved-1f1b", "virtual_stages": virtual_stages},
        "training": {
            "global_batch": 2048,
            "micro_batch": 1,
            "sequence_length": 8192,
            "precision": "bf16",
            "recompute": "none",
        },
    }
    stack = {"preset": "megatron-core", "remade_products": True}
    lean = account(**shape, framework=stack)
    assert lean.fits
    product = 2 * 53248 * 8192 / 8
    whole = account(**shape, framework="megatron-core")
    more = (whole.components["activations"] - lean.components["activations"])[1]
    assert more == pytest.approx(128 * product, rel=0.01)
    sharded = {**shape, "parallelism": {**shape["parallelism"], "zero": 3}}
    assert account(**sharded, framework="meta-llama3").fits


def test_palm_keeps_a_divided_activation_a_layer() -> None:
    """PaLM (arXiv 2204.02311) section 4: of each layer one activation is kept, divided over both axes of the mesh: 2 tokens h / 12 of a replica, 118 times."""
    memory = account(
        model="palm-540b",
        cluster={"preset": "tpu-v4-pod", "nodes": 1536, "domain": 3072},
        parallelism={"tp": 12, "pp": 1, "dp": 512, "zero": 3, "shard": 256},
        schedule="1f1b",
        training={
            "global_batch": 2048,
            "micro_batch": 4,
            "sequence_length": 2048,
            "precision": "bf16",
            "recompute": "full",
        },
        framework="pathways-palm",
    )
    kept = 118 * 2 * 4 * 2048 * 18432 / 12
    assert memory.fits
    assert kept < memory.components["activations"][0] < 1.5 * kept


@pytest.mark.parametrize("schedule", ["dualpipe", "1f1b"])
def test_deepseek_v3_fits_as_it_keeps_activations_in_8_bits(schedule: str) -> None:
    """DeepSeek-V3 (arXiv 2412.19437) sections 3.2.3 and 3.3.3 on 2,048 H800: norms and up-projections run again, inputs of linear layers and of SwiGLU are kept in fp8,
    moments in bf16; DualPipe holds two copies of the parameters.
    """
    again = {
        "recompute": "selective",
        "recompute_modules": ["layernorm", "mla_up_proj", "moe_act"],
    }
    shape: dict[str, Any] = {
        "model": "deepseek-v3",
        "cluster": H800,
        "parallelism": {
            "tp": 1,
            "pp": 16,
            "dp": 128,
            "ep": 64,
            "zero": 1,
            "layers_per_stage": [3, *[4] * 14, 2],
        },
        "schedule": schedule,
        "training": {
            "global_batch": 15360,
            "micro_batch": 1,
            "sequence_length": 4096,
            "precision": "fp8_block",
            **again,
        },
    }
    overlap = (
        "microbatch" if schedule == "dualpipe" else "none"
    )  # 1F1B runs no forward beside a backward
    stack = {"preset": "hai-llm", "expert_overlap": overlap}
    memory = account(**shape, framework=stack)
    assert memory.fits
    wide = account(**shape, framework={**stack, "keeps_narrow": False})
    assert wide.total.max() > 1.2 * memory.total.max()
