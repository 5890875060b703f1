"""Prefix cache of one engine: whole units of prompts by their hash, kept while nobody needs their blocks, least recently used out first."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

__all__ = ["PrefixCache"]


class PrefixCache:
    """Cached units of prompts.

    Parameters
    ----------
    unit_blocks : int
        Blocks of cache that a unit takes.

    Notes
    -----
    A unit that running requests use is referenced; one that none uses is idle: it stays until its blocks are needed.
    """

    def __init__(self, unit_blocks: int) -> None:
        self.unit_blocks = unit_blocks
        self._references: dict[int, int] = {}
        self._idle: OrderedDict[int, None] = OrderedDict()  # least recently used first

    @property
    def idle_blocks(self) -> int:
        """Blocks of units that no request uses."""
        return len(self._idle) * self.unit_blocks

    def leading(self, hashes: Sequence[int]) -> int:
        """How many of the first units are cached."""
        for number, value in enumerate(hashes):
            if value not in self._references:
                return number
        return len(hashes)

    def idle_among(self, hashes: Sequence[int]) -> int:
        """Blocks of those of some cached units that no request uses."""
        return sum(value in self._idle for value in hashes) * self.unit_blocks

    def acquire(self, hashes: Sequence[int]) -> int:
        """Use cached units; the blocks that were idle before."""
        woken = 0
        for value in hashes:
            self._references[value] += 1
            if value in self._idle:
                del self._idle[value]
                woken += self.unit_blocks
        return woken

    def insert(self, hashes: Sequence[int]) -> list[int]:
        """Cache the units of a request that are not cached yet, which it then uses; their hashes."""
        new = [value for value in dict.fromkeys(hashes) if value not in self._references]
        self._references.update(dict.fromkeys(new, 1))
        return new

    def release(self, hashes: Sequence[int]) -> int:
        """Use units no longer; the blocks that are idle now."""
        slept = 0
        for value in hashes:
            self._references[value] -= 1
            if not self._references[value]:
                self._idle[value] = None
                slept += self.unit_blocks
        return slept

    def shrink(self, blocks: int) -> None:
        """Drop idle units, least recently used first, until they take no more than so many blocks."""
        while self.idle_blocks > max(0, blocks):
            value, _ = self._idle.popitem(last=False)
            del self._references[value]
