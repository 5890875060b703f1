"""Sensitivity of a step, and its distribution under jitter."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import mpsim
from mpsim.errors import ScenarioError
from mpsim.plot import SensitivityDisplay
from mpsim.study import measure_sensitivity, simulate_jitter
from mpsim.study.draws import factors, sigma_of
from mpsim.study.montecarlo import _enclosing


@pytest.fixture(scope="module")
def result(scenarios):
    return mpsim.simulate(mpsim.load(scenarios / "quickstart.yaml"))


@pytest.fixture(scope="module")
def sensitivity(result):
    return result.sensitivity()


def test_more_of_a_rate_never_slows_and_more_of_a_delay_never_helps(sensitivity):
    """Signs: bandwidths and peak rates below zero, latencies and host times above."""
    for one in sensitivity.rows:
        if one.name.endswith(("bandwidth", "flops")):
            assert one.elasticity <= 0, one.name
            assert one.more_s <= sensitivity.step_time_s <= one.less_s
        else:
            assert one.elasticity >= 0, one.name
    assert "accelerator.peak_flops" in {one.name for one in sensitivity.rows}
    strengths = [abs(one.elasticity) for one in sensitivity.rows]
    assert strengths == sorted(strengths, reverse=True)


def test_everything_twice_as_fast_takes_about_half_the_time(sensitivity):
    """A step is homogeneous in its parameters but for what formulas fix: elasticities sum to nearly one."""
    assert 0.9 < sum(abs(one.elasticity) for one in sensitivity.rows) < 1.02


def test_an_elasticity_is_what_simulating_the_changed_cluster_gives(result, sensitivity):
    """NIC and memory bandwidth changed in the plan, against whole simulations of that plan."""
    from mpsim.engine import run
    from mpsim.training.build import build_program

    plan = result.plan
    chip = plan.layout.cluster.accelerator
    faster = dataclasses.replace(chip, memory_bandwidth=chip.memory_bandwidth * 1.01)
    node = dataclasses.replace(plan.layout.cluster.node, accelerator=faster)
    cluster = dataclasses.replace(plan.layout.cluster, node=node)
    changed = plan.on(dataclasses.replace(plan.layout, cluster=cluster))
    timeline = run(build_program(changed), "simpy")
    assert sensitivity["accelerator.memory_bandwidth"].more_s == timeline.step_time_s


def test_a_host_time_that_stands_alone_is_its_share_of_the_step(result, sensitivity):
    """Step overhead delays every rank: elasticity is overhead / step."""
    share = result.plan.layout.framework.host.step_overhead / result.timeline.step_time_s
    assert sensitivity["host.step_overhead"].elasticity == pytest.approx(share, rel=1e-3)


def test_sensitivity_is_plain_data_and_a_picture(sensitivity, tmp_path):
    """JSON, and a tornado with one bar a parameter."""
    data = sensitivity.to_json()
    assert len(data["rows"]) == len(sensitivity.rows)
    display = sensitivity.plot()
    assert isinstance(display, SensitivityDisplay)
    assert len(display.ax_.patches) == len(sensitivity.rows)
    assert display.save(tmp_path / "tornado.png").stat().st_size > 0
    with pytest.raises(ScenarioError, match="as many"):
        SensitivityDisplay(["a"], [], [1.0])


def test_a_step_out_of_range_is_refused(result):
    """The message says the range."""
    with pytest.raises(ScenarioError, match="between 0 and 1"):
        measure_sensitivity(result, step=1.5)


def test_without_variation_every_step_is_the_same(result):
    """Factors of exactly one."""
    drawn = result.jitter(0.0, samples=3)
    assert (drawn.step_times_s == result.timeline.step_time_s).all()


def test_jitter_is_seeded_and_slows_steps_more_the_larger_it_is(result):
    """Equal seeds, equal bytes; maxima over ranks grow with the variation."""
    one, again, other = (result.jitter(0.02, samples=40, seed=seed) for seed in (1, 1, 2))
    assert np.array_equal(one.step_times_s, again.step_times_s)
    assert not np.array_equal(one.step_times_s, other.step_times_s)
    assert 1 < one.slowdown < result.jitter(0.1, samples=40, seed=1).slowdown


def test_bad_jitter_is_refused(result):
    """Negative variation, no samples."""
    with pytest.raises(ScenarioError, match="0 or more"):
        simulate_jitter(result, -0.1)
    with pytest.raises(ScenarioError, match="1 or more"):
        simulate_jitter(result, 0.1, samples=0)


def test_factors_have_mean_one_and_the_variation_asked_for():
    """Alone; the largest of several is larger, and as the maximum of that many draws."""
    alone = factors(sigma_of(0.1), 1)
    assert alone.mean() == pytest.approx(1, abs=1e-4)
    assert alone.std() == pytest.approx(0.1, rel=1e-2)
    draws = np.random.default_rng(0).choice(alone, (20000, 8)).max(axis=1)
    assert factors(sigma_of(0.1), 8).mean() == pytest.approx(draws.mean(), rel=2e-3)


@pytest.mark.parametrize("share", [0.05, 0.5, 0.95])
def test_the_interval_of_a_percentile_covers_it_as_often_as_it_says(share):
    """Uniform samples: the true quantile lies between the two order statistics in 95 % of 4,000 trials or a little more."""
    low, high = _enclosing(100, share)
    draws = np.sort(np.random.default_rng(3).random((4000, 100)), axis=1)
    above = draws[:, low] <= share if low is not None else np.ones(4000, dtype=bool)
    below = draws[:, high] >= share if high is not None else np.ones(4000, dtype=bool)
    assert 0.94 < (above & below).mean() < 0.99


def test_a_sample_too_small_for_a_percentile_says_so(result):
    """Ten steps cannot bound the 99th percentile from above."""
    assert result.jitter(0.05, samples=10).percentile(99).high_s is None
    assert "?" in repr(result.jitter(0.05, samples=10))


def test_the_command_prints_both_studies(mpsim_cli, scenarios, tmp_path):
    """As tables, as JSON beside the summary, and the tornado among the plots."""
    file = scenarios / "quickstart.yaml"
    text = mpsim_cli("run", file, "--sensitivity", "--jitter", "0.02")
    assert text.code == 0, text.err
    for words in ("sensitivity", "accelerator.peak_flops", "jitter of 0.02", "95 % confidence"):
        assert words in text.out
    data = mpsim_cli("run", file, "--sensitivity", "--jitter", "0.02", "--json").json()
    assert data["sensitivity"]["rows"][0]["name"] == "accelerator.peak_flops"
    assert data["jitter"]["samples"] == 100
    assert mpsim_cli("run", file, "--sensitivity", "--plots", tmp_path).code == 0
    assert (tmp_path / "sensitivity.png").exists()
