"""The Program: every operation of a job as columns, ready for any engine.

Nothing here knows what the job is: which kinds of rows there are and what their time counts as
comes with it (`Vocabulary`).

Shapes: N rows (operations), R rank classes, T streams a rank, E dependencies, K slots, M templates.

A row occupies one slot on one or more (rank, stream) pairs. On each of them rows run in the order
of their row numbers: row order *is* stream order. Durations are whole ticks of one picosecond held
in float64, so every engine's sums are exact (below 2.5 hours).
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mpsim import structs
from mpsim.archive import Saved
from mpsim.arrays import Flags, Floats, Ints
from mpsim.parallel.axes import ACCOUNTED, Span, Stream
from mpsim.program.csr import owners, stable_order

__all__ = ["COLLECTIVE", "COLUMNS", "SEND", "TICK", "Program", "Span", "Stream", "Template"]
__all__ += ["Vocabulary"]

TICK = 1e-12  # one tick of the engines [s]

SEND, COLLECTIVE = 0, 1
"""Kinds of rows that every job has: a message between two rank classes, which occupies streams of
both, and a collective of a group."""


COLUMNS: Mapping[str, tuple[type[np.generic], float]] = {
    "rank": (np.int32, 0),
    "stream": (np.int8, 0),
    "kind": (np.int8, 0),
    "stage": (np.int32, -1),
    "chunk": (np.int32, -1),
    "microbatch": (np.int32, -1),
    "peer": (np.int32, -1),
    "label": (np.int16, 0),
    "part": (np.int8, 0),
    "span": (np.int8, 0),
    "template": (np.int32, -1),
    "duration": (np.float64, 0),
    "up_bytes": (np.float64, 0),
    "out_bytes": (np.float64, 0),
    "collective": (np.int8, -1),
    "size": (np.float64, 0),
}
"""Type and default of every column with an entry a row."""


@structs.dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """Words of a job: what its rows do, and what the time of its ranks is attributed to."""

    # names of kinds of rows, by number: `SEND` and `COLLECTIVE`, then the job's own
    kinds: tuple[str, ...]
    actions: tuple[str, ...]  # kinds that are the actions of a schedule
    # parts of the account; those of every rank sum to the time of the whole. ``host`` (the device
    # waits for its host), ``other`` and ``exposed_`` with the name of each axis are among them
    parts: tuple[str, ...]
    computing: tuple[str, ...]  # parts in which kernels work

    def __post_init__(self) -> None:
        assert self.kinds[: COLLECTIVE + 1] == ("send", "collective"), "every job has these first"
        assert {"host", "other", *(axis.part for axis in ACCOUNTED)} <= set(self.parts)

    def part(self, name: str) -> int:
        """Number of a part."""
        return self.parts.index(name)

    def is_action(self, kind: NDArray[np.int8]) -> Flags:
        """Which of some rows are actions of a schedule, by their kinds."""
        table = np.array([name in self.actions for name in self.kinds])
        chosen: Flags = table[kind]
        return chosen

    @property
    def computing_parts(self) -> list[int]:
        """Numbers of the parts in which kernels work."""
        return [self.part(name) for name in self.computing]


@structs.dataclass(frozen=True, eq=False)
class Template:
    """The inside of a row: kernels and collectives with their place in it.

    Shapes: Q kernels.

    Notes
    -----
    Templates are shared by all stages of equal content.
    """

    name: str  # such as ``forward, 2 layers``
    names: tuple[str, ...]  # kernel names; `name_index` points into it
    name_index: NDArray[np.int16]
    stream: NDArray[np.int8]  # int8[Q], `Stream` each occupies
    # int32[Q], layer, counted from the stage's first; -1 outside the layers (embedding, head)
    layer: NDArray[np.int32]
    # int8[Q], part that a compute kernel, or a collective's exposed time, counts as
    part: NDArray[np.int8]
    start: Floats  # start, duration: float64[Q], ticks from the start of the row
    duration: Floats
    # flops, up_bytes, out_bytes: float64[Q], of the kernel; sent by a rank on both links [FLOP, B]
    flops: Floats
    up_bytes: Floats
    out_bytes: Floats
    # int8[Q], index into `mpsim.cost.COLLECTIVES`, -1 for what is none
    collective: NDArray[np.int8]
    # float64[Q], of a collective or a message as its cost model counts it [B]
    size: Floats
    # before_ptr, before: int32[Q + 1], int32[edges], kernels of the template that must have ended,
    # beyond the order of its streams, CSR
    before_ptr: NDArray[np.int32]
    before: NDArray[np.int32]
    # float64[parts], the row's duration by part of the vocabulary [ticks]; an exact sum
    parts: Floats
    # what matrix products execute, without what is masked [FLOP]; at most the sum of `flops`
    executed_flops: float = 0.0
    # time that these would take at the peaks of the formats they run in [s]
    peak_seconds: float = 0.0
    # float64[Q], for how long, up to the end of each collective, the compute stream stands idle
    # waiting for it [ticks]; longer than the collective where it began late. Sums by part to
    # `parts` exactly. Empty where nobody knows, as in results of versions that did not record it
    exposed: Floats = structs.field(default_factory=lambda: np.zeros(0))
    # time alone of kernels inside by what draws power, as in `KERNELS` [s]; empty if unknown
    load_seconds: tuple[float, ...] = ()
    # time in which memory moves what all kernels read and write, each on its own [s]
    memory_seconds: float = 0.0

    def __repr__(self) -> str:
        return f"Template({self.name!r}, {len(self.stream)} kernels, {self.ticks:.0f} ticks)"

    def but(self, **columns: object) -> Template:
        """The same with other columns: without asking for each, as a step makes some dozens."""
        made = object.__new__(Template)
        vars(made).update(vars(self), **columns)
        for name in ("ticks", "issued"):
            vars(made).pop(name, None)
        return made

    @functools.cached_property
    def ticks(self) -> float:
        """Duration of the row."""
        return float(self.parts.sum())

    @functools.cached_property
    def issued(self) -> float:
        """Work of all kernels [FLOP]."""
        return float(self.flops.sum())

    @property
    def entries(self) -> Ints:
        """Kernels that wait for nothing inside the template: they may start when the row does."""
        return np.flatnonzero(np.diff(self.before_ptr) == 0)


class Slots(NamedTuple):
    """Slots of a program as columns [K]."""

    row: Ints
    rank: Ints
    stream: Ints


@structs.dataclass(frozen=True, eq=False)
class Program(Saved):
    """Operations as columns; see the module's docstring for the meaning of rows and slots."""

    vocabulary: Vocabulary  # of the job
    # name of each row's class of name, for those that have no template; `label` points into it
    labels: tuple[str, ...]
    class_size: Ints  # int64[R], how many ranks each class stands for
    rank_name: tuple[str, ...]  # such as ``pp 3``
    # rank, stream, kind, stage, chunk, microbatch: [N], home rank class, home stream (`Stream`),
    # kind by the vocabulary; -1 where it does not apply
    rank: NDArray[np.int32]
    stream: NDArray[np.int8]
    kind: NDArray[np.int8]
    stage: NDArray[np.int32]
    chunk: NDArray[np.int32]
    microbatch: NDArray[np.int32]
    peer: NDArray[np.int32]  # int32[N], receiving rank class of a SEND, else -1
    label: NDArray[np.int16]  # int16[N], index into `labels`
    # int8[N], part of the vocabulary that the row's time counts as when it has no template
    part: NDArray[np.int8]
    span: NDArray[np.int8]  # int8[N], `Span` of a collective
    template: NDArray[np.int32]  # int32[N], index into `templates`, or -1
    duration: Floats  # float64[N], alone, in ticks
    # up_bytes, out_bytes: float64[N], sent by a rank on both links, template included [B]
    up_bytes: Floats
    out_bytes: Floats
    # int8[N], index into `mpsim.cost.COLLECTIVES`, -1 for all other rows
    collective: NDArray[np.int8]
    # float64[N], of a collective or a message as its cost model counts it: the whole tensor of an
    # all-reduce, the gathered one of an all-gather [B]
    size: Floats
    # dep_ptr, dep: int64[N + 1], int32[E], rows that must have ended, CSR
    dep_ptr: Ints
    dep: NDArray[np.int32]
    # slot_ptr, slot: int64[N + 1], int32[K], occupied (rank, stream) pairs as ``rank * len(Stream)
    # + stream``, CSR
    slot_ptr: Ints
    slot: NDArray[np.int32]
    templates: tuple[Template, ...] = ()
    # ticks that the whole takes at least, as links carry it no sooner; 0 if engines share them
    least: float = 0.0
    least_part: int = 0  # part of the vocabulary that what is waited for that counts as
    # float64[N], how often each row counts, where one stands for its like in periods left out
    times: Floats | None = None

    def __len__(self) -> int:
        return len(self.duration)

    def __repr__(self) -> str:
        counts = np.bincount(self.kind, minlength=len(self.vocabulary.kinds)).tolist()
        kinds = ", ".join(
            f"{count} {name}"
            for name, count in zip(self.vocabulary.kinds, counts, strict=True)
            if count
        )
        ranks = f"{self.ranks} rank classes of {int(self.class_size.sum())} ranks"
        return f"Program({len(self)} rows: {kinds}; {ranks}, {len(self.templates)} templates)"

    @property
    def ranks(self) -> int:
        """Rank classes."""
        return len(self.class_size)

    @property
    def home(self) -> Ints:
        """The stream that each row starts from, as `slot` has it."""
        return self.rank.astype(np.int64) * len(Stream) + self.stream

    @functools.cached_property
    def slots(self) -> Slots:
        """Row, rank class and stream of every slot."""
        slot = self.slot.astype(np.int64)
        rank = slot // len(Stream)
        # not the remainder, which numpy takes thirty times as long for
        return Slots(owners(self.slot_ptr), rank, slot - rank * len(Stream))

    @functools.cached_property
    def compute_rows(self) -> tuple[Ints, Ints]:
        """Rank and row of everything on compute streams, ordered by rank, then stream order."""
        on_compute = self.slots.stream == Stream.COMPUTE
        rank = self.slots.rank[on_compute]
        order = stable_order(rank)  # rows ascend
        return rank[order], self.slots.row[on_compute][order]

    @property
    def actions(self) -> tuple[Ints, Ints]:
        """First and last row of each action, by rank and in its order; it may be several rows."""
        rank, row = self.compute_rows
        acts = self.vocabulary.is_action(self.kind[row]) & (self.microbatch[row] >= 0)
        rank, row = rank[acts], row[acts]
        columns = rank, self.kind[row], self.stage[row], self.microbatch[row]
        first = np.flatnonzero(np.any([np.diff(c, prepend=-1) != 0 for c in columns], axis=0))
        return row[first], row[np.append(first[1:], len(row))[: len(first)] - 1]

    def times_of(self, rows: Ints | Flags | slice = slice(None)) -> Floats | float:
        """How often each of some rows counts: once where all do."""
        return 1.0 if self.times is None else self.times[rows]

    @functools.cached_property
    def busy_parts(self) -> Floats:
        """Ticks in which each rank's compute stream is busy, by part of the account [R, parts];
        waits inside an action count as the part they belong to.
        """
        rank, row = self.compute_rows
        plain = self.template[row] < 0
        own, width = row[plain], len(self.vocabulary.parts)
        place, size = rank[plain] * width + self.part[own], self.ranks * width
        took = self.duration[own] * self.times_of(own)
        parts: Floats = np.bincount(place, took, size).astype(np.float64).reshape(-1, width)
        if self.templates:
            parts += self.counts @ np.stack([template.parts for template in self.templates])
        parts.setflags(write=False)  # everybody gets the same array
        return parts

    @functools.cached_property
    def counts(self) -> Floats:
        """How often each rank class runs each template [R, M]."""
        row, kinds = np.flatnonzero(self.template >= 0), len(self.templates)
        place, times = self.rank[row] * kinds + self.template[row], self.times_of(row)
        counts = np.bincount(place, np.broadcast_to(times, len(row)), self.ranks * kinds)
        return counts.astype(np.float64).reshape(self.ranks, kinds)

    def waits(self, streams: Iterable[Stream] = Stream) -> tuple[Ints, Ints]:
        """Pairs of (row, row it waits for): dependencies, and the row before on each stream."""
        return self._waits if streams is Stream else self._waits_on(streams)

    @functools.cached_property
    def _waits(self) -> tuple[Ints, Ints]:
        return self._waits_on(Stream)

    def _waits_on(self, streams: Iterable[Stream]) -> tuple[Ints, Ints]:
        wanted = np.zeros(len(Stream), dtype=bool)
        wanted[[int(stream) for stream in streams]] = True
        chosen = wanted[self.slots.stream]
        owner, slot = self.slots.row[chosen], self.slot[chosen]
        order = stable_order(slot)  # rows ascend within a slot
        owner, slot = owner[order], slot[order]
        same = slot[1:] == slot[:-1]
        row = np.concatenate([owners(self.dep_ptr), owner[1:][same]])
        before = np.concatenate([self.dep.astype(np.int64), owner[:-1][same]])
        return row, before
