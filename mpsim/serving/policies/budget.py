"""Policy ``budget``: decodes first, chunks of prompts fill what is left of it (vLLM V1)."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from mpsim.serving.batching import Engine, Iteration


class Budget:
    """Decisions of one engine's scheduler; other policies replace some of the four."""

    reserves: ClassVar[bool] = False
    """Whether admission sets aside the blocks of the whole output: nothing is preempted then."""
    together: ClassVar[bool] = False
    """Whether a batch begins and ends as one, without a server before it."""

    def __init__(self) -> None:
        self._kept_back = 0  # iterations for which prompts have been kept back

    def form(self, engine: Engine, iteration: Iteration) -> None:
        """Choose what the next iteration does."""
        # an engine that preempts in an iteration admits nobody in it
        evicted = engine.make_room()
        engine.decode(iteration)
        if not evicted and not self._keeps_back(engine):
            rules = engine.rules
            engine.fill(iteration, rules.max_tokens - iteration.decodes * (1 + rules.drafts))

    def admits(self, engine: Engine, request: int, tokens: int) -> bool:
        """Whether a request may be admitted, so many tokens of its prompt first."""
        windows = engine.windows(request)
        return engine.cache.has_room(request, engine.length(request), tokens, windows)

    def victim(self, engine: Engine) -> int | None:
        """The running request to preempt: the latest whose cache is not on the way."""
        running = reversed(engine.cache.held)
        return next((request for request in running if request not in engine.arriving), None)

    def until_change(self, engine: Engine, steps: int) -> int:
        """After how many decoding iterations it would do something else; at most so many."""
        if not engine.waiting or engine.running >= engine.rules.max_sequences:
            return steps
        request = engine.waiting[0]
        tokens = min(engine.length(request), engine.rules.max_tokens)
        return 0 if self.admits(engine, request, tokens) else steps

    def _keeps_back(self, engine: Engine) -> bool:
        """Whether prompts wait for more of them, while something decodes."""
        rules = engine.rules
        if (
            not rules.batch_wait_steps
            or not engine.decodes
            or not (engine.waiting or engine.partial)
        ):
            return False
        enough, tokens = rules.batch_wait_share * rules.max_tokens, engine.decodes
        tokens += sum(engine.length(request) - done for request, done in engine.partial)
        for request in engine.waiting:
            if tokens >= enough:
                break
            tokens += engine.length(request)
        waits = tokens < enough and self._kept_back < rules.batch_wait_steps
        self._kept_back = self._kept_back + 1 if waits else 0
        return waits
