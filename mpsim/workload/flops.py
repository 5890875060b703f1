"""Model FLOPs: what the model asks for, whatever the software makes of it."""

from __future__ import annotations

import math

from mpsim import structs
from mpsim.memo import remembered
from mpsim.workload.ends import expand_head, tower_steps
from mpsim.workload.layer import expand_layer
from mpsim.workload.lowering import Lowering
from mpsim.workload.transformer import Transformer

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
