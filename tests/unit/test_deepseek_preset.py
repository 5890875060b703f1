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
    return any("beside the other direction" in warning for warning in summary["warnings"])


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
