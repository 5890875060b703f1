"""The Program: every operation of one step as columns, ready for any engine.

Shapes: N rows (operations), R rank classes, T streams a rank, E dependencies, K slots, M templates.

A row occupies one slot on one or more (rank, stream) pairs. On each of them rows run in the order of their row numbers: row order
*is* stream order. Durations are whole ticks of one picosecond held in float64, so every engine's sums are exact (below 2.5 hours).
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from mpsim.parallel.axes import ACCOUNTED, Span, Stream
from mpsim.program.csr import owners, stable_order

__all__ = [
    "COMPUTING",
    "PARTS",
    "PIPELINE",
    "TICK",
    "Kind",
    "Program",
    "Span",
    "Stream",
    "Template",
]

TICK = 1e-12
"""One tick of the engines [s]."""

PARTS = (
    "forward",
    "backward",
    "weight_gradient",
    "recompute",
    *(axis.part for axis in ACCOUNTED),
    "bubble",
    "optimizer",
    "host",
    "other",
)
"""What a rank's time is attributed to; the parts of every rank sum to the step time."""

COMPUTING = tuple(
    PARTS.index(name)
    for name in ("forward", "backward", "weight_gradient", "recompute", "optimizer")
)
"""Indices into `PARTS` of what kernels do."""


class Kind(enum.IntEnum):
    """What a row does."""

    FORWARD = 0
    BACKWARD = 1  # input and weight gradient together
    INPUT_GRADIENT = 2
    WEIGHT_GRADIENT = 3
    SEND = 4  # point to point between stages; occupies the sender's and the receiver's stream
    COLLECTIVE = 5  # over a group: gradient reduction, parameter gather, norm
    OPTIMIZER = 6


PIPELINE = (Kind.FORWARD, Kind.BACKWARD, Kind.INPUT_GRADIENT, Kind.WEIGHT_GRADIENT)
"""Kinds of rows that are the actions of a schedule."""


@dataclasses.dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Template:
    """What happens inside a row: kernels and collectives with their place in it.

    Shapes: Q kernels.

    Parameters
    ----------
    name : str
        Such as ``forward, 2 layers``.
    names : tuple of str
        Kernel names; `name_index` points into it.
    name_index : int16[Q]
    stream : int8[Q]
        `Stream` each occupies.
    layer : int32[Q]
        Layer, counted from the stage's first; -1 outside the layers (embedding, head).
    part : int8[Q]
        Index into `PARTS` of what a compute kernel counts as, or of what exposed time of a collective counts as.
    start, duration : float64[Q]
        Ticks from the start of the row.
    flops, up_bytes, out_bytes : float64[Q]
        Done by the kernel; sent by one rank over scale-up and scale-out links [FLOP, B].
    before_ptr, before : int32[Q + 1], int32[edges]
        Kernels of the template that must have ended, beyond the order of its streams, CSR.
    parts : float64[len(PARTS)]
        The row's duration split into `PARTS` [ticks]; sums to it exactly.

    Notes
    -----
    Templates are shared by all stages of equal content.
    """

    name: str
    names: tuple[str, ...]
    name_index: NDArray[np.int16]
    stream: NDArray[np.int8]
    layer: NDArray[np.int32]
    part: NDArray[np.int8]
    start: NDArray[np.float64]
    duration: NDArray[np.float64]
    flops: NDArray[np.float64]
    up_bytes: NDArray[np.float64]
    out_bytes: NDArray[np.float64]
    before_ptr: NDArray[np.int32]
    before: NDArray[np.int32]
    parts: NDArray[np.float64]

    @property
    def entries(self) -> NDArray[np.int64]:
        """Kernels that wait for nothing inside the template: they may start when the row does."""
        return np.flatnonzero(np.diff(self.before_ptr) == 0)


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Program:
    """One training step as columns; see the module's docstring for the meaning of rows and slots.

    Parameters
    ----------
    labels : tuple of str
        Name of each row's class of name, for those that have no template; `label` points into it.
    class_size : int64[R]
        How many ranks each class stands for.
    rank_name : tuple of str
        Such as ``pp 3``.
    rank, stream, kind, stage, chunk, microbatch : [N]
        Home rank class, home stream (`Stream`), `Kind`; -1 where it does not apply.
    peer : int32[N]
        Receiving rank class of a SEND, else -1.
    label : int16[N]
        Index into `labels`.
    part : int8[N]
        Index into `PARTS` that the row's time counts as when it has no template.
    span : int8[N]
        `Span` of a collective.
    template : int32[N]
        Index into `templates`, or -1.
    duration : float64[N]
        Alone, in ticks.
    up_bytes, out_bytes : float64[N]
        Sent by one rank over scale-up and scale-out links in this row, template included [B].
    dep_ptr, dep : int64[N + 1], int32[E]
        Rows that must have ended, CSR.
    slot_ptr, slot : int64[N + 1], int32[K]
        Occupied (rank, stream) pairs as ``rank * len(Stream) + stream``, CSR.
    """

    labels: tuple[str, ...]
    class_size: NDArray[np.int64]
    rank_name: tuple[str, ...]
    rank: NDArray[np.int32]
    stream: NDArray[np.int8]
    kind: NDArray[np.int8]
    stage: NDArray[np.int32]
    chunk: NDArray[np.int32]
    microbatch: NDArray[np.int32]
    peer: NDArray[np.int32]
    label: NDArray[np.int16]
    part: NDArray[np.int8]
    span: NDArray[np.int8]
    template: NDArray[np.int32]
    duration: NDArray[np.float64]
    up_bytes: NDArray[np.float64]
    out_bytes: NDArray[np.float64]
    dep_ptr: NDArray[np.int64]
    dep: NDArray[np.int32]
    slot_ptr: NDArray[np.int64]
    slot: NDArray[np.int32]
    templates: tuple[Template, ...] = ()

    def __len__(self) -> int:
        return len(self.duration)

    @property
    def ranks(self) -> int:
        """Rank classes."""
        return len(self.class_size)

    def waits(
        self, streams: Iterable[Stream] = Stream
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Pairs of (row, row it waits for): its dependencies, and the row before it on each of `streams`."""
        wanted = np.zeros(len(Stream), dtype=bool)
        wanted[[int(one) for one in streams]] = True
        chosen = wanted[self.slot % len(Stream)]
        owner, slot = owners(self.slot_ptr)[chosen], self.slot[chosen]
        order = stable_order(slot)  # rows ascend within a slot
        owner, slot = owner[order], slot[order]
        same = slot[1:] == slot[:-1]
        row = np.concatenate([owners(self.dep_ptr), owner[1:][same]])
        before = np.concatenate([self.dep.astype(np.int64), owner[:-1][same]])
        return row, before
