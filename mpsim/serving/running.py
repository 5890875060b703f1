"""Sequences that decode: each ends at a tick, and asks for blocks at ticks, known when it begins.

An iteration in which nothing begins or ends costs the same however many sequences decode.
"""

from __future__ import annotations

import heapq
from typing import Final, TypeVar

from mpsim.arrays import Ints

Steps = TypeVar("Steps", int, Ints)

_PARTS: Final = 20  # bits of the parts of a token that gains are counted in, so that jumps agree


class Running:
    """Sequences of one engine that decode; each gains `gain` tokens an iteration in the mean."""

    def __init__(self, block: int, gain: float) -> None:
        self.decodes = self.context = 0
        self.tick = 0  # tokens that a sequence would have gained since the start
        self.iterations = 0
        self.end_of: dict[int, int] = {}
        self.end_ticks = 0  # their sum
        self._ends: list[tuple[int, int]] = []  # heap of (tick, request); stale where preempted
        self._began: dict[int, tuple[int, int]] = {}  # tick and tokens when a request began
        self._residues = [0] * block  # sequences by the tick, modulo the block, that needs one
        self._block = block
        self._gain = round(gain * (1 << _PARTS))
        self.even = self._gain == 1 << _PARTS

    def gains(self, steps: Steps) -> Steps:
        """Tokens that a sequence gains in the next so many iterations."""
        if self.even:
            return steps
        before = self.iterations * self._gain >> _PARTS
        return ((self.iterations + steps) * self._gain >> _PARTS) - before

    def iterations_within(self, ticks: int) -> int:
        """Iterations in which a sequence gains at most so many tokens."""
        before = self.iterations * self._gain >> _PARTS
        return (((ticks + before + 1) << _PARTS) - 1) // self._gain - self.iterations

    def begin(self, request: int, tokens: int, left: int) -> None:
        """Let a sequence of so many tokens decode, which so many more end."""
        self.decodes += 1
        self.context += tokens
        end = self.end_of[request] = self.tick + left
        self.end_ticks += end
        self._began[request] = (self.tick, tokens)
        heapq.heappush(self._ends, (end, request))
        self._residues[self._phase(self.tick, tokens)] += 1

    def stop(self, request: int) -> int:
        """Take a sequence out; the tokens it has."""
        tick, began_with = self._began.pop(request)
        self.end_ticks -= self.end_of.pop(request)
        tokens = began_with + self.tick - tick
        self.decodes -= 1
        self.context -= tokens
        self._residues[self._phase(tick, began_with)] -= 1
        return tokens

    def advance(self, steps: int) -> None:
        """Pass so many iterations."""
        ticks = self.gains(steps)
        self.tick += ticks
        self.iterations += steps
        self.context += ticks * self.decodes

    def ended(self) -> list[int]:
        """Sequences that have their last token, still to be stopped."""
        found: dict[int, None] = {}  # one that was preempted may stand twice
        while self._ends and self._ends[0][0] <= self.tick:
            tick, request = heapq.heappop(self._ends)
            if self.end_of.get(request) == tick:
                found[request] = None
        return list(found)

    def ticks_before_end(self) -> int:
        """Tokens that each sequence gains before the one in which the first of them ends."""
        while self.end_of.get(self._ends[0][1]) != self._ends[0][0]:
            heapq.heappop(self._ends)
        return self._ends[0][0] - self.tick - 1

    def claimed(self, ticks: int) -> int:
        """Blocks that sequences ask for while each gains so many tokens."""
        residues, block, tick = self._residues, self._block, self.tick
        if ticks == 1:
            return residues[(tick + 1) % block]
        cycles, rest = divmod(ticks, block)
        return cycles * self.decodes + sum(
            residues[(tick + ahead) % block] for ahead in range(1, rest + 1)
        )

    def ticks_within(self, free: int, ticks: int) -> int:
        """Tokens of each sequence that so many free blocks last for; at most so many."""
        block = self._block
        # no sequence asks for more than a block in so many tokens
        if self.decodes * (ticks // block + 1) <= free:
            return ticks
        cycles, left = divmod(free, self.decodes)
        for ahead in range(1, block + 1):
            left -= self._residues[(self.tick + ahead) % block]
            if left < 0:
                return min(ticks, cycles * block + ahead - 1)
        return min(ticks, cycles * block)

    def _phase(self, tick: int, tokens: int) -> int:
        """At which ticks, modulo the block, a sequence needs one that has so many tokens now.

        The tick after next writes the last of its tokens: a block is needed when those before it
        fill whole blocks.
        """
        return (tick + 1 - (tokens - 1)) % self._block
