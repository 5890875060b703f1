"""The command line of services: check, run with plots and trace, and one clear line for each mistake."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

import mpsim
from mpsim.scenario import Scenario

SCENARIO = Path(__file__).resolve().parents[2] / "scenarios" / "serving" / "llama3-70b-h100.yaml"
DISAGGREGATED = SCENARIO.with_name("deepseek-v3-disaggregated.yaml")
LOAD = "serving.workload"
TIMED = (f"{LOAD}.requests=null",)
DRAFTS = "serving.speculation"
FEW = ("--set", "serving.workload.requests=20")


@pytest.fixture
def call(mpsim_cli):
    """A command on the scenario that ships."""
    return lambda command, *words: mpsim_cli(command, SCENARIO, *words)


def test_check_says_how_many_tokens_fit(call):
    result = call("check", "--json")
    assert result.code == 0, result.err
    assert json.loads(result.out)["derived"]["cache_tokens"] > 100_000


def test_what_is_of_one_instance_says_so(call):
    """Cache and batch are those of one of two; a reader who took them for all would buy half."""
    text = call("run", *FEW).out
    assert "8, in 2 instances" in text
    assert "sequences an instance on average" in text
    assert "tokens an instance" in text
    assert json.loads(call("run", *FEW, "--json").out)["replicas"] == 2
    assert "instance" not in call("run", *FEW, "--set", "parallelism.tp=8").out


def test_run_writes_pictures_and_a_trace(call, tmp_path):
    trace = tmp_path / "trace.json.gz"
    result = call("run", *FEW, "--plots", str(tmp_path), "--trace", str(trace))
    assert result.code == 0, result.err
    assert {path.stem for path in tmp_path.glob("*.png")} == {
        "ttft",
        "tpot",
        "itl",
        "batch",
        "cache",
        "lives",
    }
    events = json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
    ends = [event for event in events if event["ph"] == "e"]
    assert len(ends) == 20
    assert {event["name"] for event in events if event["ph"] == "X"} >= {"decode"}


@pytest.mark.parametrize(
    ("sets", "words"),
    [
        (
            ["serving.weights=bf16", "parallelism.tp=1"],
            "parallelism.tp: 2 or parallelism.pp: 2 or serving.weights: w4a16",
        ),
        (["serving=null"], "training: missing"),
        (["parallelism.tp=3"], "does not divide 64 heads"),
        (["serving.workload.concurrency=8"], "got concurrency with arrival: poisson"),
        (["serving.engine.chunked=false", "serving.engine.max_tokens=100"], "got a prompt of"),
        (["serving.weights=nvfp4"], "h100-sxm has no fp4"),
        (["serving.kv_blocks=4"], "do not fit into the cache"),
        (["serving.engine=vlm-v1"], "no engine 'vlm-v1'"),
        (["serving.engine.blockz=3"], "unknown key 'blockz'"),
        (["serving.workload.duration=60 s"], "got requests and duration; needed one of them"),
        (
            [*TIMED, f"{LOAD}.duration=60 s", f"{LOAD}.warmup=60 s"],
            "got a warmup of 60 s; needed less than the duration of 60 s",
        ),
        (
            [f"{LOAD}.arrival=all-at-once", f"{LOAD}.rate=null", f"{LOAD}.warmup=1 s"],
            "got warmup with arrival: all-at-once",
        ),
        ([f"{LOAD}.arrival=gamma", f"{LOAD}.concurrency=3"], "got concurrency with arrival: gamma"),
        ([f"{LOAD}.burstiness=2"], "got burstiness 2 with arrival: poisson"),
        ([*TIMED, f"{LOAD}.duration=60"], "no unit"),
        ([f"{DRAFTS}={{tokens: 3, acceptance: 1.2}}"], "acceptance: got 1.2; needed at most 1"),
        ([f"{DRAFTS}={{tokens: 3, acceptance: -0.1}}"], "acceptance: got -0.1; needed"),
        ([f"{DRAFTS}={{tokens: 0, acceptance: 0.5}}"], "tokens: got 0; needed"),
        ([f"{DRAFTS}={{tokens: 3, acceptance: 0.5, draft: lama3-8b}}"], "no model 'lama3-8b'"),
        ([f"{DRAFTS}={{tokens: 3, acceptance: 0.5, draft: gpt3-175b}}"], "a vocabulary of 50,257"),
        (["training.sequence_length=8"], "got both training and serving"),
    ],
)
def test_a_mistake_is_one_clear_line(call, sets, words):
    options = [word for item in sets for word in ("--set", item)]
    result = call("run", *FEW, *options, "--json")
    assert result.code == 2
    assert result.out == ""
    assert words in result.err
    assert "Traceback" not in result.err


POOLS = "serving.disaggregated"


@pytest.mark.parametrize(
    ("sets", "words"),
    [
        ([f"{POOLS}.decode.replicas=9"], "got 9 replicas of tp 32 x pp 1 on 64 accelerators"),
        ([f"{POOLS}.prefill.replicas=5"], "40 accelerators to prefill and 32 to decode, 72 of 64"),
        ([f"{POOLS}.decode.kv=fp8"], "prompts come with keys and values in bf16"),
        ([f"{POOLS}.prefill.engine={{block: 64}}"], "needed the same: give block to both"),
        ([f"{POOLS}.prefill.engine={{blocc: 64}}"], "disaggregated.prefill.engine.blocc"),
        (["parallelism.tp=8"], "got a layout beside serving.disaggregated"),
        (["serving.replicas=2"], "got a layout beside serving.disaggregated"),
        ([f"{POOLS}.prefill.tp=24"], "got 24, which does not divide 128 heads"),
        ([f"{POOLS}.decode.weights=nvfp4"], "has no fp4"),
        ([f"{POOLS}.prefill.replicaz=2"], "replicaz"),
        ([f"{POOLS}.prefill.kv_blocks=9"], "an instance of the prefill pool holds"),
    ],
)
def test_a_mistake_of_pools_is_one_clear_line(mpsim_cli, sets, words):
    options = [word for item in sets for word in ("--set", item)]
    result = mpsim_cli("run", DISAGGREGATED, *options, *FEW, "--json")
    assert result.code == 2
    assert result.out == ""
    assert words in result.err
    assert "Traceback" not in result.err


@pytest.mark.parametrize("file", [SCENARIO, DISAGGREGATED])
def test_a_service_spelled_out_is_the_same_service(file):
    """Presets, units and times survive being written down."""
    timed = {
        "serving.workload.requests": None,
        "serving.workload.duration": "40 s",
        "serving.workload.warmup": "4 s",
    }
    scenario = mpsim.load(file).with_values(timed)
    again = Scenario.from_mapping(scenario.resolved())
    assert again.resolved() == scenario.resolved()
    assert again.digest == scenario.digest


def test_pools_are_checked_run_and_traced(mpsim_cli, tmp_path):
    derived = mpsim_cli("check", DISAGGREGATED, "--json").json()["derived"]
    assert derived["prefill_accelerators"] + derived["decode_accelerators"] == 64
    trace = tmp_path / "trace.json"
    result = mpsim_cli("run", DISAGGREGATED, *FEW, "--plots", tmp_path, "--trace", trace)
    assert result.code == 0, result.err
    assert "decode pool" in result.out
    events = json.loads(trace.read_bytes())["traceEvents"]
    assert sum(e["ph"] == "b" and e["name"] == "transfer" for e in events) == 20


def test_search_ranks_layouts_and_writes_them(call, tmp_path):
    options = (*FEW, "--over", "parallelism.tp=4,8", "--over", "serving.engine.max_tokens=8192")
    files = ("--csv", tmp_path / "s.csv", "--plot", tmp_path / "s.png")
    found = call("search", *options, "--objective", "goodput", *files)
    assert found.code == 0, found.err
    assert "accelerators" in found.out
    assert (tmp_path / "s.png").stat().st_size > 1000
    assert "objective" in (tmp_path / "s.csv").read_text(encoding="utf-8")
    data = call("search", *options, "--objective", "throughput", "--json").json()
    assert data["objective"] == "throughput"
    assert data["layouts"] == sum(data["counts"].values())
    rates = [row["objective"] for row in data["rows"] if row["meets_slo"]]
    assert rates == sorted(rates, reverse=True)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--objective", "time"), "ranks training steps"),
        (("--over", "parallelism.tq=4"), "tq"),
        (("--over", "parallelism.tp=3"), "no layout can be served"),
        (("--max-price", "1 USD/h"), "not one accelerator"),
    ],
)
def test_a_mistake_of_a_search_is_one_clear_line(call, words, message):
    result = call("search", *words)
    assert result.code == 2
    assert message in result.err
    assert "Traceback" not in result.err


def test_objectives_of_services_are_refused_for_training(mpsim_cli):
    result = mpsim_cli("search", SCENARIO.parents[1] / "quickstart.yaml", "--objective", "goodput")
    assert result.code == 2
    assert "the scenario trains" in result.err


def test_sweep_and_compare_take_services(call, mpsim_cli, tmp_path):
    swept = call("sweep", *FEW, "--over", "parallelism.tp=4,3", "--jobs", "1")
    assert swept.code == 0, swept.err
    assert "does not divide 64 heads" in swept.out
    for tp in (4, 8):
        run = call("run", *FEW, "--set", f"parallelism.tp={tp}", "--json")
        (tmp_path / f"{tp}.json").write_text(run.out, encoding="utf-8")
    found = mpsim_cli("compare", tmp_path / "4.json", tmp_path / "8.json")
    assert found.code == 0, found.err
    assert "of an accelerator" in found.out


def test_overload_is_a_result(call):
    """Fifty times what it serves: it runs, says that there is no steady state, and misses its limits."""
    result = call("run", "--set", f"{LOAD}.rate=500", "--set", f"{LOAD}.requests=400")
    assert result.code == 0, result.err
    assert "there is no steady state" in result.out
    assert "MISSED" in result.out


def test_check_says_what_binds(call):
    derived = call("check", "--json").json()["derived"]
    assert derived["bound_by"] == "memory"
    assert derived["sequences_that_fit"] == derived["cache_tokens"] // 1800
    few = call("check", "--set", "serving.engine.max_sequences=8", "--json").json()["derived"]
    assert (few["sequences_that_fit"], few["bound_by"]) == (8, "serving.engine.max_sequences")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("arrival_s,input_tokens,output_tokens\n0,10,5\n1,ten,5\n", "line 3 is malformed"),
        ("arrival_s,input_tokens,output_tokens\n0,10,-5\n", "line 2 is malformed"),
        ("time,in,out\n0,10,5\n", "is no known trace; needed columns"),
        ("arrival_s,input_tokens,output_tokens\n", "has no requests"),
        ('{"timestamp": 0, "input_length": 5}\n', "line 1 is malformed"),
    ],
)
def test_a_malformed_trace_names_the_line(call, tmp_path, text, words):
    (tmp_path / "requests.csv").write_text(text, encoding="utf-8")
    sets = ("arrival=trace", "rate=null", f"trace={tmp_path / 'requests.csv'}", "requests=null")
    result = call("run", *(word for item in sets for word in ("--set", f"{LOAD}.{item}")))
    assert result.code == 2
    assert words in result.err
    assert "Traceback" not in result.err


def test_a_trace_that_is_not_there_is_named(call):
    sets = ("arrival=trace", "rate=null", "trace=nowhere.csv", "requests=null")
    result = call("run", *(word for item in sets for word in ("--set", f"{LOAD}.{item}")))
    assert result.code == 2
    assert "no file 'nowhere.csv'" in result.err


def test_a_trace_out_of_order_names_the_line(call, tmp_path):
    (tmp_path / "requests.csv").write_text(
        "arrival_s,input_tokens,output_tokens\n0,10,5\n2,10,5\n1,10,5\n", encoding="utf-8"
    )
    sets = ("arrival=trace", "rate=null", f"trace={tmp_path / 'requests.csv'}", "requests=null")
    options = [word for item in sets for word in ("--set", f"serving.workload.{item}")]
    result = call("run", *options, "--json")
    assert result.code == 2
    assert "line 4" in result.err


def test_show_engine_names_its_source(mpsim_cli):
    assert "vllm-v1" in mpsim_cli("show", "engine", "--json").json()["engine"]
    assert mpsim_cli("show", "engine", "vllm-v1", "--json").json()["block"] == 16
    text = mpsim_cli("show", "engine", "sglang").out
    assert "prefill-first" in text
    assert "source: sgl-project/sglang" in text
    assert mpsim_cli("show", "engine", "vlm").code == 2
