"""Torch's caching allocator: which block an allocation gets, and what is lost between.

Source: pytorch c10/cuda/CUDACachingAllocator.cpp and headers (2.13): sizes are rounded up to 512 B;
up to 1 MiB come from segments of 2 MiB, up to 10 MiB from 20 MiB, larger ones from segments of
their own in steps of 2 MiB. The best fitting free block of the same stream and pool is taken, and
split if enough is left. An expandable segment is one range a stream and pool, mapped by page.
"""

from __future__ import annotations

import bisect
import math

from mpsim import structs

_MIB = 2**20
_ROUNDING, _SMALL, _LARGE = 512, _MIB, 10 * _MIB
_SMALL_SEGMENT, _LARGE_SEGMENT, _STEP = 2 * _MIB, 20 * _MIB, 2 * _MIB
_RANGE = 2**44  # addresses of an expandable segment; more than any device has


@structs.dataclass(slots=True, eq=False)
class Block:
    """A part of a segment, handed out or free."""

    segment: Segment
    address: int  # address, size: where it begins, and its length [B]
    size: int
    requested: int = 0  # what was asked for; 0 while it is free [B]
    name: str = ""  # what it holds


@structs.dataclass(slots=True, eq=False)
class Segment:
    """Memory that the driver handed out, cut into blocks in a row; `size` is mapped [B]."""

    address: int
    size: int
    stream: int
    small: bool
    expandable: bool = False
    blocks: list[Block] = structs.field(default_factory=list)


class CachingAllocator:
    """Blocks and segments of one device. `expandable`: ``expandable_segments:True`` of
    PYTORCH_ALLOC_CONF. `limit`: memory of the device [B]; segments that expand have none.

    Notes
    -----
    Segments that nothing lies in are given back once the driver has no more (torch's
    release_cached_blocks); where that is not enough, there is a MemoryError.

    Examples
    --------
    >>> allocator = CachingAllocator()
    >>> block = allocator.allocate(700, stream=0)
    >>> block.size, allocator.allocated, allocator.reserved
    (1024, 1024, 2097152)
    """

    def __init__(self, *, expandable: bool = False, limit: float = math.inf) -> None:
        self._limit = limit
        self.segments: list[Segment] = []
        self.allocated = self.reserved = 0
        self._expandable, self._next = expandable, _RANGE
        self._free: dict[tuple[int, bool], list[tuple[int, int, Block]]] = {}

    def allocate(self, size: int, *, stream: int = 0, name: str = "") -> Block:
        """Hand out a block of at least `size` [B]."""
        rounded = max(-(-size // _ROUNDING), 1) * _ROUNDING
        small = rounded <= _SMALL
        block = self._best(rounded, stream, small) or self._grown(rounded, stream, small)
        left = block.size - rounded
        if left >= _ROUNDING if small or self._expandable else left > _SMALL:
            self._split(block, rounded)
        block.requested, block.name = size, name
        self.allocated += block.size
        return block

    def free(self, block: Block) -> None:
        """Take a block back, and join it with free neighbours."""
        self.allocated -= block.size
        block.requested, block.name = 0, ""
        blocks = block.segment.blocks
        place = _place(blocks, block)
        for at in (place + 1, place - 1):  # the later one first: places before it stay
            if 0 <= at < len(blocks) and not blocks[at].requested:
                neighbour = blocks.pop(at)
                self._drop(neighbour)
                block.address = min(block.address, neighbour.address)
                block.size += neighbour.size
        self._add(block)

    def _pool(self, segment: Segment) -> list[tuple[int, int, Block]]:
        return self._free.setdefault((segment.stream, segment.small), [])

    def _add(self, block: Block) -> None:
        bisect.insort(self._pool(block.segment), (block.size, block.address, block))

    def _drop(self, block: Block) -> None:
        pool = self._pool(block.segment)
        del pool[bisect.bisect_left(pool, (block.size, block.address))]

    def _best(self, size: int, stream: int, small: bool) -> Block | None:
        """The smallest free block that is large enough, of the lowest address."""
        pool = self._free.get((stream, small), [])
        place = bisect.bisect_left(pool, (size,))
        return pool.pop(place)[2] if place < len(pool) else None

    def _grown(self, size: int, stream: int, small: bool) -> Block:
        """A block of memory that the driver hands out."""
        if self._expandable:
            return self._mapped(size, stream, small)
        own = -(-size // _STEP) * _STEP
        whole = _SMALL_SEGMENT if small else _LARGE_SEGMENT if size < _LARGE else own
        if self.reserved + whole > self._limit:
            self._release(self._limit - whole)
        segment = Segment(self._next, whole, stream, small)
        segment.blocks.append(Block(segment, segment.address, whole))
        self.segments.append(segment)
        self._next, self.reserved = self._next + whole, self.reserved + whole
        return segment.blocks[0]

    def _release(self, most: float) -> None:
        """Give back every segment that is one free block, so that at most so much is reserved."""
        for segment in self.segments[:]:
            if len(segment.blocks) == 1 and not segment.blocks[0].requested:
                self._drop(segment.blocks[0])
                self.segments.remove(segment)
                self.reserved -= segment.size
        if self.reserved > most:
            raise MemoryError

    def _mapped(self, size: int, stream: int, small: bool) -> Block:
        """The free end of an expandable segment, with as many pages more as are missing."""
        alike = (each for each in self.segments if (each.stream, each.small) == (stream, small))
        segment = next(alike, None)
        if segment is None:
            segment = Segment(self._next, 0, stream, small, expandable=True)
            self._next += _RANGE
            self.segments.append(segment)
        last = segment.blocks[-1] if segment.blocks else None
        if last is None or last.requested:
            last = Block(segment, segment.address + segment.size, 0)
            segment.blocks.append(last)
        else:
            self._drop(last)
        page = _SMALL_SEGMENT if small else _LARGE_SEGMENT
        more = -(-(size - last.size) // page) * page
        last.size, segment.size = last.size + more, segment.size + more
        self.reserved += more
        return last

    def _split(self, block: Block, size: int) -> None:
        """Cut what is left off a block."""
        rest = Block(block.segment, block.address + size, block.size - size)
        block.size = size
        blocks = block.segment.blocks
        blocks.insert(_place(blocks, block) + 1, rest)
        self._add(rest)


def _place(blocks: list[Block], block: Block) -> int:
    return bisect.bisect_left(blocks, block.address, key=lambda each: each.address)
