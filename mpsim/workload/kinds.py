"""Kinds of layer: which of a model's layers have experts, a window, or another stack's output to attend to."""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mpsim.workload.transformer import Transformer

__all__ = ["LayerKind", "kinds_of"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LayerKind:
    """What sets a layer apart from the other layers of its model.

    Parameters
    ----------
    name : str
        ``dense`` or ``moe``, with ``-sliding`` or ``-full`` where both attentions alternate; ``encoder``, ``encoder-moe``,
        ``decoder`` and ``decoder-moe`` where there are two stacks.
    experts : bool
        Whether experts stand in place of the MLP.
    causal : bool
        Whether a query sees only the keys before it.
    window : int
        Sliding window [tokens], 0 for none.
    cross : bool
        Whether it attends to the output of an encoder too.
    """

    name: str
    experts: bool
    causal: bool
    window: int = 0
    cross: bool = False


@functools.lru_cache(maxsize=256)
def kinds_of(model: Transformer) -> tuple[LayerKind, ...]:
    """Kind of every layer, first to last."""
    return tuple(_kind(model, layer) for layer in range(model.layers))


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
    window = model.window
    if model.full_every:
        full = (layer + 1) % model.full_every == 0
        window = 0 if full else window
        name += "-full" if full else "-sliding"
    return LayerKind(name=name, experts=experts, causal=model.causal, window=window)
