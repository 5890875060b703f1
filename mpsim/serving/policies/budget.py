"""Policy ``budget``: decodes first, chunks of prompts fill what is left of it (vLLM V1)."""

from __future__ import annotations

from mpsim.serving.batching import Engine, Iteration


class Budget(Engine):
    """An engine with the decisions of one scheduler; others replace some of the four."""

    _kept_back = 0  # iterations for which prompts have been kept back

    def form(self, iteration: Iteration) -> None:
        """Decode, and fill what is left with prompts."""
        # an engine that preempts in an iteration admits nobody in it
        evicted = self.make_room()
        self.decode(iteration)
        if not evicted and not self._keeps_back():
            rules = self.rules
            self.fill(iteration, rules.max_tokens - iteration.decodes * (1 + rules.drafts))

    def admits(self, request: int, tokens: int) -> bool:
        """Whether these tokens fit into the free blocks."""
        return self.cache.has_room(request, self.length(request), tokens, self.windows(request))

    def victim(self) -> int | None:
        """The latest whose cache is not on the way."""
        running = reversed(self.cache.held)
        return next((request for request in running if request not in self.arriving), None)

    def until_change(self, steps: int) -> int:
        """None of them if the next request can be admitted."""
        if not self.waiting or self.running >= self.rules.max_sequences:
            return steps
        request = self.waiting[0]
        tokens = min(self.length(request), self.rules.max_tokens)
        return 0 if self.admits(request, tokens) else steps

    def _keeps_back(self) -> bool:
        """Whether prompts wait for more of them, while something decodes."""
        rules = self.rules
        if not rules.batch_wait_steps or not self.decodes or not (self.waiting or self.partial):
            return False
        enough, tokens = rules.batch_wait_share * rules.max_tokens, self.decodes
        tokens += sum(self.length(request) - done for request, done in self.partial)
        for request in self.waiting:
            if tokens >= enough:
                break
            tokens += self.length(request)
        waits = tokens < enough and self._kept_back < rules.batch_wait_steps
        self._kept_back = self._kept_back + 1 if waits else 0
        return waits
