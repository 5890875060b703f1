"""Ties: when a difference of two predictions is too small to believe."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mpsim
from mpsim.result.residuals import Residuals, Setting, residuals
from mpsim.study.ties import Ratio, ratio_of, selection, tie
from mpsim.training.intervals import intervals, residuals_of


def summary(seconds: float, **labels: str) -> dict[str, Any]:
    """A result of 64 A100 under Megatron-Core, with some labels otherwise."""
    usual = {
        "framework": ("megatron-core", "nvidia"),
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
    """A spread of 0.3 near measured runs; repeats within 0.02, another tp 0.1, other formats 0.06, another microbatch 0.05; another framework 0.1 of sigma."""
    return Residuals(
        figure="step",
        noise={"": 0.3},
        usual={"": 1.0},
        attributes={"framework": (0.1, 0.1)},
        doubling=0.0,
        most_doublings=6,
        guess=0.0,
        quantiles=(-1.3, 1.3),
        pairs={"same": 0.02, "tp": 0.1, "format": 0.06, "micro batch": 0.05},
        rows=1,
        families=1,
        runs=(),
    )


def test_half_widths_of_what_differs_add_in_squares() -> None:
    """Nothing: that of repeats. tp, microbatch and format: their squares. What no pair was measured with: the widest. Another line of frameworks: sqrt(2) x 1.2816 x sqrt(0.02)."""
    base = {
        "layout": ("tp 1",),
        "format": ("bf16", "wide"),
        "rest": ("1",),
        "framework": ("f", "l"),
    }
    first = Setting(base, 8)
    assert known().difference(first, first) == pytest.approx(0.02)
    other = Setting({**base, "layout": ("tp 2",), "rest": ("2",), "format": ("fp16", "wide")}, 8)
    assert known().difference(first, other) == pytest.approx(math.sqrt(0.01 + 0.0036 + 0.0025))
    unmeasured = Setting({**base, "layout": ("tp 1, cp 2",)}, 8)
    assert known().difference(first, unmeasured) == pytest.approx(0.1)
    release = Setting({**base, "framework": ("g", "l")}, 8)
    assert known().difference(first, release) == pytest.approx(0.1)
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
    assert [tie(a, near), tie(a, far)] == [True, False]
    ratio = ratio_of(a, far)
    assert ratio is not None
    assert (ratio.value, ratio.tie) == (2.0, False)
    assert Ratio(1.05, 0.99, 1.1).tie


def test_two_runs_of_one_scenario_differ() -> None:
    """Measured twice it is not the same, by 3 % and more; nor is a release that predicts the same."""
    for other in (summary(1.0), summary(1.0, framework="megatron-core-2025")):
        other["interval"]["of"]["framework"][1:] = ["nvidia"]
        ratio = ratio_of(summary(1.0), other)
        assert ratio is not None
        assert ratio.low < 0.97
        assert ratio.high > 1.03
        assert ratio.tie


def test_the_best_of_many_predictions_is_expected_to_take_longer() -> None:
    """Of random true times and errors by tp and microbatch: what is expected of the chosen one is right on average, where its own prediction is short."""
    draw = np.random.default_rng(7)
    halves = residuals("step").pairs
    sigmas = [halves[kind] / (1.2816 * math.sqrt(2)) for kind in ("tp", "micro batch")]
    settings = [
        Setting({"layout": (f"tp {tp}",), "rest": (f"{batch}",), "model": ("dense",)}, 8)
        for tp in range(4)
        for batch in range(3)
    ]
    short, left = [], []
    for _ in range(200):
        true = draw.normal(0.0, 0.05, 12)
        of_tp, of_batch = draw.normal(0.0, sigmas[0], 4), draw.normal(0.0, sigmas[1], 3)
        predicted = true + np.repeat(of_tp, 3) + np.tile(of_batch, 4)
        chosen = int(predicted.argmin())
        short.append(true[chosen] - predicted[chosen])
        left.append(short[-1] - selection(settings, predicted.tolist()))
    assert np.mean(short) > 0.04
    assert abs(np.mean(left)) < 0.4 * np.mean(short)
    assert selection(settings[:1], [0.0]) == 0.0


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
    assert not tie(old, summary(1.0))


def test_the_comparison_says_tie(scenarios: Path) -> None:
    """Two microbatch sizes a few per cent apart cannot be told apart; recomputing everything can."""
    scenario = mpsim.load(scenarios / "quickstart.yaml")
    base = mpsim.simulate(scenario)
    again = mpsim.simulate(scenario.with_values({"simulation.seed": 1}))
    full = mpsim.simulate(scenario.with_values({"training.recompute": "full"}))
    assert "both take" in mpsim.compare(base, again).explanation
    release = mpsim.simulate(scenario.with_values({"framework": "megatron-core-2026"}))
    equal = mpsim.compare(base, release)
    low, high = (100.0 * (end - 1.0) for end in (equal.ratio.low, equal.ratio.high))
    told = f"no clear winner: real difference {low:.1f} to +{high:.1f} %"
    assert equal.explanation.startswith(told)
    assert re.search(r"both take \d+(\.\d)? ms a step$", equal.explanation)
    assert -15.0 < low < -5.0 < 5.0 < high < 15.0
    slower = mpsim.compare(base, full)
    assert not slower.tie
    assert "would be measured" not in slower.explanation
    step = slower.to_json()["step_time"]
    assert step["interval"][0] <= step["ratio"] <= step["interval"][1]
    small = mpsim.compare(base, mpsim.simulate(scenario.with_values({"parallelism.zero": 0})))
    assert small.tie is (small.ratio.low <= 1 <= small.ratio.high)
