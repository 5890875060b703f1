"""Templates: the inside of an action, kernel by kernel, evaluated once and tiled.

A *block* is one layer's forward or backward (or the embedding's, or the head's) on one rank:
kernels on the compute stream and collectives on the streams of their communicators. A block starts
when the one before it has ended on every stream, so a stage's action is its blocks end to end, and
equal layers need to be evaluated only once.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mpsim.arrays import Floats, Ints
from mpsim.cost import COLLECTIVES, KERNELS, Load, StageCosts, Transfer, load_of
from mpsim.memo import Memo, remembered
from mpsim.parallel import AXES, Communication, Compute, Item, Synchronization
from mpsim.program.csr import Column, Columns
from mpsim.program.program import TICK, Stream, Template, Vocabulary
from mpsim.workload import Operator

_COLUMNS = {
    **dict.fromkeys(("stream", "part", "collective"), np.int8),
    **dict.fromkeys(("start", "duration", "flops", "up_bytes", "out_bytes", "size"), np.float64),
}
"""Columns of a template that a placed kernel has a field for."""
_STRETCHED = 512  # templates that stay ready: a step asks for each of its actions again
_AXIS = {group.name: axis for axis in AXES for group in axis.communicators}


def ticks(seconds: float | Floats) -> Floats:
    """Round seconds to whole ticks, which engines add without error."""
    return np.rint(np.asarray(seconds, dtype=np.float64) / TICK)


class _Placed(NamedTuple):
    """One kernel or collective of a block with its times; `before` are those it waited for."""

    name: str
    stream: Stream
    part: int
    start: float
    duration: float
    before: tuple[int, ...]
    item: Communication | None = None
    flops: float = 0.0
    up_bytes: float = 0.0
    out_bytes: float = 0.0

    @property
    def end(self) -> float:
        return self.start + self.duration

    @property
    def collective(self) -> int:
        """Index of its kind; a step of a ring is a message from each to the next."""
        if self.item is None:
            return -1
        return COLLECTIVES.index("send_recv" if self.item.kind == "send" else self.item.kind)

    @property
    def size(self) -> float:
        return 0.0 if self.item is None else self.item.size


class _Block:
    """A block being placed: what was issued so far, and which collectives nobody has waited for.

    Parameters
    ----------
    queue : tuple of float, optional
        Host time of issuing a kernel of the block, host and device time of a kernel shorter than
        its launch [ticks]; without it the host is always ahead.
    ahead : float
        How far the host is ahead of the device when the block begins [ticks].
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        queue: tuple[float, float, float] | None = None,
        ahead: float = 0.0,
    ) -> None:
        self.queue, self.host = queue, -ahead  # when the host has issued all so far
        self.placed: list[_Placed] = []
        self.beside: list[tuple[float, float, float]] = []
        self.vocabulary = vocabulary
        self.parts = np.zeros(len(vocabulary.parts))
        self.now = 0.0  # end of the last kernel
        self.kernel: int | None = None
        self.pending: dict[int, Communication] = {}  # by place
        self.exposed: dict[int, float] = {}
        self.last: dict[Stream, int] = {}
        self.tagged: dict[str, int] = {}

    def compute(self, kernel: Compute, work: float, part: int) -> None:
        """Issue a kernel of `work` ticks, counted as a part, once the host has come to it."""
        awaited = self.wait(kernel)
        if self.queue is not None:
            self.host += self.queue[0]
            if self.host > self.now:
                self._idle("host launch", self.host - self.now, self._after(awaited))
        before = self._after(awaited)
        duration = self._slowed(work) if self.beside else work
        self.kernel = len(self.placed)
        name, flops = kernel.operator.name, kernel.operator.flops
        self.placed.append(
            _Placed(name, Stream.COMPUTE, part, self.now, duration, before, flops=flops)
        )
        self.parts[part] += duration
        self.now += duration

    def _slowed(self, work: float) -> float:
        """Ticks of a kernel of `work` alone, beside the collectives under way from now on."""
        now = self.now
        self.beside = [span for span in self.beside if span[1] > now]
        for begun, end, lost in self.beside:  # one stream carries them, so one after the other
            start = max(begun, now)
            if work <= start - now:
                break
            work -= start - now
            meanwhile = (end - start) * (1.0 - lost)
            if work <= meanwhile:
                return float(np.rint(start + work / (1.0 - lost) - self.now))
            now, work = end, work - meanwhile
        return float(np.rint(now + work - self.now))

    def communicate(self, item: Communication, cost: Transfer, lost: float = 0.0) -> None:
        """Issue a collective, beside which kernels lose a share of their rate."""
        axis = _AXIS[item.axis]
        stream = axis.streams[0]
        named = (self.tagged[tag] for tag in sorted(item.needs) if tag in self.tagged)
        waited = (self.kernel, self.last.get(stream), *named)
        before = tuple(dict.fromkeys(i for i in waited if i is not None))
        start = max([self.now, *(self.placed[i].end for i in before)])
        place = len(self.placed)
        self.last[stream] = place
        self.pending[place] = item
        if item.tag:
            self.tagged[item.tag] = place
        seconds, up, out = cost
        part, duration = self.vocabulary.part(axis.part), float(round(seconds / TICK))
        if lost:
            self.beside.append((start, start + duration, lost))
        self.placed.append(
            _Placed(item.name, stream, part, start, duration, before, item, 0.0, up, out)
        )

    def wait(self, kernel: Compute | None) -> tuple[int, ...]:
        """Advance to when a kernel may start (None: launched next); idle time is its wait's."""
        if not self.pending:  # as before most kernels
            return ()
        held = [place for place, item in self.pending.items() if item.holds(kernel)]
        return self._await(tuple(held)) if held else ()

    def _await(self, awaited: tuple[int, ...]) -> tuple[int, ...]:
        for place in awaited:
            collective = self.placed[place]
            if collective.end > self.now:  # waited for once, as it then leaves `pending`
                self.exposed[place] = collective.end - self.now
                self.parts[collective.part] += self.exposed[place]
            self.now = max(self.now, collective.end)
            del self.pending[place]
        return awaited

    def drain(self) -> tuple[int, ...]:
        """Wait for every collective."""
        return self._await(tuple(self.pending))

    def block_launches(self) -> None:
        """Let everything that follows wait for everything before."""
        self._idle("launch blocked", 0.0, self._after(self.drain()))

    def small_kernels(self, launches: int) -> None:
        """Run kernels shorter than their launch, one after the other as the host comes to them."""
        if self.queue is not None and launches:
            _, launch, alone = self.queue
            self.host += launches * launch
            end = max(self.host, self.now + launches * alone)
            self._idle("small kernels", end - self.now, self._after(()))

    def synchronize(self, seconds: float) -> None:
        """Leave the device idle while the host, which waited for it, launches the next kernel."""
        if seconds > 0 or self.queue is not None:
            awaited = self.wait(None)
            if seconds > 0:
                self._idle("host synchronisation", float(ticks(seconds)), self._after(awaited))
            self.host = self.now

    def _after(self, awaited: tuple[int, ...]) -> tuple[int, ...]:
        """These and the last kernel."""
        return awaited if self.kernel is None else (*awaited, self.kernel)

    def wait_for_host(self, seconds: float) -> None:
        """Extend the block to the time its launches take."""
        missing = float(ticks(seconds)) - self.now
        if missing > 0:
            before = tuple(
                sorted({*self.last.values(), *([] if self.kernel is None else [self.kernel])})
            )
            self._idle("host launch", missing, before)

    def nothing(self) -> None:
        """Issue a kernel that takes no time."""
        self.kernel = len(self.placed)
        part = self.vocabulary.part("other")
        self.placed.append(_Placed("nothing", Stream.COMPUTE, part, self.now, 0.0, ()))

    def _idle(self, name: str, duration: float, before: tuple[int, ...]) -> None:
        self.kernel = len(self.placed)
        host = self.vocabulary.part("host")
        self.placed.append(_Placed(name, Stream.COMPUTE, host, self.now, duration, before))
        self.parts[host] += duration
        self.now += duration


def evaluate_block(
    name: str,
    items: Sequence[Item],
    costs: StageCosts,
    *,
    vocabulary: Vocabulary,
    part_of: Callable[[Compute], int],
    host_seconds: float = 0.0,
    synchronization_seconds: float = 0.0,
    launch_seconds: float = 0.0,
    small_seconds: float = 0.0,
    launch_blocking: bool = False,
    shares: bool = True,
    known: Memo[tuple[object, ...], Template] | None = None,
) -> Template:
    """Place the kernels and collectives of a block in time.

    `items`: in issue order. `vocabulary`: of the job. `part_of`: part of the vocabulary that the
    time of a kernel counts as. `host_seconds`: time the host needs to launch the block; a block
    that ends sooner is extended by a wait for the host [s]. `synchronization_seconds`: idle time of
    the device after each wait of the host for it [s]. `launch_seconds`: host time of launching one
    of the kernels that come with a wait of the host [s]. `small_seconds`: device time of one of
    them [s]. `launch_blocking`: whether the host waits for every kernel before it launches the
    next: launches add to the block's time, and nothing runs beside anything else. `shares`: whether
    kernels are slower on average beside collectives that take of the device; not so where the
    engine follows them one by one. `known`: templates of the same block by their prices: one that
    is there is returned. The layer number is 0 throughout.

    Notes
    -----
    A kernel starts when the one before it and every collective it waits for have ended; a
    collective starts when the kernel before it, the collective before it on its stream and those
    whose tags it needs have ended. Compute idle inside the block is counted as exposed time of the
    collective that was awaited; no other idle time can occur.

    Where the host waits for the device it falls back to it, and is ahead again as kernels run
    longer than launches: the device idles for ``max over k of (issue of kernel k - end of kernel k
    - 1)``. The block begins as far behind its host as it ends, as layers follow each other.
    """
    kernels = [item.operator for item in items if isinstance(item, Compute)]
    # all kernels of a block are one call: the cost model answers arrays much faster than one by one
    alone = costs.kernels(kernels)
    sent = [
        (costs.collective(item), costs.lost(item) if shares else 0.0)
        for item in items
        if isinstance(item, Communication)
    ]
    priced = (costs.accelerator, alone.tobytes(), *sent) if known is not None else ()
    if known and (before := known.get(priced)) is not None:
        return before
    small = sum(item.launches for item in items if isinstance(item, Synchronization))
    queue = None
    if small and not launch_blocking:
        issued = max(0.0, host_seconds - small * launch_seconds) / max(len(kernels), 1)
        each, launch, run = ticks(np.array([issued, launch_seconds, small_seconds])).tolist()
        queue = each, launch, run

    took = ticks(alone).tolist()

    def place(ahead: float) -> _Block:
        works, moves = iter(took), iter(sent)
        block = _Block(vocabulary, queue, ahead)
        for item in items:
            if isinstance(item, Compute):
                block.compute(item, next(works), part_of(item))
            elif isinstance(item, Synchronization):
                block.small_kernels(item.launches)
                if item.count:
                    block.synchronize(item.count * synchronization_seconds)
            else:
                block.communicate(item, *next(moves))
                if launch_blocking:
                    block.block_launches()
        block.drain()
        if not block.placed:  # what waits for the block still has something to wait for
            block.nothing()
        return block

    block = place(0.0)
    if queue is not None:
        block = place(block.now - block.host)
    block.wait_for_host(host_seconds + (block.now * TICK if launch_blocking else 0.0))
    template = _as_template(name, block).but(
        load_seconds=_by_load(kernels, alone), **costs.work(kernels)._asdict()
    )
    if known is not None:
        known[priced] = template
    return template


def _by_load(kernels: Sequence[Operator], seconds: Floats) -> tuple[float, ...]:
    """Time of kernels by what they draw power for, in the order of `KERNELS`."""
    loads = np.array([KERNELS.index(load_of(kernel)) for kernel in kernels], dtype=np.intp)
    sums = np.bincount(loads, weights=seconds, minlength=len(KERNELS))
    return tuple(sums.tolist())


def _as_template(name: str, block: _Block) -> Template:
    placed = block.placed
    fields: Columns = dict(zip(_Placed._fields, zip(*placed, strict=True), strict=True))
    fields["collective"] = [entry.collective for entry in placed]
    fields["size"] = [entry.size for entry in placed]
    index = {operation: i for i, operation in enumerate(dict.fromkeys(fields["name"]))}
    before = fields["before"]
    columns: Columns = {each: np.array(fields[each], kind) for each, kind in _COLUMNS.items()}
    return Template(
        name=name,
        names=tuple(index),
        name_index=np.array([*map(index.__getitem__, fields["name"])], dtype=np.int16),
        layer=np.zeros(len(placed), dtype=np.int32),
        before_ptr=np.cumsum([0, *map(len, before)], dtype=np.int32),
        before=np.array([*itertools.chain(*before)], dtype=np.int32),
        parts=block.parts,
        exposed=np.array([block.exposed.get(i, 0.0) for i in range(len(placed))]),
        **columns,
    )


def _joined(templates: Sequence[Template]) -> Columns:
    """Columns of templates end to end, with where each kernel starts and the parts of all."""
    # layers repeat: each distinct one is looked at once, and taken as often as it stands there
    took = {template: template.ticks for template in dict.fromkeys(templates)}
    begins = np.cumsum([0, *(len(template.start) for template in took)])
    kernels = dict(zip(took, map(np.arange, begins, begins[1:]), strict=False))
    places = [kernels[template] for template in templates]
    place, offset = np.concatenate(places), np.cumsum([0.0, *map(took.__getitem__, templates)])

    def column(name: str) -> Column:
        joined: Column = np.concatenate([getattr(each, name) for each in took])[place]
        return joined

    return {
        **{name: column(name) for name in (*_COLUMNS, "exposed")},
        "start": column("start") + np.repeat(offset[:-1], [*map(len, places)]),
        "parts": np.sum([template.parts for template in templates], axis=0),
    }


def concatenate(name: str, blocks: Sequence[tuple[int, Template]]) -> Template:
    """Lay blocks end to end: each starts when the one before it has ended on every stream.

    `blocks`: in the order they run; `layer` counts from the stage's first, -1 outside the layers.
    At least one.
    """
    templates = [block for _, block in blocks]
    if len(blocks) == 1:
        ((layer, only),) = blocks
        return only.but(name=name, layer=np.full_like(only.layer, layer))
    names = tuple(dict.fromkeys(name for block in templates for name in block.names))
    index = {operation: i for i, operation in enumerate(names)}
    renamed = {
        block: np.array([index[name] for name in block.names], dtype=np.int16)[block.name_index]
        for block in dict.fromkeys(templates)
    }
    before_ptr, before = _joined_edges(templates)
    return Template(
        name=name,
        names=names,
        name_index=np.concatenate([renamed[block] for block in templates]),
        layer=np.repeat([layer for layer, _ in blocks], [len(b.stream) for b in templates]).astype(
            np.int32
        ),
        before_ptr=before_ptr,
        before=before,
        executed_flops=math.fsum(block.executed_flops for block in templates),
        peak_seconds=math.fsum(block.peak_seconds for block in templates),
        load_seconds=tuple(
            map(math.fsum, zip(*(block.load_seconds for block in templates), strict=True))
        ),
        memory_seconds=math.fsum(block.memory_seconds for block in templates),
        **_joined(templates),
    )


@remembered(_STRETCHED)
def stretched(template: Template, factor: float) -> Template:
    """The same template with every kernel and collective longer by a factor.

    Ends are whole ticks: what began when something ended still does; the largest part has the rest.
    """
    start = np.rint(template.start * factor)
    end = np.rint((template.start + template.duration) * factor)
    parts = np.rint(template.parts * factor)
    largest = int(np.argmax(parts))
    parts[largest] += np.rint(template.ticks * factor) - parts.sum()
    return template.but(
        start=start,
        duration=end - start,
        parts=parts,
        exposed=_stretched_waits(template, end, factor, parts),
    )


def _stretched_waits(template: Template, end: Floats, factor: float, parts: Floats) -> Floats:
    """Waits of a stretched template up to new ends; each part's longest takes the rounding."""
    waited = template.exposed > 0
    if not waited.any():
        return template.exposed
    since = np.rint((template.start + template.duration - template.exposed) * factor)
    exposed = np.where(waited, end - since, 0.0)
    for part in set(template.part[waited].tolist()):
        mine = np.flatnonzero(waited & (template.part == part))
        exposed[mine[np.argmax(exposed[mine])]] += parts[part] - exposed[mine].sum()
    return exposed


def exits(template: Template) -> Ints:
    """Last kernel on each stream: when these have ended, the template has."""
    # a later kernel takes the place of an earlier one of its stream
    last = {stream: kernel for kernel, stream in enumerate(template.stream.tolist())}
    return np.sort(np.array(list(last.values()), dtype=np.int64))


def _joined_edges(templates: Sequence[Template]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Edges of blocks end to end: what waited for nothing waits for exits of the one before."""
    size = [len(block.stream) for block in templates]
    # layers repeat: each pair of neighbours is worked out once, however many layers the stage has
    known: dict[tuple[Template | None, Template], tuple[Column, Column]] = {}
    counts: list[Column] = [np.zeros(1, dtype=np.int64)]
    edges: list[Column] = [np.zeros(0, dtype=np.int64)]
    earlier = [None, *templates]
    for previous, block, at in zip(earlier, templates, np.cumsum([0, *size]), strict=False):
        pair = (previous, block)
        if pair not in known:
            known[pair] = _edges_after(previous, block)
        count, before = known[pair]
        counts.append(count)
        edges.append(before + at)
    return np.cumsum(np.concatenate(counts)).astype(np.int32), np.concatenate(edges).astype(
        np.int32
    )


def _edges_after(previous: Template | None, block: Template) -> tuple[Ints, Ints]:
    """Number of kernels that each waits for, and which, counted from the block's first."""
    ends = (exits(previous) - len(previous.stream)).tolist() if previous else []
    before = block.before.tolist()
    waits = [
        before[begin:end] if begin < end else ends
        for begin, end in itertools.pairwise(block.before_ptr.tolist())
    ]
    count = [len(waited) for waited in waits]
    return np.array(count), np.array([*itertools.chain(*waits)], dtype=np.int64)


def one_kernel(vocabulary: Vocabulary, name: str, part: str, duration: float) -> Template:
    """A template of one kernel that memory bounds, takes so many ticks and counts as a part."""
    block, number = _Block(vocabulary), vocabulary.part(part)
    block.placed.append(_Placed(name, Stream.COMPUTE, number, 0.0, duration, ()))
    block.parts[number] = duration
    loads = tuple(duration * TICK if load is Load.STREAMS else 0.0 for load in KERNELS)
    return _as_template(name, block).but(load_seconds=loads)


@remembered(8)
def empty_template(vocabulary: Vocabulary) -> Template:
    """A row that takes no time: what it does is in another one."""
    return one_kernel(vocabulary, "nothing", "other", 0.0)
