"""The catalog of published models."""

import pytest

from mpsim.errors import WorkloadError
from mpsim.workload import model, model_names
from mpsim.workload.models import transformer_of


def test_every_model_has_a_source_and_a_date() -> None:
    """No figure enters the catalog without saying where it comes from."""
    assert len(model_names()) >= 29
    for name in model_names():
        assert model(name).name == name
        assert len(model(name).source) > 10, name
        assert model(name).as_of.startswith("20"), name


def test_other_names_of_the_same_sizes_are_known() -> None:
    """A release with the sizes of another is that one, and not listed twice."""
    assert model("llama3.1-8b") is model("llama3-8b")
    assert set(model_names(aliases=True)) > set(model_names())
    assert "llama3.1-8b" not in model_names()


def test_unknown_model_suggests_the_nearest() -> None:
    """A slip of the pen gets the name that was meant."""
    with pytest.raises(WorkloadError, match="'gpt3-175b'"):
        model("gpt3-175")


def test_fields_that_make_models_special_are_set() -> None:
    """Each architecture's peculiarity is in its description."""
    assert model("palm-540b").parallel_block
    assert model("palm-540b").kv_heads == 1
    assert model("bloom-176b").embedding_norm
    assert model("bloom-176b").positions == "alibi"
    assert model("qwen2.5-7b").has_qkv_bias
    assert not model("qwen2.5-7b").bias
    assert model("mistral-7b").window == 4096
    assert model("llama3-70b").kv_heads == 8
    assert not model("llama3-70b").tied_embeddings
    assert model("gpt2-small").dropout == 0.1


def test_unknown_and_missing_fields_are_reported_together() -> None:
    """A mapping that names a wrong field and lacks others says so at once."""
    with pytest.raises(WorkloadError) as caught:
        transformer_of("mine", {"layers": 2, "hiden": 8})
    message = str(caught.value)
    assert "no field 'hiden'; did you mean 'hidden'" in message
    assert "vocab is missing" in message
