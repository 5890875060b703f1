"""Sensitivity of a step."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import mpsim
from mpsim.errors import ScenarioError
from mpsim.study import measure_sensitivity


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
    assert len(display.chart.names) == len(sensitivity.rows)
    drawn = np.sum([part.values for part in display.chart.parts], axis=0)
    assert drawn.tolist() == [row.elasticity for row in sensitivity.rows]
    assert display.save(tmp_path / "tornado.png").stat().st_size > 0


def test_a_step_out_of_range_is_refused(result):
    """The message says the range."""
    with pytest.raises(ScenarioError, match="between 0 and 1"):
        measure_sensitivity(result, step=1.5)


def test_the_command_prints_the_study(mpsim_cli, scenarios, tmp_path):
    """As tables, as JSON beside the summary, and the tornado among the plots."""
    file = scenarios / "quickstart.yaml"
    text = mpsim_cli("run", file, "--sensitivity")
    assert text.code == 0, text.err
    for words in ("sensitivity", "accelerator.peak_flops", "% of step time for 1 % more"):
        assert words in text.out
    data = mpsim_cli("run", file, "--sensitivity", "--json", "--plots", tmp_path).json()
    assert data["sensitivity"]["rows"][0]["name"] == "accelerator.peak_flops"
    assert (tmp_path / "sensitivity.png").exists()
