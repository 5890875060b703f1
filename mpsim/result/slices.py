"""Slices: communication of ranks over time, inside actions and between them, hidden or exposed.

Exposed is the time in which the compute stream of a rank stands idle for an axis, as the account of
the job counts it (`mpsim.result.intervals`, and inside actions the waits that their templates were
evaluated with): exposed slices of a rank and an axis do not overlap and sum to its part of the
account. Whatever else of a transfer there is runs beside kernels or while the rank waits for
something else: it is hidden. A rank may wait before its transfer has begun, so that there are
exposed slices in which nothing moves yet, and of several transfers of an axis at once the slice
names the one waited for.

Shapes: S slices, R rank classes, Q kernels of a template.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from mpsim import structs
from mpsim.arrays import Flags, Floats, Ints
from mpsim.engine.cover import Cover
from mpsim.engine.timeline import Timeline
from mpsim.memo import remembered
from mpsim.parallel.axes import AXES, AXIS_NAMES, AXIS_OF_STREAM
from mpsim.program import Program, Stream, Template, Vocabulary
from mpsim.result.intervals import Waits


@structs.dataclass(frozen=True, slots=True, eq=False)
class CommunicationSlices:
    """Slices as columns, ordered by rank, axis and start."""

    program: Program  # that rows and kernels are numbered by
    rank: Ints  # int64[S], rank class
    axis: Ints  # int64[S], by `mpsim.parallel.axes.AXIS_NAMES`
    start: Floats  # start, end: float64[S], ticks since the step began
    end: Floats
    exposed: Flags  # bool[S], whether the compute stream stands idle for it
    # row, kernel: int64[S], row of the program, and the transfer's number in the row's template; -1
    # where the row itself is the transfer, or no single one is
    row: Ints
    kernel: Ints

    def __len__(self) -> int:
        return len(self.rank)

    def where(self, chosen: Flags | Ints) -> CommunicationSlices:
        """Some of them."""
        columns = {name: getattr(self, name)[chosen] for name in _COLUMNS}
        return structs.replace(self, **columns)

    @property
    def layer(self) -> Ints:
        """Layer of each, counted from the first of its stage; -1 outside the layers."""
        return self._inside("layer", -1)

    @property
    def microbatch(self) -> Ints:
        """Microbatch of each; -1 where it belongs to none."""
        return self._of_row(self.program.microbatch, -1)

    @property
    def stage(self) -> Ints:
        """Stage of each; -1 where it belongs to none."""
        return self._of_row(self.program.stage, -1)

    @property
    def names(self) -> list[str]:
        """Name of each transfer, such as ``dispatch``."""
        program = self.program
        words = [
            [template.names[i] for i in template.name_index.tolist()]
            for template in program.templates
        ]
        template = self._of_row(program.template, -1).tolist()
        label = self._of_row(program.label, -1).tolist()
        kind = self._of_row(program.kind, -1).tolist()
        return [
            words[t][kernel]
            if kernel >= 0
            else (program.labels[text] or program.vocabulary.kinds[of])
            if text >= 0
            else f"waits for {AXIS_NAMES[axis]}"
            for t, kernel, text, of, axis in zip(
                template, self.kernel.tolist(), label, kind, self.axis.tolist(), strict=True
            )
        ]

    def ticks(self, *, exposed: bool = True) -> Floats:
        """Ticks of each rank class and axis in exposed slices, or in hidden ones [R, A]."""
        chosen = self.exposed == exposed
        place = self.rank[chosen] * len(AXIS_NAMES) + self.axis[chosen]
        size = self.program.ranks * len(AXIS_NAMES)
        took = np.bincount(place, weights=(self.end - self.start)[chosen], minlength=size)
        return took.reshape(-1, len(AXIS_NAMES)).astype(np.float64)

    def _of_row(self, column: NDArray[np.integer], missing: int) -> Ints:
        known = self.row >= 0
        return np.where(known, column[np.maximum(self.row, 0)], missing).astype(np.int64)

    def _inside(self, name: str, missing: int) -> Ints:
        result = np.full(len(self), missing, dtype=np.int64)
        template = self._of_row(self.program.template, -1)
        for number in np.unique(template[self.kernel >= 0]).tolist():
            mine = (template == number) & (self.kernel >= 0)
            result[mine] = getattr(self.program.templates[number], name)[self.kernel[mine]]
        return result


_COLUMNS = ("rank", "axis", "start", "end", "exposed", "row", "kernel")


def communication_slices(
    timeline: Timeline, waits: Waits, *, ranks: Sequence[int] | None = None
) -> CommunicationSlices:
    """Cut the communication of some ranks into exposed and hidden slices. `waits`: idle time of its
    compute streams, as the job counts it. `ranks`: rank classes; all when left out.
    """
    program = timeline.program
    wanted = np.zeros(program.ranks, dtype=bool)
    wanted[list(range(program.ranks) if ranks is None else ranks)] = True
    of_axis = _axis_of_part(program.vocabulary)
    outside = Waits.join([waits, _on_compute(timeline)])
    outside = outside.where(wanted[outside.rank] & (of_axis[outside.part] >= 0))
    columns = [
        *_inside_actions(timeline, wanted),
        _columns(
            outside.rank,
            of_axis[outside.part],
            outside.start,
            outside.end,
            exposed=True,
            row=outside.row,
        ),
        *_between_actions(timeline, outside, of_axis, wanted),
    ]
    joined = [np.concatenate(column) for column in zip(*columns, strict=True)]
    order = np.lexsort((joined[2], joined[1], joined[0]))  # by rank, axis, then start
    rank, axis, start, end, exposed, row, kernel = (column[order] for column in joined)
    return CommunicationSlices(program, rank, axis, start, end, exposed, row, kernel)


def _columns(
    rank: Ints,
    axis: Ints,
    start: Floats,
    end: Floats,
    *,
    exposed: Flags | bool,
    row: Ints,
    kernel: Ints | int = -1,
) -> tuple[NDArray[np.generic], ...]:
    """Columns of slices, those of no length left out."""
    lasts = end > start
    full = np.broadcast_arrays(rank, axis, start, end, exposed, row, kernel)
    return tuple(column[lasts] for column in full)


def _axis_of_part(words: Vocabulary) -> Ints:
    """Axis whose exposed time each part of the account is, -1 for all others."""
    axes = {axis.part: AXIS_NAMES.index(axis.name) for axis in AXES}
    return np.array([axes.get(part, -1) for part in words.parts])


def _on_compute(timeline: Timeline) -> Waits:
    """Rows of an axis that the compute stream carries: transfers that block, packing kernels."""
    program = timeline.program
    rank, row = program.compute_rows
    plain = program.template[row] < 0
    rank, row = rank[plain], row[plain]
    start = timeline.start[row]
    part = program.part[row].astype(np.int64)
    return Waits(rank, start, start + program.duration[row], part, row)


def _inside_actions(timeline: Timeline, wanted: Flags) -> Iterator[tuple[NDArray[np.generic], ...]]:
    """Transfers inside rows with templates."""
    program = timeline.program
    for number, template in enumerate(program.templates):
        inside = _cut(template, program.vocabulary)
        rows = np.flatnonzero((program.template == number) & wanted[program.rank])
        if not len(rows) or not len(inside.kernel):
            continue
        row = np.repeat(rows, len(inside.kernel))
        since = timeline.start[row]
        many = len(rows)
        yield _columns(
            program.rank[row].astype(np.int64),
            np.tile(inside.axis, many),
            since + np.tile(inside.start, many),
            since + np.tile(inside.end, many),
            exposed=np.tile(inside.exposed, many),
            row=row,
            kernel=np.tile(inside.kernel, many),
        )


@structs.dataclass(frozen=True, slots=True, eq=False)
class _Inside:
    """Slices of one template, ticks since its row began."""

    kernel: Ints
    axis: Ints
    start: Floats
    end: Floats
    exposed: Flags


@remembered(64)  # points of a sweep share templates
def _cut(template: Template, words: Vocabulary) -> _Inside:
    """Slices of a template: waits for each transfer, and what is left of its axis'."""
    end = template.start + template.duration
    axis = np.where(
        AXIS_OF_STREAM[template.stream] >= 0,
        AXIS_OF_STREAM[template.stream],
        _axis_of_part(words)[template.part],
    )
    # kernels that only pack for a transfer count as its axis, and are not hidden by themselves
    packs = template.stream == Stream.COMPUTE
    waited = np.where(packs, template.duration, 0.0)
    if len(template.exposed):
        waited = np.where(packs, waited, template.exposed)
    late = np.flatnonzero((waited > 0) & (axis >= 0))
    parts = [(late, end[late] - waited[late], end[late], np.ones(len(late), dtype=bool))]
    for number in np.unique(axis[axis >= 0]).tolist():
        mine = late[axis[late] == number]
        rest = Cover(end[mine] - waited[mine], end[mine]).rest
        moves = np.flatnonzero((axis == number) & ~packs & (template.duration > 0))
        piece, since, until = rest.cut(template.start[moves], end[moves])
        parts.append((moves[piece], since, until, np.zeros(len(piece), dtype=bool)))
    kernel, since, until, exposed = (np.concatenate(column) for column in zip(*parts, strict=True))
    return _Inside(kernel, axis[kernel], since, until, exposed)


def _between_actions(
    timeline: Timeline, outside: Waits, of_axis: Ints, wanted: Flags
) -> Iterator[tuple[NDArray[np.generic], ...]]:
    """Slices of transfers that are rows, after the waits for their axis."""
    program = timeline.program
    row, rank, stream = program.slots
    axis = AXIS_OF_STREAM[stream]
    chosen = wanted[rank] & (axis >= 0) & (program.duration[row] > 0)
    # a row may occupy several queues of a rank, and runs once
    key = np.unique(np.stack([rank, axis, row])[:, chosen], axis=1)
    waited = outside.rank * len(AXIS_NAMES) + of_axis[outside.part]
    group = key[0] * len(AXIS_NAMES) + key[1]
    for place in np.unique(group).tolist():
        rows, mine = key[2][group == place], waited == place
        rest = Cover(outside.start[mine], outside.end[mine]).rest
        piece, since, until = rest.cut(timeline.start[rows], timeline.end[rows])
        owner, number = divmod(place, len(AXIS_NAMES))
        yield _columns(
            np.full(len(piece), owner),
            np.full(len(piece), number),
            since,
            until,
            exposed=False,
            row=rows[piece],
        )
