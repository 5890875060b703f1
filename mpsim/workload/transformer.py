"""The model: one frozen description from which every operator and parameter count follows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from mpsim import structs
from mpsim.errors import WorkloadError, nearest
from mpsim.memo import remembered
from mpsim.nouns import Description, Figure, describe_fields
from mpsim.shipped import say
from mpsim.workload import sizes
from mpsim.workload.parameters import Count, Parameters
from mpsim.workload.variants import PATTERN, Experts, LatentAttention, StateMixer, VisionTower


@structs.dataclass(frozen=True, slots=True, kw_only=True)
class LayerKind:
    """A kind of layer: experts, mask, window, and whether it attends to an encoder."""

    # ``dense`` or ``moe``, with ``-sliding`` or ``-full`` where both attentions alternate;
    # ``encoder``, ``encoder-moe``, ``decoder`` and ``decoder-moe`` where there are two stacks
    name: str
    experts: bool  # whether experts stand in place of the MLP
    causal: bool  # whether a query sees only the keys before it
    window: int = 0  # sliding window [tokens], 0 for none
    cross: bool = False  # whether it attends to the output of an encoder too
    # ``attention``, ``state``, or ``none`` where the layer is an MLP alone
    mixer: str = "attention"
    mlp: bool = True  # whether it has an MLP, or experts


@structs.dataclass(frozen=True, slots=True, kw_only=True)
class Transformer:
    """A transformer: one stack of layers, or an encoder and a decoder; dense or with experts.

    Raises
    ------
    WorkloadError
        If a field is out of range or fields contradict each other; it names every mistake.
    """

    name: str
    # layers of encoder and decoder together; with `mla`, of widths of its own, `head_dim` is idle
    layers: sizes.Layers
    """Transformer layers."""
    hidden: sizes.Many
    """Width of the residual stream."""
    heads: sizes.Many
    """Attention heads (queries)."""
    kv_heads: sizes.Many
    """Heads of keys and values; left out, as many as heads."""
    head_dim: sizes.Many
    """Width of a head; left out, hidden / heads."""
    ffn_hidden: sizes.Many
    """Inner width of the MLP; left out, 4 x hidden (a gated MLP has to say)."""
    vocab: sizes.Vocabulary
    """Tokens in the vocabulary."""
    gated_mlp: bool = False
    """Whether the MLP has two input projections (SwiGLU)."""
    tied_embeddings: bool = True
    """Whether the output projection is the embedding transposed."""
    norm: Literal["layernorm", "rmsnorm"] = "layernorm"
    """Kind of norm."""
    bias: bool = True
    """Whether projections have a bias."""
    qkv_bias: bool = False
    """Whether the query/key/value projection has a bias even when the others have none."""
    dropout: sizes.Probability = 0.0
    """Probability of hidden and attention dropout; 0 removes the kernels."""
    attention: Literal["causal", "full", "sliding"] = "causal"
    """Which keys a query sees: those before it, all, or a window of those before it."""
    window: sizes.AnyTokens = 0
    """Tokens a sliding window holds."""
    full_every: sizes.AnyLayers = 0
    """With a sliding window: every n-th layer (the last of n) sees all keys; 0 for none."""
    encoder_layers: sizes.AnyLayers = 0
    """The first layers, if an encoder for the others; sequence_length is the encoder's then."""
    decoder_length: sizes.AnyTokens = 0
    """Tokens of the decoder's sequence, where there is an encoder."""
    positions: Literal["learned", "rotary", "relative", "alibi", "none"] = "learned"
    """How positions enter."""
    max_positions: sizes.AnyTokens = 0
    """Rows of the table of learned positions, or buckets of relative ones."""
    qk_norm: bool = False
    """Whether every head's query and key are normed (Qwen 3)."""
    qk_norm_whole: bool = False
    """Whether these norms span all heads, and so all tensor parallel ranks (MiniMax-M2)."""
    post_norm: bool = False
    """Whether a norm also follows attention and MLP (Gemma)."""
    parallel_block: bool = False
    """Whether attention and MLP read the same norm (PaLM)."""
    embedding_norm: bool = False
    """Whether a norm follows the embedding (BLOOM)."""
    mtp_layers: sizes.AnyLayers = 0
    """The last of the layers, when they are modules that predict further tokens (DeepSeek-V3); each
    has a pass of the head of its own."""
    attention_gate: bool = False
    """Whether a gate as wide as the queries stands behind attention (Qwen3-Next)."""
    scalar_head: bool = False
    """Whether the head has one value a token in place of the vocabulary (reward models)."""
    layer_pattern: sizes.Pattern = ""
    """Letters of the layers, repeated: A attention and MLP, S state mixer and MLP, * attention, M
    state mixer, - MLP alone; left out, A."""
    state: StateMixer | None = None
    """Mixer of layers with a state."""
    vision: VisionTower | None = None
    """Encoder of images."""
    moe: Experts | None = None
    """Mixture of experts."""
    mla: LatentAttention | None = None
    """Multi-head latent attention."""
    # source, as_of: Where the figures come from, and the date of that edition.
    source: str = ""
    as_of: str = ""

    def __post_init__(self) -> None:
        mistakes = [*sizes.unfit(self), *_check_consistency(self)]
        if not mistakes:
            mistakes = [*_check_stacks(self)]
        if mistakes:
            raise WorkloadError(
                "\n".join(f"model {self.name!r}: {mistake}" for mistake in mistakes)
            )

    def describe(self) -> Description:
        """Every figure with its source, and the parameters that follow."""
        counted = "counted from the values above"
        follows = tuple(
            Figure(name, count, f"{count / 1e9:.4g} B", counted)
            for name, count in (
                ("parameters", self.parameters().total),
                ("active_parameters", self.active_parameters(lookup=True)),
            )
        )
        described = describe_fields(self)
        return structs.replace(described, figures=(*described.figures, *follows))

    def __hash__(self) -> int:
        # every cache asks; models that share these are told apart by their other fields
        return hash((self.name, self.layers, self.hidden, self.vocab))

    @property
    def kinds(self) -> tuple[LayerKind, ...]:
        """Kind of every layer, first to last."""
        return _kinds_of(self)

    @property
    def layer_kinds(self) -> tuple[str, ...]:
        """Name of the kind of every layer, by which `expand_layer` and `parameters` know it."""
        return _names_of(self)

    def kind(self, name: str) -> LayerKind:
        """The kind of layer called `name`; WorkloadError if the model has no such layer."""
        known = {kind.name: kind for kind in self.kinds}
        if name not in known:
            raise WorkloadError(f"{self.name} has no {name!r} layer; {nearest(name, known)}")
        return known[name]

    @property
    def causal(self) -> bool:
        """Whether a query sees only the keys before it."""
        return self.attention != "full"

    @property
    def has_qkv_bias(self) -> bool:
        """Whether the query/key/value projection has a bias."""
        return self.bias or self.qkv_bias

    @property
    def query_features(self) -> int:
        """Width of all queries of a token together, ``heads * head_dim``."""
        return self.heads * (self.mla.qk_head_dim if self.mla else self.head_dim)

    @property
    def context_features(self) -> int:
        """Width of what attention hands to the output projection: a value for every head."""
        return self.heads * (self.mla.v_head_dim if self.mla else self.head_dim)

    @property
    def kv_features(self) -> int:
        """Width of all keys (or all values) of a token together, ``kv_heads * head_dim``."""
        return self.kv_heads * self.head_dim

    @property
    def qkv_features(self) -> int:
        """Output width of the query/key/value projection."""
        return self.query_features * (1 + self.attention_gate) + 2 * self.kv_features

    @property
    def fc1_features(self) -> int:
        """Output width of the first MLP projection: `ffn_hidden`, twice that when gated."""
        return self.ffn_hidden * (2 if self.gated_mlp else 1)

    @property
    def gated_experts(self) -> bool:
        """Whether routed experts have two input projections."""
        own = self.moe.gated_mlp if self.moe else None
        return self.gated_mlp if own is None else own

    def padded_vocab(self, multiple: int) -> int:
        """Vocabulary rounded up to a multiple, as Megatron pads it to 128 x tp.

        `multiple`: what the result is divisible by (``make_vocab_size_divisible_by * tp``), at
        least 1. Returns the smallest that holds the vocabulary [tokens].

        References
        ----------
        NVIDIA/Megatron-LM, ``_vocab_size_with_padding`` (tokenizer).

        Examples
        --------
        GPT-2's 50257 tokens on 8 tensor-parallel ranks:

        >>> from mpsim.workload import model
        >>> model("gpt2-small").padded_vocab(128 * 8)
        51200
        """
        if multiple < 1:
            raise WorkloadError(f"cannot pad a vocabulary to a multiple of {multiple}; needs >= 1")
        return -(-self.vocab // multiple) * multiple

    def parameters(self, *, padded_vocab: int | None = None) -> Parameters:
        """Count the parameters part by part.

        `padded_vocab`: rows of the embedding and of the head; the vocabulary itself by default.
        Returns embedding, one layer, final norm and output head, each split into what tensor
        parallelism shards and what it replicates.
        """
        return _count_parameters(self, self.vocab if padded_vocab is None else padded_vocab)

    def active_parameters(self, *, lookup: bool = False) -> int:
        """Count the parameters that one token meets: all but the routed experts it is not sent to.

        `lookup`: whether to count the token table too, of which a token needs a row. A tied output
        projection always counts.

        References
        ----------
        OpenAI, gpt-oss model card (2025), Table 1: unembedding counts, embedding does not.
        """
        count = self.parameters()
        idle = 0
        if self.moe is not None:
            routed = sum(count.layers[kind].experts for kind in count.kinds)
            idle = routed - routed * self.moe.top_k // self.moe.experts
        looked_up = 0 if lookup or self.tied_embeddings else count.embedding.sharded
        return count.total - idle - looked_up


def _check_consistency(model: Transformer) -> Iterator[str]:
    dropout: object = model.dropout
    if not (isinstance(dropout, int | float) and 0 <= dropout < 1):
        yield f"dropout is {model.dropout!r}; it must be in [0, 1)"
    if _whole(model.heads) and _whole(model.kv_heads) and model.heads % model.kv_heads:
        yield say("workload.kv_heads", model=model)
    if model.attention == "sliding" and not model.window:
        yield "attention is 'sliding' but window is 0; give the window in tokens"
    if model.attention != "sliding" and model.window:
        yield say("workload.window", model=model)

    for part in (model.moe, model.mla, model.state, model.vision):
        yield from part.mistakes() if part else ()
    if model.vision and model.encoder_layers:
        yield "vision stands before one stack of layers; leave out encoder_layers"
    if unknown := "".join(sorted(set(model.layer_pattern) - PATTERN.keys())):
        yield f"layer_pattern has {unknown!r}; needed letters of {' '.join(PATTERN)}"
    elif bool(set(model.layer_pattern) & {"S", "M"}) != (model.state is not None):
        yield (
            "layer_pattern has S or M exactly where state says what they are; give both or neither"
        )
    if model.layer_pattern and (model.full_every or model.encoder_layers or model.parallel_block):
        yield say("workload.one_stack")
    if model.scalar_head and (model.tied_embeddings or model.mtp_layers):
        yield say("workload.scalar_head")
    if model.attention_gate and (model.mla or model.parallel_block):
        yield "attention_gate stands beside plain attention; leave out mla and parallel_block"


def _check_stacks(model: Transformer) -> Iterator[str]:
    if model.full_every and model.attention != "sliding":
        yield say("workload.full_every", model=model)
    if model.encoder_layers >= model.layers:
        yield say("workload.encoder_layers", model=model)
    if model.mtp_layers >= model.layers:
        yield say("workload.mtp_layers", model=model)
    if bool(model.encoder_layers) != bool(model.decoder_length):
        yield "encoder_layers and decoder_length come together; give both or neither"
    if model.encoder_layers and (model.window or model.mla or model.parallel_block):
        yield say("workload.two_stacks")
    if model.parallel_block and (model.moe or model.mla or model.post_norm):
        yield (
            "a parallel block has a plain MLP and plain attention; leave out moe, mla and post_norm"
        )
    if model.mla and (model.qk_norm or model.kv_heads != model.heads):
        yield say("workload.latent")
    if model.qk_norm_whole and not model.qk_norm:
        yield "qk_norm_whole says what qk_norm spans; set qk_norm to true, or leave it out"


def _whole(value: object) -> bool:
    return isinstance(value, int) and value > 0


# --- kinds of layer -------------------------------------------------------------------------------


@remembered(256)
def _kinds_of(model: Transformer) -> tuple[LayerKind, ...]:
    """Kind of every layer, first to last."""
    return tuple(_kind(model, layer) for layer in range(model.layers))


@remembered(256)
def _names_of(model: Transformer) -> tuple[str, ...]:
    return tuple(kind.name for kind in model.kinds)


def _kind(model: Transformer, layer: int) -> LayerKind:
    if not model.encoder_layers:
        return _single_stack(model, layer)
    decodes = layer >= model.encoder_layers
    place = layer - model.encoder_layers if decodes else layer
    experts = model.moe is not None and model.moe.replaces(place)
    stack = "decoder" if decodes else "encoder"
    return LayerKind(
        name=f"{stack}-moe" if experts else stack, experts=experts, causal=decodes, cross=decodes
    )


def _single_stack(model: Transformer, layer: int) -> LayerKind:
    experts = model.moe is not None and model.moe.replaces(layer)
    name = "moe" if experts else "dense"
    if model.layer_pattern:
        return _patterned(model, model.layer_pattern[layer % len(model.layer_pattern)], experts)
    window = model.window
    if model.full_every:
        full = (layer + 1) % model.full_every == 0
        window = 0 if full else window
        name += "-full" if full else "-sliding"
    return LayerKind(name=name, experts=experts, causal=model.causal, window=window)


def _patterned(model: Transformer, letter: str, experts: bool) -> LayerKind:
    """A layer by its letter: mixers with an MLP have both names, others their own."""
    mixer, mlp = PATTERN[letter]
    experts = experts and mlp
    beside = {"attention": "", "state": "-state", "none": "-alone"}
    name = f"{'moe' if experts else 'dense'}{beside[mixer]}" if mlp else mixer
    window = model.window if mixer == "attention" else 0
    return LayerKind(
        name=name, experts=experts, causal=model.causal, window=window, mixer=mixer, mlp=mlp
    )


# --- parameters -----------------------------------------------------------------------------------


@remembered(64)
def _count_parameters(model: Transformer, vocab: int) -> Parameters:
    """Count the parameters of `model` with `vocab` rows in its embedding and head."""
    norm = _norm(model)
    table = vocab * model.hidden
    stacks = 2 if model.encoder_layers else 1
    return Parameters(
        embedding=Count(table, _positions(model, stacks) + (norm if model.embedding_norm else 0))
        + (model.vision.count(model.hidden) if model.vision else Count()),
        layers={kind.name: _layer(model, kind) for kind in dict.fromkeys(model.kinds)},
        kinds=model.layer_kinds,
        # of multi-token prediction: two norms, a projection from twice the width, a norm
        final_norm=Count(0, stacks * norm + model.mtp_layers * (2 * model.hidden**2 + 3 * norm)),
        output_head=_head(model, table),
    )


def _head(model: Transformer, table: int) -> Count:
    if model.scalar_head:
        return Count(0, model.hidden)
    return Count(0 if model.tied_embeddings else table)


def _positions(model: Transformer, stacks: int) -> int:
    """Learned positions join the embedding; a table of relative ones serves a stack."""
    width = {"learned": model.hidden, "relative": stacks * model.heads}
    return model.max_positions * width.get(model.positions, 0)


def _norm(model: Transformer) -> int:
    return model.hidden * _norm_tensors(model)


def _norm_tensors(model: Transformer) -> int:
    return 2 if model.norm == "layernorm" and model.bias else 1


def _layer(model: Transformer, kind: LayerKind) -> Count:
    attention = _mixer(model, kind)
    mlp = _experts(model, model.moe) if kind.experts and model.moe else _mlp(model)
    mlp = mlp if kind.mlp else Count()
    blocks = (kind.mixer != "none") + kind.cross + (kind.mlp and not model.parallel_block)
    row_gemms = blocks if not kind.experts else blocks - 1  # the experts count their own
    replicated = _norm(model) * blocks * (2 if model.post_norm else 1)
    replicated += row_gemms * model.hidden if model.bias else 0
    cross = _attention(model) if kind.cross else Count()
    return attention + cross + mlp + Count(0, replicated)


def _mixer(model: Transformer, kind: LayerKind) -> Count:
    if kind.mixer == "none":
        return Count()
    if kind.mixer == "state" and model.state is not None:
        return model.state.count(model.hidden)
    return _latent(model, model.mla) if model.mla else _attention(model)


def _attention(model: Transformer) -> Count:
    """Projections of queries, keys, values, context; row GEMMs count the last one's bias."""
    matrices = model.hidden * (model.qkv_features + model.query_features)
    heads = model.heads + model.kv_heads if model.qk_norm_whole else 2
    norms = heads * model.head_dim * _norm_tensors(model) if model.qk_norm else 0
    return Count(matrices + (model.qkv_features if model.has_qkv_bias else 0), norms)


def _latent(model: Transformer, mla: LatentAttention) -> Count:
    key_value = model.heads * (mla.qk_nope_head_dim + mla.v_head_dim)
    up = (mla.q_lora_rank or model.hidden) * model.query_features + mla.kv_lora_rank * key_value
    narrow = mla.kv_lora_rank + mla.qk_rope_head_dim + mla.q_lora_rank
    norms = mla.q_lora_rank + mla.kv_lora_rank
    return Count(up + model.context_features * model.hidden, model.hidden * narrow + norms)


def _mlp(model: Transformer) -> Count:
    matrices = model.hidden * (model.fc1_features + model.ffn_hidden)
    return Count(matrices + (model.fc1_features if model.bias else 0))


def _experts(model: Transformer, moe: Experts) -> Count:
    inner, shared = moe.ffn_hidden, moe.shared_features
    fc1 = inner * (2 if model.gated_experts else 1)
    expert = model.hidden * (fc1 + inner) + ((fc1 + model.hidden) if model.bias else 0)
    router = (model.hidden + (1 if model.bias else 0)) * moe.experts
    shared_fc1 = shared * (2 if model.gated_mlp else 1)
    both = model.hidden * (shared_fc1 + shared) + (shared_fc1 if model.bias else 0)
    return Count(
        both, router + (model.hidden if model.bias and shared else 0), moe.experts * expert
    )
