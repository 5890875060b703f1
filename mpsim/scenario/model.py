"""The ``model:`` section: a preset, a preset with changes, or a model spelled out."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import Field

from mpsim.errors import Problem, ScenarioError, WorkloadError, nearest
from mpsim.scenario.fields import Count, Name, Section
from mpsim.workload import Transformer, model, model_names

__all__ = ["MixtureOfExperts", "ModelChoice", "MultiLatentAttention"]

REQUIRED: Final = ("layers", "hidden", "heads", "vocab")
FFN_RATIO: Final = 4  # of a transformer that does not say (Vaswani et al. 2017)

Layers = Annotated[int, Field(ge=1, le=10_000)]
Share = Annotated[float, Field(gt=0, le=1000)]


class MixtureOfExperts(Section):
    """Experts in place of the MLP; understood, but not simulated by this version."""

    experts: Count
    """Experts of a layer."""
    top_k: Count = 1
    """Experts each token is sent to."""
    ffn_hidden: Count | None = None
    """Inner width of one expert."""
    shared_experts: Annotated[int, Field(ge=0, le=1_000_000)] = 0
    """Experts every token is sent to."""
    dense_layers: Annotated[int, Field(ge=0, le=10_000)] = 0
    """Leading layers that keep a plain MLP."""
    capacity_factor: Share | None = None
    """Places of an expert over its even share of tokens."""
    imbalance: Share = 1.0
    """Tokens of the busiest rank over the mean."""


class MultiLatentAttention(Section):
    """Attention through compressed keys and values; understood, but not simulated by this version."""

    q_lora_rank: Count | None = None
    """Width the queries are compressed to."""
    kv_lora_rank: Count
    """Width keys and values are compressed to."""
    qk_nope_head_dim: Count
    """Part of a head's query and key without position."""
    qk_rope_head_dim: Count
    """Part of a head's query and key with rotary position."""
    v_head_dim: Count
    """Width of a head's value."""


class ModelChoice(Section):
    """A transformer: a preset by name, fields that replace those of a preset, or all of them."""

    preset: Name | None = None
    """A published model (see 'mpsim show models')."""
    name: Name | None = None
    """What to call it; left out, the preset's name."""
    layers: Layers | None = None
    """Transformer layers."""
    hidden: Count | None = None
    """Width of the residual stream."""
    heads: Count | None = None
    """Attention heads (queries)."""
    kv_heads: Count | None = None
    """Heads of keys and values; left out, as many as heads."""
    head_dim: Count | None = None
    """Width of a head; left out, hidden / heads."""
    ffn_hidden: Count | None = None
    """Inner width of the MLP; left out, 4 x hidden (a gated MLP has to say)."""
    vocab: Annotated[int, Field(ge=1, le=100_000_000)] | None = None
    """Tokens in the vocabulary."""
    gated_mlp: bool | None = None
    """Whether the MLP has two input projections (SwiGLU)."""
    tied_embeddings: bool | None = None
    """Whether the output projection is the embedding transposed."""
    norm: Literal["layernorm", "rmsnorm"] | None = None
    """Kind of norm."""
    bias: bool | None = None
    """Whether projections have a bias."""
    qkv_bias: bool | None = None
    """Whether the query/key/value projection has a bias even when the others have none."""
    dropout: Annotated[float, Field(ge=0, lt=1)] | None = None
    """Probability of hidden and attention dropout; 0 removes the kernels."""
    attention: Literal["causal", "full", "sliding"] | None = None
    """Which keys a query sees."""
    window: Annotated[int, Field(ge=0, le=100_000_000)] | None = None
    """Tokens a sliding window holds."""
    positions: Literal["learned", "rotary", "alibi", "none"] | None = None
    """How positions enter."""
    max_positions: Annotated[int, Field(ge=0, le=100_000_000)] | None = None
    """Rows of the table of learned positions."""
    parallel_block: bool | None = None
    """Whether attention and MLP read the same norm (PaLM)."""
    embedding_norm: bool | None = None
    """Whether a norm follows the embedding (BLOOM)."""
    moe: MixtureOfExperts | None = None
    """Mixture of experts: not simulated by this version."""
    mla: MultiLatentAttention | None = None
    """Multi-head latent attention: not simulated by this version."""

    def given(self) -> dict[str, Any]:
        """Fields of `Transformer` that were written, by name."""
        names = {field.name for field in dataclasses.fields(Transformer)} - {"name"}
        return {
            name: value
            for name in names & type(self).model_fields.keys()
            if (value := getattr(self, name)) is not None
        }

    def resolve(self) -> Transformer:
        """The model meant.

        Raises
        ------
        ScenarioError
            If the preset is unknown, fields are missing, or they contradict each other.
        """
        problems = [*_check_simulated(self), *_check_known(self), *_check_complete(self)]
        if problems:
            raise ScenarioError(problems)
        try:
            return _modified(self) if self.preset is not None else _spelled_out(self)
        except WorkloadError as error:
            key = "model"
            raise ScenarioError(
                [Problem(line, key=key) for line in str(error).split("\n")]
            ) from error


def _check_simulated(choice: ModelChoice) -> list[Problem]:
    names = {"moe": "mixture of experts", "mla": "multi-head latent attention"}
    return [
        Problem(
            f"{title} is not simulated by this version; remove '{key}' or take a dense model",
            key=f"model.{key}",
        )
        for key, title in names.items()
        if getattr(choice, key) is not None
    ]


def _check_known(choice: ModelChoice) -> list[Problem]:
    if choice.preset is None or choice.preset in model_names():
        return []
    near = nearest(choice.preset, model_names())
    return [Problem(f"unknown model {choice.preset[:60]!r}; {near}", key="model.preset")]


def _check_complete(choice: ModelChoice) -> list[Problem]:
    if choice.preset is not None:
        return []
    needed = [*REQUIRED, "ffn_hidden"] if choice.gated_mlp else REQUIRED
    missing = [name for name in needed if getattr(choice, name) is None]
    if not missing:
        return []
    message = f"lacks {', '.join(missing)}; give them, or a preset such as 'preset: gpt3-175b'"
    return [Problem(message, key="model")]


def _width(hidden: int, heads: int) -> int:
    if hidden % heads:
        raise WorkloadError(
            f"hidden {hidden} does not divide among {heads} heads; change one of them, or give head_dim"
        )
    return hidden // heads


def _spelled_out(choice: ModelChoice) -> Transformer:
    fields = choice.given()
    hidden, heads = fields["hidden"], fields["heads"]
    fields.setdefault("kv_heads", heads)
    fields.setdefault("ffn_hidden", FFN_RATIO * hidden)
    if "head_dim" not in fields:
        fields["head_dim"] = _width(hidden, heads)
    return Transformer(**{**fields, "name": choice.name or "custom"})


def _modified(choice: ModelChoice) -> Transformer:
    """A preset with changes; what the preset derives from a changed field is derived again."""
    assert choice.preset is not None
    base = model(choice.preset)
    given = choice.given()
    if choice.name is not None:
        given["name"] = choice.name
    return dataclasses.replace(base, **{**_derived(base, given), **given}) if given else base


def _derived(base: Transformer, given: Mapping[str, Any]) -> dict[str, Any]:
    hidden, heads = given.get("hidden", base.hidden), given.get("heads", base.heads)
    derived: dict[str, Any] = {}
    square = base.heads * base.head_dim == base.hidden
    if square and (hidden, heads) != (base.hidden, base.heads) and "head_dim" not in given:
        derived["head_dim"] = _width(hidden, heads)
    if heads != base.heads and base.kv_heads == base.heads:
        derived["kv_heads"] = heads
    if hidden != base.hidden and base.ffn_hidden == FFN_RATIO * base.hidden:
        derived["ffn_hidden"] = FFN_RATIO * hidden
    return derived
