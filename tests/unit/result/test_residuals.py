"""Residuals: the runs nearest to a prediction, and the interval it gets from them."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import pytest

import mpsim
from bench.tables import seen_as
from mpsim.result.residuals import FIGURES, MeasuredRuns, Residuals, Setting, residuals
from mpsim.result.words import validated
from mpsim.training.intervals import nearest_measured, residuals_of, shares_of

A100, H100 = ("a100-sxm-80", "ampere"), ("h100-sxm", "hopper")


def setting(
    framework: tuple[str, str],
    accelerator: tuple[str, str] = A100,
    *,
    model: str = "dense",
    precision: tuple[str, str] = ("bf16", "wide"),
    size: int = 64,
) -> Setting:
    """A training step with sequences of usual length."""
    return Setting(
        {
            "framework": framework,
            "accelerator": accelerator,
            "format": precision,
            "length": ("short",),
            "model": (model,),
        },
        size,
    )


def runs(name: str, chip: str, rows: int = 1, error: float = 0.1) -> MeasuredRuns:
    """Runs of 8 to 64 accelerators."""
    labels = {"framework": (name, "line"), "accelerator": (chip, "generation")}
    return MeasuredRuns(
        family=f"{name} on {chip}",
        labels=labels,
        smallest=8,
        largest=64,
        rows=rows,
        mean_abs_error=error,
        bias=0.0,
    )


def test_a_size_outside_the_measured_ones_is_larger_or_smaller_by_a_factor() -> None:
    """Runs of 8 to 64: 4 is half of the smallest, 128 twice the largest; both add what a doubling adds."""
    measured = runs("a-1", "x")
    assert [measured.scale(size) for size in (4, 8, 20, 64, 128)] == [0.5, 1.0, 1.0, 1.0, 2.0]
    spread = [known(measured).sigma(Setting(measured.labels, size)) for size in (4, 20, 128)]
    assert spread[0] == spread[2] > spread[1]


def known(*measured: MeasuredRuns) -> Residuals:
    """Noise of 0.1; another framework of the line adds 0.2, another line 0.4 more; another chip 0.3; a doubling 0.1."""
    return Residuals(
        figure="step",
        noise={"": 0.1},
        usual={"": 1.0},
        attributes={"framework": (0.2, 0.4), "accelerator": (0.3, 0.5)},
        doubling=0.1,
        most_doublings=6,
        guess=0.2,
        quantiles=(-2.0, 1.0),
        pairs={},
        rows=10,
        families=5,
        runs=measured,
    )


def at(name: str, chip: str, size: float = 64, line: str = "line") -> Setting:
    """A setting of the two attributes of `known`."""
    return Setting({"framework": (name, line), "accelerator": (chip, "generation")}, size)


def test_sigma_adds_what_is_not_shared() -> None:
    """Same: 0.1. Same line and chip: sqrt(0.01 + 0.04). Another line, another chip of the generation, four times the size: sqrt(0.01 + 0.04 + 0.16 + 0.09 + 4 x 0.01)."""
    one = known(runs("f", "a"))
    assert one.sigma(at("f", "a")) == pytest.approx(0.1)
    assert one.sigma(at("g", "a")) == pytest.approx(math.sqrt(0.05))
    assert one.sigma(at("g", "b", 256, "other")) == pytest.approx(math.sqrt(0.34))


def test_parts_that_few_families_have_widen_by_their_share() -> None:
    """Kernels of many families 1.1, a compiled program of few 1.5: half of each 1.3; a part that no family has as the widest."""
    one = dataclasses.replace(known(runs("f", "a")), wider={"compute": 1.1, "compiled": 1.5})
    plain = dataclasses.replace(one, wider={})
    for shares, factor in (({"compute": 0.5, "compiled": 0.5}, 1.3), ({"rest": 1.0}, 1.5)):
        setting = dataclasses.replace(at("f", "a"), shares=shares)
        assert one.sigma(setting) == pytest.approx(factor * plain.sigma(setting))


def test_the_interval_is_the_prediction_times_quantiles_of_the_spread() -> None:
    """Residuals ln(predicted / measured) from -2 to 1 sigma: measured from exp(-0.1) to exp(0.2) of the prediction."""
    interval = known(runs("f", "a")).interval(10.0, at("f", "a"))
    assert interval.low == pytest.approx(10 * math.exp(-0.1))
    assert interval.high == pytest.approx(10 * math.exp(0.2))
    assert 10.0 in interval


def test_without_a_measurement_the_interval_is_the_widest_and_says_so() -> None:
    """Everything that can differ does, six doublings away."""
    alone = known()
    assert alone.sigma(at("f", "a")) == pytest.approx(
        math.sqrt(0.01 + 0.04 + 0.16 + 0.09 + 0.25 + 0.36)
    )
    assert "widest" in alone.interval(1.0, at("f", "a")).basis
    assert alone.nearest(at("f", "a")) is None


def test_a_family_left_out_is_no_neighbour() -> None:
    """Its own runs gone, the other chip's are nearest."""
    both = known(runs("f", "a"), runs("f", "b"))
    left = both.without("f on a")
    assert left.sigma(at("f", "a")) == pytest.approx(math.sqrt(0.1))
    assert [one.family for one in left.runs] == ["f on b"]


def test_guessed_settings_widen() -> None:
    """Each setting left open adds 0.04 to a variance of 0.01, from the fifth on nothing; what was measured changes nothing about that."""
    known_one = known(runs("f", "a"))
    open_one = Setting(at("f", "a").labels, 64, guessed=2)
    assert known_one.sigma(open_one) == pytest.approx(math.sqrt(0.09))
    for most in (4, 5):
        several = Setting(open_one.labels, 64, guessed=most)
        assert known_one.sigma(several) == pytest.approx(math.sqrt(0.17))
    assert "2 settings guessed" in known_one.interval(1.0, open_one).basis
    alone = Setting(open_one.labels, 64, guessed=1)
    assert known_one.interval(1.0, alone).basis.endswith("; 1 setting guessed")


def test_a_step_is_as_uncertain_as_its_parts() -> None:
    """0.8 of 0.1 and 0.2 of 0.3: sqrt(0.08^2 + 0.06^2) = 0.1; a step without an account has the usual shares."""
    parts = dataclasses.replace(
        known(runs("f", "a")),
        noise={"compute": 0.1, "exchange": 0.3},
        usual={"compute": 1.0},
    )
    shares = {"compute": 0.8, "exchange": 0.2}
    step = dataclasses.replace(at("f", "a"), shares=shares)
    assert parts.sigma(step) == pytest.approx(0.1)
    assert parts.sigma(dataclasses.replace(step, shares={"exchange": 1.0})) == pytest.approx(0.3)
    assert parts.sigma(at("f", "a")) == pytest.approx(0.1)
    assert Setting.from_json(step.to_json()) == step


def test_an_account_is_kernels_exposed_communication_and_the_rest() -> None:
    """6 s of kernels, 1 s of tensor and 1 s of data parallelism, 2 s of bubbles."""
    seconds = {"forward": 2.0, "backward": 4.0, "exposed_tp": 1.0, "exposed_dp": 1.0, "bubble": 2.0}
    assert shares_of(seconds) == {"compute": 0.6, "exchange": 0.2, "rest": 0.2}
    assert shares_of({}) == {}


def test_kernels_of_a_step_that_a_compiler_orders_have_a_noise_of_their_own() -> None:
    """The same account of one compiled program; its kernels are known worse."""
    seconds = {"forward": 6.0, "exposed_tp": 2.0, "bubble": 2.0}
    shares = shares_of(seconds, compiled=True)
    assert shares == {"compiled": 0.6, "exchange": 0.2, "rest": 0.2}
    noise = residuals("step").noise
    assert noise["compiled"] > noise["compute"]


def test_a_full_memory_widens_the_slower_side_alone() -> None:
    """Odds of 1/4 of a peak beyond memory and 0.2: the upper end is 2 x sqrt(0.01 + 0.04 / 4) away, the lower one stays."""
    tight = dataclasses.replace(known(runs("f", "a")), full=0.2)
    interval = tight.interval(10.0, dataclasses.replace(at("f", "a"), full=0.25))
    assert interval.low == pytest.approx(10 * math.exp(-0.1))
    assert interval.high == pytest.approx(10 * math.exp(2 * math.sqrt(0.02)))
    assert all(residuals(figure).full > 0.0 for figure in ("step", "step-experts"))
    assert residuals("memory").full == 0.0


def test_a_step_near_the_end_of_memory_is_told_where_its_software_allocates(
    scenarios: Path,
) -> None:
    """A step that fills 93 % says so, one of 28 % does not; a compiler that places buffers beforehand never frees them in between."""
    roomy = mpsim.load(scenarios / "quickstart.yaml")
    tight = roomy.with_values({"training.micro_batch": 4, "training.sequence_length": 7168})
    compiled = {"framework": "maxtext-gpu", "parallelism.zero": 3, "parallelism.pp": 1}
    placed = tight.with_values({**compiled, "training.sequence_length": 12288})
    full, words = [], "frees and allocates again"
    for scenario in (tight, roomy, placed):
        summary = mpsim.simulate(scenario).summary
        full.append(summary["interval"]["of"]["full"])
        assert any(words in text for text in summary["warnings"]) == (scenario is tight)
    assert full[0] > 0.2
    assert full[1:] == [0.0, 0.0]


def test_a_peak_is_as_uncertain_as_the_way_it_is_read() -> None:
    """What the allocator hands out is known better than what a device reports, which nothing is known worse than."""
    memory = residuals("memory")
    spread = [memory.sigma(seen_as(setting(("f", "l")), seen)) for seen in ("allocated", "memory")]
    assert spread[1] > 1.2 * spread[0]
    assert memory.sigma(seen_as(setting(("f", "l")), "by hand")) == spread[1]


def test_software_that_nobody_measured_is_told() -> None:
    """In the words of the interval."""
    one = known(runs("f", "a"))
    assert "nobody measured this software" in one.basis(at("h", "a"))
    assert "nobody" not in one.basis(at("f", "a"))


def test_an_accelerator_of_one_source_is_wider() -> None:
    """Two sources measured a, one b: b adds 0.3."""
    sources = dataclasses.replace(
        known(runs("f", "a"), runs("f", "b")), several=frozenset("a"), single=0.3
    )
    assert sources.sigma(at("f", "a")) == pytest.approx(0.1)
    assert sources.sigma(at("f", "b")) == pytest.approx(math.sqrt(0.1))


def test_the_nearest_runs_are_those_of_the_stack() -> None:
    """Another chip adds 0.3, another stack of the line 0.2: the interval takes the nearer, the nearest runs are those of the same stack."""
    both = known(runs("f", "b"), runs("g", "a"))
    assert both.sigma(at("f", "a")) == pytest.approx(math.sqrt(0.05))
    nearest = both.nearest(at("f", "a"))
    assert nearest is not None
    assert nearest.family == "f on b"


def test_unknown_software_is_nobodys_neighbour() -> None:
    """An empty name equals no other, not even an empty one."""
    unknown = Setting({"framework": ("", "")}, 8)
    assert unknown.level("framework", ("", "")) == 2


def test_software_and_then_hardware_decide_who_is_nearest() -> None:
    """Megatron-Core on TPUs: runs of Megatron-Core, on whatever they ran, and not those of the machine."""
    tpu = ("tpu-v5p", "tpu")
    found = nearest_measured(setting(("megatron-core", "nvidia"), tpu, size=1024))
    assert found is not None
    assert found["framework"] == "megatron-core"
    assert found["accelerator"] != "tpu-v5p"
    assert "accelerator" in found["differs"]


def test_errors_of_another_accelerator_are_not_said_of_this_one() -> None:
    """One run of the stack on A100 that was met to 0.0 % says nothing of the stack on a TPU."""
    near = nearest_measured(setting(("megatron-core", "nvidia"), ("tpu-v5p", "tpu"), size=1024))
    assert near is not None
    assert "off by" not in validated(near)
    assert "whose errors say little of another accelerator" in validated(near)
    same = {**near, "differs": [], "rows": 1, "mean_abs_error": 0.02}
    assert ", off by 2.0 %" in validated(same)
    assert "on average" not in validated(same)


def test_runs_of_the_same_machine_and_software_come_first() -> None:
    """InternEvo on A100 at 64 GPUs lies within its own 8 to 1,024; at 4,096 the scale differs."""
    found = nearest_measured(setting(("internevo-2023", "others")))
    assert found is not None
    assert (found["framework"], found["differs"], found["scale"]) == ("internevo-2023", [], 1.0)
    beyond = nearest_measured(setting(("internevo-2023", "others"), size=4096))
    assert beyond is not None
    assert (beyond["differs"], beyond["scale"]) == (["scale"], 4096 / beyond["largest"])


def test_experts_never_borrow_from_dense_models() -> None:
    """Each has residuals of its own."""
    mixed = setting(("internevo-2023", "others"), model="experts")
    assert residuals_of(mixed).figure == "step-experts"
    found = nearest_measured(mixed)
    assert found is not None
    assert found["framework"] != "internevo-2023"


def test_an_accelerator_nobody_measured_is_wider() -> None:
    """Gaudi 3 says that it is another accelerator, and its interval is wider than that of an A100."""
    gaudi = setting(("torch-ddp", "pytorch"), ("gaudi3", "gaudi"))
    near = setting(("torch-fsdp1", "pytorch"))
    step = residuals("step")
    assert "accelerator" in (nearest_measured(gaudi) or {})["differs"]
    assert step.sigma(gaudi) > 1.2 * step.sigma(near)


@pytest.mark.parametrize("figure", FIGURES)
def test_every_figure_ships_residuals(figure: str) -> None:
    """Each has measured runs, a spread and quantiles on both sides of the prediction."""
    one = residuals(figure)
    assert one.runs
    assert min(one.noise.values()) > 0
    assert one.quantiles[0] < 0 < one.quantiles[1]


def test_every_result_carries_both(scenarios: Path) -> None:
    """The nearest runs with the error seen there, and intervals that hold the predictions."""
    summary = mpsim.simulate(mpsim.load(scenarios / "quickstart.yaml")).summary
    assert 0 <= summary["validated"]["mean_abs_error"] < 1
    ranges = summary["interval"]
    for name in ("step_time_s", "tokens_per_s", "mfu", "hfu", "peak_memory_bytes"):
        low, high = ranges[name]
        assert low < summary[name] < high
    assert ranges["level"] == 0.8
    tokens = summary["tokens_per_s"] * summary["step_time_s"]
    assert ranges["tokens_per_s"][0] == pytest.approx(tokens / ranges["step_time_s"][1])
