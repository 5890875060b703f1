"""DeepSeek's stack by its name: DualPipe with its overlap, and a warning where somebody runs it without."""

from __future__ import annotations

import mpsim

PLAIN = {
    "schema": 1,
    "name": "deepseek-v3",
    "model": "deepseek-v3",
    "cluster": {"preset": "dgx-h100", "nodes": 256, "accelerator": "h800-sxm"},
    "parallelism": {"pp": 16, "ep": 64, "zero": 1, "layers_per_stage": "auto"},
    "schedule": "dualpipe",
    "training": {
        "global_batch": 15360,
        "micro_batch": 1,
        "sequence_length": 4096,
        "precision": "fp8_block",
        "recompute": "selective",
        "recompute_modules": ["layernorm", "mla_up_proj", "moe_act"],
    },
    "framework": "deepseek-2024",
}


def _warned(summary):
    return any("expert_overlap to microbatch" in warning for warning in summary["warnings"])


def test_the_preset_hides_exchanges_and_fits():
    """At first try: most of the exchange of experts hides, and 2,048 H800 hold it."""
    summary = mpsim.simulate(mpsim.Scenario.from_mapping(PLAIN)).summary
    exchange = summary["communication_s"]["ep"]
    assert exchange["hidden"] > 2 * exchange["exposed"]
    assert summary["fits_memory"]
    assert not _warned(summary)


def test_dualpipe_without_its_overlap_is_warned_of():
    """Nothing hides then, and the step is a third longer."""
    stack = {"preset": "deepseek-2024", "expert_overlap": "none"}
    bare = mpsim.simulate(mpsim.Scenario.from_mapping({**PLAIN, "framework": stack})).summary
    assert _warned(bare)
    own = mpsim.simulate(mpsim.Scenario.from_mapping(PLAIN)).summary
    assert bare["step_time_s"] > 1.3 * own["step_time_s"]


def test_the_name_alone_is_the_recipe():
    """A file that names model, machine, layout and batch runs DualPipe in FP8 with its recomputation, as the options spelled out do."""
    training = {"global_batch": 15360, "sequence_length": 4096}
    short = {key: PLAIN[key] for key in ("schema", "name", "model", "cluster", "framework")}
    short |= {"parallelism": {"pp": 16, "ep": 64}, "training": training}
    scenario = mpsim.Scenario.from_mapping(short)
    assert scenario.digest == mpsim.Scenario.from_mapping(PLAIN).digest
    assert mpsim.Scenario.from_mapping(scenario.resolved()).digest == scenario.digest


def test_what_a_file_writes_wins_over_its_framework():
    """One key written settles its group: no modules are left to a recomputation that is switched off."""
    written = {
        **PLAIN,
        "training": {"global_batch": 15360, "sequence_length": 4096, "recompute": "none"},
        "parallelism": {"pp": 16, "ep": 64, "zero": 0},
    }
    scenario = mpsim.Scenario.from_mapping(written, checked=False)
    assert scenario.training.recompute == "none"
    assert scenario.training.recompute_modules is None
    assert scenario.training.precision == "fp8_block"
    assert scenario.parallelism.zero == 0


def test_another_framework_settles_nothing():
    """`replace` starts from the words of the file, so what DeepSeek's stack settled goes with it."""
    scenario = mpsim.Scenario.from_mapping(
        {**PLAIN, "schedule": "1f1b", "training": {"global_batch": 15360, "sequence_length": 4096}},
        checked=False,
    )
    other = scenario.with_values({"framework": "megatron-core-2026"}, checked=False)
    assert scenario.training.precision == "fp8_block"
    assert other.training.precision == "bf16"


def test_an_order_of_actions_from_a_file_is_warned_of_too(tmp_path):
    """Blocks in a file are there to overlap, whatever the file is called."""
    small = {
        "schema": 1,
        "model": {"preset": "mixtral-8x7b", "layers": 8},
        "cluster": {"preset": "dgx-h100", "nodes": 1},
        "parallelism": {"pp": 2, "ep": 4},
        "schedule": "dualpipe-v",
        "training": {"global_batch": 32, "sequence_length": 2048, "recompute": "selective"},
        "framework": "megatron-core-2026",
    }
    named = mpsim.simulate(mpsim.Scenario.from_mapping(small))
    assert _warned(named.summary)
    file = tmp_path / "order.csv"
    file.write_text("".join(",".join(row) + "\n" for row in named.plan.orders.tokens()))
    own = {**small, "schedule": {"file": str(file), "virtual_stages": 2}}
    assert _warned(mpsim.simulate(mpsim.Scenario.from_mapping(own)).summary)
    plain = {**small, "schedule": {"name": "interleaved-1f1b", "virtual_stages": 2}}
    assert not _warned(mpsim.simulate(mpsim.Scenario.from_mapping(plain)).summary)
