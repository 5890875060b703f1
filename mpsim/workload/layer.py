"""One transformer layer as operators: serial, a parallel block, of an encoder or decoder."""

from __future__ import annotations

from collections.abc import Iterator

from mpsim import structs
from mpsim.workload import attention
from mpsim.workload.expansion import Expansion, Step, Tokens
from mpsim.workload.lowering import Lowering
from mpsim.workload.mlp import activation, expert_mlp, gate_and_up, plain_mlp
from mpsim.workload.operators import Module, Role, Split
from mpsim.workload.parts import Part
from mpsim.workload.transformer import LayerKind, Transformer


def expand_layer(
    model: Transformer,
    lowering: Lowering,
    *,
    sequences: int,
    sequence_length: int,
    context: int = 1,
    kind: str = "dense",
    document: int = 0,
) -> Expansion:
    """Expand one layer for one microbatch on one rank, before tensor parallelism.

    `lowering`: what the framework fuses, and the size of its elements. `sequences`: sequences of
    the microbatch, at least 1. `sequence_length`: tokens of each; `context` divides it. Where there
    is an encoder it is the encoder's; decoders have ``model.decoder_length``. `context`:
    context-parallel degree: this rank holds ``sequence_length / context`` tokens of every sequence
    and attends to all keys (balanced, so that causal work halves evenly). `kind`: one of
    ``model.layer_kinds``. `document`: tokens that attend to each other where several samples share
    a sequence; 0 for all [tokens].

    Returns: forward in order of execution, backward in reverse. Raises WorkloadError: if the
    sequence does not divide among the context-parallel ranks, or the model has no layer of this
    kind.

    Notes
    -----
    A GPT layer (b sequences, s tokens, h hidden) has ``24 b s h^2 (1 + s / 6h)`` FLOP forward and
    saves ``s b h (34 + 5 a s / h)`` bytes with a heads, unfused attention and dropout.

    References
    ----------
    Narayanan et al., Efficient Large-Scale Language Model Training (SC'21), appendix; Korthikanti
    et al. (2022), equation 1; Chowdhery et al., PaLM (2022), section 2 for the parallel block.

    Examples
    --------
    >>> from mpsim.workload import Lowering, model
    >>> layer = expand_layer(model("gpt2-small"), Lowering(), sequences=1, sequence_length=1024)
    >>> [operator.role.value for operator in layer.forward][:4]
    ['norm', 'qkv', 'attention', 'projection']
    """
    layer = model.kind(kind)
    tokens = Tokens.of(sequences, sequence_length, context)
    if layer.cross:
        mine = Tokens.of(sequences, model.decoder_length, context)
        memory = structs.replace(tokens, queries=tokens.keys)  # every rank needs all of them
        part = Part(model, lowering, mine)
        steps = _decoder_block(part, layer, memory)
    else:
        part = Part(model, lowering, tokens, document)
        steps = (_parallel_block if model.parallel_block else serial_block)(part, layer)
    return Expansion.of(steps, input_bytes=part.size(model.hidden), input_split=Split.SEQUENCE)


def serial_block(part: Part, kind: LayerKind) -> Iterator[Step]:
    """Expand a layer whose mixer and MLP follow each other."""
    if kind.mixer == "state" and part.model.state is not None:
        from mpsim.workload.scan import state_mixer

        yield part.norm(Module.STATE, "norm1")
        yield from state_mixer(part, part.model.state)
        yield from part.add(Module.STATE, "1")
    elif kind.mixer == "attention":
        yield part.norm(Module.ATTENTION, "norm1")
        yield from attention.own_attention(part, kind)
        yield from part.add(Module.ATTENTION, "1")
    if kind.mlp:
        yield from _mlp(part, kind)


def _decoder_block(part: Part, kind: LayerKind, memory: Tokens) -> Iterator[Step]:
    yield part.norm(Module.ATTENTION, "norm1")
    yield from attention.own_attention(part, kind)
    yield from part.add(Module.ATTENTION, "1")
    yield part.norm(Module.CROSS_ATTENTION, "norm_cross")
    yield from attention.cross_attention(part, kind, memory)
    yield from part.add(Module.CROSS_ATTENTION, "_cross")
    yield from _mlp(part, kind)


def _mlp(part: Part, kind: LayerKind) -> Iterator[Step]:
    yield part.norm(Module.MLP, "norm2")
    moe = part.model.moe
    yield from expert_mlp(part, moe) if kind.experts and moe else plain_mlp(part)
    yield from part.add(Module.MLP, "2")


def _parallel_block(part: Part, kind: LayerKind) -> Iterator[Step]:
    model = part.model
    yield part.norm(Module.ATTENTION, "norm1")
    features = model.qkv_features + model.fc1_features
    weights = attention.QKV_WEIGHTS + gate_and_up(model)
    saved = attention.kept_of_qkv(part) + model.fc1_features
    yield part.column((Module.ATTENTION, Role.QKV_UP), "qkv_fc1", features, saved, weights=weights)
    yield from activation(part)
    yield from attention.positions(part)
    yield from attention.attention_core(attention.Core.of(model, kind), part.lowering, part.tokens)
    down = Module.ATTENTION, Role.PROJECTION_DOWN
    yield part.row(down, "proj_fc2", model.query_features + model.ffn_hidden)
    yield from part.add(Module.ATTENTION, "1")
