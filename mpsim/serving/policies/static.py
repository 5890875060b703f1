"""Policy ``static``: a batch starts when all of the last one has ended."""

from __future__ import annotations

from typing import Final

from mpsim.serving.batching import Iteration
from mpsim.serving.policies.no_evict import NoEvict

_WITHOUT_LIMIT: Final = 1 << 60


class Static(NoEvict):
    """Prompts of a whole batch, then decodes until the last has ended."""

    together = True

    def form(self, iteration: Iteration) -> None:
        """Admit while nothing decodes."""
        if not self.decodes:
            self.fill(iteration, _WITHOUT_LIMIT)
        if not iteration.prompt_tokens:
            self.decode(iteration)

    def until_change(self, steps: int) -> int:
        """Nobody joins a batch under way."""
        return steps
