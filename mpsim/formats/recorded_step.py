"""A recorded step as a Timeline: the spans of all ranks on one clock, those of one step, as rows
that pictures draw and comparisons read.

Clocks of hosts differ. Ranks of one group leave a collective at nearly the same moment, so the
median difference of the ends of what they did together is how far one clock is ahead; between
neighbours of a pipeline, which share only messages, half the difference of the quickest messages in
both directions is (as NTP does), where one would arrive before it was sent. A difference within the
spread of its samples is noise, and the clocks stay as they are.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from mpsim import structs
from mpsim.arrays import Floats
from mpsim.engine import Timeline
from mpsim.engine.cover import Cover
from mpsim.errors import FormatError
from mpsim.formats.imported import Recorded
from mpsim.formats.registry import read
from mpsim.formats.spans import LETTERS, Array, Dense, Span, Spans
from mpsim.formats.words import DATA, table
from mpsim.parallel.axes import AXES, EXPOSED, Stream
from mpsim.program import COLLECTIVE, SEND, TICK, Vocabulary
from mpsim.program.rows import Rows
from mpsim.shipped import say
from mpsim.training.vocabulary import PARTS, TRAINING

RECORDED: Final = Vocabulary(
    kinds=(*TRAINING.kinds, "compute", "copy", "wait"),
    actions=TRAINING.actions,
    parts=(*PARTS, "compute"),
    computing=(*TRAINING.computing, "compute"),
)
"""Words of a recorded step: those of a simulated one, and what recordings do not tell apart."""

_PART = table(DATA, "recordings")["parts"]
_QUEUES = {"copy": Stream.COPY, "wait": Stream.HOST}
_STREAM = {axis.name: axis.streams[0] for axis in AXES}
_ENDINGS = (".json", ".json.gz", ".sqlite", ".pt.trace.json", ".trace.json.gz")
_MOST_FILES: Final = 4096
_FEWEST = 3  # matched collectives: fewer say nothing of a clock


@structs.dataclass(frozen=True, slots=True, eq=False)
class RecordedStep:
    """One step of a recording, all ranks on one clock."""

    # a row a span, ``engine`` is the tool; rows of one queue may overlap, as recorded ones do
    timeline: Timeline
    # rank of the job that each class is; None where the recording does not say
    ranks: tuple[int | None, ...]
    offsets_s: tuple[float, ...]  # what was taken from the clock of each rank [s]
    steps: int
    parts: dict[str, float]  # mean over ranks of the time by part; sums to the step time [s]

    @property
    def step_time_s(self) -> float:
        """From the first start to the last end of any rank [s]."""
        return self.timeline.step_time_s


def read_recordings(path: Path) -> list[Recorded]:
    """Read what one tool recorded of a job: a file, or a folder with one a rank.

    FormatError if a file is no recording, or a folder holds none or those of several tools;
    CalibrationError if a file is damaged, or nothing known wrote it.
    """
    files = [path]
    if path.is_dir():
        files = sorted(file for file in path.iterdir() if file.name.endswith(_ENDINGS))
        if not files or len(files) > _MOST_FILES:
            raise FormatError(
                f"{path}: is a folder with {len(files)} files that end in {', '.join(_ENDINGS)};"
                " needed one recording a rank"
            )
    recordings = []
    for file in files:
        recorded = read(file, spans=True)
        if not isinstance(recorded, Recorded) or not recorded.spans:
            raise FormatError(say("formats.no_recording", file=file))
        recordings.append(recorded)
    if len({item.format for item in recordings}) > 1:
        raise FormatError(f"{path}: holds recordings of several tools; give those of one")
    return recordings


def recorded_step(recordings: Sequence[Recorded]) -> RecordedStep:
    """Lay the ranks of a recording on one clock and take its step of median length.

    `recordings`: read with their spans, of one tool; a file may hold several devices. Where no step
    is marked, everything is one. FormatError if nothing was recorded, or two files are of one rank.
    """
    ranks = [spans for recorded in recordings for spans in recorded.spans]
    if not ranks or not any(spans.spans or spans.dense for spans in ranks):
        files = ", ".join(file for recorded in recordings for file in recorded.files)
        raise FormatError(say("formats.no_actions", files=files))
    known = [spans.rank for spans in ranks if spans.rank is not None]
    if len(set(known)) < len(known):
        raise FormatError(say("formats.same_rank", rank=statistics.mode(known)))
    ranks.sort(key=lambda spans: (spans.rank is None, spans.rank or 0, spans.name))
    offsets = clock_offsets(ranks)
    steps = min(len(spans.steps) for spans in ranks)
    chosen = median_step(ranks)
    # whole nanoseconds between the bases first: each alone is not exact as a float
    base = min(spans.base_ns for spans in ranks)
    cuts = [
        _Cut.of(
            spans,
            None if chosen is None else spans.steps[chosen],
            (spans.base_ns - base) * 1e-9 - offset,
        )
        for spans, offset in zip(ranks, offsets, strict=True)
    ]
    origin = min((cut.begin for cut in cuts if math.isfinite(cut.begin)), default=0.0)
    timeline = _timeline(cuts, origin, recordings[0].format)
    return RecordedStep(
        timeline=timeline,
        ranks=tuple(spans.rank for spans in ranks),
        offsets_s=tuple(offsets),
        steps=max(1, steps),
        parts=_parts(timeline),
    )


class _Cut(NamedTuple):
    """One step of one rank: what began in it, the shift of its times, and when it began [s]."""

    name: str
    spans: list[Span]
    dense: list[tuple[Dense, Array]]
    shift: float
    begin: float

    @classmethod
    def of(cls, rank: Spans, window: tuple[float, float] | None, shift: float) -> _Cut:
        """Spans that begin in a window; without one all of them, from the first."""
        low, high = window or (-math.inf, math.inf)
        spans = [span for span in rank.spans if low <= span.start <= high]
        dense = [(item, item.within(window)) for item in rank.dense]
        starts = [span.start for span in spans[:1]]
        starts += [float(times[:, 0].min()) for _, times in dense if len(times)]
        begin = window[0] if window else min(starts, default=math.inf)
        return cls(rank.name, spans, dense, shift, begin + shift)


def median_step(ranks: Sequence[Spans]) -> int | None:
    """Number of the step of median length; None where not every rank has one marked."""
    lengths = [
        max(end - start for start, end in steps)
        for steps in zip(*(spans.steps for spans in ranks), strict=False)
    ]
    return lengths.index(statistics.median_high(lengths)) if lengths else None


def clock_offsets(ranks: Sequence[Spans]) -> list[float]:
    """By how much each rank's clock is ahead of the first one's [s]; 0 if unknown."""
    offsets: list[float | None] = [0.0] + [None] * (len(ranks) - 1)
    pending = [0]
    while pending:  # neighbours of neighbours: a pipeline's ranks share messages with the next only
        here = pending.pop(0)
        for other in range(len(ranks)):
            if offsets[other] is not None:
                continue
            difference = _difference(ranks[here], ranks[other])
            if difference is not None:
                offsets[other] = (offsets[here] or 0.0) + difference
                pending.append(other)
    return [offset or 0.0 for offset in offsets]


def _difference(left: Spans, right: Spans) -> float | None:
    """How far the clock of `right` is ahead of `left` [s]; None without a common act."""
    apart = (right.base_ns - left.base_ns) * 1e-9
    calls = [_calls(spans) for spans in (left, right)]
    samples = [
        later - earlier + apart
        for key, ends in calls[0].items()
        if len(ends) == len(calls[1].get(key, ()))
        for earlier, later in zip(ends, calls[1][key], strict=True)
    ]
    if len(samples) < _FEWEST:
        return _by_messages(left, right, apart)
    middle = statistics.median(samples)
    spread = statistics.median(abs(sample - middle) for sample in samples)
    return middle if abs(middle) > 3 * spread else 0.0


def _calls(spans: Spans) -> dict[tuple[str, int, int], list[float]]:
    """Ends of the collectives of a rank, by what they are."""
    found: dict[tuple[str, int, int], list[float]] = {}
    for span in spans.spans:
        if span.kind == "collective" and span.stage < 0:
            found.setdefault((span.name, span.size, span.ranks), []).append(span.end)
    return found


def _by_messages(left: Spans, right: Spans, apart: float) -> float | None:
    """Difference of clocks by order: an action starts after the one whose result it takes."""
    forth, back = _delays(left, right, apart), _delays(right, left, -apart)
    if not forth or not back:
        return None
    # the quickest message takes its time plus the difference one way, minus it the other way
    difference = (min(forth) - min(back)) / 2
    return difference if min(*forth, *back) < 0 else 0.0


def _delays(left: Spans, right: Spans, apart: float) -> list[float]:
    """Times from ends of actions of `left` to those of `right` that take their results."""
    ends = {(s.kind == "forward", s.stage, s.microbatch): s.end for s in left.actions}
    found = []
    for span in right.actions:
        if span.kind == "weight_gradient":
            continue
        forward = span.kind == "forward"
        before = (forward, span.stage - 1 if forward else span.stage + 1, span.microbatch)
        if before in ends:
            found.append(span.end + apart - ends[before])
    return found


def _timeline(cuts: Sequence[_Cut], origin: float, engine: str) -> Timeline:
    """Rows of all spans, then of what is too many for a span each."""
    rank = [place for place, cut in enumerate(cuts) for _ in cut.spans]
    spans = [span for cut in cuts for span in cut.spans]
    shifts = [cut.shift - origin for cut in cuts]
    shift = np.array(shifts)[rank] if rank else np.zeros(0)
    start = _ticks(np.array([span.start for span in spans]) + shift)
    end = np.maximum(start, _ticks(np.array([span.end for span in spans]) + shift))
    stages = [sorted({span.stage for span in cut.spans if span.is_action}) for cut in cuts]
    rows = Rows(RECORDED)
    rows.add(
        len(spans),
        label=np.array([span.name[:60] for span in spans] or [""])[: len(spans)],
        rank=rank,
        stream=[_stream(span) for span in spans],
        kind=[_kind(span) for span in spans],
        stage=[span.stage for span in spans],
        chunk=[
            stages[place].index(span.stage) if span.is_action else -1
            for place, span in zip(rank, spans, strict=True)
        ],
        microbatch=[span.microbatch for span in spans],
        part=[
            RECORDED.part(_PART.get(span.kind) or f"exposed_{span.axis or 'dp'}") for span in spans
        ],
        duration=end - start,
        size=[float(span.size) for span in spans],
    )
    bounds = [np.stack([start, end])]
    for place, cut in enumerate(cuts):
        for item, times in cut.dense:
            begun, ended = _ticks(times + shifts[place]).T
            bounds.append(np.stack([begun, np.maximum(begun, ended)]))
            rows.add(
                len(times),
                label=item.name,
                rank=place,
                stream=_QUEUES.get(item.kind, Stream.COMPUTE),
                kind=RECORDED.kinds.index(item.kind),
                part=RECORDED.part(_PART[item.kind]),
                duration=bounds[-1][1] - bounds[-1][0],
            )
    start, end = np.concatenate(bounds, axis=1)
    program = rows.finish(
        rank_name=[cut.name for cut in cuts], class_size=np.ones(len(cuts), np.int64)
    )
    return Timeline(program=program, start=start, end=end, engine=engine)


def timed_actions(timeline: Timeline, rank: int) -> dict[str, tuple[float, float]]:
    """Start and end of every action of a rank by its token, in the order of their begins [s]."""
    program = timeline.program
    kinds = program.vocabulary.kinds
    letters = {place: LETTERS[name] for place, name in enumerate(kinds) if name in LETTERS}
    chosen = np.flatnonzero(
        (program.rank == rank) & np.isin(program.kind, list(letters)) & (program.stage >= 0)
    )
    found: dict[str, tuple[float, float]] = {}
    for row in chosen[np.argsort(timeline.start[chosen], kind="stable")].tolist():
        token = f"{program.stage[row]}{letters[int(program.kind[row])]}{program.microbatch[row]}"
        start, end = float(timeline.start[row]) * TICK, float(timeline.end[row]) * TICK
        first, last = found.get(token, (start, end))
        found[token] = first, max(last, end)  # an action may be several rows
    return found


def _ticks(seconds: Floats) -> Floats:
    # recordings are of nanoseconds: rounded to those, what touches on the tool's clock touches here
    return np.rint(np.maximum(seconds, 0.0) * 1e9) * (1e-9 / TICK)


def _stream(span: Span) -> Stream:
    """Queue that a span is drawn on."""
    if span.kind == "send":
        return Stream.SEND_NEXT
    if span.kind == "collective":
        return _STREAM[span.axis or "dp"]
    return _QUEUES.get(span.kind, Stream.COMPUTE)


def _kind(span: Span) -> int:
    if span.kind == "send":
        return SEND
    return COLLECTIVE if span.kind == "collective" else RECORDED.kinds.index(span.kind)


def _parts(timeline: Timeline) -> dict[str, float]:
    """Mean over ranks of the time by part [s].

    Notes
    -----
    What computes counts first, in the order of the parts; communication counts as exposed where
    nothing computes and no communication of an earlier part runs; the rest is ``bubble``.
    """
    program, whole = timeline.program, timeline.makespan
    totals = dict.fromkeys(RECORDED.parts, 0.0)
    computing = [RECORDED.part(name) for name in (*RECORDED.computing, "other")]
    communicating = map(RECORDED.part, EXPOSED)
    parts = (*computing, *communicating)
    for rank in range(program.ranks):
        mine = program.rank == rank
        covered, before = 0.0, np.zeros(len(program), dtype=bool)
        for part in parts:
            chosen = mine & (program.part == part)
            if not chosen.any():
                continue
            before |= chosen
            cover = Cover(timeline.start[before], timeline.end[before])
            reach = float(cover.until(np.array([np.inf]))[0])
            totals[RECORDED.parts[part]] += reach - covered
            covered = reach
        totals["bubble"] += whole - covered
    return {name: total * TICK / program.ranks for name, total in totals.items() if total > 0}
