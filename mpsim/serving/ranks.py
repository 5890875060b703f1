"""Ranks of an instance that keep requests of their own and meet in the experts: engines whose iterations begin and end together.

A request joins the rank with the least load. All ranks wait for the busiest in every layer; one without work takes part with nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from mpsim.serving.batching import Engine, Iteration

__all__ = ["AttentionRanks", "JointIteration"]


class JointIteration(Iteration):
    """One iteration of all ranks: sums over them, and each rank's own part."""

    __slots__ = ("parts",)

    def __init__(self, parts: list[tuple[Engine, Iteration]]) -> None:
        super().__init__()
        self.parts = parts
        for _, part in parts:
            self.decodes += part.decodes
            self.context += part.context
            self.prompt_tokens += part.prompt_tokens
            self.pairs += part.pairs
            self.started += part.started
            self.done += part.done


class AttentionRanks:
    """Engines that act as one, with the interface of one."""

    def __init__(self, engines: Sequence[Engine]) -> None:
        self.engines = tuple(engines)
        self._rank: dict[int, Engine] = {}

    @property
    def load(self) -> int:
        """Requests that the ranks have, waiting ones included."""
        return sum(engine.load for engine in self.engines)

    @property
    def used(self) -> int:
        """Blocks held by requests."""
        return sum(engine.used for engine in self.engines)

    @property
    def decodes(self) -> int:
        """Sequences that decode."""
        return sum(engine.decodes for engine in self.engines)

    @property
    def context(self) -> int:
        """Tokens of their contexts together."""
        return sum(engine.context for engine in self.engines)

    @property
    def waits_for(self) -> str:
        """The reason for which nothing can run, of the ranks that have requests; empty where none has."""
        reasons = {engine.waits_for for engine in self.engines}
        return "transfer" if "transfer" in reasons else "cache" if "cache" in reasons else ""

    def enter(self, request: int, generated: int = 0) -> None:
        """Queue a request; so many tokens that another engine gave it are computed again."""
        self._join(request).enter(request, generated)

    def clear(self) -> list[tuple[int, int]]:
        """Drop all requests and all that is cached; which, and tokens that each has generated."""
        return [entry for engine in self.engines for entry in engine.clear()]

    def offer(self, request: int) -> None:
        """Offer a request whose prompt was computed elsewhere."""
        self._join(request).offer(request)

    def accept(self) -> list[int]:
        """Give blocks to offered requests while they fit; those that got them."""
        return [request for engine in self.engines for request in engine.accept()]

    def land(self, request: int) -> None:
        """Let a request decode whose keys and values have come."""
        self._rank[request].land(request)

    def release(self, request: int) -> None:
        """Give back the blocks of a request that was handed over."""
        self._rank.pop(request).release(request)

    def next(self) -> JointIteration | None:
        """Form the next iteration of all ranks; None where none can run."""
        formed = [(engine, engine.next()) for engine in self.engines]
        parts = [(engine, part) for engine, part in formed if part is not None]
        return JointIteration(parts) if parts else None

    def finish(self, iteration: Iteration) -> tuple[list[int], list[int]]:
        """End an iteration; requests that gave their first token, and those that gave their last."""
        assert isinstance(iteration, JointIteration), "formed by these ranks"
        first: list[int] = []
        last: list[int] = []
        for engine, part in iteration.parts:
            begun, ended = engine.finish(part)
            first += begun
            last += ended
        return first, last

    def steady(self) -> int:
        """How many decoding iterations can follow in which nothing begins, ends or runs out of blocks on any rank."""
        busy = [engine for engine in self.engines if not engine.rests]
        return min((engine.steady() for engine in busy), default=0)

    def jump(self, steps: int) -> None:
        """Pass so many decoding iterations as `steady` allows."""
        for engine in self.engines:
            if engine.decodes:
                engine.jump(steps)

    def _join(self, request: int) -> Engine:
        engine = min(self.engines, key=lambda engine: engine.load)
        self._rank[request] = engine
        return engine
