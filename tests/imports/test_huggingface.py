"""config.json of Hugging Face transformers."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from mpsim.errors import FormatError
from mpsim.formats import registry as formats
from mpsim.formats.scenarios import over

COUNTS = json.loads(
    gzip.decompress((Path(__file__).parent / "transformers-counts.json.gz").read_bytes())
)
"""Configurations of 51 model types, some keys left out, and what modules of transformers 4.57.6 (v4) and 5.23.0 (v5) count on the meta device."""
SMALL = {
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "intermediate_size": 256,
    "vocab_size": 1000,
}


@pytest.fixture
def config(tmp_path):
    """A configuration read as a file."""

    def read(**keys):
        path = tmp_path / "config.json"
        path.write_text(json.dumps(keys, indent=1))
        return formats.read(path, format="hf")

    return read


@pytest.mark.parametrize("kind", sorted({name.rsplit("_", 1)[0] for name in COUNTS}))
def test_parameters_are_those_of_the_classes(kind, config):
    """Absent keys take the default of the class, in both spellings."""
    for name, case in COUNTS.items():
        if name.rsplit("_", 1)[0] == kind:
            assert config(**case["config"]).model_parameters == case["parameters"], name


@pytest.mark.parametrize(
    ("kind", "word"),
    [
        ("mamba", "state-space"),
        ("jamba", "mixes"),
        ("qwen3_next", "linear attention"),
        ("deepseek_v32", "indexer"),
        ("deepseek_v4", "compressed keys"),
        ("gemma4_text", "embeddings of each layer"),
        ("longcat_flash", "two attentions"),
        ("bert", "encoder"),
        ("xlm_roberta", "encoder"),
        ("bart", "another kind than T5"),
    ],
)
def test_what_is_no_transformer_is_refused_by_name(kind, word, config):
    """A wrong step is worse than none."""
    with pytest.raises(FormatError, match=word) as error:
        config(model_type=kind, **SMALL)
    assert kind in str(error.value)


@pytest.mark.parametrize(("kind", "whole"), [("olmo2", True), ("olmoe", True), ("qwen3", None)])
def test_norms_of_all_heads_are_told_from_those_of_each(kind, whole, config):
    """OLMo's span every head of a layer, so that tensor parallel ranks have to sum them."""
    model = config(model_type=kind, **SMALL).scenario["model"]
    assert (model["qk_norm"], model.get("qk_norm_whole")) == (True, whole)


def test_a_type_in_no_table_has_no_count(config):
    """Its sizes are read as the most usual class's, with a warning; a count would be a guess."""
    read = config(model_type="brand_new", **SMALL)
    assert read.model_parameters is None
    assert "read as a llama" in read.warnings[0]
    assert read.scenario["model"]["hidden"] == 64


def test_linear_layers_among_others_are_refused(config):
    """The list of layers counts, whatever the type is called."""
    kinds = ["full_attention", "linear_attention"] * 2
    with pytest.raises(FormatError, match="linear_attention"):
        config(model_type="new_thing", layer_types=kinds, **SMALL)


def test_an_unknown_type_with_its_sizes_is_read_with_a_warning(config):
    """Its sizes are the usual ones; what its class adds is not known, and that is said."""
    read = config(model_type="new_thing", **SMALL)
    assert read.scenario["model"]["layers"] == 4
    assert "new_thing" in read.warnings[0]


def test_experts_of_an_unknown_type_are_read(config):
    """Of 256 experts a layer a dense model would be a hundredth."""
    read = config(
        model_type="minimax_m9", **SMALL, num_local_experts=8, num_experts_per_tok=2, rope_theta=1.0
    )
    moe = {"experts": 8, "top_k": 2, "ffn_hidden": 256, "every": 1}
    assert read.scenario["model"]["moe"] == moe
    assert [line for line in read.warnings if line.startswith("not simulated")] == []
    listed = config(
        model_type="other",
        **SMALL,
        n_routed_experts=8,
        num_experts_per_token=2,
        moe_intermediate_size=32,
        mlp_layer_types=["dense", "sparse", "sparse", "sparse"],
    )
    moe = {"experts": 8, "top_k": 2, "ffn_hidden": 32, "dense_layers": 1}
    assert listed.scenario["model"]["moe"] == moe


def test_latent_attention_of_an_unknown_type_is_read(config):
    """Its cache is a fortieth of that of as many heads."""
    ranks = {"q_lora_rank": 32, "kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4}
    read = config(model_type="other", **SMALL, **ranks, v_head_dim=8)
    assert read.scenario["model"]["mla"] == {**ranks, "v_head_dim": 8}


def test_keys_of_an_unknown_type_that_nobody_judged_idle_are_told(config):
    """A key of a new kind of layer is no reason to answer as if it were not there."""
    read = config(model_type="other", **SMALL, num_kv_shared_layers=2, hidden_act="relu2")
    told = "not simulated, though time or memory may depend on it: num_kv_shared_layers, hidden_act"
    assert told in read.warnings


def test_idle_keys_are_idle_around_the_section_of_the_text_too(config):
    """Which class reads the file, and when it was written, is no part of a step."""
    read = config(
        model_type="foo_vl",
        architectures=["Foo"],
        transformers_version="4.57.0",
        image_token_id=5,
        text_config=dict(SMALL, model_type="foo_text", bos_token_id=1),
    )
    assert [line for line in read.warnings if line.startswith("not simulated")] == []


def test_a_tower_beside_the_text_is_told(config):
    """A vision encoder has parameters and time of its own."""
    read = config(
        model_type="qwen2_5_vl",
        text_config=dict(SMALL, model_type="qwen2"),
        vision_config={"hidden_size": 32},
    )
    assert any(line.endswith("vision_config.hidden_size") for line in read.warnings)


def test_an_unknown_type_without_them_is_refused(config):
    """What is missing is named."""
    with pytest.raises(FormatError, match="no layers, heads, vocab"):
        config(model_type="new_thing", hidden_size=64)


def test_two_spellings_that_disagree_are_refused(config):
    """Nobody can say which the class would take."""
    with pytest.raises(FormatError, match="different things"):
        config(model_type="gpt2", n_embd=64, hidden_size=128)


@pytest.mark.parametrize(
    ("keys", "attention"),
    [
        ({"model_type": "mistral"}, {"attention": "sliding", "window": 4096}),
        ({"model_type": "mistral", "sliding_window": None}, {"attention": "causal"}),
        (
            {"model_type": "gemma3_text", "num_hidden_layers": 12},
            {"attention": "sliding", "window": 4096, "full_every": 6},
        ),
        ({"model_type": "gemma2"}, {"attention": "sliding", "window": 4096, "full_every": 2}),
        ({"model_type": "qwen2", "sliding_window": 512}, {"attention": "causal"}),
        (
            {
                "model_type": "qwen2",
                "sliding_window": 512,
                "use_sliding_window": True,
                "max_window_layers": 0,
            },
            {"attention": "sliding", "window": 512},
        ),
    ],
)
def test_windows_are_those_of_the_class(keys, attention, config):
    """Absent and null are two things."""
    model = config(**(SMALL | keys)).scenario["model"]
    names = ("attention", "window", "full_every")
    assert {name: model[name] for name in names if name in model} == attention


@pytest.mark.parametrize("value", ["many", -1, 1.5, [4], {"a": 1}, True, 10**30])
def test_a_size_that_is_no_number_is_refused_with_its_line(value, config):
    """The key is named, and what was needed."""
    with pytest.raises(FormatError, match="hidden_size"):
        config(**({"model_type": "llama"} | SMALL | {"hidden_size": value}))


@pytest.mark.parametrize(
    ("packed", "form"),
    [
        ({"quant_method": "awq", "bits": 4}, "w4a16"),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "fp8_block"),
        ({"quant_method": "mxfp4"}, "mxfp4"),
    ],
)
def test_packed_weights_say_what_a_service_has_to_give(packed, form, config):
    """The format by its name here is the one warning; 16 bits would be the answer of another checkpoint."""
    warnings = config(model_type="llama", quantization_config=packed, **SMALL).warnings
    assert len(warnings) == 1
    assert warnings[0].endswith(f"serving.weights: {form}")


@pytest.mark.parametrize(
    "packed",
    [
        {"quant_method": "gptq", "bits": 8},
        {
            "quant_method": "compressed-tensors",
            "format": "pack-quantized",
            "config_groups": {"group_0": {"weights": {"num_bits": 8}}},
        },
    ],
)
def test_weights_of_8_bits_are_not_taken_for_4(packed, config):
    """GPTQ and packed tensors have several widths; one that no service has is told as not simulated."""
    told = config(model_type="llama", quantization_config=packed, **SMALL)
    assert not told.served
    assert "quantization_config" in " ".join(told.warnings)
    assert "w4a16" not in " ".join(told.warnings)


def test_packed_weights_are_those_of_a_service_below(config, scenarios):
    """Laid over a service the checkpoint's format takes the place of the one before; a training is warned."""
    packed = {"quant_method": "compressed-tensors", "format": "pack-quantized"}
    read = config(model_type="llama", quantization_config=packed, **SMALL)
    serves = over(read, scenarios / "serving/llama3-70b-h100.yaml")
    assert (serves.scenario["serving"]["weights"], serves.warnings) == ("w4a16", ())
    trains = over(read, scenarios / "quickstart.yaml")
    assert "serving" not in trains.scenario
    assert trains.warnings == read.warnings != ()


def test_a_model_laid_over_a_service_misses_nothing_of_a_training(config, scenarios):
    """A service has no global batch."""
    read = over(config(model_type="llama", **SMALL), scenarios / "serving/llama3-8b-h100.yaml")
    assert read.missing == ()
