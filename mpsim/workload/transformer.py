"""The model: one frozen description from which every operator and parameter count follows."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from mpsim.errors import WorkloadError, nearest
from mpsim.workload.experts import Experts, LatentAttention
from mpsim.workload.parameters import Parameters, count_parameters

__all__ = ["ATTENTIONS", "NORMS", "POSITIONS", "Lowering", "Transformer"]

NORMS = ("layernorm", "rmsnorm")
ATTENTIONS = ("causal", "full", "sliding")
POSITIONS = ("learned", "rotary", "alibi", "none")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Transformer:
    """A decoder-only transformer (dense).

    Parameters
    ----------
    layers, hidden, heads, kv_heads, head_dim, ffn_hidden, vocab : int
        At least 1; `kv_heads` divides `heads`. ``heads * head_dim`` need not be `hidden` (PaLM).
    gated_mlp : bool
        SwiGLU-like: two input projections of `ffn_hidden` each.
    tied_embeddings : bool
        Whether the output projection is the embedding transposed.
    norm : str
        ``layernorm`` or ``rmsnorm``.
    bias : bool
        Biases on every projection and, for ``layernorm``, on every norm.
    qkv_bias : bool
        A bias on the query/key/value projection also where `bias` is false (Qwen 2).
    dropout : float
        Hidden and attention dropout probability in training, in [0, 1); 0 removes the kernels.
    attention : str
        ``causal``, ``full`` or ``sliding``.
    window : int
        Sliding window [tokens]; positive exactly when `attention` is ``sliding``.
    positions : str
        ``learned``, ``rotary``, ``alibi`` or ``none``.
    max_positions : int
        Rows of the table of learned positions [tokens]; 0 leaves the table out of the count.
    parallel_block : bool
        Attention and MLP read the same norm and are summed (PaLM, GPT-J).
    embedding_norm : bool
        A norm after the embedding (BLOOM).
    moe : Experts, optional
        Experts in place of the MLP of some or all layers.
    mla : LatentAttention, optional
        Latent attention in place of plain.
    source, as_of : str
        Where the figures come from, and the date of that edition.

    Raises
    ------
    WorkloadError
        If a field is out of range or fields contradict each other; it names every mistake.
    """

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn_hidden: int
    vocab: int
    gated_mlp: bool = False
    tied_embeddings: bool = True
    norm: str = "layernorm"
    bias: bool = True
    qkv_bias: bool = False
    dropout: float = 0.0
    attention: str = "causal"
    window: int = 0
    positions: str = "learned"
    max_positions: int = 0
    parallel_block: bool = False
    embedding_norm: bool = False
    moe: Experts | None = None
    mla: LatentAttention | None = None
    source: str = ""
    as_of: str = ""

    def __post_init__(self) -> None:
        mistakes = [*_check_sizes(self), *_check_choices(self), *_check_consistency(self)]
        if mistakes:
            raise WorkloadError("\n".join(f"model {self.name!r}: {one}" for one in mistakes))

    @property
    def layer_kinds(self) -> tuple[str, ...]:
        """Kind of every layer, first to last; `expand_layer` and `parameters` know each by this name."""
        moe = self.moe
        return tuple(
            "moe" if moe is not None and moe.replaces(layer) else "dense"
            for layer in range(self.layers)
        )

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
        return self.heads * self.head_dim

    @property
    def kv_features(self) -> int:
        """Width of all keys (or all values) of a token together, ``kv_heads * head_dim``."""
        return self.kv_heads * self.head_dim

    @property
    def qkv_features(self) -> int:
        """Output width of the query/key/value projection."""
        return self.query_features + 2 * self.kv_features

    @property
    def fc1_features(self) -> int:
        """Output width of the first MLP projection: `ffn_hidden`, twice that when gated."""
        return self.ffn_hidden * (2 if self.gated_mlp else 1)

    def padded_vocab(self, multiple: int) -> int:
        """Vocabulary rounded up to a multiple, as Megatron pads it to 128 x tp.

        Parameters
        ----------
        multiple : int
            What the result is divisible by (``make_vocab_size_divisible_by * tp``), at least 1.

        Returns
        -------
        int
            The smallest multiple that holds the vocabulary [tokens].

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

        Parameters
        ----------
        padded_vocab : int, optional
            Rows of the embedding and of the head; the vocabulary itself by default.

        Returns
        -------
        `Parameters`
            Embedding, one layer, final norm and output head, each split into what tensor
            parallelism shards and what it replicates.
        """
        return count_parameters(self, self.vocab if padded_vocab is None else padded_vocab)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Lowering:
    """How software turns the model into kernels (chosen by the framework preset).

    Parameters
    ----------
    fused_attention : bool
        One FlashAttention-like kernel, or scores materialised (two batched GEMMs, softmax, dropout).
    fused_softmax : bool
        With materialised scores: scale, mask and softmax in one kernel, or three.
    fused_bias_activation, fused_bias_dropout_add : bool
        One kernel each, or one kernel an operation.
    activation_bytes : int
        Bytes of an activation element (2 for bf16/fp16, 4 for fp32).
    weight_grad_bytes : int
        Bytes of an element of the gradient that weight gradients are added into.
    loss_bytes_per_logit : float
        Memory traffic of the loss, forward and backward together [B per logit].

    Raises
    ------
    WorkloadError
        If a size is not positive.
    """

    fused_attention: bool = True
    fused_softmax: bool = True
    fused_bias_activation: bool = True
    fused_bias_dropout_add: bool = True
    activation_bytes: int = 2
    weight_grad_bytes: int = 4
    loss_bytes_per_logit: float = 30.0

    def __post_init__(self) -> None:
        mistakes = [
            f"lowering: {field} is {getattr(self, field)!r}; it must be a positive number of bytes"
            for field in ("activation_bytes", "weight_grad_bytes", "loss_bytes_per_logit")
            if not getattr(self, field) > 0
        ]
        if mistakes:
            raise WorkloadError("\n".join(mistakes))


_POSITIVE = ("layers", "hidden", "heads", "kv_heads", "head_dim", "ffn_hidden", "vocab")
_NON_NEGATIVE = ("window", "max_positions")


def _check_sizes(model: Transformer) -> Iterator[str]:
    for field in (*_POSITIVE, *_NON_NEGATIVE):
        value, least = getattr(model, field), int(field in _POSITIVE)
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            yield f"{field} is {value!r}; it must be a whole number of at least {least}"
    if not _probability(model.dropout):
        yield f"dropout is {model.dropout!r}; it must be in [0, 1)"


def _check_choices(model: Transformer) -> Iterator[str]:
    for field, known in (("norm", NORMS), ("attention", ATTENTIONS), ("positions", POSITIONS)):
        value = getattr(model, field)
        if value not in known:
            yield f"{field} is {value!r}; {nearest(str(value), known)}"


def _check_consistency(model: Transformer) -> Iterator[str]:
    if _whole(model.heads) and _whole(model.kv_heads) and model.heads % model.kv_heads:
        yield (
            f"heads ({model.heads}) is not a multiple of kv_heads ({model.kv_heads}); "
            "every key/value head serves the same number of queries"
        )
    if model.attention == "sliding" and not model.window:
        yield "attention is 'sliding' but window is 0; give the window in tokens"
    if model.attention != "sliding" and model.window:
        yield (
            f"window is {model.window!r} but attention is {model.attention!r}; "
            "set attention to 'sliding' or leave window out"
        )


def _probability(value: object) -> bool:
    return isinstance(value, int | float) and 0 <= value < 1


def _whole(value: object) -> bool:
    return isinstance(value, int) and value > 0
