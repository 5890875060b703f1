"""Laws of the largest rate of a service: an answer holds for ten times the requests, and what is called too fast is."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from mpsim.scenario import Scenario
from mpsim.serving.planning import make_service
from mpsim.serving.result import serve_requests
from mpsim.study.search import rate
from mpsim.study.search.given import defaults
from tests.nightly import examples, some


def _service(seed):
    """A small service drawn at random: model, layout, engine, lengths, way of arriving and limits."""
    random = np.random.default_rng(seed)

    def one_of(*values):
        return values[random.integers(len(values))]

    arrival = one_of({}, {"arrival": "gamma", "burstiness": 0.5})
    slo = one_of({"ttft": "500 ms", "tpot": "25 ms"}, {"ttft": "1 s"}, {"tpot": "20 ms"})
    serving = {
        "engine": {"preset": one_of("vllm-v1", "sglang"), "max_sequences": one_of(32, 256)},
        "replicas": one_of(1, 2),
        "slo": {**slo, "share": one_of(0.9, 0.99)},
        "workload": {
            **arrival,
            "rate": 4.0,
            "requests": 200,
            "prompt": {"kind": "lognormal", "tokens": one_of(300, 2000), "spread": 0.7},
            "output": {"kind": "lognormal", "tokens": one_of(40, 200), "spread": 0.7},
        },
    }
    return Scenario.from_mapping(
        {
            "schema": 1,
            "name": "law",
            "model": one_of("llama3-8b", "gemma2-9b", "deepseek-v2-lite"),
            "cluster": {"preset": "dgx-h100", "nodes": 1},
            "parallelism": {"tp": one_of(1, 2)},
            "simulation": {"seed": int(seed)},
            "serving": serving,
        }
    )


def _share(scenario, speed, count):
    """Share of so many requests at a rate that keep the limits, those of the first tenth left out."""
    plan = make_service(scenario)
    requests = rate.Streams(plan).first(count, speed)
    begin = float(requests.arrival[count // 10])
    workload = plan.workload.model_copy(update={"warmup": begin})
    result = serve_requests(scenario, dataclasses.replace(plan, workload=workload), requests)
    return result.summary


@pytest.mark.parametrize("seed", some(range(12), 1))
def test_what_is_called_kept_holds_for_ten_times_the_requests(seed, monkeypatch):
    """Ten times the requests of a stream that confirms keep the limits at its rate; at 1.1 times the rate that it calls too fast they do not."""
    least = examples(80, 1000)  # a twelfth of the usual streams in CI
    usual = {**defaults("serving"), "rate_requests": least}
    monkeypatch.setattr(rate, "defaults", lambda section: usual)
    scenario = _service(seed)
    plan = make_service(scenario)
    judge = rate.Judge(scenario, plan, rate.Streams(plan))
    most = rate.saturation(plan, judge.streams)
    found = rate.confirmed_rate(judge, rate.bounded_rate(judge, most), most)
    assert found.rate > 0
    assert found.summary["steady_state"]["reached"]
    assert found.rate < found.above < 1.06 * found.rate
    count = int(10 * usual["rate_confirmed"] * least)
    assert _share(scenario, found.rate, count)["slo"]["met"]
    beyond = _share(scenario, 1.1 * found.above, count)
    assert not beyond["slo"]["met"]
