"""Continuous batching: which requests take part in the next iteration of one engine.

What an engine decides is its policy's, a class of `mpsim.serving.policies`; blocks and decoding
sequences keep their own counts. Conservation holds at every iteration: the blocks of running
requests, of cached prefixes in use and the free ones (idle prefixes among them) are all blocks
(tested).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from typing import ClassVar, NamedTuple

from mpsim import structs
from mpsim.arrays import Floats
from mpsim.serving.cache import Blocks, Tier
from mpsim.serving.engines import EnginePreset
from mpsim.serving.running import Running


@structs.dataclass(frozen=True, slots=True, kw_only=True)
class BatchRules(EnginePreset):
    """How an engine forms iterations: its own settings, and what drafts add."""

    name: str = ""
    # tokens drafted for a sequence in an iteration; they count for the token budget
    drafts: int = 0
    # tokens that a sequence gains in an iteration, in the mean: more than 1 with drafts
    gain: float = 1.0
    # window, window_share: tokens that windowed layers keep of a sequence, and elements of a token
    # in them over those in the others; 0 where all layers keep all
    window: int = 0
    window_share: float = 0.0
    state_blocks: int = 0  # blocks that the states of a sequence take


class Batch(NamedTuple):
    """Work of an iteration, or of many that differ in their contexts."""

    decodes: int  # sequences that decode
    context: float | Floats  # tokens of their contexts together, float64[N] of many
    prompt_tokens: int = 0  # tokens of prompts
    pairs: float = 0.0  # pairs of query and key of their causal attention


class Iteration:
    """Work of one iteration, and the requests whose first prompt token and whose last are in it.

    Of engines that run together it is the sum of their `parts`.
    """

    __slots__ = (
        *("context", "decodes", "done", "loading", "pairs", "parts", "prompt_tokens", "started"),
    )

    def __init__(self, parts: Sequence[tuple[Engine, Iteration]] = ()) -> None:
        self.parts = parts
        self.decodes = self.context = self.prompt_tokens = 0
        self.pairs = 0.0
        # of prefixes from below the device, layer by layer beside the work [s]
        self.loading: float = max((part.loading for _, part in parts), default=0.0)
        self.started: list[int] = []
        self.done: list[int] = []
        for _, part in parts:
            self.decodes += part.decodes
            self.context += part.context
            self.prompt_tokens += part.prompt_tokens
            self.pairs += part.pairs
            self.started += part.started
            self.done += part.done

    @property
    def batch(self) -> Batch:
        """Work that takes time."""
        return Batch(self.decodes, self.context, self.prompt_tokens, self.pairs)


class Engine(ABC):
    """Requests of one engine: waiting, with a prompt under way, decoding.

    `prompt` and `output`: tokens of every request of the run, shared between engines. `hashes`:
    leading units of every prompt, where prefixes are cached, of `unit` tokens each. `hands_over`:
    computed prompts keep their blocks until another engine has them to decode.
    `samples_first`: requests that come with a computed prompt are still to be given their first
    token. `longest`: largest of `output`, where it is known. `keeps_answers`: units of `hashes`
    go on through the answer, which later prompts begin with. `tiers`: memories that keep what the
    cache drops.

    Requests that another engine computed the prompts of wait in `offered`; `accept` gives them
    blocks, and those whose keys and values have come decode from `land` on.
    """

    reserves: ClassVar[bool] = False
    """Whether admission sets aside the blocks of the whole output: nothing is preempted then."""
    finds_answers: ClassVar[bool] = True
    """Whether a preempted request finds the tokens again that it has generated, too."""
    together: ClassVar[bool] = False
    """Whether a batch begins and ends as one, without a server before it."""

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
        keeps_answers: bool = False,
        tiers: Sequence[Tier] = (),
    ) -> None:
        self.rules = rules
        caches = rules.prefix_cache and unit >= rules.block
        self.cache = Blocks(blocks, rules.block, hashes if caches else None, unit, tiers)
        self.decoding = Running(rules.block, rules.gain)
        self.output = output
        self.longest = max(output, default=0) if longest is None else longest
        self.waiting: deque[int] = deque()
        self.offered: deque[int] = deque()
        self.arriving: set[int] = set()  # accepted, their keys and values on the way
        self.partial: list[list[int]] = []  # [request, tokens of its prompt that are done]
        self.preempted = 0
        self._prompt = prompt
        self._generated: dict[int, int] = {}  # tokens that preempted requests have generated
        self._unseen: deque[int] = deque()  # they have come since the engine last looked
        self._polled_at = 0  # iterations that had decoded when prompts last ran
        self._hands_over, self._keeps_answers = hands_over, keeps_answers
        self._samples_first = samples_first
        self._unsampled: list[int] = []  # landed, their first token is still to come

    @abstractmethod
    def form(self, iteration: Iteration) -> None:
        """Choose what the next iteration does."""

    @abstractmethod
    def admits(self, request: int, tokens: int) -> bool:
        """Whether a request may be admitted, so many tokens of its prompt first."""

    @abstractmethod
    def victim(self) -> int | None:
        """The running request to preempt."""

    @abstractmethod
    def until_change(self, steps: int) -> int:
        """After how many decoding iterations it would do something else; at most so many."""

    @property
    def decodes(self) -> int:
        """Sequences that decode."""
        return self.decoding.decodes

    @property
    def context(self) -> int:
        """Tokens of their contexts together."""
        return self.decoding.context

    @property
    def running(self) -> int:
        """Sequences that decode, or whose prompt or cache is under way."""
        return self.decoding.decodes + len(self.partial) + len(self.arriving)

    @property
    def load(self) -> int:
        """Requests that it has, waiting ones included."""
        return self.running + len(self._unseen) + len(self.waiting) + len(self.offered)

    @property
    def used(self) -> int:
        """Blocks held by requests."""
        return self.cache.total - self.cache.free

    @property
    def rests(self) -> bool:
        """Whether nothing runs or waits to: requests on their way at most."""
        return not (self.decodes or self.partial or self.waiting or self._unseen)

    @property
    def waits_for(self) -> str:
        """Why nothing can run: a ``transfer``, no ``cache`` for a request, or no reason."""
        if self.arriving:
            return "transfer"
        return "cache" if self.waiting or self.offered else ""

    def enter(self, request: int, generated: int = 0) -> None:
        """Queue a request; so many tokens that another engine gave it are computed again."""
        if generated:
            self._generated[request] = generated
        self._unseen.append(request)

    def clear(self) -> list[tuple[int, int]]:
        """Drop all requests and what is cached; which, as admitted, and tokens of each."""
        running = list(self.cache.held)
        for request in running:
            self._drop(request)
        found = [(r, self._generated.pop(r, 0)) for r in (*running, *self.waiting, *self._unseen)]
        self.partial = []
        self.waiting.clear()
        self._unseen.clear()
        self.cache.forget()
        return found

    def next(self) -> Iteration | None:
        """Form the next iteration; None where nothing can run."""
        self._look()
        iteration = Iteration()
        self.form(iteration)
        return iteration if iteration.decodes or iteration.prompt_tokens else None

    def steady(self) -> int:
        """How many decoding iterations can follow in which nothing begins, ends or lacks blocks."""
        self._look()
        decoding = self.decoding
        if self.partial or self._unsampled or not decoding.decodes:
            return 0
        ticks = decoding.ticks_before_end()
        if not self.reserves:
            ticks = decoding.ticks_within(self.cache.free, ticks)
        steps = decoding.iterations_within(max(0, ticks))
        if self._unseen:
            steps = min(steps, self._until_look)
        return self.until_change(steps)

    def jump(self, steps: int) -> None:
        """Pass so many decoding iterations as `steady` allows."""
        self.cache.free -= self.decoding.claimed(self.decoding.gains(steps))
        self.decoding.advance(steps)
        self.cache.shrink()

    def accept(self) -> list[int]:
        """Give blocks to offered requests, in their order, while they fit; those that got them.

        Preempted requests go first: nothing is accepted while one waits.
        """
        taken: list[int] = []
        while self.offered and not self.waiting and self.running < self.rules.max_sequences:
            request = self.offered[0]
            tokens = self._prompt[request]
            if not self.admits(request, tokens):
                break
            self._admit(self.offered.popleft(), tokens - self._samples_first)
            self.arriving.add(request)
            taken.append(request)
        if taken:
            self.cache.shrink()
        return taken

    def land(self, request: int) -> None:
        """Let a request decode whose keys and values have come."""
        self.arriving.remove(request)
        if self._samples_first:
            self._unsampled.append(request)
        self._begin(request, given=0 if self._samples_first else 1)

    def finish(self, iteration: Iteration) -> tuple[list[int], list[int]]:
        """End an iteration; requests that gave their first token, and their last."""
        first: list[int] = []
        last: list[int] = []
        self.cache.shrink()  # before what ends gives back the blocks that this iteration took
        if iteration.prompt_tokens:
            self._polled_at = self.decoding.iterations + (iteration.decodes > 0)
        if iteration.decodes:
            self.decoding.advance(1)
            if self._unsampled:
                first += [request for request in self._unsampled if request in self.decoding.end_of]
                self._unsampled = []
            last = self.decoding.ended()
            for request in last:
                self._drop(request, keeps=self._keeps_answers)
                del self._generated[request]
        for request in iteration.done:
            if not self._generated.get(request):
                first.append(request)
            if self._hands_over:
                self.cache.share(request, self._prompt[request])
            elif not self._begin(request, given=self._generated.get(request, 0) + 1):
                last.append(request)
        return first, last

    def decode(self, iteration: Iteration) -> None:
        """Have all sequences that decode take part in an iteration."""
        decoding = self.decoding
        iteration.decodes = decoding.decodes
        iteration.context = decoding.context
        self.cache.free -= decoding.claimed(decoding.gains(1))

    def fill(self, iteration: Iteration, budget: int) -> None:
        """Add prompts: those under way, then waiting ones in order of arrival."""
        rules = self.rules
        for entry in self.partial:
            if budget <= 0:
                break
            budget -= self._chunk(iteration, entry, budget)
        self.partial = [entry for entry in self.partial if entry[1] < self.length(entry[0])]
        running = self.running + len(iteration.done)
        while self.waiting and budget > 0 and running < rules.max_sequences:
            request = self.waiting[0]
            length = self.length(request)
            if not rules.chunked and length > budget and iteration.prompt_tokens:
                break  # engines are built for the longest prompt beside all sequences, not for two
            tokens = min(length, budget) if rules.chunked else length
            if not self.admits(request, tokens):
                break
            self._admit(self.waiting.popleft())
            running += 1
            iteration.started.append(request)
            entry = [request, self.cache.hit(request, length)]
            brought, seconds = self.cache.bring(request, length)
            entry[1] += brought
            entry[1] += self.cache.regain(request, entry[1], length)
            iteration.loading += seconds
            budget -= self._chunk(iteration, entry, tokens if not rules.chunked else budget)
            if entry[1] < length:
                self.partial.append(entry)

    def make_room(self) -> bool:
        """Preempt requests until the next decoding iteration has its blocks; whether any was."""
        evicted = False
        if self.reserves or not self.decodes:
            return evicted
        ticks = self.decoding.gains(1)
        while self.running > 1 and self.decoding.claimed(ticks) > self.cache.free:
            request = self.victim()
            if request is None:
                break
            done = next((tokens for entry, tokens in self.partial if entry == request), 0)
            self.partial = [entry for entry in self.partial if entry[0] != request]
            self._drop(request, done, leaves=self.rules.prefix_cache)
            self.waiting.appendleft(request)
            self.preempted += 1
            evicted = True
        return evicted

    def length(self, request: int) -> int:
        """Tokens to compute before a request decodes: its prompt, and what was generated before."""
        return self._prompt[request] + self._generated.get(request, 0)

    def whole(self, request: int) -> int:
        """Blocks of a request at its end, drafts beyond it included."""
        tokens = self._prompt[request] + self.output[request] + self.rules.drafts
        return -(-tokens // self.rules.block) + self.windows(request)

    def windows(self, request: int) -> int:
        """Blocks of a request in layers that keep a window or a state alone, all taken at once."""
        rules = self.rules
        if not rules.window:
            return rules.state_blocks
        tokens = min(rules.window, self._prompt[request] + self.output[request])
        return rules.state_blocks + math.ceil(tokens * rules.window_share / rules.block)

    @property
    def _until_look(self) -> int:
        """Decoding iterations until the engine looks for requests that have come."""
        passed = self.decoding.iterations - self._polled_at
        return -passed % self.rules.poll_steps if self.decodes else 0

    def _look(self) -> None:
        """Queue the requests that have come, where the engine looks."""
        if self._unseen and not self._until_look:
            self.waiting += self._unseen
            self._unseen.clear()

    def _admit(self, request: int, tokens: int = 0) -> None:
        """Let a request hold blocks, those of so many tokens at once."""
        aside = self.whole(request) if self.reserves else 0
        self.cache.enter(request, aside, tokens, self.windows(request))

    def _chunk(self, iteration: Iteration, entry: list[int], budget: int) -> int:
        """Add tokens of a prompt, as many as the budget and the free blocks allow; how many."""
        request, before = entry
        length = self.length(request)
        tokens = self.cache.take(request, before, min(length - before, budget))
        iteration.prompt_tokens += tokens
        iteration.pairs += tokens * (before + tokens / 2)
        entry[1] = before + tokens
        if tokens and entry[1] >= length:
            iteration.done.append(request)
        return tokens

    def _begin(self, request: int, *, given: int) -> bool:
        """Let a request decode that has given so many tokens; False where these were all."""
        self.cache.share(request, self._prompt[request])
        left = self.output[request] - given
        if left <= 0:
            self.cache.give_back(request)
            self._generated.pop(request, None)
            return False
        self.decoding.begin(request, self._prompt[request] + given, left)
        return True

    def _drop(
        self, request: int, tokens: int = 0, *, keeps: bool = False, leaves: bool = False
    ) -> None:
        """Take a running request out and its blocks back; note the tokens that it has generated."""
        if request in self.decoding.end_of:
            tokens = self.decoding.stop(request) - 1
            self._generated[request] = tokens + 1 - self._prompt[request]
        if keeps:
            self.cache.share(request, tokens)
        # a state of its layers is not kept with them
        found = tokens if self.finds_answers else min(tokens, self._prompt[request])
        self.cache.give_back(request, tokens, found * (leaves and not self.rules.state_blocks))
