"""What stands before the first layer and after the last: embedding, and output head with its loss."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from mpsim.errors import WorkloadError
from mpsim.workload.expansion import Expansion, Step, Tokens
from mpsim.workload.kernels import LABEL_BYTES, STATISTIC_BYTES, gemm, streaming
from mpsim.workload.operators import Operator, OperatorKind, Phase, Split
from mpsim.workload.parts import Part
from mpsim.workload.transformer import Lowering, Transformer

__all__ = ["expand_embedding", "expand_head"]


def expand_embedding(
    model: Transformer,
    lowering: Lowering,
    *,
    sequences: int,
    sequence_length: int,
    context: int = 1,
) -> Expansion:
    """Expand the token embedding for one microbatch on one rank, before tensor parallelism.

    Parameters
    ----------
    model : Transformer
    lowering : Lowering
    sequences, sequence_length, context : int
        As in `expand_layer`.

    Returns
    -------
    Expansion
        Gather (or one-hot product), learned positions, norm and dropout, as far as the model has them; for encoder and decoder, and then with
        the norm after the encoder, which like them runs once a microbatch. The gather is not divided: every tensor-parallel rank looks up all tokens in its part of the table and the parts
        are summed afterwards.

    Raises
    ------
    WorkloadError
        If the sequence does not divide among the context-parallel ranks.
    """
    tokens = Tokens.of(sequences, sequence_length, context)
    steps = [*_embedding(model, lowering, tokens)]
    if model.encoder_layers:
        target = Tokens.of(sequences, model.decoder_length, context)
        steps += _renamed("decoder_", _embedding(model, lowering, target))
        steps.append(Part(model, lowering, tokens).norm("encoder_norm"))
    return Expansion.of(
        steps,
        input_bytes=float(LABEL_BYTES * tokens.count),
        input_split=Split.NONE,
    )


def expand_head(
    model: Transformer,
    lowering: Lowering,
    *,
    sequences: int,
    sequence_length: int,
    context: int = 1,
    padded_vocab: int | None = None,
) -> Expansion:
    """Expand final norm, output projection and loss for one microbatch on one rank.

    Parameters
    ----------
    model : Transformer
    lowering : Lowering
    sequences, sequence_length, context : int
        As in `expand_layer`.
    padded_vocab : int, optional
        Logits per token, at least the vocabulary, which is the default.

    Returns
    -------
    Expansion
        The loss saves the logits in the activation type and their float32 softmax, or what the lowering says. Every module of multi-token
        prediction joins states and embeddings of the next token before its layer, and goes through norm, projection and loss once more.

    Raises
    ------
    WorkloadError
        If the padded vocabulary is smaller than the vocabulary, or the sequence does not divide.
    """
    tokens = Tokens.of(sequences, model.decoder_length or sequence_length, context)
    vocab = model.vocab if padded_vocab is None else padded_vocab
    if vocab < model.vocab:
        raise WorkloadError(
            f"padded_vocab is {vocab} but {model.name} has {model.vocab} tokens; pad upwards"
        )
    projection = gemm(
        "logits",
        Split.COLUMN,
        tokens=tokens.count,
        features_out=vocab,
        features_in=model.hidden,
        lowering=lowering,
    )
    part = Part(model, lowering, tokens)
    once = (part.norm("final_norm"), projection, _loss(lowering, tokens, vocab))
    steps = [*once]
    for _ in range(model.mtp_layers):
        steps += [*_joined(part), *once]
    return Expansion.of(
        steps,
        input_bytes=float(lowering.activation_bytes * tokens.count * model.hidden),
        input_split=Split.SEQUENCE,
    )


def _joined(part: Part) -> Iterator[Step]:
    """Norms of states and of the next token's embedding, and the projection of both to the hidden width."""
    width = 2 * part.model.hidden
    yield part.norm("mtp_norm", width)
    yield part.replicated("mtp_projection", part.model.hidden, features_in=width)


def _loss(lowering: Lowering, tokens: Tokens, vocab: int) -> Step:
    logits = tokens.count * vocab
    each_way = lowering.loss_bytes_per_logit / 2 * logits
    each = lowering.loss_kept_bytes or lowering.activation_bytes + STATISTIC_BYTES
    kept = float(each * logits)
    forward = Operator(
        name="loss",
        kind=OperatorKind.LOSS,
        phase=Phase.FORWARD,
        split=Split.TENSOR,
        bytes=each_way,
        saved=kept,
        saved_split=Split.TENSOR,
    )
    backward = Operator(
        name="loss",
        kind=OperatorKind.LOSS,
        phase=Phase.INPUT_GRADIENT,
        split=Split.TENSOR,
        bytes=each_way,
    )
    return Step(forward, (backward,))


def _renamed(prefix: str, steps: Iterator[Step]) -> Iterator[Step]:
    for step in steps:
        forward, *backward = (
            dataclasses.replace(one, name=prefix + one.name)
            for one in (step.forward, *step.backward)
        )
        yield Step(forward, tuple(backward))


def _embedding(model: Transformer, lowering: Lowering, tokens: Tokens) -> Iterator[Step]:
    elements = tokens.count * model.hidden
    size = lowering.activation_bytes
    labels = float(LABEL_BYTES * tokens.count)
    if lowering.embedding_product:
        yield from _product_lookup(model, lowering, tokens)
    else:
        yield _lookup(
            "embedding", (2 * size * elements, elements), tokens, model.hidden, lowering, labels
        )
    if model.positions == "learned":
        rows = tokens.queries * model.hidden  # the same for every sequence
        moved = size * (2 * elements + rows)
        yield _lookup("positions", (moved, rows), tokens, model.hidden, lowering, 0.0)
    if model.embedding_norm:
        yield _embedding_norm(model, lowering, tokens)
    if model.dropout:
        yield streaming(
            "embedding_dropout", "dropout", Split.SEQUENCE, elements=elements, lowering=lowering
        )


def _embedding_norm(model: Transformer, lowering: Lowering, tokens: Tokens) -> Step:
    elements = tokens.count * model.hidden
    return streaming(
        "embedding_norm",
        "norm",
        Split.SEQUENCE,
        elements=elements,
        lowering=lowering,
        kind=OperatorKind.NORM,
        saved=float(lowering.activation_bytes * elements),
    )


def _product_lookup(model: Transformer, lowering: Lowering, tokens: Tokens) -> Iterator[Step]:
    """One-hot rows, written once, and their product with the table; the gradient of the table is the other product."""
    labels = float(LABEL_BYTES * tokens.count)
    written = float(lowering.activation_bytes * tokens.count * model.vocab)
    rows = Operator(
        name="one_hot",
        kind=OperatorKind.ELEMENTWISE,
        phase=Phase.FORWARD,
        split=Split.TENSOR,
        bytes=labels + written,
        saved_for_weight=labels,
    )
    yield Step(
        rows, (dataclasses.replace(rows, phase=Phase.WEIGHT_GRADIENT, saved_for_weight=0.0),)
    )
    step = gemm(
        "embedding",
        Split.ROW,
        tokens=tokens.count,
        features_out=model.hidden,
        features_in=model.vocab,
        lowering=lowering,
    )
    gradient = next(one for one in step.backward if one.phase is Phase.WEIGHT_GRADIENT)
    yield Step(step.forward, (gradient,))


def _lookup(
    name: str,
    traffic: tuple[int, int],
    tokens: Tokens,
    hidden: int,
    lowering: Lowering,
    labels: float,
) -> Step:
    """Build a table lookup; `traffic` is bytes forward and elements of the table's gradient."""
    moved, updated = traffic
    accumulate = float(lowering.weight_grad_bytes)
    forward = Operator(
        name=name,
        kind=OperatorKind.EMBEDDING,
        phase=Phase.FORWARD,
        sequences=tokens.sequences,
        queries=tokens.queries,
        bytes=moved + labels,
        saved_for_weight=labels,
    )
    backward = Operator(
        name=name,
        kind=OperatorKind.EMBEDDING,
        phase=Phase.WEIGHT_GRADIENT,
        sequences=tokens.sequences,
        queries=tokens.queries,
        bytes=lowering.activation_bytes * tokens.count * hidden + labels + 2 * accumulate * updated,
        accumulate_bytes=accumulate,
    )
    return Step(forward, (backward,))
