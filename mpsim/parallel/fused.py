"""A forward of some tokens beside a backward of others: those of each travel while the other computes.

Per pair of layers the exchange stream carries combine of the backward, dispatch of the forward, dispatch of the backward, combine of the
forward, in this order; the compute stream runs attention of the forward beside the first, experts of the backward beside the second,
experts of the forward beside the third and attention of the backward beside the last (Megatron-Core's 1F1B overlap, DualPipe's block).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from mpsim.parallel.items import Communication, Compute, Item, Waits

__all__ = ["fused_blocks"]

_TRAVEL = ("ep", "etp", "etp-ep")


@dataclasses.dataclass(frozen=True, slots=True)
class _Cut:
    """A block of an expert layer: what comes before the way there, the experts, and what comes after the way back."""

    before: list[Item]
    there: list[Communication]
    experts: list[Item]
    back: list[Communication]
    after: list[Item]


def fused_blocks(forward: Sequence[Item], backward: Sequence[Item]) -> list[Item]:
    """Interleave `block_forward` and `block_backward` of two expert layers.

    Neither recomputes in full. Exchanges of tokens are awaited by what needs them alone; one follows
    the other where nothing travels.
    """
    ahead, behind = _cut(forward), _cut(backward)
    if ahead is None or behind is None:
        return [*forward, *backward]
    return [
        *behind.before,
        *behind.there,
        *ahead.before,
        *ahead.there,
        *_needing(behind.experts, behind.there),
        *behind.back,
        *_needing(ahead.experts, ahead.there),
        *ahead.back,
        *_needing(behind.after, behind.back),
        *_needing(ahead.after, ahead.back),
    ]


def _cut(items: Sequence[Item]) -> _Cut | None:
    travels = [i for i, item in enumerate(items) if _travels(item)]
    if not travels:
        return None
    start, end = travels[0], travels[-1] + 1
    there = next(i for i in range(start, len(items)) if not _travels(items[i]))
    back = next(i for i in range(end - 1, -1, -1) if not _travels(items[i])) + 1
    return _Cut(
        before=list(items[:start]),
        there=_tagged(items[start:there]),
        experts=list(items[there:back]),
        back=_tagged(items[back:end]),
        after=list(items[end:]),
    )


def _travels(item: Item) -> bool:
    return isinstance(item, Communication) and item.axis in _TRAVEL


def _tagged(items: Sequence[Item]) -> list[Communication]:
    return [
        dataclasses.replace(item, waits=Waits.TAGGED)
        for item in items
        if isinstance(item, Communication)
    ]


def _needing(items: Sequence[Item], ways: Sequence[Communication]) -> list[Item]:
    """All kernels wait for the tokens they are given; the first does for all."""
    tags = frozenset(item.tag for item in ways)
    return [
        dataclasses.replace(item, needs=item.needs | tags) if isinstance(item, Compute) else item
        for item in items
    ]
