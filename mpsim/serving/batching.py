"""Continuous batching: which requests take part in the next iteration of one engine, by the engine's own rules.

The state is kept in counters, so that an iteration in which nothing begins or ends costs the same however many sequences decode: a sequence ends at a tick (an iteration that
decodes) that is known when it begins, and asks for a further block of cache at ticks that are known modulo the block.

Conservation holds at every iteration: the blocks of running requests, of cached prefixes in use and the free ones (idle prefixes among them) are all blocks (tested).

The engine is one class because its queue, its batch and its blocks change together at every tick: a part of it would hold what the others decide by.
"""

from __future__ import annotations

import dataclasses
import heapq
import itertools
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from mpsim.serving.cache import PrefixCache

__all__ = ["Batch", "BatchRules", "Engine", "Iteration"]

Steps = TypeVar("Steps", int, NDArray[np.int64])

_SAMPLE = 64  # running sequences that an estimate of what is still to come looks at
_RECHECK = 16  # iterations that prefill-first looks ahead for when a prompt can be admitted
_WITHOUT_LIMIT = 1 << 60
_PARTS = 20  # bits of the parts of a token in which gains are counted: whole numbers, so that jumps and single iterations agree


@dataclasses.dataclass(frozen=True, slots=True)
class BatchRules:
    """How an engine forms iterations.

    Parameters
    ----------
    scheduler : str
        ``budget``: running sequences first, chunks of prompts fill what is left of the token budget, the latest sequence is preempted when blocks run out (vLLM
        V1). ``prefill-first``: prompts alone while one can be admitted, else decoding (SGLang). ``no-evict``: a prompt is admitted when its whole output fits, and
        joins decoding iterations (TensorRT-LLM's default). ``max-utilisation``: admitted on the prompt alone, the latest paused when blocks run out (its other one).
        ``static``: a batch starts when all of the last one has ended.
    max_sequences, max_tokens : int
        Sequences that run at once, and tokens of an iteration.
    caches : bool
        Whether leading units of prompts stay for requests that have them too.
    chunked : bool
        Whether a prompt may be cut; else it passes whole, alone with what decodes.
    block : int
        Tokens of a block of cache.
    ratio_start, ratio_end, ratio_steps : float
        ``prefill-first``: share of the outputs still to come that admission keeps room for, after a retraction and after so many decoding iterations.
    output_cap : int
        ``prefill-first``: tokens of an output that count for that.
    drafts : int
        Tokens that are drafted for a decoding sequence in an iteration and verified beside its own; they count for the token budget.
    gain : float
        Tokens that a decoding sequence gains in an iteration, in the mean: more than 1 with drafts.
    wait_steps : int
        Decoding iterations for which prompts may be kept back until more of them have come (TensorRT-LLM's batch_wait_timeout_iters).
    wait_share : float
        Share of `max_tokens` from which an iteration takes its prompts without waiting (its batch_wait_max_tokens_ratio).
    poll_steps : int
        Decoding iterations after which an engine looks for requests that have come (SGLang's scheduler-recv-interval); it looks as well after prompts and where nothing decodes.
    """

    scheduler: str = "budget"
    max_sequences: int = 256
    max_tokens: int = 8192
    chunked: bool = True
    caches: bool = True
    block: int = 16
    ratio_start: float = 0.7
    ratio_end: float = 0.098
    ratio_steps: int = 600
    output_cap: int = 4096
    drafts: int = 0
    gain: float = 1.0
    wait_steps: int = 0
    wait_share: float = 1.0
    poll_steps: int = 1

    @property
    def reserves(self) -> bool:
        """Whether admission sets aside the blocks of the whole output."""
        return self.scheduler in ("no-evict", "static")


class Batch(NamedTuple):
    """Work of an iteration, or of many that differ in their contexts.

    Parameters
    ----------
    decodes : int
        Sequences that decode.
    context : float or float64[N]
        Tokens of their contexts together.
    prompt_tokens : int
        Tokens of prompts.
    pairs : float
        Pairs of query and key of their causal attention.
    """

    decodes: int
    context: float | NDArray[np.float64]
    prompt_tokens: int = 0
    pairs: float = 0.0


class Iteration:
    """Sequences and tokens that one iteration processes.

    Attributes
    ----------
    decodes, context : int
        Sequences that decode, and tokens of their contexts together.
    gained : int
        Tokens that each of them gains.
    pairs : float
        Pairs of query and key of the prompts' causal attention.
    started, done : list of int
        Requests whose first prompt token, and whose last, is among them.
    """

    __slots__ = ("context", "decodes", "done", "gained", "pairs", "prompt_tokens", "started")

    def __init__(self) -> None:
        self.decodes = 0
        self.context = 0
        self.gained = 0
        self.prompt_tokens = 0
        self.pairs = 0.0
        self.started: list[int] = []
        self.done: list[int] = []

    @property
    def batch(self) -> Batch:
        """Work that takes time."""
        return Batch(self.decodes, self.context, self.prompt_tokens, self.pairs)


class Engine:
    """Requests of one engine: waiting, with a prompt under way, decoding.

    Parameters
    ----------
    prompt, output : sequence of int
        Tokens of every request of the run, shared between engines.
    hashes : sequence of tuples of int, optional
        Leading units of every prompt, where prefixes are cached.
    unit : int
        Tokens of such a unit.
    hands_over : bool
        Whether computed prompts keep their blocks until `release`, for another engine to decode.
    samples_first : bool
        Whether requests that come with a computed prompt (`offered`) are still to be given their first token.
    longest : int, optional
        Largest of `output`, where it is known.

    Notes
    -----
    Requests that another engine computed the prompts of wait in `offered`; `accept` gives them blocks, and those whose keys and values have come decode from `land` on.
    """

    def __init__(
        self,
        rules: BatchRules,
        blocks: int,
        prompt: Sequence[int],
        output: Sequence[int],
        *,
        hashes: Sequence[tuple[int, ...]] | None = None,
        unit: int = 512,
        hands_over: bool = False,
        samples_first: bool = False,
        longest: int | None = None,
    ) -> None:
        self.rules = rules
        self.blocks = blocks
        self.free = blocks  # not held by a request: idle cached prefixes are free
        self.waiting: deque[int] = deque()
        self._unseen: deque[int] = deque()  # they have come since the engine last looked
        self._polled_at = 0  # iterations that had decoded when prompts last ran
        self.offered: deque[int] = deque()
        self.arriving: set[int] = set()  # accepted, their keys and values on the way
        self.decodes = 0
        self.context = 0
        self.tick = 0
        self.preempted = 0
        self.hit_tokens = 0
        self._prompt = prompt
        self._output = output
        self._hashes = hashes if rules.caches and unit >= rules.block else None
        self._unit = unit
        self._cache = PrefixCache(unit // rules.block)
        self._partial: list[list[int]] = []  # [request, tokens of its prompt that are done]
        # heap of (tick, request); stale where it was preempted
        self._ends: list[tuple[int, int]] = []
        self._end_of: dict[int, int] = {}
        self._end_ticks = 0  # their sum
        longest = max(output, default=0) if longest is None else longest
        self._capped = longest > rules.output_cap
        # tick and tokens when a request began to decode
        self._began: dict[int, tuple[int, int]] = {}
        # sequences by the tick, modulo the block, at which they need a block
        self._residues = [0] * rules.block
        # running requests by admission, latest last; those that ended are skipped
        self._order: list[int] = []
        # blocks of its own of each running request, as of its prompt
        self._held: dict[int, int] = {}
        self._shared: dict[int, list[int]] = {}  # cached units that each running request uses
        self._reserved = 0  # blocks set aside for running requests
        self._generated: dict[int, int] = {}  # tokens that preempted requests have generated
        self._ratio_from = 0
        self._hands_over = hands_over
        self._samples_first = samples_first
        self._unsampled: list[int] = []  # landed, their first token is still to come
        self._iterations = 0  # that decoded
        self._gain = round(rules.gain * (1 << _PARTS))
        self._kept_back = 0  # iterations for which prompts have been kept back

    @property
    def even(self) -> bool:
        """Whether each decoding sequence gains one token an iteration."""
        return self._gain == 1 << _PARTS

    @property
    def running(self) -> int:
        """Sequences that decode, or whose prompt or cache is under way."""
        return self.decodes + len(self._partial) + len(self.arriving)

    @property
    def load(self) -> int:
        """Requests that it has, waiting ones included."""
        return self.running + len(self._unseen) + len(self.waiting) + len(self.offered)

    @property
    def used(self) -> int:
        """Blocks held by requests."""
        return self.blocks - self.free

    @property
    def rests(self) -> bool:
        """Whether nothing runs or waits to: requests on their way at most."""
        return not (self.decodes or self._partial or self.waiting or self._unseen)

    @property
    def waits_for(self) -> str:
        """The reason for which nothing can run: a ``transfer`` under way, ``cache`` for a request, or none."""
        if self.arriving:
            return "transfer"
        return "cache" if self.waiting or self.offered else ""

    def enter(self, request: int) -> None:
        """Queue a request."""
        self._unseen.append(request)

    def adopt(self, request: int, generated: int) -> None:
        """Queue a request that another engine has generated so many tokens of: they are computed again with its prompt."""
        if generated:
            self._generated[request] = generated
        self._unseen.append(request)

    def clear(self) -> list[tuple[int, int]]:
        """Drop all requests and all that is cached; which, in the order of their admission, and tokens that each has generated."""
        running = [request for request in self._order if request in self._held]
        found: list[tuple[int, int]] = []
        for request in running:
            generated = self._generated.pop(request, 0)
            if request in self._end_of:
                generated = self._stop(request) - self._prompt[request]
            else:
                self._give_back(request, self._held[request])
            found.append((request, generated))
        found += [
            (request, self._generated.pop(request, 0)) for request in (*self.waiting, *self._unseen)
        ]
        self._partial, self._order = [], []
        self.waiting.clear()
        self._unseen.clear()
        self._cache.shrink(0)
        return found

    def offer(self, request: int) -> None:
        """Offer a request whose prompt was computed elsewhere."""
        self.offered.append(request)

    def cached(self, request: int) -> int:
        """Leading units of a prompt that are cached here."""
        return self._cache.leading(self._hashes[request]) if self._hashes is not None else 0

    def next(self) -> Iteration | None:
        """Form the next iteration; None where nothing can run."""
        self._look()
        iteration = Iteration()
        scheduler, limit = self.rules.scheduler, self.rules.max_tokens
        if scheduler in ("prefill-first", "static"):
            if scheduler == "prefill-first":
                self._fill(iteration, limit)
            elif not self.decodes:
                self._fill(iteration, _WITHOUT_LIMIT)
            if not iteration.prompt_tokens and self.decodes:
                self._make_room()
                self._decode(iteration)
        else:
            # an engine that preempts in an iteration admits nobody in it
            evicted = self._make_room() if self.decodes else False
            self._decode(iteration)
            if not evicted and not self._keeps_back():
                self._fill(iteration, limit - iteration.decodes * (1 + self.rules.drafts))
        return iteration if iteration.decodes or iteration.prompt_tokens else None

    @property
    def _until_look(self) -> int:
        """Decoding iterations until the engine looks for requests that have come."""
        return -(self._iterations - self._polled_at) % self.rules.poll_steps if self.decodes else 0

    def _look(self) -> None:
        """Queue the requests that have come, where the engine looks."""
        if self._unseen and not self._until_look:
            self.waiting += self._unseen
            self._unseen.clear()

    def steady(self) -> int:
        """How many decoding iterations can follow in which nothing begins, ends or runs out of blocks."""
        self._look()
        if self._partial or self._unsampled or not self.decodes:
            return 0
        if self.waiting and self._may_admit():
            return 0
        while self._end_of.get(self._ends[0][1]) != self._ends[0][0]:
            heapq.heappop(self._ends)
        ticks = self._ends[0][0] - self.tick - 1
        # no sequence asks for more than a block in so many tokens
        if not self.rules.reserves and self.decodes * (ticks // self.rules.block + 1) > self.free:
            ticks = min(ticks, self._ticks_until_full())
        steps = self._iterations_within(max(0, ticks))
        if self._unseen:
            steps = min(steps, self._until_look)
        if (self.waiting or self.offered) and self.rules.scheduler == "prefill-first":
            steps = self._steps_until_room(min(steps, _RECHECK))
        return steps

    def gains(self, steps: Steps) -> Steps:
        """Tokens that a sequence gains in the next so many decoding iterations."""
        if self.even:
            return steps
        before = self._iterations * self._gain >> _PARTS
        return ((self._iterations + steps) * self._gain >> _PARTS) - before

    def jump(self, steps: int) -> None:
        """Pass so many decoding iterations as `steady` allows."""
        ticks = self.gains(steps)
        cycles, rest = divmod(ticks, self.rules.block)
        self.free -= cycles * self.decodes
        if rest:
            self.free -= self._claimed(rest)
        self.tick += ticks
        self._iterations += steps
        self.context += ticks * self.decodes
        if self._hashes is not None:
            self._cache.shrink(self.free)

    def accept(self) -> list[int]:
        """Give blocks to offered requests, in their order, while they fit; those that got them.

        Preempted requests go first: nothing is accepted while one waits.
        """
        taken: list[int] = []
        while self.offered and not self.waiting and self.running < self.rules.max_sequences:
            request = self.offered[0]
            if not self._fits(request, self._prompt[request]):
                break
            self.offered.popleft()
            self._order.append(request)
            self._shared[request] = []
            self._held[request] = self._blocks_of(
                request, self._prompt[request] - (1 if self._samples_first else 0)
            )
            self.free -= self._held[request]
            if self.rules.reserves:
                self._reserved += self._whole(request)
            self.arriving.add(request)
            taken.append(request)
        if taken:
            self._cache.shrink(self.free)
        return taken

    def land(self, request: int) -> None:
        """Let a request decode whose keys and values have come."""
        self.arriving.remove(request)
        if self._samples_first:
            self._unsampled.append(request)
        self._begin(request, given=0 if self._samples_first else 1)

    def release(self, request: int) -> None:
        """Give back the blocks of a request that was handed over."""
        self._give_back(request, self._held[request])

    def finish(self, iteration: Iteration) -> tuple[list[int], list[int]]:
        """End an iteration; requests that gave their first token, and those that gave their last."""
        first: list[int] = []
        last: list[int] = []
        if iteration.prompt_tokens:
            self._polled_at = self._iterations + (iteration.decodes > 0)
        if iteration.decodes:
            self.tick += iteration.gained
            self._iterations += 1
            self.context += iteration.decodes * iteration.gained
            if self._unsampled:
                first += [request for request in self._unsampled if request in self._end_of]
                self._unsampled = []
            while self._ends and self._ends[0][0] <= self.tick:
                tick, request = heapq.heappop(self._ends)
                if self._end_of.get(request) == tick:
                    self._stop(request)
                    self._generated.pop(request, None)
                    last.append(request)
        for request in iteration.done:
            if not self._generated.get(request):
                first.append(request)
            if self._hands_over:
                self._share(request)
            elif not self._begin(request, given=self._generated.get(request, 0) + 1):
                last.append(request)
        if self._hashes is not None:
            self._cache.shrink(self.free)
        return first, last

    def _decode(self, iteration: Iteration) -> None:
        iteration.decodes = self.decodes
        iteration.context = self.context
        iteration.gained = self.gains(1)
        self.free -= self._claimed(iteration.gained)

    def _keeps_back(self) -> bool:
        """Whether prompts wait for more of them, while something decodes."""
        rules = self.rules
        if not rules.wait_steps or not self.decodes or not (self.waiting or self._partial):
            return False
        enough, tokens = rules.wait_share * rules.max_tokens, self.decodes
        tokens += sum(self._length(request) - done for request, done in self._partial)
        for request in self.waiting:
            if tokens >= enough:
                break
            tokens += self._length(request)
        if tokens < enough and self._kept_back < rules.wait_steps:
            self._kept_back += 1
            return True
        self._kept_back = 0
        return False

    def _fill(self, iteration: Iteration, budget: int) -> None:
        """Add prompts: those under way, then waiting ones in order of arrival."""
        rules = self.rules
        for entry in self._partial:
            if budget <= 0:
                break
            budget -= self._chunk(iteration, entry, budget)
        self._partial = [entry for entry in self._partial if entry[1] < self._length(entry[0])]
        running = self.running + len(iteration.done)
        while self.waiting and budget > 0 and running < rules.max_sequences:
            request = self.waiting[0]
            length = self._length(request)
            if not rules.chunked and length > budget and iteration.prompt_tokens:
                break  # engines are built for the longest prompt beside all sequences, not for two
            if not self._fits(request, min(length, budget) if rules.chunked else length):
                break
            self._admit(request)
            running += 1
            iteration.started.append(request)
            entry = [request, self._hit(request)]
            budget -= self._chunk(
                iteration, entry, budget if rules.chunked else max(budget, length)
            )
            if entry[1] < length:
                self._partial.append(entry)

    def _admit(self, request: int) -> None:
        self.waiting.popleft()
        self._order.append(request)
        self._held[request] = 0
        self._shared[request] = []
        if self.rules.reserves:
            self._reserved += self._whole(request)

    def _hit(self, request: int) -> int:
        """Tokens of a prompt that are cached; at least one is always computed."""
        if self._hashes is None:
            return 0
        units = min(
            self._cache.leading(self._hashes[request]), (self._length(request) - 1) // self._unit
        )
        used = list(self._hashes[request][:units])
        self.free -= self._cache.acquire(used)
        self._shared[request] = used
        self.hit_tokens += units * self._unit
        return units * self._unit

    def _length(self, request: int) -> int:
        """Tokens to compute before a request decodes: its prompt, and what it had generated before it was preempted."""
        return self._prompt[request] + self._generated.get(request, 0)

    def _whole(self, request: int) -> int:
        """Blocks of a request at its end, drafts beyond it included."""
        tokens = self._prompt[request] + self._output[request] + self.rules.drafts
        return -(-tokens // self.rules.block)

    def _blocks_of(self, request: int, tokens: int) -> int:
        """Blocks of its own that a request with so many tokens needs, beside cached units."""
        cached = len(self._shared[request]) * self._cache.unit_blocks
        return -(-tokens // self.rules.block) - cached

    def _chunk(self, iteration: Iteration, entry: list[int], budget: int) -> int:
        """Add tokens of a prompt, as many as the budget and the free blocks allow; how many."""
        request, before = entry
        tokens = min(self._length(request) - before, budget)
        need = self._blocks_of(request, before + tokens) - self._held[request]
        if need > self.free:
            room = self._held[request] + self.free
            room += len(self._shared[request]) * self._cache.unit_blocks
            tokens = min(tokens, room * self.rules.block - before)
            if tokens <= 0:
                return 0
            need = self._blocks_of(request, before + tokens) - self._held[request]
        self.free -= need
        self._held[request] += need
        iteration.prompt_tokens += tokens
        iteration.pairs += tokens * (before + tokens / 2)
        entry[1] = before + tokens
        if entry[1] >= self._length(request):
            iteration.done.append(request)
        return tokens

    def _fits(self, request: int, tokens: int) -> bool:
        """Whether a request may be admitted, so many tokens of its prompt first."""
        rules, block = self.rules, self.rules.block
        if rules.reserves:
            return self._reserved + self._whole(request) <= self.blocks
        if rules.scheduler == "prefill-first":
            return not self._held or self._has_room(request, 0, self.free)
        if self._hashes is None:
            return -(-tokens // block) <= self.free
        # idle prefixes count as free: those that it hits are free no longer
        hashes = self._hashes[request]
        hit = min(self._cache.leading(hashes), (self._length(request) - 1) // self._unit)
        reach = min(self._length(request), hit * self._unit + tokens)
        own = -(-reach // block) - hit * self._cache.unit_blocks
        return own + self._cache.idle_among(hashes[:hit]) <= self.free

    def _has_room(self, request: int, ticks: int, free: int) -> bool:
        """Whether prefill-first admits a request when every sequence has gained so many tokens and so many blocks are free."""
        own = min(self._output[request], self.rules.output_cap)
        ahead = self._ratio(ticks) * (self._remaining(ticks) + own)
        return self._length(request) + ahead <= free * self.rules.block

    def _steps_until_room(self, steps: int) -> int:
        """Decoding iterations after which prefill-first admits its next request; at most so many."""
        if self.running >= self.rules.max_sequences:
            return steps
        request = (self.waiting or self.offered)[0]
        for number in range(1, steps):
            ticks = self.gains(number)
            if self._has_room(request, ticks, self.free - self._claimed(ticks)):
                return number
        return steps

    def _ratio(self, ticks: int) -> float:
        """Share of the outputs to come that prefill-first keeps room for: it falls while nothing is retracted, and starts anew on an idle engine."""
        rules = self.rules
        if not self.decodes:
            self._ratio_from = self.tick
        share = min(1.0, (self.tick + ticks - self._ratio_from) / rules.ratio_steps)
        return rules.ratio_start + (rules.ratio_end - rules.ratio_start) * share

    def _remaining(self, ticks: int) -> float:
        """Tokens that running requests are still to generate once each has gained so many, each at most `output_cap`."""
        if not self._end_of:
            return 0.0
        now = self.tick + ticks
        if not self._capped:
            return float(self._end_ticks - len(self._end_of) * now)
        sample = list(itertools.islice(self._end_of.values(), _SAMPLE))
        left = sum(min(tick - now, self.rules.output_cap) for tick in sample)
        return left * len(self._end_of) / len(sample)

    def _may_admit(self) -> bool:
        if self.rules.scheduler == "static" or self.running >= self.rules.max_sequences:
            return False
        request = self.waiting[0]
        return self._fits(request, min(self._length(request), self.rules.max_tokens))

    def _begin(self, request: int, *, given: int) -> bool:
        """Let a request decode that has given so many tokens; False where these were all."""
        self._share(request)
        left = self._output[request] - given
        if left <= 0:
            self._give_back(request, self._held[request])
            self._generated.pop(request, None)
            return False
        tokens = self._prompt[request] + given
        self.decodes += 1
        self.context += tokens
        self._end_of[request] = self.tick + left
        self._end_ticks += self.tick + left
        self._began[request] = (self.tick, tokens)
        heapq.heappush(self._ends, (self.tick + left, request))
        self._residues[self._phase(self.tick, tokens)] += 1
        return True

    def _share(self, request: int) -> None:
        """Offer the whole units of a computed prompt to later requests."""
        if self._hashes is None:
            return
        units = self._prompt[request] // self._unit
        used = self._shared[request]
        new = self._cache.insert(self._hashes[request][len(used) : units])
        self._held[request] -= len(new) * self._cache.unit_blocks  # its own until now
        used += new

    def _phase(self, tick: int, tokens: int) -> int:
        """At which ticks, modulo the block, a sequence that has so many tokens at `tick` needs a further block.

        The tick after next to `tick` writes the last of its tokens, number ``tokens``: a block is needed when the tokens before it fill whole blocks.
        """
        return (tick + 1 - (tokens - 1)) % self.rules.block

    def _stop(self, request: int) -> int:
        """Take a decoding request out; the tokens it has."""
        tick, began_with = self._began.pop(request)
        self._end_ticks -= self._end_of.pop(request)
        tokens = began_with + self.tick - tick
        self.decodes -= 1
        self.context -= tokens
        self._residues[self._phase(tick, began_with)] -= 1
        self._give_back(request, max(self._blocks_of(request, tokens - 1), self._held[request]))
        return tokens

    def _give_back(self, request: int, blocks: int) -> None:
        self.free += blocks
        if shared := self._shared.pop(request):
            self.free += self._cache.release(shared)
        del self._held[request]
        if self.rules.reserves:
            self._reserved -= self._whole(request)

    def _iterations_within(self, ticks: int) -> int:
        """Decoding iterations in which a sequence gains at most so many tokens."""
        if self.even:
            return ticks
        before = self._iterations * self._gain >> _PARTS
        return (((ticks + before + 1) << _PARTS) - 1) // self._gain - self._iterations

    def _claimed(self, ticks: int) -> int:
        """Blocks that sequences ask for while each gains so many tokens."""
        block = self.rules.block
        if ticks == 1:
            return self._residues[(self.tick + 1) % block]
        return sum(self._residues[(self.tick + ahead) % block] for ahead in range(1, ticks + 1))

    def _ticks_until_full(self) -> int:
        """Tokens of each sequence that the free blocks last for."""
        block = self.rules.block
        cycles, left = divmod(self.free, self.decodes)
        for ahead in range(1, block + 1):
            left -= self._residues[(self.tick + ahead) % block]
            if left < 0:
                return cycles * block + ahead - 1
        return cycles * block

    def _make_room(self) -> bool:
        """Preempt the latest requests until the next decoding iteration has its blocks; whether any was."""
        evicted = False
        if self.rules.reserves:
            return evicted
        ticks = self.gains(1)
        while self._claimed(ticks) > self.free:
            request = self._latest()
            if request is None:
                break
            if request in self._end_of:
                self._generated[request] = self._stop(request) - self._prompt[request]
            else:
                self._partial = [entry for entry in self._partial if entry[0] != request]
                self._give_back(request, self._held[request])
            self.waiting.appendleft(request)
            self.preempted += 1
            self._ratio_from = self.tick
            evicted = True
        return evicted

    def _latest(self) -> int | None:
        """The running request admitted last, taken off the order; None where it is the only one."""
        if self.running == 1:
            return None
        kept: list[int] = []  # what is on the way has to come
        found = None
        while self._order and found is None:
            request = self._order.pop()
            if request in self.arriving:
                kept.append(request)
            elif request in self._held:
                found = request
        self._order += reversed(kept)
        return found
