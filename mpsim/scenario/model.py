"""The ``model:`` section: a preset, a preset with changes, or a model spelled out."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field

from mpsim import structs
from mpsim.errors import Problem, ScenarioError, WorkloadError, nearest
from mpsim.scenario.fields import Count, Fields, Name, Section
from mpsim.workload import (
    Experts,
    LatentAttention,
    StateMixer,
    Transformer,
    VisionTower,
    model,
    model_names,
)

REQUIRED: Final = ("layers", "hidden", "heads", "vocab")
_PARTS: Final = ("moe", "mla", "state", "vision")
_NEEDED: Final = {
    "moe": ("experts",),
    "mla": ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"),
    "state": ("kind", "heads", "head_dim", "state", "groups"),
    "vision": ("layers", "hidden", "heads", "ffn_hidden", "patches"),
}
FFN_RATIO: Final = 4  # of a transformer that does not say (Vaswani et al. 2017)

Layers = Annotated[int, Field(ge=1, le=10_000)]


class MixtureOfExperts(Section):
    """Experts in place of the MLP of some or all layers; a preset gives fields left out."""

    experts: Count | None = None
    """Routed experts of a layer; needed where no preset gives them."""
    top_k: Count | None = None
    """Routed experts each token is sent to; left out, 1."""
    ffn_hidden: Count | None = None
    """Inner width of one expert; left out, the model's ffn_hidden."""
    shared_experts: Annotated[int, Field(ge=0, le=1_000_000)] | None = None
    """Experts every token is sent to; left out, none."""
    shared_ffn_hidden: Annotated[int, Field(ge=0, le=1_000_000_000)] | None = None
    """Inner width of one shared expert; left out, that of a routed one."""
    gated_mlp: bool | None = None
    """Whether routed experts have two input projections; left out, as the model's MLP."""
    dense_layers: Annotated[int, Field(ge=0, le=10_000)] | None = None
    """Leading layers that keep a plain MLP; left out, none."""
    every: Annotated[int, Field(ge=1, le=10_000)] | None = None
    """After those, every n-th layer has experts (the last of each n); left out, all have."""
    capacity_factor: Annotated[float, Field(ge=0, le=1000)] | None = None
    """Places of an expert over its even share of tokens, all computed, padded or not; 0 or left
    out, as many as tokens come."""
    imbalance: Annotated[float, Field(ge=1, le=1000)] | None = None
    """Tokens of the busiest rank over the mean; left out, 1."""
    spread: Annotated[float, Field(ge=0, le=1000)] | None = None
    """Standard deviation of an expert's tokens over their mean; left out, 0."""


class MultiLatentAttention(Section):
    """Attention through compressed keys and values; a preset gives fields left out."""

    q_lora_rank: Annotated[int, Field(ge=0, le=1_000_000_000)] | None = None
    """Width the queries are compressed to; 0 or left out, they are not."""
    kv_lora_rank: Count | None = None
    """Width keys and values are compressed to; needed, as are a head's, without a preset's."""
    qk_nope_head_dim: Count | None = None
    """Part of a head's query and key without position."""
    qk_rope_head_dim: Annotated[int, Field(ge=0, le=1_000_000_000)] | None = None
    """Part of a head's query and key with rotary position."""
    v_head_dim: Count | None = None
    """Width of a head's value."""


class StateSpace(Section):
    """Mixer with a state, of letters S and M of layer_pattern; a preset gives fields left out."""

    kind: Literal["mamba2", "gated-delta"] | None = None
    """Mamba-2's SSD, or a gated delta net; needed without a preset's, as are the widths."""
    heads: Count | None = None
    """Heads of values."""
    head_dim: Count | None = None
    """Width of a head's value."""
    state: Count | None = None
    """Width of the keys that address a head's state."""
    groups: Count | None = None
    """Heads of those keys; divides heads."""
    conv: Count | None = None
    """Taps of the convolution before the scan; left out, 4."""
    chunk: Count | None = None
    """Tokens scanned as products at once; left out, 256."""


class Vision(Section):
    """Encoder of images, on ranks of the first stage; a preset gives fields left out."""

    layers: Layers | None = None
    """Layers of the tower; needed without a preset's, as are hidden, heads, ffn_hidden, patches."""
    hidden: Count | None = None
    """Width of the tower."""
    heads: Count | None = None
    """Attention heads of the tower."""
    ffn_hidden: Count | None = None
    """Inner width of its MLPs."""
    patches: Count | None = None
    """Patches of an image."""
    patch: Count | None = None
    """Side of a patch in pixels; left out, 14."""
    merge: Count | None = None
    """Patches that become one token of the sequence; left out, 1."""
    images: Annotated[float, Field(gt=0, le=1_000_000, strict=False)] | None = None
    """Images of a sequence on average, whose tokens sequence_length counts; left out, 1."""


class ModelChoice(Section):
    """A transformer: a preset by name, fields that replace those of a preset, or all of them."""

    preset: Name | None = None
    """A published model (see 'mpsim show models')."""
    name: Name | None = None
    """Name; left out, the preset's."""
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
    """Which keys a query sees: those before it, all, or a window of those before it."""
    window: Annotated[int, Field(ge=0, le=100_000_000)] | None = None
    """Tokens a sliding window holds."""
    full_every: Annotated[int, Field(ge=0, le=10_000)] | None = None
    """With a sliding window: every n-th layer (the last of n) sees all keys; 0 for none."""
    encoder_layers: Annotated[int, Field(ge=0, le=10_000)] | None = None
    """The first layers, if an encoder for the others; sequence_length is the encoder's then."""
    decoder_length: Annotated[int, Field(ge=0, le=100_000_000)] | None = None
    """Tokens of the decoder's sequence, where there is an encoder."""
    positions: Literal["learned", "rotary", "relative", "alibi", "none"] | None = None
    """How positions enter."""
    max_positions: Annotated[int, Field(ge=0, le=100_000_000)] | None = None
    """Rows of the table of learned positions, or buckets of relative ones."""
    qk_norm: bool | None = None
    """Whether every head's query and key are normed (Qwen 3)."""
    post_norm: bool | None = None
    """Whether a norm also follows attention and MLP (Gemma)."""
    parallel_block: bool | None = None
    """Whether attention and MLP read the same norm (PaLM)."""
    embedding_norm: bool | None = None
    """Whether a norm follows the embedding (BLOOM)."""
    mtp_layers: Annotated[int, Field(ge=0, le=10_000)] | None = None
    """The last of the layers, when they are modules that predict further tokens (DeepSeek-V3); each
    has a pass of the head of its own."""
    attention_gate: bool | None = None
    """Whether a gate as wide as the queries stands behind attention (Qwen3-Next)."""
    scalar_head: bool | None = None
    """Whether the head has one value a token in place of the vocabulary (reward models)."""
    layer_pattern: Annotated[str, Field(max_length=10_000)] | None = None
    """Letters of the layers, repeated: A attention and MLP, S state mixer and MLP, * attention, M
    state mixer, - MLP alone; left out, A."""
    state: StateSpace | None = None
    """Mixer of layers with a state."""
    vision: Vision | None = None
    """Encoder of images."""
    moe: MixtureOfExperts | None = None
    """Mixture of experts."""
    mla: MultiLatentAttention | None = None
    """Multi-head latent attention."""

    def given(self) -> Fields:
        """Plain fields of `Transformer` that were written, by name."""
        names = {field.name for field in structs.fields(Transformer)} - {"name", *_PARTS}
        return {
            name: value
            for name in names & type(self).model_fields.keys()
            if (value := getattr(self, name)) is not None
        }

    def resolve(self) -> Transformer:
        """The model meant. ScenarioError: unknown preset, missing or contradicting fields."""
        problems = [*_check_known(self), *_check_fields(self), *_check_parts(self)]
        if problems:
            raise ScenarioError(problems)
        try:
            return _modified(self) if self.preset is not None else _spelled_out(self)
        except WorkloadError as error:
            lines = str(error).split("\n")
            raise ScenarioError([Problem(line, key="model") for line in lines]) from error


def _check_known(choice: ModelChoice) -> list[Problem]:
    if choice.preset is None or choice.preset in model_names(aliases=True):
        return []
    near = nearest(choice.preset, model_names(aliases=True))
    return [Problem(f"unknown model {choice.preset[:60]!r}; {near}", key="model.preset")]


def _check_fields(choice: ModelChoice) -> list[Problem]:
    if choice.preset is not None:
        return []
    needed = [*REQUIRED, "ffn_hidden"] if choice.gated_mlp else REQUIRED
    missing = [name for name in needed if getattr(choice, name) is None]
    if not missing:
        return []
    message = f"lacks {', '.join(missing)}; give them, or a preset such as 'preset: gpt3-175b'"
    return [Problem(message, key="model")]


def _check_parts(choice: ModelChoice) -> list[Problem]:
    """Say what moe, mla, state and vision have to give where no preset gives it."""
    base = model(choice.preset) if choice.preset in model_names(aliases=True) else None
    return [
        Problem(f"lacks {', '.join(missing)}; give them", key=f"model.{key}")
        for key, needed in _NEEDED.items()
        if (part := getattr(choice, key)) is not None and getattr(base, key, None) is None
        if (missing := [name for name in needed if getattr(part, name) is None])
    ]


def _parts(choice: ModelChoice, base: Transformer | None, ffn_hidden: int) -> Fields:
    """Experts, latent attention and state mixer as written, over those of the preset."""
    parts: Fields = {}
    for name, kind, usual in (
        ("moe", Experts, {"ffn_hidden": ffn_hidden}),
        ("mla", LatentAttention, {}),
        ("state", StateMixer, {}),
        ("vision", VisionTower, {}),
    ):
        section, known = getattr(choice, name), getattr(base, name, None)
        if section is not None:
            own = {key: value for key, value in section if value is not None}
            parts[name] = structs.replace(known, **own) if known else kind(**{**usual, **own})
    return parts


def _width(hidden: int, heads: int) -> int:
    if hidden % heads:
        raise WorkloadError(
            f"hidden {hidden} does not divide among {heads} heads; change one of them, or give"
            " head_dim"
        )
    return hidden // heads


def _spelled_out(choice: ModelChoice) -> Transformer:
    fields = choice.given()
    hidden, heads = fields["hidden"], fields["heads"]
    fields.setdefault("kv_heads", heads)
    fields.setdefault("ffn_hidden", FFN_RATIO * hidden)
    if "head_dim" not in fields:
        latent = choice.mla.v_head_dim if choice.mla is not None else None
        fields["head_dim"] = latent or _width(hidden, heads)
    fields |= _parts(choice, None, fields["ffn_hidden"])
    return Transformer(**{**fields, "name": choice.name or "custom"})


def _modified(choice: ModelChoice) -> Transformer:
    """A preset with changes; what the preset derives from a changed field is derived again."""
    assert choice.preset is not None
    base = model(choice.preset)
    given = choice.given()
    if choice.name is not None:
        given["name"] = choice.name
    fields = {**_derived(base, given), **given}
    fields |= _parts(choice, base, fields.get("ffn_hidden", base.ffn_hidden))
    return structs.replace(base, **fields) if fields else base


def _derived(base: Transformer, given: Fields) -> Fields:
    hidden, heads = given.get("hidden", base.hidden), given.get("heads", base.heads)
    derived: Fields = {}
    square = base.heads * base.head_dim == base.hidden
    if square and (hidden, heads) != (base.hidden, base.heads) and "head_dim" not in given:
        derived["head_dim"] = _width(hidden, heads)
    if heads != base.heads and base.kv_heads == base.heads:
        derived["kv_heads"] = heads
    if hidden != base.hidden and base.ffn_hidden == FFN_RATIO * base.hidden:
        derived["ffn_hidden"] = FFN_RATIO * hidden
    return derived
