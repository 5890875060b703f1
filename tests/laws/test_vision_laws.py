"""Laws of vision towers: a transformer more before the first layer, on the first stage's ranks."""

from __future__ import annotations

from typing import Any

import pytest

import mpsim
from mpsim.errors import ScenarioError
from mpsim.scenario import Scenario
from mpsim.training import make_plan
from mpsim.workload import VisionTower

QWEN2_VL = {"layers": 32, "hidden": 1280, "heads": 16, "ffn_hidden": 5120, "patches": 1024}
TOWER = {**QWEN2_VL, "merge": 4, "images": 4}


def scenario(
    tower: dict[str, Any] | None, parallelism: dict[str, Any] | None = None, **training: object
) -> Scenario:
    """A step of a Llama on eight GPUs, with images or without."""
    model = {"preset": "llama3-8b"} | ({"vision": tower} if tower else {})
    step = {"global_batch": 16, "sequence_length": 4096, "recompute": "full"}
    return Scenario.model_validate(
        {
            "schema": 1,
            "model": model,
            "cluster": {"preset": "dgx-h100", "nodes": 1},
            "framework": "megatron-core",
            "parallelism": parallelism or {"zero": 1},
            "training": {**step, **training},
        }
    )


def test_a_tower_has_the_parameters_of_its_layers() -> None:
    """Qwen2-VL's tower has 675 million (its report, section 2.1): 32 layers of 1,280, and a merger of 2 x 2 patches."""
    assert VisionTower(**QWEN2_VL, merge=4).count(3584).total == pytest.approx(675e6, rel=0.01)


def test_a_step_with_images_costs_the_tower_s_flops_more() -> None:
    """6 FLOP a weight and patch, and attention of every patch to all of its image."""
    alone, beside = (mpsim.simulate(scenario(tower)).summary for tower in (None, TOWER))
    patches = 16 * 4 * 1024
    weights = 32 * 12 * 1280**2 + 3 * 14**2 * 1280
    merger = (5120**2 + 5120 * 4096) / 4
    attention = 32 * 4 * 1024 * 1280
    expected = 6 * patches * (weights + merger) + 3 * patches * attention
    more = beside["model_flops_per_step"] - alone["model_flops_per_step"]
    assert more == pytest.approx(expected, rel=1e-6)
    assert beside["step_time_s"] > alone["step_time_s"]
    assert beside["memory"]["activations"] > alone["memory"]["activations"]


def test_images_are_the_first_stage_s() -> None:
    """The second of two stages takes as long as without a tower, and waits."""
    alone, beside = (
        mpsim.simulate(scenario(tower, {"pp": 2})).summary["breakdown_s"]["bubble"]
        for tower in (None, {**TOWER, "images": 16})
    )
    assert beside > 1.3 * alone


def test_a_frozen_tower_has_a_forward_alone() -> None:
    """Nothing before it trains: it keeps nothing, and has neither gradients nor states."""
    alone, frozen = (
        mpsim.simulate(scenario(tower, frozen=["vision"] if tower else [])).summary
        for tower in (None, TOWER)
    )
    for part in ("backward", "weight_gradient", "optimizer"):
        assert frozen["breakdown_s"][part] == pytest.approx(alone["breakdown_s"][part], rel=0.01)
    assert frozen["breakdown_s"]["forward"] > alone["breakdown_s"]["forward"]
    assert frozen["memory"]["gradients"] == pytest.approx(alone["memory"]["gradients"], rel=0.01)
    assert frozen["memory"]["activations"] == pytest.approx(
        alone["memory"]["activations"], rel=0.01
    )


def test_adapters_stand_beside_the_language_model_alone() -> None:
    """With LoRA a tower is frozen, and has no adapters."""
    plans = (make_plan(scenario(tower, method="lora")) for tower in (None, TOWER))
    alone, beside = (plan.layout.trained_kinds.dense[0] for plan in plans)
    assert alone == beside


@pytest.mark.parametrize(
    ("tower", "parallelism", "training", "word"),
    [
        (TOWER, {"cp": 2}, {}, "not divided among context-parallel"),
        ({**TOWER, "heads": 10}, {"tp": 4}, {}, "10 heads of the vision tower"),
        ({**TOWER, "heads": 7}, {}, {}, "does not divide among vision.heads"),
        ({**TOWER, "merge": 3}, {}, {}, "not a multiple of vision.merge"),
        ({"layers": 3}, {}, {}, "lacks hidden, heads"),
        (None, {}, {"frozen": ["vision"]}, "without a tower"),
    ],
)
def test_towers_that_do_not_fit_are_refused(
    tower: dict[str, Any] | None,
    parallelism: dict[str, Any],
    training: dict[str, Any],
    word: str,
) -> None:
    """Each mistake is told at its key with what would do."""
    with pytest.raises(ScenarioError, match=word):
        make_plan(scenario(tower, parallelism, **training))
