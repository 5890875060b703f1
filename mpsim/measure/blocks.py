"""Blocks: transformer layers, whole and divided by tensor parallelism, the embedding, and the head with its loss.

A layer is measured within a stack, as training runs it: one that is repeated alone finds its weights and what it kept in a cache.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from mpsim.measure.case import Case, Work
from mpsim.measure.model import (
    Embedding,
    Head,
    Layer,
    Place,
    Sizes,
    layer_flops,
    loss_of,
)
from mpsim.measure.tensors import agrees, dtype_of, element_bytes, has_dtype
from mpsim.measure.world import World
from mpsim.workload import gemm_flops

__all__ = ["block_series"]

LEAST_MEMORY_FACTOR = 40
"""Bytes a block needs for each byte of what goes into it, gradients and a backward's temporaries included: on the safe side."""


def block_series(world: World, grid: Mapping[str, Any]) -> list[list[Case]]:
    """Cases of every block, a list for each."""
    dtype = "float32" if world.kind == "cpu" or not has_dtype("bfloat16", world) else "bfloat16"
    layers = [
        Sizes(grid["block_layers"], hidden, heads, ffn, 0, sequence, batch)
        for hidden, heads, ffn, sequence, batch in grid["layers"]
    ]
    ends = [Sizes(1, hidden, 1, 0, vocab, s, b) for hidden, vocab, s, b in grid["heads"]]
    series = []
    for kind in ("forward", "backward"):
        series.append([_layer_case(world, sizes, dtype, kind, None) for sizes in layers])
        for group in world.group_sizes():
            divided = [
                s for s in layers if s.heads % len(group) == 0 and s.ffn_hidden % len(group) == 0
            ]
            series.append([_layer_case(world, sizes, dtype, kind, group) for sizes in divided])
        series += [
            [_end_case(world, op, sizes, dtype, kind) for sizes in ends]
            for op in ("embedding_block", "head")
        ]
    return series


def _layer_case(
    world: World, sizes: Sizes, dtype: str, kind: str, group: tuple[int, ...] | None
) -> Case:
    ranks = len(group or (0,))
    return Case(
        family="blocks",
        op="transformer_layer" if group is None else "tensor_parallel_layer",
        shape={
            "layers": sizes.layers,
            "hidden": sizes.hidden,
            "heads": sizes.heads,
            "ffn_hidden": sizes.ffn_hidden,
            "sequence": sizes.sequence,
            "micro_batch": sizes.micro_batch,
            "tp": ranks,
        },
        variant={"pass": kind},
        dtype=dtype,
        group=world.everyone if group is None else group,
        synchronous=group is not None,
        flops=layer_flops(sizes) * (2 if kind == "backward" else 1) / ranks,  # of one
        memory=sizes.layers * _layer_bytes(sizes, element_bytes(dtype)),
        prepare=functools.partial(_prepare_layer, sizes=sizes, dtype=dtype, kind=kind, group=group),
    )


def _layer_bytes(sizes: Sizes, element: int) -> float:
    """Weights, gradients and what a layer keeps, on the safe side [B]."""
    saved = LEAST_MEMORY_FACTOR * float(sizes.tokens * sizes.hidden)
    return element * (saved + 4.0 * 12 * sizes.hidden**2)


def _prepare_layer(
    world: World, *, sizes: Sizes, dtype: str, kind: str, group: Sequence[int] | None
) -> Work:
    alone = Place(0, 1, None, world.device, dtype_of(dtype))
    place = alone
    if group is not None:
        ranks = tuple(group)
        place = Place(
            ranks.index(world.rank), len(ranks), world.group(ranks), world.device, alone.dtype
        )
    generator = torch.Generator().manual_seed(0)  # the same on every rank of the group
    x = torch.randn(sizes.micro_batch, sizes.sequence, sizes.hidden, generator=generator)
    x = x.to(world.device, place.dtype)
    layers = nn.Sequential(*(Layer(sizes, place, index) for index in range(sizes.layers)))
    with torch.no_grad():
        wanted = Layer(sizes, alone, 0)(x) if group is not None else _one_in_double(sizes, x)
        what = "the whole layer" if group is not None else "float64"
        check = agrees(layers[0](x), wanted, dtype, what)
    fresh = world.kind == "cpu"
    work = _pass(layers, x.requires_grad_(), kind, check, capturable=group is None, fresh=fresh)
    work.divide = float(sizes.layers)
    return work


def _one_in_double(sizes: Sizes, x: torch.Tensor) -> torch.Tensor:
    """Output of the first layer for `x`, in float64."""
    place = Place(0, 1, None, x.device, torch.float64)
    out: torch.Tensor = Layer(sizes, place, 0)(x.double())
    return out


def _pass(
    block: nn.Module, x: torch.Tensor, kind: str, check: str, *, capturable: bool, fresh: bool
) -> Work:
    """The forward, or the backward: of one kept graph, or where `fresh` of a new one each time, as a step runs it.

    A graph that is kept can be captured. On a CPU nothing is captured, and whether a backward finds what it needs in the caches counts.
    """
    if kind == "forward":
        return Work(run=lambda: block(x), check=check, capturable=capturable)
    out = block(x)
    grad = torch.randn_like(out)
    wanted = [*([x] if x.requires_grad else []), *block.parameters()]
    if not fresh:
        return Work(
            run=lambda: torch.autograd.grad(out, wanted, grad, retain_graph=True),
            check=check,
            capturable=capturable,
        )
    made: list[torch.Tensor] = []
    return Work(
        before=lambda: made.append(block(x)),
        run=lambda: torch.autograd.grad(made.pop(), wanted, grad),
        most_calls=1,
        check=check,
    )


def _end_case(world: World, op: str, sizes: Sizes, dtype: str, kind: str) -> Case:
    products = gemm_flops(sizes.tokens, sizes.vocab, sizes.hidden) if op == "head" else 0.0
    element = element_bytes(dtype)
    return Case(
        family="blocks",
        op=op,
        shape={
            "hidden": sizes.hidden,
            "vocab": sizes.vocab,
            "sequence": sizes.sequence,
            "micro_batch": sizes.micro_batch,
        },
        variant={"pass": kind},
        dtype=dtype,
        group=world.everyone,
        flops=products * (2 if kind == "backward" else 1),
        bytes=0.0 if products else 3.0 * sizes.tokens * sizes.hidden * element,
        memory=4.0 * sizes.vocab * (6 * sizes.tokens * (op == "head") + 3 * sizes.hidden),
        prepare=functools.partial(_prepare_end, op=op, sizes=sizes, dtype=dtype, kind=kind),
    )


def _prepare_end(world: World, *, op: str, sizes: Sizes, dtype: str, kind: str) -> Work:
    place = Place(0, 1, None, world.device, dtype_of(dtype))
    shape = (sizes.micro_batch, sizes.sequence)
    ids = torch.randint(sizes.vocab, shape, device=world.device)
    if op == "embedding_block":
        return _pass(Embedding(sizes, place), ids, kind, "", capturable=True, fresh=False)
    x = torch.randn(
        *shape, sizes.hidden, device=world.device, dtype=place.dtype, requires_grad=True
    )
    return _pass(_HeadAndLoss(sizes, place, ids), x, kind, "", capturable=True, fresh=False)


class _HeadAndLoss(nn.Module):
    """Final norm, logits and cross entropy."""

    def __init__(self, sizes: Sizes, place: Place, ids: torch.Tensor) -> None:
        super().__init__()
        self.head, self.loss, self.ids = Head(sizes, place), loss_of(place), ids

    def forward(self, x_BSD: torch.Tensor) -> torch.Tensor:
        """Vectors to the loss."""
        return self.loss(self.head(x_BSD), self.ids)
