"""The account of recorded steps: how much of each step every rank computed, computed again, waited
for data, a value, a rank or a link, and did nothing.

Every moment of a step counts once, in the order of `PARTS`, so that they sum to the step. Ranks of
one group leave a collective together: until the last of them arrived the others wait for that rank,
from then on for the wire. Shapes: R ranks, K steps, P parts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from mpsim import structs
from mpsim.arrays import Flags, Floats
from mpsim.engine.cover import Cover
from mpsim.errors import FormatError
from mpsim.formats.recorded_step import clock_offsets
from mpsim.formats.spans import Span, Spans

_NONE: Final = np.zeros((0, 2))
PARTS: Final = tuple("loader recompute busy wait wire sync launch begin near long small".split())
"""Parts of a step; ``launch`` is idle while the host launches, ``begin`` before the first operator,
``near`` in long gaps beside every collective, ``long`` in others, ``small`` between operators."""
CLASSES: Final = ("gemm", "attention", "memory")
# a long gap: seconds, of the step, of the median gap
_LONG_S, _LONG_SHARE, _LONG_RATIO = 4e-4, 1e-3, 30.0
_AT = 0.1  # of a gap: as near as this counts as beside it
_MOST = 0.75  # of the collectives
_NAMED = ("gemm", "attention")
_WAKES, _WAKE_SHARE = 2e-5, 0.2  # from a collective to the next kernel: seconds, of the gap


@structs.dataclass(frozen=True, slots=True)
class Call:
    """One collective of a step, on all ranks of its group that were recorded."""

    name: str
    axis: str
    size: int
    wire: float  # from the last arrival to the end [s]
    waits: Mapping[int, float]  # how long each rank, by place, waited for the last one [s]
    ranks: int = 0  # members of its group, recorded or not; 0 where the recording leaves that open
    lasts: float = 0.0  # from the last arrival until a member goes on, on average over them [s]


@structs.dataclass(frozen=True, slots=True, eq=False)
class Account:
    """Recorded steps, taken apart."""

    ranks: tuple[int, ...]
    seconds: Floats  # [R, K, P], they sum to `steps` over P [s]
    steps: Floats  # [R, K], lengths [s]
    # [R, K], seconds and numbers of kernels by class: keys ``gemm``, ``gemm calls`` and so on; of
    # those of a width or unfused too, as `Spans.marks` has them
    classes: Mapping[str, Floats]
    gaps: tuple[Floats, ...]  # long gaps of each rank [s]
    calls: tuple[tuple[Call, ...], ...]  # of each step
    device: bool  # whether kernels of a device were recorded, and not operators of the host
    # of each rank, the orders in which messages of the first step began and ended: ``s`` a send,
    # ``r`` a receive
    messages: tuple[frozenset[str], ...] = ()

    def of(self, part: str) -> Floats:
        """Mean over the steps of a part, by rank [s]."""
        return np.asarray(self.seconds[:, :, PARTS.index(part)].mean(axis=1))


def account(ranks: Sequence[Spans]) -> Account:
    """Take recorded steps apart. FormatError if nothing was recorded."""
    windows = _windows(ranks)
    shifts = [
        (spans.base_ns - ranks[0].base_ns) * 1e-9 - offset
        for spans, offset in zip(ranks, clock_offsets(ranks), strict=True)
    ]
    count = windows.shape[1]
    calls = tuple(_calls(ranks, windows[:, step], shifts) for step in range(count))
    waits = [_waits(calls, place) for place in range(len(ranks))]
    taken = [_taken(spans, windows[place], waits[place]) for place, spans in enumerate(ranks)]
    classes: dict[str, Floats] = {}
    odd = {mark for spans in ranks for mark in spans.marks if mark.startswith(CLASSES)}
    for kind in sorted({*CLASSES, *odd}):
        parts = [_class(spans, windows[place], kind) for place, spans in enumerate(ranks)]
        classes[kind], classes[f"{kind} calls"] = (
            np.array(part) for part in zip(*parts, strict=True)
        )
    return Account(
        ranks=tuple(n if spans.rank is None else spans.rank for n, spans in enumerate(ranks)),
        seconds=np.array([seconds for seconds, _ in taken]),
        steps=windows[:, :, 1] - windows[:, :, 0],
        classes=classes,
        gaps=tuple(gaps for _, gaps in taken),
        calls=tuple(tuple(call for call, _ in step) for step in calls),
        device=any("host" in spans.marks for spans in ranks),
        messages=tuple(_messages(spans, windows[n, 0]) for n, spans in enumerate(ranks)),
    )


def _messages(spans: Spans, window: Floats) -> frozenset[str]:
    """Orders of the messages of a step, by begins (receives may be posted ahead) and by ends."""
    sent = [s for s in spans.spans if s.kind == "send" and window[0] <= s.start < window[1]]
    orders = (
        sorted((getattr(span, edge), span.name == "recv") for span in sent)
        for edge in ("start", "end")
    )
    return frozenset("".join("sr"[received] for _, received in order) for order in orders)


def _windows(ranks: Sequence[Spans]) -> Floats:
    """Start and end of every step that all ranks marked, or of everything [R, K, 2]."""
    count = min(len(spans.steps) for spans in ranks)
    if count:
        return np.array([spans.steps[:count] for spans in ranks])
    found = []
    for spans in ranks:
        times = [each for each in _intervals(spans).values() if len(each)]
        if not times:
            raise FormatError(f"{spans.name}: holds nothing with a time; nothing to explain")
        found.append(
            [(min(each[:, 0].min() for each in times), max(each[:, 1].max() for each in times))]
        )
    return np.array(found)


def _intervals(spans: Spans) -> dict[str, Floats]:
    """Intervals of a rank by what they are: its marks, what computes and what communicates."""
    computes = [item.times for item in spans.dense]
    own = [
        (span.start, span.end)
        for span in spans.spans
        if span.kind not in ("collective", "send", "wait")
    ]
    busy = spans.marks.get("busy", np.concatenate([*computes, np.array(own).reshape(-1, 2)]))
    sent = [span for span in spans.spans if span.kind in ("collective", "send")]
    wire = [(span.start, span.end) for span in sent if span.name != "barrier"]
    wire += spans.marks.get("sent", _NONE).tolist()
    barriers = [(span.start, span.end) for span in sent if span.name == "barrier"]
    sync = np.concatenate([spans.marks.get("sync", _NONE), np.array(barriers).reshape(-1, 2)])
    return {**spans.marks, "busy": busy, "wire": np.array(wire, float).reshape(-1, 2), "sync": sync}


def _taken(spans: Spans, windows: Floats, waits: Floats) -> tuple[Floats, Floats]:
    """Seconds of every step by part [K, P], and its long gaps."""
    known = {**_intervals(spans), "wait": waits, "launch": spans.marks.get("host", _NONE)}
    start, end = windows.T
    busy = np.concatenate([known.get(part, _NONE) for part in PARTS[:3]])
    _, since, until = Cover(*busy.T).rest.cut(start, end)
    for part in ("wait", "wire"):
        known[part] = _held_up(known[part], known["wire"], since, until)
    columns, covered = [], np.zeros(len(windows))
    before = _NONE
    for part in PARTS[:-4]:
        before = np.concatenate([before, known.get(part, _NONE)])
        reach = Cover(*before.T).within(start, end)
        columns.append(reach - covered)
        covered = reach
    # everything but launches: a gap is one whether or not the host launched in it
    window, begins, ends = Cover(*before.T).rest.cut(start, end)
    length = ends - begins
    median = float(np.median(length)) if len(length) else 0.0
    step = float((end - start).mean())
    long = length > max(_LONG_S, _LONG_SHARE * step, _LONG_RATIO * median)
    # a range says what is loading: then the rest of the begin is a pause like others
    loads = Cover(*spans.marks.get("loader", _NONE).T).within(start, end).any()
    first = long & (begins <= start[window] + _AT * length) & ~loads
    near = np.zeros_like(long)
    pauses = np.flatnonzero(long & ~first)
    near[pauses] = _beside(spans, begins[pauses], ends[pauses])
    kinds = (first, near, long & ~first & ~near)
    found = [np.bincount(window, np.where(kind, length, 0.0), len(windows)) for kind in kinds]
    rest = end - start - covered - sum(found)
    return np.column_stack([*columns, *found, rest]), length[kinds[-1]]


def _beside(spans: Spans, begins: Floats, ends: Floats) -> Flags:
    """Gaps beside a collective, without a product between, if nearly every collective has its own:
    its hook or its transport waits, and not now and then something else.
    """
    calls = [span for span in spans.spans if span.kind == "collective" and span.name != "barrier"]
    times = np.array([(span.start, span.end) for span in calls]).reshape(-1, 2)
    found, has = np.zeros(len(begins), dtype=bool), set[int]()
    if not len(times) or not len(begins):
        return found
    works = np.sort(np.concatenate([spans.marks.get(kind, _NONE)[:, 0] for kind in _NAMED]))
    for side, edge in ((0, ends), (1, begins)):
        apart = abs(times[None, :, side] - edge[:, None])
        nearest = apart.argmin(axis=1)
        between = np.searchsorted(works, times[nearest, side]) != np.searchsorted(works, edge)
        beside = (apart.min(axis=1) <= _AT * (ends - begins)) & ~between
        found |= beside
        has.update(nearest[beside].tolist())
    # a pause that happens to fall beside one of them is longer than what all of them have
    lengths = (ends - begins)[found]
    usual = _LONG_RATIO * np.median(lengths) if len(lengths) else 0.0
    return found & (len(has) > _MOST * len(times)) & (ends - begins <= usual)


def _held_up(times: Floats, wire: Floats, since: Floats, until: Floats) -> Floats:
    """Intervals within gaps that a collective ended: what runs on beside kernels held up nobody."""
    ends = np.sort(np.concatenate([[-np.inf], wire[:, 1], [np.inf]]))
    near = np.maximum(_WAKES, _WAKE_SHARE * (until - since))
    # threads of a host note the end a little before or after the other goes on
    after = np.searchsorted(ends, until)
    held = np.minimum(ends[after] - until, until - ends[after - 1]) <= near
    _, begin, end = Cover(since[held], until[held]).cut(*times.T)
    return np.column_stack([begin, end])


def _class(spans: Spans, windows: Floats, kind: str) -> tuple[Floats, Floats]:
    """Seconds and number of a class's kernels in every step, without those that run again [K]."""
    times = spans.marks.get(kind, _NONE)
    later = CLASSES[CLASSES.index(kind.split(" ", maxsplit=1)[0]) + 1 :]
    others = [spans.marks.get(each, _NONE) for each in ("recompute", *later)]
    times = times[~Cover(*np.concatenate(others).T).contains(times[:, 0])]
    begun = np.sort(times[:, 0])
    count = np.searchsorted(begun, windows[:, 1]) - np.searchsorted(begun, windows[:, 0])
    return Cover(*times.T).within(*windows.T), count.astype(float)


_Found = tuple[Call, Mapping[int, tuple[float, float]]]


def _calls(ranks: Sequence[Spans], windows: Floats, shifts: Sequence[float]) -> tuple[_Found, ...]:
    """Collectives of a step by group and order, each with when a rank waited, on its own clock."""
    queues: dict[tuple[object, ...], dict[int, list[Span]]] = {}
    only = [_only_group(spans, len(ranks)) for spans in ranks]
    for place, spans in enumerate(ranks):
        for span in spans.spans:
            if (
                span.kind == "collective"
                and span.stage < 0
                and span.name != "barrier"
                and windows[place, 0] <= span.start < windows[place, 1]
            ):
                group = _group(spans, place, span.ranks, len(ranks))
                key = (span.name, span.size, span.axis, group)
                queues.setdefault(key, {}).setdefault(place, []).append(span)
    found: list[_Found] = []
    for (name, size, axis, _), members in queues.items():
        if len({len(spans) for spans in members.values()}) > 1 or len(members) < 2:
            continue
        for together in zip(*members.values(), strict=True):
            moved = dict(zip(members, together, strict=True))
            arrival = max(span.start + shifts[place] for place, span in moved.items())
            inside = {
                place: (span.start, min(max(arrival - shifts[place], span.start), span.end))
                for place, span in moved.items()
            }
            left = [span.end + shifts[place] - arrival for place, span in moved.items()]
            waits = {place: until - since for place, (since, until) in inside.items()}
            sizes = {span.ranks or only[place] for place, span in moved.items()}
            stated = sizes.pop() if len(sizes) == 1 else 0
            lasts = float(np.mean(np.maximum(left, 0.0)))
            call = Call(
                str(name), str(axis), int(str(size)), max(min(left), 0.0), waits, stated, lasts
            )
            found.append((call, inside))
    return tuple(found)


def _group(spans: Spans, place: int, size: int, recorded: int) -> tuple[int, ...]:
    """Ranks of a collective's group: the one of that size that the trace lists, or neighbours."""
    if not 1 < size < recorded:
        return ()
    listed = {
        members
        for members in spans.groups.values()
        if len(members) == size and spans.rank in members
    }
    return listed.pop() if len(listed) == 1 else (place // size,)


def _only_group(spans: Spans, recorded: int) -> int:
    """Members of the one group that a trace lists, all ranks without any; 0 of several."""
    listed = {
        members
        for members in spans.groups.values()
        if len(members) > 1 and (spans.rank is None or spans.rank in members)
    }
    return len(listed.pop()) if len(listed) == 1 else 0 if listed else recorded


def _waits(calls: Sequence[Sequence[_Found]], place: int) -> Floats:
    """Intervals in which a rank waited for others [n, 2]."""
    waits = [inside[place] for step in calls for _, inside in step if place in inside]
    return np.array(waits, float).reshape(-1, 2)
