"""Durations, warm-up, intervals from batch means, and what is no steady state."""

from __future__ import annotations

import math

import numpy as np
import pytest

import mpsim
from mpsim.result.residuals import Setting, residuals
from mpsim.scenario.serving import Workload
from mpsim.serving.confidence import distribution, of_request, request_interval, steady_state
from mpsim.serving.stream import draw_requests

BASE = {
    "schema": 1,
    "name": "steady",
    "model": "llama3-8b",
    "cluster": {"preset": "dgx-h100", "nodes": 1},
    "parallelism": {"tp": 1},
    "serving": {
        "replicas": 1,
        "workload": {
            "rate": 4.0,
            "requests": 300,
            "prompt": {"kind": "lognormal", "tokens": 500, "spread": 0.5},
            "output": 100,
        },
    },
}


def _run(**workload):
    serving = {**BASE["serving"], "workload": {**BASE["serving"]["workload"], **workload}}
    serving["workload"] = {k: v for k, v in serving["workload"].items() if v is not None}
    return mpsim.simulate(mpsim.scenario.Scenario.from_mapping({**BASE, "serving": serving}))


def _correlated(random, count, memory=0.9):
    """A stream whose neighbours are alike, with mean 0 and variance 1."""
    noise = random.normal(size=count) * math.sqrt(1 - memory**2)
    values = np.empty(count)
    values[0] = random.normal()
    for place in range(1, count):
        values[place] = memory * values[place - 1] + noise[place]
    return values


@pytest.mark.parametrize("arrival", ["closed", "poisson", "all-at-once", "trace"])
def test_a_whole_request_is_known_no_worse_than_its_parts(arrival: str) -> None:
    """Its interval is that of the first token where there is no other, that of other tokens where the first takes nothing, and between no wider than the wider, for errors that do not go together."""
    labels = {"engine": ("vllm-v1", "vllm"), "accelerator": ("h100-sxm", "hopper")}
    labels |= {"format": ("fp8", "narrow"), "model": ("dense",), "arrival": (arrival,)}
    setting = Setting(labels, 8)
    ends = {name: residuals(name).interval(2.0, setting) for name in ("ttft", "tpot")}
    first, further = (request_interval(of_request(setting, t, 2.0), 2.0) for t in (2.0, 0.0))
    assert first.high == pytest.approx(ends["ttft"].high)
    assert further.low == pytest.approx(ends["tpot"].low)
    wider = max(ends.values(), key=lambda end: end.sigma)
    for share in (0.1, 0.5, 0.9):
        whole = request_interval(of_request(setting, 2.0 * share, 2.0), 2.0)
        assert whole.sigma < share * ends["ttft"].sigma + (1 - share) * ends["tpot"].sigma
        assert whole.sigma < wider.sigma
        assert whole.low < 2.0 < whole.high


def test_intervals_of_correlated_means_hold_the_truth_as_often_as_they_say():
    """Neighbours that correlate by 0.9: 80 % of the intervals hold the mean and the median, give or take; independence would claim a quarter of the width."""
    random = np.random.default_rng(0)
    runs = [distribution(_correlated(random, 2000)) for _ in range(300)]
    for name in ("mean", "p50"):
        inside = np.mean([low <= 0 <= high for low, high in (r[f"{name}_interval"] for r in runs)])
        assert 0.72 <= inside <= 0.9


@pytest.mark.parametrize("seed", range(5))
def test_every_interval_holds_its_figure_and_no_end_is_below_zero(seed):
    """Whatever the number of requests and the tail; too few have no interval rather than a short one."""
    random = np.random.default_rng(seed)
    for count in (1, 2, 5, 11, 19, 20, 37, 99, 100, 101, 250, 1000):
        figures = distribution(random.lognormal(sigma=random.uniform(0.1, 3), size=count))
        for name in ("mean", "p50", "p90", "p99"):
            ends = figures[f"{name}_interval"]
            assert ends is None or 0 <= ends[0] <= figures[name] <= ends[1]
        assert (figures["p99_interval"] is None) == (count < 250)
        assert (figures["p50_interval"] is None) == (count < 5)


def test_intervals_hold_their_figure_and_narrow_with_the_run():
    """Each interval of ten thousand requests is narrower than that of 250."""
    random = np.random.default_rng(1)
    widths = []
    for count in (250, 10_000):
        figures = distribution(random.exponential(size=count))
        for name in ("mean", "p50", "p90", "p99"):
            low, high = figures[f"{name}_interval"]
            assert low <= figures[name] <= high
        widths.append(high - low)
    assert widths[1] < widths[0]
    assert distribution(np.array([np.nan])) is None


def test_requests_come_for_a_duration():
    """As many as the rate brings in it, none after it; equal seeds give equal streams."""
    workload = Workload(rate=50.0, duration="20 s")
    stream = draw_requests(workload, seed=3)
    assert stream.arrival.max() <= 20.0
    assert abs(len(stream) - 1000) < 5 * math.sqrt(1000)
    assert np.array_equal(stream.arrival, draw_requests(workload, seed=3).arrival)


def test_users_send_for_a_duration_and_are_served_to_the_end():
    """A closed loop goes round until the time is up: the last request comes before it, the run ends after it."""
    result = _run(arrival="closed", rate=None, concurrency=3, requests=None, duration="30 s")
    served = result.served
    assert len(result.requests) == len(served.arrival) > 30
    assert served.arrival.max() < 30.0 <= served.end
    assert np.isfinite(served.last).all()
    # each sends when the last one has ended, and is on its way for as long as the server says
    back = np.sort(served.last + result.plan.first_token_time)
    assert np.sort(served.arrival)[3:] == pytest.approx(back[back < 30.0])


def test_warm_up_counts_for_nothing():
    """The burst of a closed loop's first requests leaves the percentiles; tokens before it leave the throughput."""
    # equal outputs come in waves for ever
    uneven = {"kind": "uniform", "tokens": 200, "shortest": 0.2}
    load = {"arrival": "closed", "rate": None, "concurrency": 64, "requests": None}
    load["output"] = uneven
    cold = _run(**load, duration="60 s").summary
    warm = _run(**load, duration="60 s", warmup="20 s").summary
    assert warm["requests"] < cold["requests"]
    assert warm["measured_s"] == pytest.approx(warm["duration_s"] - 20.0)
    assert warm["ttft_s"]["p99"] < cold["ttft_s"]["p99"]
    # a closed loop gives as many tokens a second in its middle as in the whole, but for the end
    assert warm["output_tokens_per_s"] == pytest.approx(cold["output_tokens_per_s"], rel=0.05)


def test_tokens_before_and_after_the_warm_up_are_all_tokens():
    """Rate times time without warm-up is every token; with it, the later ones: no token is lost or counted twice."""
    whole = _run(rate=4.0).summary
    parts = [_run(rate=4.0, warmup=f"{at} s").summary for at in (20, 40)]
    tokens = [s["output_tokens_per_s"] * s["measured_s"] for s in (whole, *parts)]
    assert tokens[0] == pytest.approx(300 * 100)
    assert tokens == sorted(tokens, reverse=True)
    assert tokens[1] - tokens[2] == pytest.approx(20 * 400, rel=0.25)  # 20 s of 4/s with 100 each


def test_a_light_load_is_steady_and_an_overload_is_not():
    """Both are results: the overloaded one says that its figures depend on how long one looks."""
    light, heavy = _run(rate=4.0).summary, _run(rate=200.0, requests=3000).summary
    assert light["steady_state"] == {"reached": True, "reason": "", "growing": False}
    assert light["warnings"] == []
    assert not heavy["steady_state"]["reached"]
    assert "faster than they are served" in heavy["warnings"][0]


def test_a_stream_that_ends_before_the_service_is_full_is_not_steady():
    """19.17 requests/s for 52 s at two instances where each stays for 15 s: the queue does not grow yet, and 60 % of a longer stream miss the limits."""
    scenario = mpsim.load("scenarios/serving/llama3-70b-h100.yaml")
    found = mpsim.simulate(scenario.with_values({"serving.workload.rate": 19.17})).summary
    assert not found["steady_state"]["reached"]
    assert "about 3,000 requests show" in found["steady_state"]["reason"]


def test_a_growing_number_of_requests_in_the_service_is_not_steady():
    """No request waits, but each stays longer than the one before: that is an overload, and what keeps its limits so far will not."""
    arrival = np.arange(4000) * 0.1
    growing = steady_state(
        arrival, np.zeros(4000), 1.0 + arrival / 40.0, kind="poisson", users=None
    )
    assert growing["growing"]
    assert not growing["reached"]


@pytest.mark.parametrize(
    ("load", "words"),
    [
        ({"rate": 500.0, "requests": 100}, "requests show whether the service keeps up at all"),
        ({"arrival": "closed", "rate": None, "concurrency": 100}, "each of 100 users sends 3 "),
        ({"arrival": "all-at-once", "rate": None}, "all requests come at once"),
    ],
)
def test_short_runs_say_so(load, words):
    """100 requests in a fifth of a second; a closed loop of three turns; all at once."""
    state = _run(**load).summary["steady_state"]
    assert not state["reached"]
    assert words in state["reason"]


def test_a_queue_that_fluctuates_is_steady():
    """Waits without a trend are no overload, however large their spread."""
    random = np.random.default_rng(2)
    arrival = np.arange(2000) * 0.1
    queue = np.abs(_correlated(random, 2000))
    state = steady_state(arrival, queue, np.full(2000, 1.0), kind="poisson", users=None)
    assert state["reached"]
    growing = steady_state(
        arrival, queue + arrival / 10, np.full(2000, 1.0), kind="poisson", users=None
    )
    assert not growing["reached"]
