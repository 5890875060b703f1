"""Collectives: each one, every group, from a kilobyte to a gigabyte."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any, Final

import torch
import torch.distributed as dist

from mpsim.measure.case import Case, Work
from mpsim.measure.plan import best_first
from mpsim.measure.tensors import agrees, dtype_of, element_bytes
from mpsim.measure.world import World

__all__ = ["COLLECTIVES", "all_gather", "collective_series", "reduce_scatter"]

COLLECTIVES: Final = (
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "send_recv",
    "all_to_all",
    "broadcast",
    "reduce",
    "barrier",
)
LARGEST_DECADES = 60
"""Decades a float32 has to spare when a sum is summed again: it starts that far down."""


def collective_series(world: World, grid: Mapping[str, Any]) -> list[list[Case]]:
    """Cases of every collective in every group, a list for each."""
    series = []
    for group in reversed(world.group_sizes()):
        for op in COLLECTIVES:
            if op == "send_recv" and len(group) > 2:
                continue  # a message has two ends
            sizes = [0] if op == "barrier" else best_first(grid["collective_bytes"])
            series.append(
                [_case(world, op, size, group, grid["collective_dtype"]) for size in sizes]
            )
    return series


def _case(world: World, op: str, size: int, group: tuple[int, ...], dtype: str) -> Case:
    """`size` is counted as in a calibration file: the whole tensor, gathered one or send buffer."""
    ranks = len(group)
    element = element_bytes(dtype)
    count = max(size // element // ranks, 1) * ranks
    moved = 0 if op == "barrier" else count * element
    return Case(
        family="collectives",
        op=op,
        shape={"bytes": moved} if moved else {},
        variant={},
        dtype=dtype,
        group=group,
        synchronous=True,
        bytes=float(moved),
        memory=3.0 * moved,
        prepare=functools.partial(_prepare, op=op, count=count, group=group, dtype=dtype),
    )


def _prepare(world: World, *, op: str, count: int, group: tuple[int, ...], dtype: str) -> Work:
    ranks, pg = len(group), world.group(group)
    place = group.index(world.rank)
    if op == "barrier":
        return Work(run=lambda: dist.barrier(group=pg))
    make: Callable[..., torch.Tensor] = functools.partial(
        torch.full, dtype=dtype_of(dtype), device=world.device
    )
    mine = float(place + 1)
    if op in ("all_reduce", "reduce", "broadcast"):
        return _in_place(world, op, make((count,), mine), group, dtype)
    if op == "send_recv":
        return _ping_pong(world, make((count,), mine), group, dtype)
    total = sum(range(1, ranks + 1))
    if op == "all_gather":
        whole, part = make((count,), 0.0), make((count // ranks,), mine)
        run = functools.partial(all_gather, whole, part, pg)
        wanted = torch.arange(1, ranks + 1).repeat_interleave(count // ranks)
    elif op == "reduce_scatter":
        whole, part = make((count // ranks,), 0.0), make((count,), mine)
        run = functools.partial(reduce_scatter, whole, part, pg)
        wanted = torch.full((count // ranks,), float(total))
    else:
        whole, part = make((count,), 0.0), make((count,), mine)
        run = functools.partial(dist.all_to_all_single, whole, part, group=pg)
        wanted = torch.arange(1, ranks + 1).repeat_interleave(count // ranks)
    run()
    check = agrees(
        whole, wanted, dtype, "the sum of ranks" if op == "reduce_scatter" else "every rank's part"
    )
    part.copy_(torch.randn_like(part))
    return Work(run=run, check=check)


def _in_place(
    world: World, op: str, tensor: torch.Tensor, group: tuple[int, ...], dtype: str
) -> Work:
    pg, ranks = world.group(group), len(group)
    run: Callable[[], object] = {
        "all_reduce": lambda: dist.all_reduce(tensor, group=pg),
        "reduce": lambda: dist.reduce(tensor, group[0], group=pg),
        "broadcast": lambda: dist.broadcast(tensor, group[0], group=pg),
    }[op]
    run()
    check = ""
    if op != "reduce" or world.rank == group[0]:
        wanted = 1.0 if op == "broadcast" else float(sum(range(1, ranks + 1)))
        what = "what the first rank sent" if op == "broadcast" else "the sum of ranks"
        check = agrees(tensor, torch.full_like(tensor, wanted), dtype, what)
    noise = torch.randn_like(tensor) * 10.0 ** (-LARGEST_DECADES / 2)
    # a sum that is summed again grows by the number of ranks each time: start over before it overflows
    most = 0 if op == "broadcast" else int(LARGEST_DECADES / math.log10(ranks))
    return Work(run=run, before=lambda: tensor.copy_(noise), most_calls=most, check=check)


def _ping_pong(world: World, tensor: torch.Tensor, group: tuple[int, ...], dtype: str) -> Work:
    """There and back between the first and the last of the group; half of it is one message."""
    pg, first, last = world.group(group), group[0], group[-1]

    def run() -> None:
        if world.rank == first:
            dist.send(tensor, last, group=pg)
            dist.recv(tensor, last, group=pg)
        elif world.rank == last:
            dist.recv(tensor, first, group=pg)
            dist.send(tensor, first, group=pg)

    run()
    check = ""
    if world.rank in (first, last):
        check = agrees(tensor, torch.ones_like(tensor), dtype, "what was sent")
    tensor.copy_(torch.randn_like(tensor))
    return Work(run=run, divide=2.0, check=check)


def all_gather(whole: torch.Tensor, part: torch.Tensor, pg: Any) -> None:
    """Gather `part` of every rank into `whole`, by the name this torch has for it."""
    single = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    single(whole, part, group=pg)


def reduce_scatter(part: torch.Tensor, whole: torch.Tensor, pg: Any) -> None:
    """Sum `whole` over the ranks and keep this rank's `part`, by the name this torch has for it."""
    single = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
    single(part, whole, group=pg)
