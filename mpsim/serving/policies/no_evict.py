"""Policy ``no-evict``: prompts whose whole output fits join the decodes (TensorRT-LLM)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mpsim.serving.policies.budget import Budget

if TYPE_CHECKING:
    from mpsim.serving.batching import Engine


class NoEvict(Budget):
    """Chunks as ``budget`` fills them, with room set aside for what is still to be generated."""

    reserves = True

    def admits(self, engine: Engine, request: int, tokens: int) -> bool:
        """Whether all blocks of the request are left."""
        return engine.cache.reserved + engine.whole(request) <= engine.cache.total
