"""The section ``server:``: options in an engine's own words mean what its launch line means."""

from __future__ import annotations

import pytest

import mpsim
from mpsim.errors import ScenarioError
from mpsim.scenario import Scenario
from mpsim.scenario.servers import SERVERS, meaning
from mpsim.serving.planning import make_service
from mpsim.shipped import read_shipped

BASE = {"schema": 1, "model": "llama3-8b", "cluster": {"preset": "dgx-h100", "nodes": 1}}


def served(server, serving=None, **sections):
    serving = {"serving": serving} if serving else {}
    return Scenario.from_mapping({**BASE, **serving, "server": server, **sections})


def test_options_are_values_of_the_service():
    """Each option lands on the key of its meaning, and the section alone makes a service."""
    scenario = served(
        {
            "engine": "sglang",
            "chunked-prefill-size": 4096,
            "kv-cache-dtype": "fp8_e4m3",
            "disable-radix-cache": True,
        }
    )
    plan = make_service(scenario)
    assert (plan.engine.name, plan.kv) == ("sglang", "fp8")
    assert (plan.engine.max_tokens, plan.engine.prefix_cache) == (4096, False)
    assert make_service(Scenario.from_mapping(scenario.resolved())).rules == plan.rules


@pytest.mark.parametrize(
    ("cluster", "sequences", "tokens"),
    [("dgx-h100", 1024, 8192), ("dgx-a100-80gb", 256, 2048)],
)
def test_what_nobody_says_is_the_default_of_the_engine_on_that_device(cluster, sequences, tokens):
    """vLLM takes less on an A100, whatever its memory."""
    engine = make_service(served({"engine": "vllm-v1"}, cluster=cluster)).engine
    assert (engine.max_sequences, engine.max_tokens) == (sequences, tokens)


@pytest.mark.parametrize("cluster", ["dgx-a100-80gb", "dgx-b200"])
@pytest.mark.parametrize("server", SERVERS)
def test_an_engine_is_the_same_whether_or_not_the_section_is_there(server, cluster):
    """Its preset alone means its server too: trtllm finds prefixes, vLLM takes less on an A100."""
    parts = {**BASE, "cluster": cluster, "serving": {"engine": server}}
    alone, named = (
        make_service(Scenario.from_mapping({**parts, **section}))
        for section in ({}, {"server": {}})
    )
    assert (alone.engine, alone.kv) == (named.engine, named.kv)
    assert alone.engine.prefix_cache


@pytest.mark.parametrize(("cluster", "tokens"), [("dgx-h200", 1024), ("dgx-b200", 2048)])
def test_ranks_share_a_chunk(cluster, tokens):
    """SGLang divides --chunked-prefill-size by --dp-size."""
    sections = {"model": "deepseek-v3", "cluster": cluster, "parallelism": {"tp": 8, "ep": 8}}
    sections["serving"] = {"engine": "sglang", "attention_dp": 8}
    plan = make_service(Scenario.from_mapping({**BASE, **sections}))
    assert plan.engine.max_tokens == tokens


def test_pools_share_a_chunk_among_their_own_ranks_and_take_it_by_their_own_device():
    """Eight ranks of a prefill pool on B200 divide 16,384 tokens; what a pool says itself stands."""
    pool = {"tp": 8, "ep": 8, "attention_dp": 8}
    pools = {
        "prefill": {**pool, "accelerator": "b200-sxm"},
        "decode": {**pool, "engine": {"max_tokens": 512}},
    }
    parts = {"model": "deepseek-v3", "cluster": {"preset": "dgx-h200", "nodes": 2}}
    parts["serving"] = {"engine": "sglang", "disaggregated": pools}
    plan = make_service(Scenario.from_mapping({**BASE, **parts}))
    assert (plan.prefill.engine.max_tokens, plan.engine.max_tokens) == (2048, 512)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("serving", 5),
        ("serving.engine", ["vllm"]),
        ("serving.engine", None),
        ("serving.disaggregated.prefill.accelerator", ["b200-sxm"]),
        ("serving.disaggregated.prefill.accelerator", 5),
    ],
)
def test_a_value_of_another_kind_is_the_schemas_to_refuse(key, value):
    """Defaults of the engine that would stand beside it are no reason to fail before."""
    data = {**BASE, "serving": {"disaggregated": {"prefill": {"tp": 8}, "decode": {"tp": 8}}}}
    *holders, last = key.split(".")
    section = data
    for holder in holders:
        section = section[holder]
    section[last] = value
    with pytest.raises(ScenarioError, match=f"{key}: "):
        Scenario.from_mapping(data)


def test_every_mistake_is_told_at_once():
    """An option of another engine, one that is not simulated, one of the layout and a wrong value."""
    with pytest.raises(ScenarioError) as error:
        served(
            {
                "max-num-sequences": 4,
                "swap-space": 4,
                "tensor-parallel-size": 2,
                "block-size": "x",
            }
        )
    text = str(error.value)
    for part in (
        "server.max-num-sequences: is not simulated, or no option of vLLM; did you mean 'max-num-seqs'",
        "server.swap-space: is not simulated",
        "server.tensor-parallel-size: is of the layout; give parallelism.tp",
        "server.block-size: got 'x'; needed a whole number",
    ):
        assert part in text


@pytest.mark.parametrize(
    ("engine", "option"),
    [("sglang", "tokenizer-worker-num"), ("trtllm", "num_postprocess_workers")],
)
def test_processes_that_send_answers_are_known_and_not_simulated(engine, option):
    """They are options of the engine, so nobody is told to look for a misspelling."""
    with pytest.raises(ScenarioError, match=f"server.{option}: is not simulated, or no option"):
        served({"engine": engine, option: 4})


def test_what_serving_says_stands_and_saying_it_twice_in_a_file_is_refused(tmp_path):
    """A value laid on top wins, as sweeps and searches lay them; a file says it once."""
    scenario = served({"max-num-batched-tokens": 2048})
    laid = scenario.with_values({"serving.engine.max_tokens": 512})
    assert make_service(laid).engine.max_tokens == 512
    file = tmp_path / "twice.yaml"
    file.write_text(
        "schema: 1\nmodel: llama3-8b\ncluster: dgx-h100\nserver: {max-num-seqs: 4}\n"
        "serving: {engine: {max_sequences: 8}}\n"
    )
    with pytest.raises(
        ScenarioError,
        match=r"twice.yaml:4:\d+ server.max-num-seqs: serving.engine.max_sequences says it too",
    ):
        mpsim.load(file)


def test_an_option_that_says_two_things_is_both():
    """A drafting method and its number of tokens; an option that is off says nothing."""
    options = {"speculative-config": '{"method": "ngram", "num_speculative_tokens": 4}'}
    scenario = served({**options, "enforce-eager": False}, {"speculation": {"acceptance": 0.7}})
    drafts = scenario.service.speculation
    assert (drafts.draft, drafts.tokens) == ("n-gram", 4)
    assert make_service(scenario).engine.graph_sizes


@pytest.mark.parametrize("name", SERVERS)
def test_every_default_of_a_table_has_a_meaning(name):
    """Tables say where they were read, and no default of theirs is refused."""
    table = read_shipped("mpsim.scenario.data", f"{name}.yaml")
    assert table["source"]
    assert table["as_of"]
    for row in table["keys"]:
        values = row.get("default")
        for value in [pair[1] for pair in values] if isinstance(values, list) else [values]:
            assert value is None or "says" in row or not meaning(row, value).needed


@pytest.mark.parametrize("word", ["int4", "AWQ", "gptq"])
def test_formats_that_others_name_lead_to_ours(word):
    """No spelling of w4a16 is near, and int8 is not what was meant."""
    with pytest.raises(ScenarioError, match="did you mean 'w4a16'"):
        served({}, {"weights": word})


@pytest.mark.parametrize(
    ("chip", "words"), [("mi355x", "mi355x has no nvfp4"), ("h100-sxm", "h100-sxm has no fp4")]
)
def test_weights_without_matrix_units_for_their_scales_are_refused(chip, words):
    """FP4 of MI355X has scales of 32 elements, those of NVFP4 have 16."""
    cluster = {"accelerator": chip, "nodes": 1, "accelerators_per_node": 8}
    with pytest.raises(ScenarioError, match=words):
        served({"engine": "vllm"}, {"weights": "nvfp4"}, model="llama3-8b", cluster=cluster)


def test_a_prefix_that_no_prompt_is_longer_than_is_refused():
    """Prompts of 500 tokens, the prefix among them, share nothing of 2,000; lengths that vary may."""
    load = {"rate": 1.0, "prompt": 500, "shared_prefix": 2000}
    given = {
        "schema": 1,
        "model": "llama3-8b",
        "cluster": "dgx-h100",
        "serving": {"workload": load},
    }
    for turns in (1, 4):  # of a session the first prompt has the prefix
        with pytest.raises(ScenarioError, match="2000 tokens of prompts that have 500"):
            Scenario.from_mapping({**given, "serving": {"workload": {**load, "turns": turns}}})
    load["prompt"] = {"kind": "lognormal", "tokens": 500, "spread": 2.0}
    Scenario.from_mapping(given)


@pytest.mark.parametrize(
    "server", [{"engine": "vllm"}, {"engine": "sglang", "kv-cache-dtype": "auto"}]
)
def test_chips_before_bf16_serve_in_fp16(server):
    """A T4 has no bf16 (vLLM refuses it below compute capability 8.0); what a file writes is kept, or refused."""
    cluster = {"accelerator": "t4", "nodes": 1, "accelerators_per_node": 4}
    own = {"model": "llama2-7b", "parallelism": {"tp": 4}, "cluster": cluster}
    old = served(server, **own)
    assert (make_service(old).weights, make_service(old).kv) == ("fp16", "fp16")
    assert old.told["taken_by_default"] == ["serving.weights: fp16", "serving.kv: fp16"]
    new = served(server, **{**own, "cluster": {**cluster, "accelerator": "a10"}})
    assert (make_service(new).weights, make_service(new).kv) == ("bf16", "bf16")
    assert make_service(served(server, {"weights": "int8"}, **own)).weights == "int8"
    with pytest.raises(ScenarioError, match="t4 has no bf16"):
        served(server, {"weights": "bf16"}, **own)
    pools = {"prefill": {"tp": 4}, "decode": {"tp": 4, "accelerator": "t4"}}
    cluster = {"accelerator": "a10", "nodes": 2, "accelerators_per_node": 4, "nic": "100 Gb/s"}
    cluster["nics_per_node"] = 1
    apart = served(server, {"disaggregated": pools}, model="llama2-7b", cluster=cluster)
    assert {(pool.weights, pool.kv) for pool in make_service(apart).pools.values()} == {
        ("fp16", "fp16")
    }
