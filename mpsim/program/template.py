"""Templates: the inside of an action, kernel by kernel, evaluated once and tiled.

A *block* is one layer's forward or backward (or the embedding's, or the head's) on one rank: kernels on the compute stream
and collectives on the streams of their communicators. A block starts when the one before it has ended on every stream, so
a stage's action is its blocks end to end, and equal layers need to be evaluated only once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from mpsim.parallel import Communication, Compute, Item, Waits
from mpsim.program.program import PARTS, TICK, Stream, Template
from mpsim.workload import Operator, Phase

__all__ = ["BlockCosts", "concatenate", "evaluate_block", "ticks"]

_STREAM = {"tp": Stream.TP, "cp": Stream.CP, "ep": Stream.EP}
_PART_OF_PHASE = {
    Phase.FORWARD: PARTS.index("forward"),
    Phase.INPUT_GRADIENT: PARTS.index("backward"),
    Phase.WEIGHT_GRADIENT: PARTS.index("weight_gradient"),
}
_RECOMPUTE = PARTS.index("recompute")


class BlockCosts(Protocol):
    """What evaluating a block asks of the cost models."""

    def kernels(self, operators: Sequence[Operator]) -> NDArray[np.float64]:
        """Seconds of sharded operators [s]."""
        ...

    def collective(self, item: Communication) -> tuple[float, float, float]:
        """Seconds of a collective and bytes one rank sends over scale-up and scale-out links."""
        ...


def ticks(seconds: float | NDArray[np.float64]) -> NDArray[np.float64]:
    """Round seconds to whole ticks, which engines add without error."""
    return np.rint(np.asarray(seconds, dtype=np.float64) / TICK)


@dataclasses.dataclass(slots=True)
class _Pending:
    """A collective that some later kernel will wait for."""

    end: float
    waits: Waits


def evaluate_block(name: str, items: Sequence[Item], costs: BlockCosts) -> Template:
    """Place the kernels and collectives of a block in time.

    Parameters
    ----------
    name : str
    items : sequence of Item
        In issue order.
    costs : BlockCosts

    Returns
    -------
    Template
        With layer number 0 throughout.

    Notes
    -----
    A kernel starts when the one before it and every collective it waits for have ended; a collective starts when the kernel
    before it and the collective before it on its stream have ended. Compute idle inside the block is counted as exposed
    time of the collective that was awaited; idle that no collective explains cannot occur.
    """
    seconds = iter(costs.kernels([one.operator for one in items if isinstance(one, Compute)]).tolist())
    rows: list[tuple[str, int, int, float, float, float, float, float]] = []
    parts = np.zeros(len(PARTS))
    now = 0.0
    free = {int(stream): 0.0 for stream in Stream}
    pending: list[tuple[int, _Pending]] = []
    for one in items:
        if isinstance(one, Compute):
            now = _await(now, pending, one.operator.phase, parts)
            duration = float(ticks(next(seconds)))
            part = _RECOMPUTE if one.recompute else _PART_OF_PHASE[one.operator.phase]
            parts[part] += duration
            rows.append((one.operator.name, int(Stream.COMPUTE), part, now, duration, one.operator.flops, 0.0, 0.0))
            now += duration
            continue
        time, up, out = costs.collective(one)
        stream, duration = int(_STREAM[one.axis]), float(ticks(time))
        start = max(now, free[stream])
        free[stream] = start + duration
        part = PARTS.index(f"exposed_{one.axis}")
        pending.append((part, _Pending(start + duration, one.waits)))
        rows.append((one.name, stream, part, start, duration, 0.0, up, out))
    now = _await(now, pending, None, parts)
    return _as_template(name, rows, parts)


def _await(
    now: float, pending: list[tuple[int, _Pending]], phase: Phase | None, parts: NDArray[np.float64]
) -> float:
    """Advance to when a kernel of `phase` may start (None: the end of the block), counting the idle time."""
    left = []
    for part, one in pending:
        weight = phase is Phase.WEIGHT_GRADIENT
        if (one.waits is Waits.INPUT_GRADIENT and weight) or (
            one.waits is Waits.WEIGHT_GRADIENT and not weight and phase is not None
        ):
            left.append((part, one))
        elif one.end > now:
            parts[part] += one.end - now
            now = one.end
    pending[:] = left
    return now


def _as_template(
    name: str,
    rows: Sequence[tuple[str, int, int, float, float, float, float, float]],
    parts: NDArray[np.float64],
) -> Template:
    names = tuple(dict.fromkeys(row[0] for row in rows))
    index = {one: i for i, one in enumerate(names)}
    columns = list(zip(*rows, strict=True)) if rows else [()] * 8
    return Template(
        name=name,
        names=names,
        name_index=np.array([index[one] for one in columns[0]], dtype=np.int16),
        stream=np.array(columns[1], dtype=np.int8),
        layer=np.zeros(len(rows), dtype=np.int32),
        part=np.array(columns[2], dtype=np.int8),
        start=np.array(columns[3], dtype=np.float64),
        duration=np.array(columns[4], dtype=np.float64),
        flops=np.array(columns[5], dtype=np.float64),
        up_bytes=np.array(columns[6], dtype=np.float64),
        out_bytes=np.array(columns[7], dtype=np.float64),
        parts=parts,
    )


def concatenate(name: str, blocks: Sequence[tuple[int, Template]]) -> Template:
    """Lay blocks end to end.

    Parameters
    ----------
    name : str
    blocks : sequence of (layer, Template)
        In the order they run; `layer` counts from the stage's first, -1 outside the layers.
    """
    names = tuple(dict.fromkeys(one for _, block in blocks for one in block.names))
    index = {one: i for i, one in enumerate(names)}
    translation = {
        id(block): np.array([index[one] for one in block.names], dtype=np.int16) for _, block in blocks
    }
    offsets = np.concatenate([[0.0], np.cumsum([block.parts.sum() for _, block in blocks])])

    def joined(columns: list[NDArray[np.float64]]) -> NDArray[np.float64]:
        return np.concatenate(columns) if columns else np.zeros(0)

    return Template(
        name=name,
        names=names,
        name_index=joined([translation[id(b)][b.name_index] for _, b in blocks]).astype(np.int16),
        stream=joined([b.stream for _, b in blocks]).astype(np.int8),
        layer=joined([np.full(len(b.layer), layer) for layer, b in blocks]).astype(np.int32),
        part=joined([b.part for _, b in blocks]).astype(np.int8),
        start=joined([b.start + at for (_, b), at in zip(blocks, offsets, strict=False)]),
        duration=joined([b.duration for _, b in blocks]),
        flops=joined([b.flops for _, b in blocks]),
        up_bytes=joined([b.up_bytes for _, b in blocks]),
        out_bytes=joined([b.out_bytes for _, b in blocks]),
        parts=sum((block.parts for _, block in blocks), np.zeros(len(PARTS))),
    )
