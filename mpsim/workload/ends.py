"""The ends of a model: embedding (with a tower for images), and output head with its loss; and the
FLOPs that the whole model asks for, whatever the software makes of it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from mpsim import structs
from mpsim.errors import WorkloadError
from mpsim.memo import remembered
from mpsim.workload.builders import LABEL_BYTES, STATISTIC_BYTES, linear, make_elementwise, moving
from mpsim.workload.expansion import Expansion, Lowering, Step, Tokens
from mpsim.workload.layer import expand_layer, serial_block
from mpsim.workload.operators import Module, Operator, OperatorKind, Phase, Role, Split
from mpsim.workload.parts import Part
from mpsim.workload.transformer import Transformer
from mpsim.workload.variants import VisionTower


def expand_embedding(
    model: Transformer,
    lowering: Lowering,
    *,
    sequences: int,
    sequence_length: int,
    context: int = 1,
) -> Expansion:
    """Expand the token embedding for one microbatch on one rank, before tensor parallelism;
    parameters as in `expand_layer`.

    Returns: gather (or one-hot product), learned positions, norm and dropout, as far as the model
    has them; for encoder and decoder, and then with the norm after the encoder, which like them
    runs once a microbatch. The gather is not divided: every tensor-parallel rank looks up all
    tokens in its part of the table and the parts are summed afterwards. A vision tower runs before.
    Raises WorkloadError: if the sequence does not divide among the context-parallel ranks.
    """
    tokens = Tokens.of(sequences, sequence_length, context)
    steps = [*_embedding(model, lowering, tokens)]
    if model.vision is not None:
        steps = [*tower_steps(model.vision, lowering, sequences, model.hidden), *steps]
    if model.encoder_layers:
        target = Tokens.of(sequences, model.decoder_length, context)
        steps += _renamed("decoder_", _embedding(model, lowering, target))
        steps.append(Part(model, lowering, tokens).norm(Module.EMBEDDING, "encoder_norm"))
    return Expansion.of(
        steps, input_bytes=float(LABEL_BYTES * tokens.count), input_split=Split.NONE
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

    `sequences`, `sequence_length`, `context`: as in `expand_layer`. `padded_vocab`: logits per
    token, at least the vocabulary, which is the default. Returns: the loss saves the logits in the
    activation type and their float32 softmax, or what the lowering says. Every module of
    multi-token prediction joins states and embeddings of the next token before its layer, and goes
    through norm, projection and loss once more. Raises WorkloadError: if the padded vocabulary is
    smaller than the vocabulary, or the sequence does not divide.
    """
    tokens = Tokens.of(sequences, model.decoder_length or sequence_length, context)
    vocab = model.vocab if padded_vocab is None else padded_vocab
    if vocab < model.vocab:
        raise WorkloadError(
            f"padded_vocab is {vocab} but {model.name} has {model.vocab} tokens; pad upwards"
        )
    if model.scalar_head:
        vocab = 1
    projection = linear(
        Role.LOGITS,
        Split.SEQUENCE if model.scalar_head else Split.COLUMN,
        tokens=tokens.count,
        features_out=vocab,
        features_in=model.hidden,
        lowering=lowering,
        module=Module.HEAD,
    )
    part = Part(model, lowering, tokens)
    once = (part.norm(Module.HEAD, "final_norm"), projection, _loss(lowering, tokens, vocab))
    steps = [*once]
    for _ in range(model.mtp_layers):
        steps += [*_joined(part), *once]
    inputs = part.size(model.hidden, stream=True)
    return Expansion.of(steps, input_bytes=inputs, input_split=Split.SEQUENCE)


def _joined(part: Part) -> Iterator[Step]:
    """Norms of states and the next token's embedding, and their projection to the width."""
    width = 2 * part.model.hidden
    yield part.norm(Module.HEAD, "mtp_norm", width)
    join = Module.HEAD, Role.JOIN
    yield part.replicated(join, "mtp_projection", part.model.hidden, features_in=width)


def _loss(lowering: Lowering, tokens: Tokens, vocab: int) -> Step:
    logits = tokens.count * vocab
    each_way = lowering.loss_bytes_per_logit / 2 * logits
    each = lowering.loss_kept_bytes or lowering.activation_bytes + STATISTIC_BYTES
    return moving(
        Role.LOSS,
        Split.TENSOR,
        (each_way, each_way),
        kind=OperatorKind.LOSS,
        module=Module.HEAD,
        saved=float(each * logits),
        saved_split=Split.TENSOR,
    )


def _renamed(prefix: str, steps: Iterator[Step]) -> Iterator[Step]:
    for step in steps:
        yield step.each(lambda each: structs.replace(each, name=prefix + each.name))


def _embedding(model: Transformer, lowering: Lowering, tokens: Tokens) -> Iterator[Step]:
    elements = tokens.count * model.hidden
    size = lowering.activation_bytes
    if lowering.embedding_product:
        yield from _product_lookup(model, lowering, tokens)
    else:
        labels = float(LABEL_BYTES * tokens.count)
        traffic = 2 * size * elements, elements
        yield _lookup(Role.EMBEDDING, traffic, tokens, model.hidden, lowering, labels)
    if model.positions == "learned":
        rows = tokens.queries * model.hidden  # the same for every sequence
        moved = size * (2 * elements + rows)
        yield _lookup(Role.POSITIONS, (moved, rows), tokens, model.hidden, lowering, 0.0)
    part = Part(model, lowering, tokens)
    if model.embedding_norm:
        yield part.norm(Module.EMBEDDING, "embedding_norm", feeds=False)
    if model.dropout:
        name, split = "embedding_dropout", Split.SEQUENCE
        yield part.stream("dropout", Module.EMBEDDING, elements, name, split=split)


def _product_lookup(model: Transformer, lowering: Lowering, tokens: Tokens) -> Iterator[Step]:
    """One-hot rows, written once, and their product with the table; its gradient's too."""
    labels = float(LABEL_BYTES * tokens.count)
    written = float(lowering.activation_bytes * tokens.count * model.vocab)
    rows = make_elementwise(
        Role.ONE_HOT,
        Phase.FORWARD,
        moved=labels + written,
        module=Module.EMBEDDING,
        split=Split.TENSOR,
        saved_for_weight=labels,
    )
    yield Step(rows, (structs.replace(rows, phase=Phase.WEIGHT_GRADIENT, saved_for_weight=0.0),))
    step = linear(
        Role.EMBEDDING,
        Split.ROW,
        tokens=tokens.count,
        features_out=model.hidden,
        features_in=model.vocab,
        lowering=lowering,
        module=Module.EMBEDDING,
    )
    _, gradient_of_table = step.backward  # labels have no gradient
    yield Step(step.forward, (gradient_of_table,))


def _lookup(
    role: Role,
    traffic: tuple[int, int],
    tokens: Tokens,
    hidden: int,
    lowering: Lowering,
    labels: float,
) -> Step:
    """Build a table lookup; `traffic` is bytes forward and elements of the table's gradient."""
    moved, updated = traffic
    accumulate = float(lowering.weight_grad_bytes)
    written = lowering.activation_bytes * tokens.count * hidden

    def kernel(phase: Phase, moved: float, saved: float) -> Operator:
        lookup = make_elementwise(
            role,
            phase,
            moved=moved,
            kind=OperatorKind.EMBEDDING,
            module=Module.EMBEDDING,
            saved_for_weight=saved,
        )
        return structs.replace(lookup, sequences=tokens.sequences, queries=tokens.queries)

    forward = kernel(Phase.FORWARD, moved + labels, labels)
    backward = kernel(Phase.WEIGHT_GRADIENT, written + labels + 2 * accumulate * updated, 0.0)
    return Step(forward, (structs.replace(backward, accumulate_bytes=accumulate),))


def tower_steps(tower: VisionTower, lowering: Lowering, sequences: int, out: int) -> Iterator[Step]:
    """Expand patches, layers and merger of the images of so many sequences, of width `out`."""
    images = max(round(sequences * tower.images), 1)
    whole = Transformer(
        name="vision",
        layers=tower.layers,
        hidden=tower.hidden,
        heads=tower.heads,
        kv_heads=tower.heads,
        head_dim=tower.hidden // tower.heads,
        ffn_hidden=tower.ffn_hidden,
        vocab=1,
        attention="full",
        positions="none",
    )
    part = Part(whole, lowering, Tokens(images, tower.patches, tower.patches))
    merged = structs.replace(
        part, tokens=Tokens(images, tower.patches // tower.merge, tower.patches // tower.merge)
    )
    first = Module.VISION, Role.PATCHES
    steps = [part.replicated(first, "patches", tower.hidden, features_in=tower.pixels)]
    (kind,) = set(whole.kinds)
    for _ in range(tower.layers):
        steps += serial_block(part, kind)
    inner, joined = (Module.VISION, Role.UP), tower.joined
    steps.append(merged.column(inner, "merge1", joined, joined, features_in=joined))
    wide = structs.replace(merged, model=structs.replace(whole, hidden=out))
    steps.append(wide.row((Module.VISION, Role.DOWN), "merge2", tower.joined))
    for step in steps:
        yield step.each(
            lambda each: structs.replace(each, module=Module.VISION, name=f"vision {each.name}")
        )


_KEPT = 64  # counts that stay ready: points of a sweep share them
_PASSES = 3  # forward, input gradient, weight gradient: one product each


@remembered(_KEPT)
def model_flops(
    model: Transformer,
    sequences: int,
    sequence_length: int,
    *,
    padded_vocab: int | None = None,
    document: int = 0,
) -> float:
    """Forward of every layer and of the head, times three: attention in full, nothing recomputed,
    of a mixture of experts those a token is sent to, without padding [FLOP].

    `sequences`: global batch. `sequence_length`: tokens of each. `padded_vocab`: logits per token;
    the vocabulary itself by default. `document`: tokens of a sequence that attend to each other.

    Notes
    -----
    For GPT with L layers, hidden h, vocabulary V: ``72 B s L h^2 (1 + s / 6h + V / 12 L h)``.

    References
    ----------
    Narayanan et al., Efficient Large-Scale Language Model Training (SC'21), appendix: the same with
    ``96`` and ``V / 16 L h``, which counts a fourth pass of the layers for full recomputation.
    """
    layers, head = part_flops(
        model, sequences, sequence_length, padded_vocab=padded_vocab, document=document
    )
    seen = 0.0
    if model.vision is not None:
        tower = tower_steps(model.vision, Lowering(), sequences, model.hidden)
        seen = math.fsum(step.forward.flops for step in tower)
    return _PASSES * (math.fsum(layers[kind] for kind in model.layer_kinds) + head + seen)


def part_flops(
    model: Transformer,
    sequences: int,
    sequence_length: int,
    *,
    padded_vocab: int | None = None,
    document: int = 0,
) -> tuple[dict[str, float], float]:
    """Forward FLOPs of a layer by its kind, and of the head with what predicts on, as for
    `model_flops`.
    """
    lowering = Lowering()
    shape = {"sequences": sequences, "sequence_length": sequence_length}
    if model.moe is not None:
        dropless = structs.replace(model.moe, capacity_factor=0.0)
        model = structs.replace(model, moe=dropless)
    layers = {
        kind: expand_layer(model, lowering, kind=kind, document=document, **shape).forward_flops
        for kind in dict.fromkeys(model.layer_kinds)
    }
    head = expand_head(model, lowering, padded_vocab=padded_vocab, **shape)
    return layers, head.forward_flops
