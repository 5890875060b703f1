"""Laws of power and energy: caps and locks only ever slow, parts sum to the whole, no step draws less than idle boards."""

from __future__ import annotations

import dataclasses
import math

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

import mpsim
from mpsim.cost import Board, Load, PowerCurve
from mpsim.hardware import accelerator, accelerator_names

SCENARIO = "scenarios/quickstart.yaml"
CHIPS = st.sampled_from(accelerator_names())
SHARES = st.floats(0.15, 1.0)


def summary(**changes: str) -> mpsim.Summary:
    """The quickstart with its accelerator changed."""
    keys = {f"cluster.accelerator.{key}": value for key, value in changes.items()}
    return mpsim.simulate(mpsim.load(SCENARIO).with_values(keys)).summary


@given(CHIPS, SHARES, SHARES, st.sampled_from(list(Load)))
def test_a_lower_cap_never_makes_a_kernel_faster_or_hotter(
    name: str, one_share: float, other_share: float, load: Load
) -> None:
    """Rate and power of every kind of kernel grow with the cap, on every chip."""
    chip = accelerator(name)
    low, high = (
        Board(dataclasses.replace(chip, tdp_w=max(share * chip.tdp_w, chip.idle_w)))
        for share in sorted((one_share, other_share))
    )
    assert low.rate(load) <= high.rate(load)
    assert low.watts(load) <= high.watts(load) + 1e-9 * chip.tdp_w


@given(
    CHIPS.filter(lambda name: accelerator(name).boost_clock_hz is not None),
    SHARES,
    SHARES,
    st.sampled_from(list(Load)),
)
def test_a_lower_lock_never_makes_a_kernel_faster_or_hotter(
    name: str, one_share: float, other_share: float, load: Load
) -> None:
    """The same of the clock."""
    chip = accelerator(name)
    boost = chip.boost_clock_hz or 0.0
    low, high = (
        Board(dataclasses.replace(chip, clock_hz=share * boost))
        for share in sorted((one_share, other_share))
    )
    assert low.rate(load) <= high.rate(load)
    assert low.watts(load) <= high.watts(load) + 1e-9 * chip.tdp_w


@given(st.floats(0.1, 0.4), st.floats(0.5, 1.0), st.floats(0.2, 2.0), SHARES, st.floats(0.3, 1.0))
def test_a_board_under_a_cap_draws_no_more_than_it(
    static: float, least: float, slope: float, cap: float, full: float
) -> None:
    """The clock of a cap draws at most the cap, and is the full one where that draws less."""
    curve = PowerCurve(static=static, least_voltage=least, slope=slope)
    clock = curve.clock(cap, full)
    slowest = float(curve.power(0.1, full))
    assert float(curve.power(clock, full)) <= max(cap, slowest) + 1e-12
    assert (clock == 1.0) == (cap >= full)


@settings(max_examples=8, deadline=None)
@given(st.integers(150, 700), st.integers(150, 700))
def test_a_lower_cap_never_makes_a_step_faster(one_cap: int, other_cap: int) -> None:
    """The step of a lower cap takes as long or longer, and no accelerator draws more than its cap in the mean."""
    low, high = (summary(tdp=f"{cap} W") for cap in sorted((one_cap, other_cap)))
    assert low["step_time_s"] >= high["step_time_s"]
    assert low["accelerator_power_w"] <= max(min(one_cap, other_cap), 0.4 * 700)


@settings(max_examples=8, deadline=None)
@given(st.integers(150, 700), st.integers(400, 1980))
def test_the_parts_of_energy_sum_to_the_whole(cap: int, clock: int) -> None:
    """Parts of accelerators and of the meter sum to their totals exactly, none is negative, and idle boards would draw less than the step."""
    figures = summary(tdp=f"{cap} W", clock=f"{clock} MHz")
    parts, meter = figures["energy_parts_j"], figures["meter_parts_j"]
    assert math.fsum(parts.values()) == figures["energy_j_per_step"] == meter["accelerators"]
    assert math.fsum(meter.values()) == figures["meter_energy_j_per_step"]
    assert min(*parts.values(), *meter.values()) >= 0.0
    idle = accelerator("h100-sxm").idle_w * figures["accelerators"] * figures["step_time_s"]
    assert parts["idle"] == pytest.approx(idle)
    assert figures["energy_j_per_step"] >= idle


@pytest.mark.parametrize("scenario", [SCENARIO, "scenarios/serving/llama3-8b-h100.yaml"])
def test_a_cap_below_the_slowest_clock_counts_as_its_draw_and_says_so(scenario: str) -> None:
    """static 0.23 and a tenth of the rest at 0.77^2 of full voltage: 0.276 of 700 W, 193 W, whatever lower cap is given."""

    def capped(watts: float) -> mpsim.Summary:
        keys = {"cluster.accelerator.tdp": f"{watts} W"}
        return mpsim.simulate(mpsim.load(scenario).with_values(keys)).summary

    least = Board(accelerator("h100-sxm")).least_w
    assert least == pytest.approx(193, abs=0.5)
    low, lower, kept = (dict(capped(watts)) for watts in (least - 1, 80, least))
    told = [
        [text for text in figures.pop("warnings") if "cluster.accelerator.tdp" in text]
        for figures in (low, lower, kept)
    ]
    assert low == lower == kept
    assert [len(texts) for texts in told] == [1, 1, 0]
    assert "a cap of 80 W counts as 193 W" in told[1][0]


def test_a_cap_at_the_limit_and_a_lock_at_the_highest_clock_are_none() -> None:
    """Step and energy of 700 W and 1,980 MHz are those of a board that nobody touched."""
    plain, held = summary(), summary(tdp="700 W", clock="1980 MHz")
    for key in ("step_time_s", "energy_parts_j", "meter_parts_j"):
        assert plain[key] == held[key]


def test_energy_of_kernels_does_not_hang_on_who_holds_the_parameters() -> None:
    """Copies of gathered units run beside the same attention: they took its energy, and that of products, out of the account (505 W of 588)."""
    data = {
        "schema": 1,
        "model": {"preset": "llama3-8b", "layers": 2},
        "cluster": {"preset": "dgx-h100", "nodes": 1},
        "training": {"global_batch": 8, "sequence_length": 8192},
        "framework": "torch-fsdp2",
    }
    whole, sharded = (
        mpsim.simulate(
            mpsim.Scenario.from_mapping({**data, "parallelism": {"zero": zero}})
        ).summary["energy_parts_j"]
        for zero in (0, 3)
    )
    for load in ("products", "attention"):
        assert sharded[load] == pytest.approx(whole[load], rel=0.05)
    assert sharded["streams"] > 0.0
