"""Blocks: transformer layers, whole and divided by tensor parallelism, embedding, head, loss.

A layer is measured within a stack, as training runs it: one that is repeated alone finds its
weights and what it kept in a cache.
"""

from __future__ import annotations

import torch
from torch import nn

from mpsim.measure.model import Embedding, Head, Layer, Place, Sizes, layer_flops, loss_of
from mpsim.measure.plan import PASSES, Case, Grid, Work
from mpsim.measure.tensors import agrees, dtype_of, element_bytes, training_dtype
from mpsim.measure.world import World
from mpsim.workload import gemm_flops

LEAST_MEMORY_FACTOR = 40
"""Bytes of a block for each that goes in, gradients and temporaries too: on the safe side."""


def block_series(world: World, grid: Grid) -> list[list[Case]]:
    """Cases of every block, a list for each."""
    dtype = training_dtype(world)
    layers = [
        Sizes(grid["block_layers"], hidden, heads, ffn, 0, sequence, batch)
        for hidden, heads, ffn, sequence, batch in grid["layers"]
    ]
    ends = [Sizes(1, hidden, 1, 0, vocab, s, b) for hidden, vocab, s, b in grid["heads"]]
    series = []
    for kind in PASSES:
        for group in (None, *world.group_sizes()):
            ranks = len(group or (0,))
            divided = [s for s in layers if s.heads % ranks == 0 and s.ffn_hidden % ranks == 0]
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

    def prepare(world: World) -> Work:
        place = alone = Place(0, 1, None, world.device, dtype_of(dtype))
        if group is not None:
            rank = group.index(world.rank)
            place = Place(rank, ranks, world.group(group), world.device, alone.dtype)
        generator = torch.Generator().manual_seed(0)  # the same on every rank of the group
        x = torch.randn(sizes.micro_batch, sizes.sequence, sizes.hidden, generator=generator)
        x = x.to(world.device, place.dtype)
        layers = nn.Sequential(*(Layer(sizes, place, index) for index in range(sizes.layers)))
        with torch.no_grad():
            if group is not None:
                what, wanted = "the whole layer", Layer(sizes, alone, 0)(x)
            else:
                double = Place(0, 1, None, world.device, torch.float64)
                what, wanted = "float64", Layer(sizes, double, 0)(x.double())
            check = agrees(layers[0](x), wanted, dtype, what)
        fresh = world.kind == "cpu"
        work = _pass(layers, x.requires_grad_(), kind, capturable=group is None, fresh=fresh)
        work.check, work.divide = check, float(sizes.layers)
        return work

    return Case(
        family="blocks",
        op="transformer_layer" if group is None else "tensor_parallel_layer",
        shape=sizes.shape("layers", "hidden", "heads", "ffn_hidden", "sequence", "micro_batch")
        | {"tp": ranks},
        variant={"pass": kind},
        dtype=dtype,
        group=world.everyone if group is None else group,
        synchronous=group is not None,
        flops=layer_flops(sizes) * (2 if kind == "backward" else 1) / ranks,  # of one
        memory=sizes.layers * _layer_bytes(sizes, element_bytes(dtype)),
        prepare=prepare,
    )


def _layer_bytes(sizes: Sizes, element: int) -> float:
    """Weights, gradients and what a layer keeps, on the safe side [B]."""
    saved = LEAST_MEMORY_FACTOR * float(sizes.tokens * sizes.hidden)
    return element * (saved + 4.0 * 12 * sizes.hidden**2)


def _pass(
    block: nn.Module, x: torch.Tensor, kind: str, *, capturable: bool = True, fresh: bool = False
) -> Work:
    """The forward, or the backward: of a kept graph, or a new one each time where `fresh`.

    A graph that is kept can be captured. On a CPU nothing is captured, and whether a backward finds
    what it needs in the caches counts.
    """
    if kind == "forward":
        return Work(run=lambda: block(x), capturable=capturable)
    out = block(x)
    grad = torch.randn_like(out)
    wanted = [*([x] if x.requires_grad else []), *block.parameters()]
    if fresh:
        made: list[torch.Tensor] = []
        return Work(
            before=lambda: made.append(block(x)),
            run=lambda: torch.autograd.grad(made.pop(), wanted, grad),
            most_calls=1,
        )
    return Work(
        run=lambda: torch.autograd.grad(out, wanted, grad, retain_graph=True), capturable=capturable
    )


def _end_case(world: World, op: str, sizes: Sizes, dtype: str, kind: str) -> Case:
    products = gemm_flops(sizes.tokens, sizes.vocab, sizes.hidden) if op == "head" else 0.0

    def prepare(world: World) -> Work:
        place = Place(0, 1, None, world.device, dtype_of(dtype))
        shape = (sizes.micro_batch, sizes.sequence)
        ids = torch.randint(sizes.vocab, shape, device=world.device)
        if op == "embedding_block":
            return _pass(Embedding(sizes, place), ids, kind)
        x = torch.randn(*shape, sizes.hidden, device=world.device, dtype=place.dtype)
        return _pass(_HeadAndLoss(sizes, place, ids), x.requires_grad_(), kind)

    return Case(
        family="blocks",
        op=op,
        shape=sizes.shape("hidden", "vocab", "sequence", "micro_batch"),
        variant={"pass": kind},
        dtype=dtype,
        group=world.everyone,
        flops=products * (2 if kind == "backward" else 1),
        bytes=0.0 if products else 3.0 * sizes.tokens * sizes.hidden * element_bytes(dtype),
        memory=4.0 * sizes.vocab * (6 * sizes.tokens * (op == "head") + 3 * sizes.hidden),
        prepare=prepare,
    )


class _HeadAndLoss(nn.Module):
    """Final norm, logits and cross entropy."""

    def __init__(self, sizes: Sizes, place: Place, ids: torch.Tensor) -> None:
        super().__init__()
        self.head, self.loss, self.ids = Head(sizes, place), loss_of(place), ids

    def forward(self, x_BSD: torch.Tensor) -> torch.Tensor:
        """Vectors to the loss."""
        return self.loss(self.head(x_BSD), self.ids)
