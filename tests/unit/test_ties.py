"""Ties: when a difference of two predictions is too small to believe."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

import mpsim
from mpsim.result.residuals import Residuals, Setting, residuals
from mpsim.study.ties import Ratio, ratio_of, ties
from mpsim.training.intervals import intervals, residuals_of


def summary(seconds: float, **labels: str) -> dict[str, Any]:
    """A result of 64 A100 under Megatron-Core, with some labels otherwise."""
    usual = {
        "framework": ("megatron-core", "nvidia"),
        "stack": ("stated",),
        "accelerator": ("a100-sxm-80", "ampere"),
        "format": ("bf16", "wide"),
        "length": ("short",),
        "layout": ("tp 8, pp 1, cp 1, ep 1, dp 8",),
        "rest": ("1 a microbatch",),
        "model": ("dense",),
    }
    setting = Setting({**usual, **{name: (value,) for name, value in labels.items()}}, 64)
    figures = {
        "step_time_s": seconds,
        "tokens_per_s": 1e6 / seconds,
        "tokens_per_s_per_accelerator": 1e6 / seconds / 64,
        "mfu": 0.4 / seconds,
        "hfu": 0.5 / seconds,
        "peak_memory_bytes": 3e10,
    }
    return {**figures, "interval": intervals(setting, figures)}


def known() -> Residuals:
    """A spread of 0.3 near measured runs; repeats within 0.02, other layouts 0.1, other formats 0.06, the rest 0.05; another framework 0.1 of sigma."""
    return Residuals(
        figure="step",
        noise=0.3,
        attributes={"framework": (0.1, 0.1)},
        doubling=0.0,
        most_doublings=6,
        guess=0.0,
        quantiles=(-1.3, 1.3),
        pairs={"same": 0.02, "layout": 0.1, "format": 0.06, "rest": 0.05},
        rows=1,
        families=1,
        runs=(),
    )


def test_half_widths_of_what_differs_add_in_squares() -> None:
    """Nothing: that of repeats. Layout and format: sqrt(0.01 + 0.0036), the rest being part of the layout's. Another line of frameworks: sqrt(2) x 1.2816 x sqrt(0.02)."""
    base = {"layout": ("a",), "format": ("bf16", "wide"), "rest": ("r",), "framework": ("f", "l")}
    first = Setting(base, 8)
    assert known().difference(first, first) == pytest.approx(0.02)
    other = Setting({**base, "layout": ("b",), "rest": ("s",), "format": ("fp16", "wide")}, 8)
    assert known().difference(first, other) == pytest.approx(math.sqrt(0.01 + 0.0036))
    stranger = Setting({**base, "framework": ("g", "m")}, 8)
    expected = math.sqrt(0.02**2 + 2 * 1.2816**2 * 0.02)
    assert known().difference(first, stranger) == pytest.approx(expected)


def test_common_errors_cancel() -> None:
    """The difference of two layouts is known better than either step."""
    a, b = summary(1.0), summary(1.0, layout="tp 4, pp 2, cp 1, ep 1, dp 8")
    ratio = ratio_of(a, b)
    assert ratio is not None
    low, high = a["interval"]["step_time_s"]
    assert ratio.high / ratio.low <= (high / low) ** math.sqrt(2) * (1 + 1e-12)


def test_a_small_difference_is_a_tie_and_a_large_one_is_not() -> None:
    """One per cent between two layouts says nothing, a factor of two does."""
    a, near, far = summary(1.0), summary(1.01, layout="other"), summary(2.0, layout="other")
    assert ties(a, [near, far]) == 1
    ratio = ratio_of(a, far)
    assert ratio is not None
    assert (ratio.value, ratio.tie) == (2.0, False)
    assert Ratio(1.05, 0.99, 1.1).tie


def test_a_result_ties_with_itself_exactly() -> None:
    """There is nothing to measure."""
    ratio = ratio_of(summary(1.0), summary(1.0))
    assert ratio is not None
    assert (ratio.low, ratio.high) == (1.0, 1.0)


def test_dense_models_and_experts_share_no_error() -> None:
    """Their difference is less sure than either."""
    dense, experts = summary(1.0), summary(1.0, model="experts")
    ratio = ratio_of(dense, experts)
    assert ratio is not None
    setting = Setting.from_json(experts["interval"]["of"])
    assert residuals_of(setting) is residuals("step-experts")
    low, high = experts["interval"]["step_time_s"]
    assert ratio.high / ratio.low > high / low


def test_a_result_without_an_interval_has_no_ratio() -> None:
    """Results stored by older versions say nothing of their setting."""
    old = {"step_time_s": 1.0}
    assert ratio_of(old, summary(1.0)) is None
    assert ties(old, [summary(1.0)]) == 0


def test_the_comparison_says_tie(scenarios: Path) -> None:
    """Two microbatch sizes a few per cent apart cannot be told apart; recomputing everything can."""
    scenario = mpsim.load(scenarios / "quickstart.yaml")
    base = mpsim.simulate(scenario)
    again = mpsim.simulate(scenario.with_values({"simulation.seed": 1}))
    full = mpsim.simulate(scenario.with_values({"training.recompute": "full"}))
    assert "both take" in mpsim.compare(base, again).explanation
    slower = mpsim.compare(base, full)
    assert not slower.tie
    assert "would be measured" not in slower.explanation
    step = slower.to_json()["step_time"]
    assert step["interval"][0] <= step["ratio"] <= step["interval"][1]
    small = mpsim.compare(base, mpsim.simulate(scenario.with_values({"parallelism.zero": 0})))
    assert small.tie is (small.ratio.low <= 1 <= small.ratio.high)
