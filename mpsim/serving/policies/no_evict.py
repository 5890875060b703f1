"""Policy ``no-evict``: prompts whose whole output fits join the decodes (TensorRT-LLM)."""

from __future__ import annotations

from mpsim.serving.policies.budget import Budget


class NoEvict(Budget):
    """Chunks as ``budget`` fills them, with room set aside for what is still to be generated."""

    reserves = True

    def admits(self, request: int, tokens: int) -> bool:
        """Whether all blocks of the request are left."""
        return self.cache.reserved + self.whole(request) <= self.cache.total
