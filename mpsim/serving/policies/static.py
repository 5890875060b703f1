"""Policy ``static``: a batch starts when all of the last one has ended."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mpsim.serving.policies.no_evict import NoEvict

if TYPE_CHECKING:
    from mpsim.serving.batching import Engine, Iteration


_WITHOUT_LIMIT: Final = 1 << 60


class Static(NoEvict):
    """Prompts of a whole batch, then decodes until the last has ended."""

    together = True

    def form(self, engine: Engine, iteration: Iteration) -> None:
        """Admit while nothing decodes."""
        if not engine.decodes:
            engine.fill(iteration, _WITHOUT_LIMIT)
        if not iteration.prompt_tokens:
            engine.decode(iteration)

    def until_change(self, engine: Engine, steps: int) -> int:
        """Nobody joins a batch under way."""
        return steps
