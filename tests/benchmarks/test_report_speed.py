"""Speed of pages: an answer to a slider, and a whole report: ``pytest tests/benchmarks/test_report_speed.py --benchmark-only``.

An answer that a hand waits for has 150 ms on a quiet machine; ``extra_info`` holds the processor time.
"""

import json
import time

import pytest

import mpsim
from mpsim.report import page, report
from mpsim.report.explorer import Explorer

pytestmark = pytest.mark.benchmark(group="report")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("parallelism.pp", 8),
        ("training.micro_batch", 2),
        ("cluster.nodes", 64),
        ("model.layers", 144),
    ],
)
def test_an_answer_of_the_explorer(benchmark, scenarios, key, value):
    """GPT-3 175B on 1,024 GPUs with one setting moved: from places to the JSON that is sent."""
    explorer = Explorer(mpsim.load(scenarios / "gpt3-175b-a100.yaml"))
    places = [setting.start for setting in explorer.settings]
    at = next(i for i, setting in enumerate(explorer.settings) if setting.key == key)
    places[at] = explorer.settings[at].values.index(value)
    begin = time.process_time()
    answer = benchmark.pedantic(
        lambda: json.dumps(explorer.answer(places)), rounds=5, warmup_rounds=1
    )
    benchmark.extra_info["cpu_s"] = (time.process_time() - begin) / 6
    assert "part" in json.loads(answer)


def test_a_report(benchmark, scenarios):
    """GPT-3 175B on 1,024 GPUs: every section and the page, 166 thousand bars."""
    result = mpsim.simulate(mpsim.load(scenarios / "gpt3-175b-a100.yaml"))
    text = benchmark.pedantic(lambda: page(report([result])), rounds=2)
    benchmark.extra_info["bytes"] = len(text.encode())
