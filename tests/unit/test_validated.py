"""How far a result says it is from what was measured."""

from __future__ import annotations

from pathlib import Path

import pytest

import mpsim
from mpsim.hardware import accelerator
from mpsim.result.validated import Validated, nearest_validated


def test_runs_of_the_same_machine_and_software_come_first() -> None:
    """InternEvo on A100 at 64 GPUs lies within its own 8 to 1,024."""
    found = nearest_validated(accelerator("a100-sxm-80"), "internevo-2023", 64)
    assert (found["framework"], found["differs"], found["scale"]) == ("internevo-2023", [], 1.0)


def test_an_alias_is_its_preset() -> None:
    """``internevo`` stands for ``internevo-2023``."""
    found = nearest_validated(accelerator("a100-sxm-80"), "internevo", 64)
    assert found["differs"] == []


def test_beyond_the_largest_run_the_scale_is_told() -> None:
    """4,096 GPUs are four times the largest of 1,024."""
    found = nearest_validated(accelerator("a100-sxm-80"), "internevo-2023", 4096)
    assert found["scale"] == pytest.approx(4096 / found["largest"])
    assert found["differs"] == ["scale"]


def test_an_accelerator_nobody_measured_says_so() -> None:
    """No published run of the tables is on Gaudi 3."""
    assert "accelerator" in nearest_validated(accelerator("gaudi3"), "torch-ddp", 8)["differs"]


def test_scale_is_one_within_and_a_ratio_outside() -> None:
    """Of runs on 8 to 64: 16 is within, 128 twice the largest, 4 half the smallest."""
    runs = Validated(
        accelerator="a",
        framework="f",
        smallest=8,
        largest=64,
        rows=1,
        mean_abs_error=0.1,
        bias=0.0,
    )
    assert [runs.scale(count) for count in (16, 128, 4)] == [1.0, 2.0, 0.5]


def test_every_result_carries_it(scenarios: Path) -> None:
    """The key is in the summary, with the error seen there."""
    nearest = mpsim.simulate(mpsim.load(scenarios / "quickstart.yaml")).summary["validated"]
    assert 0 <= nearest["mean_abs_error"] < 1
    assert nearest["rows"] >= 1
