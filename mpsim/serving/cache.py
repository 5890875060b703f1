"""Blocks of cache of one engine: free ones, those that requests hold, and cached prefixes.

Prefixes are cached in whole units of prompts by their hash. A unit that no running request uses is
idle: it stays until its blocks are needed, the least recently used out first: into the tiers below
the device where there are any, from which it is brought back in place of being computed. So do the
blocks that a preempted request leaves, which it finds again, the last of them out first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Container, Sequence
from typing import NamedTuple

TIERS = ("host_cache", "disk_cache")
"""Fields of an engine that say what room a tier has, from the device downwards."""


class Tier(NamedTuple):
    """A memory that keeps prefixes which the one above it has no room for."""

    units: int  # that it has room for
    seconds: float  # to bring one back to the device [s]


class Blocks:
    """Blocks of cache: those of running requests, of prefixes in use and the free ones are all.

    Prefixes are cached where `hashes` has the leading units of every prompt, `unit` tokens each.
    """

    def __init__(
        self,
        total: int,
        size: int,
        hashes: Sequence[tuple[int, ...]] | None,
        unit: int,
        tiers: Sequence[Tier] = (),
    ) -> None:
        self.total = self.free = total  # not held by a request: idle units are free
        self.reserved = 0  # set aside for running requests
        self.hit_tokens = 0
        self.held: dict[int, int] = {}  # of their own by requests as admitted, for prompts
        self.shared: dict[int, list[int]] = {}  # cached units that each running request uses
        self.unit_blocks = unit // size
        self._aside: dict[int, int] = {}
        self._windows: dict[int, int] = {}  # blocks of layers that keep a window alone
        self._size, self._hashes, self._unit = size, hashes, unit
        self._uses: dict[int, int] = {}  # running requests that use each cached unit
        self._idle: OrderedDict[int, None] = OrderedDict()  # least recently used first
        # of preempted requests, the earliest first: whole blocks they left, behind cached units
        self._left: dict[int, tuple[int, int]] = {}
        self._below: list[tuple[Tier, OrderedDict[int, None]]] = [
            (tier, OrderedDict()) for tier in tiers
        ]
        self.brought = [0] * len(tiers)  # tokens that each tier gave back

    def own(self, request: int, tokens: int) -> int:
        """Blocks of its own that a request with so many tokens needs, beside cached units."""
        whole = -(-tokens // self._size) + self._windows[request]
        return whole - len(self.shared[request]) * self.unit_blocks

    def enter(self, request: int, aside: int, tokens: int = 0, windows: int = 0) -> None:
        """Let a request hold blocks: some set aside, those of so many tokens and windows taken."""
        self.shared[request], self._aside[request] = [], aside
        self._windows[request] = windows
        self.held[request] = self.own(request, tokens)
        self.reserved += aside
        self.free -= self.held[request]

    def take(self, request: int, before: int, tokens: int) -> int:
        """Take blocks for further tokens of a prompt; as many as the free ones hold."""
        need = self.own(request, before + tokens) - self.held[request]
        if need > self.free:  # the last of them is then full
            tokens = max(
                0, (-(-(before + tokens) // self._size) - need + self.free) * self._size - before
            )
            need = self.free if tokens else 0
        self.free -= need
        self.held[request] += need
        return tokens

    def give_back(self, request: int, tokens: int = 0, left: int = 0) -> None:
        """Free what a request holds, that of so many tokens at least; so many it may find again."""
        if left:
            behind = len(self.shared[request]) * self.unit_blocks
            self._left[request] = behind, left // self._size - behind
        self.free += max(self.own(request, tokens), self.held.pop(request))
        del self._windows[request]
        self.reserved -= self._aside.pop(request)
        for unit in self.shared.pop(request):
            self._uses[unit] -= 1
            if not self._uses[unit]:
                self._idle[unit] = None
                self.free += self.unit_blocks

    def cached(self, request: int) -> int:
        """Leading units of a prompt that are cached."""
        return self._leading(request, self._uses.__contains__)

    def known(self, request: int) -> int:
        """Leading units of a prompt that the device or a tier below it has."""
        places: list[Container[int]] = [self._uses, *(kept for _, kept in self._below)]
        return self._leading(request, lambda unit: any(unit in place for place in places))

    def _leading(self, request: int, has: Callable[[int], bool]) -> int:
        hashes = self._hashes[request] if self._hashes is not None else ()
        return next((at for at, unit in enumerate(hashes) if not has(unit)), len(hashes))

    def bring(self, request: int, length: int) -> tuple[int, float]:
        """Tokens after the hit ones that tiers give back, on blocks of its own; how long [s]."""
        if self._hashes is None or not self._below:
            return 0, 0.0
        first = len(self.shared[request])
        most, seconds = min(self.known(request), (length - 1) // self._unit), 0.0
        start = first * self._unit
        tokens = self.take(request, start, max(0, most - first) * self._unit)
        for unit in self._hashes[request][first : first + -(-tokens // self._unit)]:
            for at, (tier, kept) in enumerate(self._below):
                if unit in kept and unit not in self._uses:
                    kept.move_to_end(unit)
                    seconds += tier.seconds
                    self.brought[at] += self._unit
                    break
        return tokens, seconds

    def hit(self, request: int, length: int) -> int:
        """Use the cached tokens of so long a prompt; at least one is always computed."""
        if self._hashes is None:
            return 0
        units = min(self.cached(request), (length - 1) // self._unit)
        self.shared[request] = list(self._hashes[request][:units])
        for unit in self.shared[request]:
            self._uses[unit] += 1
            if unit in self._idle:
                del self._idle[unit]
                self.free -= self.unit_blocks
        self.hit_tokens += units * self._unit
        return units * self._unit

    def regain(self, request: int, before: int, length: int) -> int:
        """Tokens after so many that a preempted request of that length finds again."""
        tokens = self._found(request, before, length) - before
        self._left.pop(request, None)
        return self.take(request, before, tokens)

    def _found(self, request: int, before: int, length: int) -> int:
        """Tokens that it has with what it left, where so many come before."""
        behind, blocks = self._left.get(request, (0, 0))
        end = min(behind + blocks, (length - 1) // self._size) * self._size
        return max(before, end) if before >= behind * self._size else before

    def share(self, request: int, length: int) -> None:
        """Offer the whole units of so long a computed prompt to later requests."""
        if self._hashes is None:
            return
        used = self.shared[request]
        units = dict.fromkeys(self._hashes[request][len(used) : length // self._unit])
        new = [unit for unit in units if unit not in self._uses]
        self._uses.update(dict.fromkeys(new, 1))
        self.held[request] -= len(new) * self.unit_blocks  # its own until now
        used += new

    def has_room(self, request: int, length: int, tokens: int, windows: int = 0) -> bool:
        """Whether so many tokens of a prompt and its windows fit beside what of it is cached."""
        # idle units count as free: those that it hits are free no longer
        most = 0 if self._hashes is None else min(self.cached(request), (length - 1) // self._unit)
        units = self._hashes[request][:most] if self._hashes is not None else ()
        found = self._found(request, most * self._unit, length)
        reach = min(length, found + tokens)
        used = sum(unit not in self._idle for unit in units)
        return -(-reach // self._size) + windows - used * self.unit_blocks <= self.free

    def shrink(self, most: int | None = None) -> None:
        """Drop what is idle until it takes no more than the free blocks, or than so many."""
        most = max(0, self.free if most is None else most)
        left = sum(blocks for _, blocks in self._left.values())
        while self._idle and len(self._idle) * self.unit_blocks + left > most:
            unit, _ = self._idle.popitem(last=False)
            del self._uses[unit]
            self._sink(unit)
        for request, (behind, blocks) in self._left.items() if left > most else ():
            kept = max(0, blocks - max(0, left - most))
            self._left[request], left = (behind, kept), left - blocks + kept

    def forget(self) -> None:
        """Drop all that is idle, of the device and below it."""
        self._below = [(tier, OrderedDict()) for tier, _ in self._below]
        self._left.clear()
        while self._idle:
            del self._uses[self._idle.popitem(last=False)[0]]

    def _sink(self, unit: int) -> None:
        """Let the first tier keep a unit, and each pass on the one that it has no room for."""
        for tier, kept in self._below:
            kept[unit] = None
            kept.move_to_end(unit)
            if len(kept) <= tier.units:
                return
            unit, _ = kept.popitem(last=False)
