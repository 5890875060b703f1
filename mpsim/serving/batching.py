"""Continuous batching: which requests take part in the next iteration of one engine, by the engine's own rules.

State of an engine is kept by counters, so that an iteration in which nothing begins or ends costs the same however many sequences decode: sequences end at a tick (an iteration
that decodes) known when they begin, and ask for a further block of cache at ticks known modulo the block size.
"""

from __future__ import annotations

import dataclasses
import heapq
import math
from collections import deque

__all__ = ["BatchRules", "Engine", "Iteration"]


@dataclasses.dataclass(frozen=True, slots=True)
class BatchRules:
    """How an engine forms iterations.

    Parameters
    ----------
    scheduler : str
        ``budget`` (vLLM V1: running sequences first, prompts in chunks fill what is left of the token budget), ``prefill-first`` (SGLang: prompts alone while
        any can be admitted, else decode), ``no-evict`` (TensorRT-LLM: a prompt is admitted when its whole output fits, prompts join decoding
        iterations), ``max-utilisation`` (the same, admitted on the prompt, paused when blocks run out), ``static`` (the next batch starts when all of the last has ended).
    max_sequences, max_tokens : int
        Sequences that run at once, and tokens of an iteration.
    chunked : bool
        Whether a prompt may be cut; else it has to fit into the budget whole.
    block : int
        Tokens of a block of cache.
    ratio_start, ratio_end, ratio_steps : float
        ``prefill-first``: share of the outputs still to come that admission keeps room for, at first and after so many decoding iterations.
    output_cap : int
        ``prefill-first``: tokens of an output that count for that.
    """

    scheduler: str = "budget"
    max_sequences: int = 256
    max_tokens: int = 8192
    chunked: bool = True
    block: int = 16
    ratio_start: float = 0.7
    ratio_end: float = 0.098
    ratio_steps: int = 600
    output_cap: int = 4096


class Iteration:
    """What one iteration processes; `decodes` sequences with `context` tokens together, and prompts."""

    __slots__ = ("context", "decodes", "done", "pairs", "prompt_tokens", "started")

    def __init__(self) -> None:
        self.decodes = 0
        self.context = 0
        self.prompt_tokens = 0
        self.pairs = 0.0
        self.started: list[int] = []
        self.done: list[int] = []


class Engine:
    """Requests of one engine: waiting, with a prompt under way, decoding.

    Parameters
    ----------
    rules : BatchRules
    blocks : int
        Blocks of cache.
    prompt, output : list of int
        Tokens of every request of the run; shared between engines.
    """

    def __init__(
        self, rules: BatchRules, blocks: int, prompt: list[int], output: list[int]
    ) -> None:
        self.rules = rules
        self.blocks = blocks
        self.free = blocks
        self.prompt = prompt
        self.output = output
        self.waiting: deque[int] = deque()
        self.partial: list[list[int]] = []  # [request, tokens of its prompt done]
        self.decodes = 0
        self.context = 0
        self.tick = 0
        self.preempted = 0
        self._ends: list[
            tuple[int, int]
        ] = []  # (tick, request), a heap; stale where a request was preempted
        self._tick_of_end: dict[int, int] = {}
        self._began: dict[
            int, tuple[int, int]
        ] = {}  # request -> (tick, context) when it began to decode
        self._residues = [0] * rules.block
        self._order: list[
            int
        ] = []  # running requests by admission, latest last; stale ones are skipped
        self._held: dict[int, int] = {}  # blocks held by requests that do not decode yet
        self._reserved = 0  # blocks promised to running requests (no-evict)
        self._ratio_from = 0
        self.generated: dict[int, int] = {}  # of preempted requests

    # -- what is asked from outside ---------------------------------------------------------------------------

    @property
    def running(self) -> int:
        return self.decodes + len(self.partial)

    @property
    def idle(self) -> bool:
        return not (self.waiting or self.partial or self.decodes)

    @property
    def load(self) -> int:
        return self.running + len(self.waiting)

    def next(self) -> Iteration | None:
        """The next iteration; None where nothing can run."""
        it = Iteration()
        scheduler = self.rules.scheduler
        if scheduler == "prefill-first":
            self._fill(it, self.rules.max_tokens)
            if it.prompt_tokens:
                return it
            if self.decodes:
                self._make_room()
                self._decode(it)
                return it
            return None
        if scheduler == "static":
            if not self.decodes:
                self._fill(it, 1 << 60)
                if it.prompt_tokens:
                    return it
                return None
            self._decode(it)
            return it
        evicted = False
        if self.decodes:
            evicted = self._make_room()
            self._decode(it)
        if not evicted:
            self._fill(it, self.rules.max_tokens - it.decodes)
        return it if it.decodes or it.prompt_tokens else None

    def steady(self) -> int:
        """How many further decoding iterations run before a sequence ends or blocks run out; 0 where prompts may join."""
        if self.partial or not self.decodes:
            return 0
        if self.waiting and self._may_admit():
            return 0
        while self._ends and self._tick_of_end.get(self._ends[0][1]) != self._ends[0][0]:
            heapq.heappop(self._ends)
        steps = self._ends[0][0] - self.tick - 1
        if self.rules.scheduler not in ("no-evict", "static"):
            steps = min(steps, self._steps_until_full())
        if self.waiting and self.rules.scheduler == "prefill-first":
            steps = min(steps, 16)
        return max(0, steps)

    def jump(self, steps: int) -> None:
        """Pass so many decoding iterations in which nothing begins or ends."""
        if not steps:
            return
        block = self.rules.block
        whole, rest = divmod(steps, block)
        self.free -= whole * self.decodes
        for ahead in range(rest):
            self.free -= self._residues[(self.tick + 1 + ahead) % block]
        self.tick += steps
        self.context += steps * self.decodes

    def finish(self, it: Iteration) -> tuple[list[int], list[int]]:
        """End an iteration: requests that gave their first token, and those that gave their last."""
        first, last = [], []
        if it.decodes:
            self.tick += 1
            self.context += it.decodes
            while self._ends and self._ends[0][0] <= self.tick:
                tick, request = heapq.heappop(self._ends)
                if self._tick_of_end.get(request) != tick:
                    continue
                last.append(request)
                self._release(request)
        for request in it.done:
            if request not in self.generated:
                first.append(request)
            if not self._begin(request):
                last.append(request)
        return first, last

    # -- parts --------------------------------------------------------------------------------------------------

    def _decode(self, it: Iteration) -> None:
        it.decodes = self.decodes
        it.context = self.context
        self.free -= self._residues[(self.tick + 1) % self.rules.block]

    def _fill(self, it: Iteration, budget: int) -> None:
        """Add prompts: those under way, then waiting ones in order of arrival."""
        for entry in self.partial:
            if budget <= 0:
                break
            budget -= self._chunk(it, entry, budget)
        if it.done:
            self.partial = [entry for entry in self.partial if entry[1] < self._length(entry[0])]
        rules = self.rules
        running = self.decodes + len(self.partial) + len(it.done)
        while self.waiting and budget > 0 and running < rules.max_sequences:
            request = self.waiting[0]
            length = self._length(request)
            if length > budget and not rules.chunked and it.prompt_tokens:
                break  # a whole prompt joins any iteration alone: engines are built for the longest prompt beside all sequences
            if not self._fits(request, min(length, budget) if rules.chunked else length):
                break
            self.waiting.popleft()
            running += 1
            it.started.append(request)
            self._order.append(request)
            self._held[request] = 0
            entry = [request, 0]
            allowed = budget if rules.chunked else max(budget, length)
            budget -= self._chunk(it, entry, allowed)
            if entry[1] < length:
                self.partial.append(entry)

    def _length(self, request: int) -> int:
        return self.prompt[request] + self.generated.get(request, 0)

    def _chunk(self, it: Iteration, entry: list[int], budget: int) -> int:
        request, before = entry
        length = self._length(request)
        tokens = min(length - before, budget)
        block = self.rules.block
        need = -(-(before + tokens) // block) - self._held[request]
        if need > self.free:
            tokens = min(tokens, (self._held[request] + self.free) * block - before)
            if tokens <= 0:
                return 0
            need = -(-(before + tokens) // block) - self._held[request]
        self.free -= need
        self._held[request] += need
        it.prompt_tokens += tokens
        it.pairs += tokens * (before + tokens / 2)
        entry[1] = before + tokens
        if entry[1] >= length:
            it.done.append(request)
        return tokens

    def _fits(self, request: int, tokens: int) -> bool:
        rules, block = self.rules, self.rules.block
        if rules.scheduler == "no-evict" or rules.scheduler == "static":
            whole = -(-(self.prompt[request] + self.output[request]) // block)
            if self._reserved + whole > self.blocks:
                return False
            self._reserved += whole
            return True
        if rules.scheduler == "prefill-first":
            free = self.free * block
            steps = min(self.tick - self._ratio_from, rules.ratio_steps)
            ratio = (
                rules.ratio_start
                + (rules.ratio_end - rules.ratio_start) * steps / rules.ratio_steps
            )
            if not self.decodes:
                ratio = rules.ratio_start
            left = ratio * self._remaining()
            own = min(self.output[request], rules.output_cap)
            return self._length(request) + own * ratio + left <= free or not self.running
        return -(-tokens // block) <= self.free

    def _remaining(self) -> float:
        """Tokens that running requests are still to generate, each at most `output_cap`."""
        if not self.decodes:
            return 0.0
        ends = [tick for tick, request in self._ends if self._tick_of_end.get(request) == tick]
        if len(ends) > 64:  # a sample is enough for an estimate
            ends = ends[:: len(ends) // 64]
            scale = self.decodes / len(ends)
        else:
            scale = 1.0
        return scale * sum(min(tick - self.tick, self.rules.output_cap) for tick in ends)

    def _may_admit(self) -> bool:
        rules = self.rules
        if rules.scheduler == "static":
            return False
        if self.running >= rules.max_sequences:
            return False
        request, block = self.waiting[0], rules.block
        if rules.scheduler == "no-evict":
            whole = -(-(self.prompt[request] + self.output[request]) // block)
            return self._reserved + whole <= self.blocks
        if rules.scheduler == "prefill-first":
            return self._fits(request, 0)
        return self.free >= -(-min(self._length(request), rules.max_tokens) // block)

    def _begin(self, request: int) -> bool:
        """Let a request decode; False where its first token was its last."""
        given = self.generated.get(request, 0) + 1
        left = self.output[request] - given
        if left <= 0:
            self._drop(request)
            return False
        length = self.prompt[request] + given
        self.decodes += 1
        self.context += length
        end = self.tick + left
        self._tick_of_end[request] = end
        heapq.heappush(self._ends, (end, request))
        self._began[request] = (self.tick, length)
        # the block that holds token number `length` is taken when it is written, at the next tick
        block = self.rules.block
        self._residues[(self.tick + 1 - length + 1 - 1) % block] += 0
        self._residues[self._phase(self.tick, length)] += 1
        return True

    def _phase(self, tick: int, length: int) -> int:
        """At which ticks, modulo the block, a sequence that has `length` tokens at `tick` needs a further block."""
        # writing token number n needs a new block when (n - 1) is a multiple of the block; at tick `tick + j` it writes number length + j - 1 + ...
        block = self.rules.block
        return (tick + 1 - (length - 1)) % block

    def _release(self, request: int) -> None:
        """Take a decoding request out."""
        tick, length = self._began.pop(request)
        del self._tick_of_end[request]
        self.decodes -= 1
        now = length + self.tick - tick
        self.context -= now
        self._residues[self._phase(tick, length)] -= 1
        written = now - 1  # the last token is never written
        self.free += max(-(-written // self.rules.block), self._held[request])
        del self._held[request]
        if self.rules.scheduler in ("no-evict", "static"):
            self._reserved -= -(-(self.prompt[request] + self.output[request]) // self.rules.block)
        self.generated.pop(request, None)

    def _drop(self, request: int) -> None:
        self.free += self._held.pop(request)
        if self.rules.scheduler in ("no-evict", "static"):
            self._reserved -= -(-(self.prompt[request] + self.output[request]) // self.rules.block)
        self.generated.pop(request, None)

    def _steps_until_full(self) -> int:
        """Decoding iterations until the blocks that are free are used up."""
        block = self.rules.block
        a_cycle = self.decodes
        if not a_cycle:
            return 1 << 30
        whole, left = divmod(self.free, a_cycle)
        steps = whole * block
        for ahead in range(block):
            left -= self._residues[(self.tick + 1 + ahead) % block]
            if left < 0:
                return max(0, steps + ahead)
        return steps

    def _make_room(self) -> bool:
        """Preempt the latest sequences until the blocks of the next decoding iteration are free."""
        evicted = False
        while self.decodes and self._residues[(self.tick + 1) % self.rules.block] > self.free:
            while self._order and self._order[-1] not in self._tick_of_end:
                dropped = self._order.pop()
                if dropped in self._held:  # a prompt under way: it goes first
                    self._evict_partial(dropped)
                    evicted = True
                    break
            else:
                if not self._order or self.decodes == 1:
                    break
                request = self._order.pop()
                tick, length = self._began[request]
                given = length - self.prompt[request] + self.tick - tick
                self._release(request)
                self.generated[request] = given
                self.waiting.appendleft(request)
                self.preempted += 1
                evicted = True
                self._ratio_from = self.tick
        return evicted

    def _evict_partial(self, request: int) -> None:
        self.free += self._held.pop(request)
        self.partial = [entry for entry in self.partial if entry[0] != request]
        self.waiting.appendleft(request)
        self.preempted += 1
