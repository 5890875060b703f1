"""One transformer layer as operators, serial (GPT, Llama) or with a parallel block (PaLM)."""

from __future__ import annotations

from collections.abc import Iterator

from mpsim.errors import WorkloadError, nearest
from mpsim.workload.attention import attention_core
from mpsim.workload.expansion import Expansion, Step, Tokens
from mpsim.workload.kernels import gemm, streaming
from mpsim.workload.operators import OperatorKind, Split
from mpsim.workload.transformer import Lowering, Transformer

__all__ = ["expand_layer", "norm"]


def expand_layer(
    model: Transformer,
    lowering: Lowering,
    *,
    sequences: int,
    sequence_length: int,
    context: int = 1,
    kind: str = "dense",
) -> Expansion:
    """Expand one layer for one microbatch on one rank, before tensor parallelism.

    Parameters
    ----------
    model : Transformer
    lowering : Lowering
        What the framework fuses, and the size of its elements.
    sequences : int
        Sequences of the microbatch, at least 1.
    sequence_length : int
        Tokens of each; `context` divides it.
    context : int
        Context-parallel degree: this rank holds ``sequence_length / context`` tokens of every sequence
        and attends to all keys (balanced, so that causal work halves evenly).
    kind : str
        One of ``model.layer_kinds``.

    Returns
    -------
    Expansion
        Forward in order of execution, backward in reverse.

    Raises
    ------
    WorkloadError
        If the sequence does not divide among the context-parallel ranks, or the model has no layer of this kind.

    Notes
    -----
    A GPT layer (b sequences, s tokens, h hidden) has ``24 b s h^2 (1 + s / 6h)`` FLOP forward and saves
    ``s b h (34 + 5 a s / h)`` bytes with a heads, unfused attention, dropout and 2-byte activations.

    References
    ----------
    Narayanan et al., Efficient Large-Scale Language Model Training (SC'21), appendix; Korthikanti et
    al. (2022), equation 1; Chowdhery et al., PaLM (2022), section 2 for the parallel block.

    Examples
    --------
    >>> from mpsim.workload import Lowering, model
    >>> layer = expand_layer(model("gpt2-small"), Lowering(), sequences=1, sequence_length=1024)
    >>> [one.name for one in layer.forward][:4]
    ['norm1', 'qkv', 'attention', 'proj']
    """
    if kind not in model.layer_kinds:
        kinds = tuple(dict.fromkeys(model.layer_kinds))
        raise WorkloadError(f"{model.name} has no {kind!r} layer; {nearest(kind, kinds)}")
    tokens = Tokens.of(sequences, sequence_length, context)
    steps = (_parallel_block if model.parallel_block else _serial_block)(model, lowering, tokens)
    return Expansion.of(
        steps,
        input_bytes=float(lowering.activation_bytes * tokens.count * model.hidden),
        input_split=Split.SEQUENCE,
    )


def norm(name: str, model: Transformer, lowering: Lowering, tokens: Tokens) -> Step:
    """Build a norm; it saves its input, and its output for the weight gradient of the next GEMM."""
    kept = float(lowering.activation_bytes * tokens.count * model.hidden)
    return streaming(
        name,
        "norm",
        Split.SEQUENCE,
        elements=tokens.count * model.hidden,
        lowering=lowering,
        kind=OperatorKind.NORM,
        saved=kept,
        saved_for_weight=kept,
    )


def _serial_block(model: Transformer, lowering: Lowering, tokens: Tokens) -> Iterator[Step]:
    yield norm("norm1", model, lowering, tokens)
    yield _column("qkv", model, lowering, tokens, model.qkv_features, _kept_of_qkv(model))
    yield from _rotary(model, lowering, tokens)
    yield from attention_core(model, lowering, tokens)
    yield _row("proj", model, lowering, tokens, model.query_features)
    yield from _add("1", model, lowering, tokens)
    yield norm("norm2", model, lowering, tokens)
    yield _column("fc1", model, lowering, tokens, model.fc1_features, model.fc1_features)
    yield from _activation(model, lowering, tokens)
    yield _row("fc2", model, lowering, tokens, model.ffn_hidden)
    yield from _add("2", model, lowering, tokens)


def _parallel_block(model: Transformer, lowering: Lowering, tokens: Tokens) -> Iterator[Step]:
    yield norm("norm1", model, lowering, tokens)
    features = model.qkv_features + model.fc1_features
    kept = _kept_of_qkv(model) + model.fc1_features
    yield _column("qkv_fc1", model, lowering, tokens, features, kept)
    yield from _activation(model, lowering, tokens)
    yield from _rotary(model, lowering, tokens)
    yield from attention_core(model, lowering, tokens)
    yield _row("proj_fc2", model, lowering, tokens, model.query_features + model.ffn_hidden)
    yield from _add("1", model, lowering, tokens)


def _kept_of_qkv(model: Transformer) -> int:
    """Features of the projection kept as they are: all, or the values when the rest is rotated."""
    return model.kv_features if model.positions == "rotary" else model.qkv_features


def _column(
    name: str, model: Transformer, lowering: Lowering, tokens: Tokens, features: int, kept: int
) -> Step:
    return gemm(
        name,
        Split.COLUMN,
        tokens=tokens.count,
        features_out=features,
        features_in=model.hidden,
        lowering=lowering,
        saved=float(lowering.activation_bytes * tokens.count * kept),
    )


def _row(name: str, model: Transformer, lowering: Lowering, tokens: Tokens, features: int) -> Step:
    return gemm(
        name,
        Split.ROW,
        tokens=tokens.count,
        features_out=model.hidden,
        features_in=features,
        lowering=lowering,
        saved_for_weight=float(lowering.activation_bytes * tokens.count * features),
    )


def _rotary(model: Transformer, lowering: Lowering, tokens: Tokens) -> Iterator[Step]:
    if model.positions == "rotary":
        elements = tokens.count * (model.query_features + model.kv_features)
        yield streaming(
            "rotary",
            "rotary",
            Split.TENSOR,
            elements=elements,
            lowering=lowering,
            saved=float(lowering.activation_bytes * elements),
        )


def _activation(model: Transformer, lowering: Lowering, tokens: Tokens) -> Iterator[Step]:
    elements = tokens.count * model.ffn_hidden
    fused = lowering.fused_bias_activation
    if model.bias and not fused:
        yield _mlp("fc1_bias", "bias", tokens.count * model.fc1_features, lowering)
    if model.gated_mlp and not fused:
        gate = float(lowering.activation_bytes * elements)
        yield _mlp("gate", "gate", elements, lowering, saved=gate)
        yield _mlp("gate_times_up", "gate_times_up", elements, lowering)
    else:
        passes = "gated_activation" if model.gated_mlp else "activation"
        yield _mlp("activation", passes, elements, lowering)


def _mlp(name: str, passes: str, elements: int, lowering: Lowering, saved: float = 0.0) -> Step:
    return streaming(name, passes, Split.TENSOR, elements=elements, lowering=lowering, saved=saved)


def _add(suffix: str, model: Transformer, lowering: Lowering, tokens: Tokens) -> Iterator[Step]:
    """Build bias, dropout and residual addition, in one kernel or in one each."""
    kernels = ["bias_dropout_add"]
    if not lowering.fused_bias_dropout_add:
        asked = (("bias", model.bias), ("dropout", model.dropout > 0), ("residual_add", True))
        kernels = [name for name, present in asked if present]
    for name in kernels:
        yield streaming(
            name + suffix,
            name,
            Split.SEQUENCE,
            elements=tokens.count * model.hidden,
            lowering=lowering,
            masked=model.dropout > 0,
        )
