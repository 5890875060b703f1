"""Autoscaling: all requests are served, between the floor and the replicas, and fewer GPU-hours are never free."""

from __future__ import annotations

import itertools
import math
import re

import numpy as np
import pytest

import mpsim
from mpsim.errors import ScenarioError
from mpsim.scenario import Scenario
from mpsim.serving.words import service_sheet


def wave(tmp_path, seconds=300.0, most=30.0):
    """A trace whose rate goes up and down once."""
    random = np.random.default_rng(3)
    at, rows = 0.0, ["arrival_s,input_tokens,output_tokens"]
    while at < seconds:
        at += random.exponential(1.0 / (most * (0.55 - 0.5 * math.cos(2 * math.pi * at / seconds))))
        rows.append(f"{at:.4f},{random.integers(100, 900)},{random.integers(20, 200)}")
    path = tmp_path / "wave.csv"
    path.write_text("\n".join(rows))
    return str(path)


def served(trace, autoscale=None, **serving):
    load = {"arrival": "trace", "trace": trace} if trace else {"rate": 4.0, "requests": 60}
    own = {"autoscale": autoscale} if autoscale else {}
    return mpsim.simulate(
        Scenario.from_mapping(
            {
                "schema": 1,
                "model": "llama3-8b",
                "cluster": {"preset": "dgx-h100", "nodes": 1, "price_per_hour": "3 USD/h"},
                "serving": {
                    "replicas": 4,
                    "routing": "least-load",
                    "slo": {"ttft": "200 ms", "tpot": "15 ms"},
                    **own,
                    **serving,
                    "workload": load,
                },
            }
        )
    )


def test_instances_follow_the_requests_and_hours_fall(tmp_path):
    """Every request is served; instances lie between floor and replicas; the account still sums to the run."""
    trace = wave(tmp_path)
    whole = served(trace).summary
    result = served(trace, {"load": 12, "startup": "5 s", "patience": "15 s"})
    summary, scaled = result.summary, result.summary["autoscale"]
    assert np.isfinite(result.served.last).all()
    assert summary["requests"] == whole["requests"]
    assert 1 <= scaled["mean"] < scaled["max"] <= 4
    assert scaled["gpu_hours"] < 4 * summary["duration_s"] / 3600
    assert scaled["starts"] >= 1
    assert sum(summary["account_s"].values()) == pytest.approx(summary["duration_s"], rel=1e-9)
    assert summary["cost_per_million_output_tokens"] < whole["cost_per_million_output_tokens"]
    assert summary["ttft_s"]["p99"] >= whole["ttft_s"]["p99"]
    spans = sorted(result.served.running)
    for (one, _, end), (other, begin, _) in itertools.pairwise(spans):
        assert one != other or end <= begin


def test_a_floor_of_all_is_no_autoscaling(tmp_path):
    """With as many instances at least as at most, nothing changes but what is told."""
    trace = wave(tmp_path, 100.0)
    fixed, floored = served(trace), served(trace, {"load": 12, "least": 4})
    np.testing.assert_allclose(fixed.served.last, floored.served.last, rtol=1e-12)
    hours = floored.summary["autoscale"]["gpu_hours"]
    assert hours == pytest.approx(4 * floored.summary["duration_s"] / 3600)


def test_a_slower_start_violates_more(tmp_path):
    """Requests wait for instances that are not there yet."""
    trace = wave(tmp_path, 150.0, 60.0)
    shares = [
        served(trace, {"load": 10, "startup": f"{start} s"}).summary["requests_within_slo"]
        for start in (0, 60)
    ]
    assert shares[0] >= shares[1]


def test_what_is_not_simulated_is_refused():
    """Pools, outages beside it, and a floor above what there is."""
    with pytest.raises(ScenarioError, match="got 9 instances at least, of 4"):
        served("", {"load": 5, "least": 9})


def test_figures_of_an_accelerator_are_of_those_that_ran(tmp_path):
    """Rate and utilisation times the mean number of instances are those of the service; what was stopped is no share of the time."""
    result = served(wave(tmp_path, 100.0), {"load": 12, "startup": "5 s", "patience": "15 s"})
    summary, account = result.summary, result.summary["account_s"]
    ran = summary["autoscale"]["mean"]
    assert ran < 4
    assert summary["output_tokens_per_s_per_accelerator"] * ran == pytest.approx(
        summary["output_tokens_per_s"]
    )
    waits = account["idle"] + account["idle_cache"]
    busy = summary["duration_s"] - account["down"] - waits
    assert summary["utilisation"] == pytest.approx(4 * busy / (ran * summary["duration_s"]))
    rows = dict(service_sheet(summary).sections[0].rows)
    assert "down" not in rows["where time goes"]
    shares = [float(share) for share in re.findall(r"([\d.]+) %", rows["where time goes"])]
    assert sum(shares) == pytest.approx(100.0, abs=0.5)
    compared = mpsim.compare(result, result)
    (token,) = (figure.a for figure in compared.figures if figure.name == compared.whole)
    assert token == pytest.approx(1 / summary["output_tokens_per_s_per_accelerator"])
    assert math.fsum(part.a for part in compared.parts) == pytest.approx(token)
