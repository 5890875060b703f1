"""Scenarios that are well-formed: what they mean, how they are changed, and that they come back."""

import dataclasses
import json
import pickle
import re
import subprocess
import sys
from pathlib import Path

import pydantic
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from mpsim.errors import Problem, ScenarioError
from mpsim.hardware import Accelerator, Fabric, Link, accelerator, link, system, system_names
from mpsim.scenario import Scenario, check, checks, json_schema, load
from mpsim.scenario.checks import CHECKS
from mpsim.scenario.cluster import AcceleratorChoice, FabricChoice, LinkChoice
from mpsim.scenario.examples import template_names, template_text
from mpsim.scenario.model import ModelChoice
from mpsim.scenario.sections import expand_range
from mpsim.workload import Experts, LatentAttention, Transformer, model, model_names

EVERY_CHECK = {one.__name__: one for one in CHECKS}
BASE = {
    "schema": 1,
    "model": "gpt3-175b",
    "cluster": {"preset": "dgx-a100-80gb", "nodes": 16},
    "parallelism": {"tp": 8, "pp": 16},
    "training": {"global_batch": 128, "sequence_length": 2048},
}


def scenario(**changes):
    """The base scenario with sections replaced."""
    return Scenario.from_mapping({**BASE, **changes})


def refused(**changes):
    """Messages by key of what is wrong with the base scenario so changed."""
    with pytest.raises(ScenarioError) as caught:
        scenario(**changes)
    return {problem.key: problem.message for problem in caught.value.problems}


@pytest.fixture
def written(tmp_path):
    """Write mappings to YAML files by name; give the folder."""

    def write(**files):
        for name, data in files.items():
            text = data if isinstance(data, str) else yaml.safe_dump(data, sort_keys=False)
            (tmp_path / f"{name}.yaml").write_text(text, encoding="utf-8")
        return tmp_path

    return write


# defaults and shorthands


def test_defaults_are_the_plainest_choice():
    """One replica's worth of the cluster, 1F1B, no recomputation, bf16."""
    plain = scenario()
    assert plain.dp == 1
    assert plain.microbatches == 128
    assert (plain.schedule.name, plain.virtual_stages) == ("1f1b", 1)
    assert (plain.training.precision, plain.training.recompute) == ("bf16", "none")
    assert plain.framework.preset == "megatron-lm"
    assert plain.simulation.engine == "auto"


@pytest.mark.parametrize(
    ("short", "spelled"),
    [
        ({"model": "gpt3-175b"}, {"model": {"preset": "gpt3-175b"}}),
        ({"schedule": "gpipe"}, {"schedule": {"name": "gpipe"}}),
        ({"framework": "torch-ddp"}, {"framework": {"preset": "torch-ddp"}}),
        (
            {"framework": {"preset": "torch-ddp", "bucket_bytes": "50 MB"}},
            {"framework": {"preset": "torch-ddp", "overrides": {"bucket_bytes": "50 MB"}}},
        ),
    ],
)
def test_a_shorthand_means_the_mapping(short, spelled):
    """One word and the mapping it stands for are the same scenario."""
    assert scenario(**short).digest == scenario(**spelled).digest


def test_dp_is_what_the_cluster_has_room_for():
    """128 accelerators / (8 x 4) = 4 replicas of 8 microbatches each."""
    derived = scenario(
        parallelism={"tp": 8, "pp": 4},
        training={"global_batch": 64, "micro_batch": 2, "sequence_length": 2048},
    )
    assert (derived.world_size, derived.dp, derived.microbatches) == (128, 4, 8)


def test_frozen_scenarios_cannot_be_changed_in_place():
    """A scenario is a value."""
    with pytest.raises(pydantic.ValidationError):
        scenario().parallelism.tp = 4


def test_printing_a_scenario_gives_one_line():
    """Model, machine, layout, schedule and batch."""
    text = str(scenario(name="mine"))
    assert text.startswith("mine: gpt3-175b on 16 x 8 a100-sxm-80; tp 8 x pp 16")
    assert "\n" not in text


# models


@pytest.mark.parametrize("name", model_names())
def test_every_published_model_is_a_preset(name):
    """A name alone gives the catalog's model."""
    assert ModelChoice(preset=name).resolve() == model(name)


def test_a_model_can_be_spelled_out():
    """Left out, kv_heads = heads, head_dim = hidden / heads, ffn_hidden = 4 x hidden."""
    own = scenario(model={"layers": 16, "hidden": 1024, "heads": 16, "vocab": 50000}).transformer
    assert (own.kv_heads, own.head_dim, own.ffn_hidden) == (16, 64, 4096)


def test_replaced_fields_of_a_preset_take_what_follows_from_them_along():
    """Half of the width has half of the heads' width and half of the MLP."""
    half = scenario(model={"preset": "gpt3-175b", "hidden": 6144}).transformer
    assert (half.heads, half.head_dim, half.ffn_hidden) == (96, 64, 24576)
    fewer = scenario(model={"preset": "gpt3-175b", "heads": 48}).transformer
    assert (fewer.heads, fewer.kv_heads, fewer.head_dim) == (48, 48, 256)


def test_a_replaced_width_leaves_alone_what_does_not_follow():
    """Llama 3's MLP is not four times its width, and its key/value heads are its own."""
    base, own = model("llama3-70b"), ModelChoice(preset="llama3-70b", heads=32).resolve()
    assert (own.ffn_hidden, own.kv_heads) == (base.ffn_hidden, base.kv_heads)


def test_a_gated_mlp_has_to_say_its_width():
    """4 x hidden is not what gated models use."""
    own = {"layers": 16, "hidden": 1024, "heads": 16, "vocab": 50000, "gated_mlp": True}
    assert "lacks ffn_hidden" in refused(model=own)["model"]


def test_the_schema_has_every_field_of_a_transformer():
    """A field added to the workload must be added here."""
    fields = {field.name for field in dataclasses.fields(Transformer)} - {"source", "as_of"}
    assert fields <= ModelChoice.model_fields.keys()


LATENT = {"kv_lora_rank": 512, "qk_nope_head_dim": 96, "qk_rope_head_dim": 32, "v_head_dim": 64}


def test_latent_attention_and_experts_can_be_given_to_a_dense_preset():
    """What is left out follows from the model: experts as wide as its MLP, queries not compressed."""
    own = ModelChoice(preset="gpt3-175b", mla=LATENT, moe={"experts": 8}).resolve()
    assert own.moe == Experts(experts=8, ffn_hidden=49152)
    assert own.mla == LatentAttention(**LATENT)


def test_fields_of_experts_replace_those_of_the_preset():
    """DeepSeek-V3 with half the experts keeps the rest."""
    half = ModelChoice(preset="deepseek-v3", moe={"experts": 128}).resolve()
    base = model("deepseek-v3")
    assert half.moe == dataclasses.replace(base.moe, experts=128)
    assert half.mla == base.mla


def test_experts_and_latent_attention_say_what_they_lack():
    """Both at once, each by its key."""
    told = refused(model={"preset": "gpt3-175b", "mla": {"v_head_dim": 64}, "moe": {"top_k": 2}})
    assert told.keys() == {"model.mla", "model.moe"}
    assert "lacks kv_lora_rank, qk_nope_head_dim, qk_rope_head_dim" in told["model.mla"]
    assert "lacks experts" in told["model.moe"]


# clusters


@pytest.mark.parametrize("name", system_names())
def test_every_system_survives_being_spelled_out(name):
    """The resolved form of a catalog system has the same numbers as the system."""
    base = scenario(cluster=name, parallelism={}, model="gpt2-small", training=_batch(name))
    again = Scenario.from_mapping(base.resolved())
    was, now = base.hardware, again.hardware
    assert now.accelerators == was.accelerators
    assert _figures(now.accelerator) == _figures(was.accelerator)
    assert _figures(now.node.nic) == _figures(was.node.nic)
    assert _figures(now.node.scale_up) == _figures(was.node.scale_up)
    assert now.fabric == was.fabric
    assert (now.node.nics, now.node.domain, now.node.power_w) == (
        was.node.nics,
        was.node.domain,
        was.node.power_w,
    )
    assert again.digest == base.digest


def _batch(name):
    cluster = system(name)
    precision = next(one for one in ("bf16", "fp16") if one in cluster.accelerator.peak_flops)
    return {
        "global_batch": cluster.accelerators,
        "sequence_length": 1024,
        "precision": precision,
    }


def _figures(part):
    return {
        key: value
        for key, value in dataclasses.asdict(
            dataclasses.replace(
                part,
                sources={},
                **({"peak_flops": dict(part.peak_flops)} if isinstance(part, Accelerator) else {}),
            )
        ).items()
        if key not in ("sources", "note")
    }


def test_the_schema_has_every_figure_of_the_hardware():
    """A figure added to a component must be added here, or the resolved form would lose it."""
    fixed = {
        "name",
        "title",
        "vendor",
        "family",
        "year",
        "sources",
        "note",
        "shape",
        "max_domain",
        "like",
    }
    renamed = {"memory_bytes": "memory", "tdp_w": "tdp", "idle_w": "idle", "boost_clock_hz": "boost_clock", "clock_hz": "clock", "calibration": "machine",
               "above": "oversubscription", "switch_power_w": "switch_power"}  # fmt: skip
    elsewhere = {"scale_up", "price_per_hour"}  # of the cluster
    for part, choice in (
        (Accelerator, AcceleratorChoice),
        (Link, LinkChoice),
        (Fabric, FabricChoice),
    ):
        names = {field.name for field in dataclasses.fields(part)} - fixed - elsewhere
        assert {renamed.get(name, name) for name in names} <= choice.model_fields.keys(), part


def test_parts_of_a_system_can_be_exchanged():
    """NICs by rate or by name, a thinner fabric, another price."""
    cluster = {
        "preset": "dgx-a100-80gb",
        "nodes": 16,
        "nics_per_node": 4,
        "nic": "100 Gb/s",
        "fabric": {"oversubscription": 2},
        "price_per_hour": "2 USD/h",
        "node_power": "6 kW",
    }
    own = scenario(cluster=cluster).hardware
    assert own.node.nic_bandwidth_per_accelerator == 4 * 12.5e9 / 8
    assert own.node.nic.latency == system("dgx-a100-80gb").node.nic.latency
    assert own.fabric.oversubscription == 2
    assert own.fabric.kind == system("dgx-a100-80gb").fabric.kind
    assert own.accelerator.price_per_hour == 2
    assert own.node.power_w == 6000
    named = scenario(cluster={"preset": "dgx-a100-80gb", "nodes": 16, "nic": "ib-ndr"}).hardware
    assert named.node.nic == link("ib-ndr")


def test_figures_of_an_accelerator_can_be_replaced_and_say_so():
    """What the user gave is marked as theirs; the rest keeps its source."""
    chip = {"preset": "h100-sxm", "memory": "120 GB", "peak_flops": {"bf16": "800 TFLOP/s"}}
    own = scenario(
        cluster={"accelerator": chip, "accelerators_per_node": 8, "nodes": 16, "nic": "ib-ndr"}
    ).hardware.accelerator
    assert own.memory_bytes == 120e9
    assert own.peak("bf16") == 800e12
    assert own.peak("fp8") == accelerator("h100-sxm").peak("fp8")
    assert own.sources["memory_bytes"] == "given by the user"
    assert "memory_bandwidth" not in own.sources or "user" not in own.sources["memory_bandwidth"]


def test_a_cluster_can_be_put_together():
    """The mapping of the design page."""
    own = scenario(
        cluster={
            "accelerator": "a100-sxm-80",
            "accelerators_per_node": 8,
            "nodes": 16,
            "nics_per_node": 8,
            "nic": "200 Gb/s",
            "scale_up": "nvlink3",
            "fabric": {"kind": "fat-tree", "oversubscription": 1},
        }
    ).hardware
    assert own.accelerators == 128
    assert own.node.nic.bandwidth == 25e9
    assert own.fabric.kind == "fat-tree"


def test_a_cluster_that_cannot_exist_is_refused():
    """The hardware's own complaints arrive as problems of the scenario."""
    few = {"accelerator": "h100-sxm", "accelerators_per_node": 8, "nodes": 16}
    assert "NIC" in refused(cluster=few)["cluster"]
    selene = refused(cluster={"preset": "selene", "nodes": 100_000})
    assert "at most" in selene["cluster.nodes"]


# checks, one by one

MOE = {"model": {"preset": "gpt3-175b", "moe": {"experts": 16, "top_k": 2, "ffn_hidden": 8192}}}


@pytest.mark.parametrize(
    ("check_one", "key", "changes"),
    [
        ("check_model", "model.preset", {"model": "gpt5"}),
        ("check_cluster", "cluster.preset", {"cluster": "dgx-z100"}),
        ("check_framework", "framework", {"framework": "none"}),
        ("check_world", "parallelism.dp", {"parallelism": {"tp": 8, "pp": 16, "dp": 3}}),
        ("check_world", "parallelism.pp", {"parallelism": {"tp": 8, "pp": 12}}),
        ("check_batch", "training.global_batch", {"parallelism": {"tp": 8, "pp": 2}, "training": {"global_batch": 12, "sequence_length": 2048}}),
        ("check_precision", "training.precision", {"training": {**BASE["training"], "precision": "fp8"}}),
        ("check_virtual_stages", "schedule.virtual_stages", {"schedule": {"name": "zb-v", "virtual_stages": 3}}),
        ("check_virtual_stages", "schedule.virtual_stages", {"schedule": "looped-bfs"}),
        ("check_virtual_stages", "schedule.virtual_stages", {"schedule": {"name": "gpipe", "virtual_stages": 2}}),
        ("check_schedule_file", "schedule.file", {"schedule": {"file": "none.csv"}}),
        ("check_stages", "parallelism.pp", {"parallelism": {"tp": 8, "pp": 16}, "model": {"preset": "gpt3-175b", "layers": 95}}),
        ("check_stages", "parallelism.layers_per_stage", {"parallelism": {"tp": 8, "pp": 16, "layers_per_stage": [6] * 15}}),
        ("check_heads", "parallelism.tp", {"model": {"preset": "gpt3-175b", "heads": 12}}),
        ("check_mlp", "parallelism.tp", {"model": {"preset": "gpt3-175b", "ffn_hidden": 4097}}),
        ("check_context", "training.sequence_length", {"parallelism": {"tp": 8, "pp": 8, "cp": 2}, "training": {"global_batch": 128, "sequence_length": 2046}}),
        ("check_sequence", "training.sequence_length", {"parallelism": {"tp": 8, "pp": 16, "sequence_parallel": True}, "training": {"global_batch": 128, "sequence_length": 2044}}),
        ("check_stacks", "parallelism.pp", {"model": "t5-11b", "parallelism": {"tp": 8, "pp": 2}}),
        ("check_stacks", "parallelism.cp", {"model": "t5-11b", "parallelism": {"tp": 8, "cp": 2}}),
        ("check_experts", "parallelism.ep", {"parallelism": {"tp": 8, "pp": 16, "ep": 2}}),
        ("check_experts", "parallelism.etp", {"parallelism": {"tp": 8, "pp": 16, "etp": 2}}),
        ("check_experts", "parallelism.ep", {**MOE, "parallelism": {"tp": 1, "pp": 16, "ep": 3}}),
        ("check_experts", "parallelism.etp", {**MOE, "parallelism": {"tp": 8, "pp": 16, "etp": 3}}),
        ("check_expert_ranks", "parallelism.ep", {**MOE, "parallelism": {"tp": 8, "pp": 16, "ep": 2, "sequence_parallel": True}}),
        ("check_expert_tokens", "parallelism.sequence_parallel", {**MOE, "parallelism": {"tp": 8, "pp": 16}}),
        ("check_expert_overlap", "framework.expert_overlap", {**MOE, "framework": {"preset": "megatron-core", "expert_overlap": "microbatch"}}),
        ("check_context_exchange", "parallelism.cp", {"parallelism": {"tp": 8, "pp": 2, "cp": 8}, "framework": {"preset": "megatron-core", "context_exchange": "ulysses"}}),
        ("check_context_exchange", "framework.context_exchange", {"parallelism": {"tp": 8, "pp": 8, "cp": 2}, "framework": {"preset": "megatron-core", "fused_attention": False}}),
        ("check_context_exchange", "framework.context_exchange", {"parallelism": {"tp": 8, "pp": 8, "cp": 2}, "model": {"preset": "gpt3-175b", "attention": "sliding", "window": 1024}, "framework": "megatron-core"}),
        ("check_tensor_overlap", "framework.tensor_overlap", {"framework": {"preset": "megatron-core", "tensor_overlap": "decomposed"}}),
        ("check_zero", "parallelism.zero", {"parallelism": {"tp": 8, "pp": 16, "zero": 2}}),
        ("check_network", "simulation.engine", {"simulation": {"network": "flow", "engine": "replay"}}),
        ("check_variation", "variation.outages", {"variation": {"outages": [{"node": 0, "at": "1 s", "duration": "1 s"}]}}),
        ("check_size", "training.global_batch", {"training": {"global_batch": 8_000_000, "sequence_length": 2048}}),
        ("check_sweep", "sweep.parallelism.tp.1", {"sweep": {"parallelism.tp": [8, -8]}}),
        ("check_sweep", "sweep.schema", {"sweep": {"schema": [1]}}),
        ("check_sweep", "sweep", {"sweep": {key: list(range(1, 400)) for key in ("parallelism.tp", "parallelism.pp")}}),
        ("check_overrides", "overrides.a", {"overrides": {"a": {"parallelism": {"tp": 0}}}}),
    ],
)  # fmt: skip
def test_each_check_finds_its_mistake_alone_and_not_in_a_good_scenario(check_one, key, changes):
    """A check returns its problem for the wrong scenario, none for the right one, and check() has it too."""
    function = EVERY_CHECK[check_one]
    wrong = Scenario.from_mapping({**BASE, **changes}, checked=False)
    assert [problem.key for problem in function(wrong)][:1] == [key]
    assert key in [problem.key for problem in check(wrong)]
    assert function(scenario()) == []


def test_every_check_is_run_and_tested():
    """CHECKS holds all the check functions of its modules."""
    folder = Path(checks.__file__).parent
    defined = {
        name
        for file in folder.glob("*.py")
        if file.stem != "serving"  # of scenarios that serve, tested with services
        for name in re.findall(r"^def (check_\w+)", file.read_text(), re.MULTILINE)
    }
    assert EVERY_CHECK.keys() == defined


def test_fewer_key_value_heads_than_ranks_are_copied():
    """Llama 3 has 8: tp 16 copies each to two ranks, tp 12 cannot."""
    big = {"cluster": {"preset": "dgx-h100", "nodes": 6}, "model": "llama3-70b"}
    ok = Scenario.from_mapping(
        {**BASE, **big, "parallelism": {"tp": 16, "pp": 1}, "training": {"global_batch": 3, "sequence_length": 2048}}
    )  # fmt: skip
    assert EVERY_CHECK["check_heads"](ok) == []
    wide = ok.source.data | {"parallelism": {"tp": 12, "pp": 1}}
    assert EVERY_CHECK["check_heads"](Scenario.from_mapping(wide, checked=False)) != []


@pytest.mark.parametrize(
    ("layers", "counts", "fits"),
    [(96, 0, True), (95, 0, False), (95, 1, True), (94, 1, False), (94, 2, True)],
)
def test_embedding_and_loss_may_count_as_layers(layers, counts, fits):
    """94 layers, embedding and loss make 16 stages of 6."""
    parallelism = {
        "tp": 8,
        "pp": 16,
        "embedding_counts_as_layer": counts > 0,
        "loss_counts_as_layer": counts > 1,
    }
    own = Scenario.from_mapping(
        {**BASE, "model": {"preset": "gpt3-175b", "layers": layers}, "parallelism": parallelism},
        checked=False,
    )
    assert (EVERY_CHECK["check_stages"](own) == []) is fits


@pytest.mark.parametrize(
    ("world", "parallelism", "mend"),
    [
        (
            128,
            {"tp": 8, "pp": 8, "dp": 3},
            "set dp to 2 (or leave it out), or set cluster.nodes to 24",
        ),
        (128, {"tp": 4, "pp": 3, "dp": 1}, "change a degree"),
        (128, {"tp": 8, "pp": 3}, "set cluster.nodes to 15 or 18"),
    ],
)
def test_mends_of_the_world_size_work(world, parallelism, mend):
    """Following the advice gives a product that is the world size."""
    told = refused(parallelism=parallelism)
    (message,) = [one for key, one in told.items() if "accelerators" in one]
    assert f"= {world} accelerators" in message
    assert mend in message


# layers: includes, overrides, settings


def test_what_includes_bring_is_overridden_by_the_file_that_includes_them(written):
    """Later includes win over earlier ones, the file over all; mappings merge key by key."""
    folder = written(
        machine={"schema": 1, "cluster": {"preset": "dgx-a100-80gb", "nodes": 4}},
        layout={"cluster": {"nodes": 8}, "parallelism": {"tp": 8, "pp": 4}},
        top={
            "include": ["machine.yaml", "layout.yaml"],
            "model": "gpt3-175b",
            "parallelism": {"pp": 8},
            "training": BASE["training"],
        },
    )
    made = load(folder / "top.yaml")
    assert made.name == "top"
    assert made.cluster.nodes == 8
    assert (made.parallelism.tp, made.parallelism.pp) == (8, 8)
    assert made.source.locate(Problem("", key="parallelism.tp")).file.endswith("layout.yaml")
    assert made.source.locate(Problem("", key="parallelism.pp")).file.endswith("top.yaml")


def test_a_mapping_over_a_shorthand_keeps_the_preset(written):
    """'cluster: dgx-h100' and, on top, '{nodes: 2}' is two nodes of it."""
    folder = written(
        base={**BASE, "cluster": "dgx-a100-80gb"},
        top={"include": "base.yaml", "cluster": {"nodes": 16}, "model": {"layers": 48}},
    )
    made = load(folder / "top.yaml")
    assert (made.cluster.preset, made.cluster.nodes) == ("dgx-a100-80gb", 16)
    assert made.transformer.layers == 48


def test_overrides_are_chosen_by_name_and_settings_come_last(written):
    """An override may use dotted keys or sections; --set wins over it."""
    folder = written(
        top={
            **BASE,
            "overrides": {
                "wide": {"parallelism.pp": 8, "training": {"micro_batch": 2}},
                "long": {"training.sequence_length": 1024},
            },
        }
    )
    path = folder / "top.yaml"
    assert load(path).parallelism.pp == 16
    both = load(path, overrides=["wide", "long"], set=["training.micro_batch=4", "name=mine"])
    assert both.name == "mine"
    assert both.parallelism.pp == 8
    assert (both.training.micro_batch, both.training.sequence_length) == (4, 1024)
    assert both.training.global_batch == 128


def test_overrides_of_included_files_can_be_chosen_too(written):
    """Names add up over files; the same name is replaced, not mixed."""
    folder = written(
        base={**BASE, "overrides": {"a": {"parallelism.pp": 8}, "b": {"parallelism.pp": 4}}},
        top={"include": "base.yaml", "overrides": {"b": {"training.micro_batch": 2}}},
    )
    assert load(folder / "top.yaml", overrides=["a"]).parallelism.pp == 8
    changed = load(folder / "top.yaml", overrides=["b"])
    assert (changed.parallelism.pp, changed.training.micro_batch) == (16, 2)


@pytest.mark.parametrize(
    ("setting", "read"),
    [
        ("cluster=dgx-a100-40gb", ("cluster.preset", "dgx-a100-40gb")),
        ("cluster.nodes=32", ("cluster.nodes", 32)),
        ("parallelism.sequence_parallel=true", ("parallelism.sequence_parallel", True)),
        ("cluster.nic=100 Gb/s", ("cluster.nic.bandwidth", 12.5e9)),
        ("schedule={name: interleaved-1f1b, virtual_stages: 2}", ("schedule.virtual_stages", 2)),
        ("model.layers=48", ("model.layers", 48)),
        ("training.recompute=full", ("training.recompute", "full")),
    ],
)
def test_settings_are_read_as_yaml(written, setting, read):
    """The value of --set means what it means in the file, and reaches into shorthands."""
    changed = load(written(top=BASE) / "top.yaml", set=[setting], checked=False)
    key, value = read
    node = changed
    for part in key.split("."):
        node = getattr(node, part)
    assert node == value


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("nonsense", "needed key=value"),
        ("=1", "needed key=value"),
        ("training.micro_batch.x=1", "cannot be set"),
        ("parallelism.tq=1", "--set parallelism.tq: unknown key 'tq'; did you mean"),
        ("parallelism.tp=[", "--set parallelism.tp: is not YAML"),
        ("cluster.nodes=.nan", "finite"),
    ],
)
def test_wrong_settings_name_themselves(written, setting, words):
    """A mistake on the command line is reported as such, not on a line of the file."""
    with pytest.raises(ScenarioError) as caught:
        load(
            written(top={**BASE, "training": {**BASE["training"], "micro_batch": 1}}) / "top.yaml",
            set=[setting],
        )
    assert words in str(caught.value)
    assert all(problem.line == 0 for problem in caught.value.problems)


def test_an_entry_of_a_list_can_be_set(written):
    """layers_per_stage.0=7 changes the first stage; the file's list is not touched."""
    listed = {**BASE["parallelism"], "layers_per_stage": [6] * 16}
    path = written(top={**BASE, "parallelism": listed}) / "top.yaml"
    changed = load(
        path, set=["parallelism.layers_per_stage.0=7", "parallelism.layers_per_stage.15=5"]
    )
    assert changed.parallelism.layers_per_stage == (7, *[6] * 14, 5)


def test_an_unknown_override_names_the_nearest(written):
    """A slip in --override is caught."""
    path = written(top={**BASE, "overrides": {"wide": {"parallelism.pp": 8}}}) / "top.yaml"
    with pytest.raises(ScenarioError, match="did you mean 'wide'"):
        load(path, overrides=["wyde"])


def test_a_schedule_file_is_relative_to_the_file_that_names_it(written, tmp_path):
    """An included file in another folder names its own neighbour."""
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "orders.csv").write_text("rank,order\n")
    (tmp_path / "sub" / "base.yaml").write_text("schedule: orders.csv\n")
    folder = written(top={**BASE, "include": "sub/base.yaml"})
    assert load(folder / "top.yaml").schedule.file == str(tmp_path / "sub" / "orders.csv")


# resolved data, digest, new values


def test_resolved_data_are_plain_and_make_the_same_scenario(written):
    """Through JSON and through a YAML file, presets spelled out and quantities with units."""
    made = scenario(
        schedule={"name": "interleaved-1f1b", "virtual_stages": 3},
        framework={"preset": "megatron-lm", "bucket_bytes": "100 MB"},
        sweep={"parallelism.tp": [4, 8]},
        name="mine",
    )
    data = json.loads(json.dumps(made.resolved()))
    assert data == made.resolved()
    assert data["cluster"]["accelerator"]["memory_bandwidth"].endswith("B/s")
    assert data["parallelism"]["dp"] == 1
    for again in (Scenario.from_mapping(data), load(written(top=data) / "top.yaml")):
        assert again.resolved() == made.resolved()
        assert again.digest == made.digest


def test_digest_depends_on_content_alone():
    """Neither the order of keys, nor a name, nor a sweep, nor a default written out moves it."""
    made = scenario()
    shuffled = {key: BASE[key] for key in reversed(BASE)}
    same = [
        Scenario.from_mapping(shuffled),
        scenario(name="other"),
        scenario(sweep={"parallelism.tp": [8]}),
        scenario(parallelism={"pp": 16, "dp": 1, "tp": 8, "cp": 1}),
        scenario(cluster={"preset": "dgx-a100-80gb", "nodes": 16, "nic": "200 Gb/s"}),
    ]
    assert {one.digest for one in same} == {made.digest}
    assert len(made.digest) == 64


@pytest.mark.parametrize(
    "values",
    [
        {"parallelism.pp": 8},
        {"training.recompute": "full"},
        {"cluster.nic": "100 Gb/s"},
        {"cluster.price_per_hour": "9 USD/h"},
        {"framework": "torch-ddp"},
        {"framework.bucket_bytes": "1 MB"},
        {"simulation.seed": 1},
        {"model.dropout": 0.25},
    ],
)
def test_digest_moves_with_every_value(values):
    """What can change a result changes the digest."""
    assert scenario().with_values(values).digest != scenario().digest


def test_digest_moves_with_the_content_of_a_schedule_file(tmp_path):
    """The orders count, not where they lie."""
    first, second, third = (tmp_path / f"{name}.csv" for name in "abc")
    first.write_text("x")
    second.write_text("x")
    third.write_text("y")
    digests = [scenario(schedule={"file": str(path)}).digest for path in (first, second, third)]
    assert digests[0] == digests[1] != digests[2]


def test_new_values_are_checked_again_and_name_their_key():
    """A sweep's point that cannot be is a ScenarioError about that key."""
    with pytest.raises(ScenarioError) as caught:
        scenario().with_values({"parallelism.tp": 0, "training.sequence_lenght": 1})
    assert {problem.key for problem in caught.value.problems} == {
        "parallelism.tp",
        "training.sequence_lenght",
    }


def test_new_values_leave_the_scenario_as_it_was():
    """with_values gives another scenario."""
    made = scenario(sweep={"parallelism.pp": [8, 16]})
    before = made.resolved()
    changed = made.with_values({"parallelism.pp": 8, "cluster.nodes": 32})
    assert (changed.dp, changed.sweep) == (4, {})
    assert made.resolved() == before


def test_points_of_a_sweep_are_all_combinations_in_order():
    """The last key changes fastest; a range has both ends."""
    made = scenario(
        sweep={"parallelism.pp": [8, 16], "training.global_batch": {"range": [128, 384, 128]}}
    )
    assert [tuple(point.values()) for point in made.points()] == [
        (8, 128), (8, 256), (8, 384), (16, 128), (16, 256), (16, 384),
    ]  # fmt: skip
    assert list(scenario().points()) == []


@given(st.integers(-50, 50), st.integers(0, 40), st.integers(1, 9), st.booleans())
@settings(max_examples=50)
def test_a_range_has_its_ends_and_even_steps(start, count, step, down):
    """start, start + step, ... up or down to the last that does not pass the stop."""
    sign = -1 if down else 1
    values = expand_range([start, start + sign * count, sign * step])
    assert values == list(range(start, start + sign * (count + 1), sign * step))


def test_scenarios_can_be_sent_to_another_process():
    """A pickled scenario is the same scenario, with the places of its keys."""
    made = scenario(name="mine")
    again = pickle.loads(pickle.dumps(made))
    assert again.digest == made.digest
    assert again.source == made.source


def test_include_without_a_file_is_refused():
    """There is nothing to be relative to."""
    assert "mpsim.load" in refused(include="base.yaml")["include"]


@pytest.mark.parametrize("data", [[], "text", None, 3])
def test_what_is_no_mapping_is_no_scenario(data):
    """from_mapping wants a mapping."""
    with pytest.raises(ScenarioError, match="needed a mapping"):
        Scenario.from_mapping(data)


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=4) | st.integers(), inner, max_size=3)
    ),
    max_leaves=5,
)


@given(st.sampled_from([*BASE, "schedule", "framework", "simulation", "sweep", "overrides"]), JUNK)
@settings(max_examples=50, deadline=None)
def test_junk_in_any_section_is_a_scenario_error(section, junk):
    """Whatever stands in a section, the answer is a scenario or a ScenarioError with problems."""
    try:
        made = Scenario.from_mapping({**BASE, section: junk})
    except ScenarioError as error:
        problems = error.problems
    else:
        problems = check(made) or [Problem("none")]
    assert problems


# the schema for editors, templates


def test_json_schema_knows_shorthands_quantities_and_ranges():
    """An editor that checks YAML by it accepts one word, text with a unit, and a range."""
    schema = json_schema()
    json.dumps(schema)
    assert schema["required"] == ["schema", "model", "cluster"]
    assert schema["oneOf"] == [{"required": ["training"]}, {"required": ["serving"]}]
    assert {"type": "string"} in schema["properties"]["model"]["anyOf"]
    assert schema["additionalProperties"] is False
    memory = schema["$defs"]["AcceleratorChoice"]["properties"]["memory"]["anyOf"][0]
    assert memory["type"] == "string"
    assert "GiB" in memory["description"]


def test_every_key_of_the_schema_is_described():
    """Completion shows what a key is for."""
    schema = json_schema()
    for section in [schema, *schema["$defs"].values()]:
        for name, field in section["properties"].items():
            assert field.get("description"), name


@pytest.mark.parametrize("name", template_names())
def test_every_template_is_a_scenario_without_problems(tmp_path, name):
    """What 'mpsim new' copies can be run as it is, and says what its lines are for."""
    path = tmp_path / f"{name}.yaml"
    path.write_text(template_text(name), encoding="utf-8")
    made = load(path)
    assert check(made) == []
    for chosen in made.overrides:
        load(path, overrides=[chosen])
    lines = template_text(name).splitlines()
    assert sum("#" in line for line in lines) >= 10


def test_templates_answer_the_first_questions():
    """The four of the design, and a slip is caught."""
    assert {"quickstart", "gpt3-175b", "llama3-70b-h100", "what-if-nics"} <= set(template_names())
    with pytest.raises(ScenarioError, match="did you mean 'quickstart'"):
        template_text("quikstart")


def test_reading_a_scenario_imports_nothing_heavy():
    """Neither simpy, matplotlib, networkx nor torch is needed to check a file."""
    code = (
        "import sys, mpsim.scenario; heavy = {'simpy', 'matplotlib', 'networkx', 'torch', 'pandas'};"
        "sys.exit(bool(heavy & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("name", ["evil\nmemory  1 GB: fits", "a\x1b[2Kb", "a\u202eb"])
def test_a_name_that_writes_lines_of_its_own_is_refused(name):
    """The first line of every summary is the name as it stands in the file."""
    with pytest.raises(
        ScenarioError, match=r"name: got .*; needed letters, digits and signs in one"
    ):
        Scenario.from_mapping({**BASE, "name": name})
