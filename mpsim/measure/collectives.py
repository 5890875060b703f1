"""Collectives: each one, every group, from a kilobyte to a gigabyte."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Final

import torch
import torch.distributed as dist

from mpsim.measure.plan import Case, Grid, Work, best_first
from mpsim.measure.tensors import agrees, dtype_of, element_bytes
from mpsim.measure.world import World

COLLECTIVES: Final = tuple(
    "all_reduce all_gather reduce_scatter send_recv all_to_all broadcast reduce barrier".split()
)
IN_PLACE: Final = ("all_reduce", "reduce", "broadcast", "send_recv")
LARGEST_DECADES = 60
"""Decades a float32 has to spare when a sum is summed again: it starts that far down."""


def collective_series(world: World, grid: Grid) -> list[list[Case]]:
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
    """Run it once on the ranks' numbers from 1, and check what comes; then on random data."""
    ranks, first, last, pg = len(group), group[0], group[-1], world.group(group)
    if op == "barrier":
        return Work(run=lambda: dist.barrier(group=pg))
    make = functools.partial(torch.full, dtype=dtype_of(dtype), device=world.device)
    mine, each = float(group.index(world.rank) + 1), count // ranks
    part = make((each if op == "all_gather" else count,), mine)
    whole = part if op in IN_PLACE else make((each if op == "reduce_scatter" else count,), 0.0)

    def ping_pong() -> None:
        """There and back between the first and the last of the group; half of it is one message."""
        if world.rank == first:
            dist.send(part, last, group=pg)
            dist.recv(part, last, group=pg)
        else:
            dist.recv(part, first, group=pg)
            dist.send(part, first, group=pg)

    run: Callable[[], object] = {
        "all_reduce": lambda: dist.all_reduce(whole, group=pg),
        "reduce": lambda: dist.reduce(whole, first, group=pg),
        "broadcast": lambda: dist.broadcast(whole, first, group=pg),
        "send_recv": ping_pong,
        "all_gather": lambda: all_gather(whole, part, pg),
        "reduce_scatter": lambda: reduce_scatter(whole, part, pg),
        "all_to_all": lambda: dist.all_to_all_single(whole, part, group=pg),
    }[op]
    run()
    check = ""
    if op != "reduce" or world.rank == first:
        numbers = torch.arange(1, ranks + 1)
        what, wanted = {
            "broadcast": ("what the first rank sent", numbers[:1]),
            "send_recv": ("what was sent", numbers[:1]),
            "all_gather": ("every rank's part", numbers.repeat_interleave(each)),
            "all_to_all": ("every rank's part", numbers.repeat_interleave(each)),
        }.get(op, ("the sum of ranks", numbers.sum()))
        check = agrees(whole, wanted, dtype, what)
    if op not in IN_PLACE or op == "send_recv":
        part.copy_(torch.randn_like(part))
        return Work(run=run, divide=2.0 if op == "send_recv" else 1.0, check=check)
    noise = torch.randn_like(part) * 10.0 ** (-LARGEST_DECADES / 2)
    # a sum that is summed again grows each time: start over before it overflows
    most = 0 if op == "broadcast" else int(LARGEST_DECADES / math.log10(ranks))
    return Work(run=run, before=lambda: part.copy_(noise), most_calls=most, check=check)


def all_gather(whole: torch.Tensor, part: torch.Tensor, pg: dist.ProcessGroup | None) -> None:
    """Gather `part` of every rank into `whole`, by the name this torch has for it."""
    single = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    single(whole, part, group=pg)


def reduce_scatter(part: torch.Tensor, whole: torch.Tensor, pg: dist.ProcessGroup | None) -> None:
    """Sum `whole` over the ranks and keep this rank's `part`, by the name this torch has for it."""
    single = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
    single(part, whole, group=pg)
