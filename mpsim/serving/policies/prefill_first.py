"""Policy ``prefill-first``: prompts alone while one can be admitted, else decodes.

It keeps room for a share of the outputs to come (SGLang schedule_policy.py, environ.py of 2025).
"""

from __future__ import annotations

import itertools
from typing import Final

from mpsim.serving.batching import Iteration
from mpsim.serving.policies.budget import Budget

_SHARES: Final = (0.7, 0.098)  # of the outputs to come, after a retraction and at last
_FALLING: Final = 600  # decoding iterations from the one to the other
_OUTPUT_CAP: Final = 4096  # tokens of an output that count
_SAMPLE: Final = 64  # running sequences that an estimate of what is still to come looks at
_RECHECK: Final = 16  # iterations it looks ahead for when a prompt can be admitted


class PrefillFirst(Budget):
    """Prompts go before decodes, and what is retracted is computed again."""

    finds_answers = False  # release_req inserts nothing; prompts are in its tree since they ran
    _ratio_from = 0  # tick since which the share falls

    def form(self, iteration: Iteration) -> None:
        """Fill an iteration with prompts; decode where there is none."""
        self.fill(iteration, self.rules.max_tokens)
        if not iteration.prompt_tokens and self.decodes:
            self.make_room()
            self.decode(iteration)

    def admits(self, request: int, tokens: int) -> bool:
        """Whether the whole prompt and a share of all outputs fit; alone, whatever it is."""
        return not self.cache.held or self._has_room(request, 0, self.cache.free)

    def victim(self) -> int | None:
        """The latest; the share to keep room for begins anew."""
        found = super().victim()
        if found is not None:
            self._ratio_from = self.decoding.tick
        return found

    def until_change(self, steps: int) -> int:
        """Until the next request can be admitted, as others gain tokens and the share falls."""
        steps = super().until_change(steps)
        if not steps or not (self.waiting or self.offered):
            return steps
        steps = min(steps, _RECHECK)
        if self.running >= self.rules.max_sequences:
            return steps
        request, decoding = (self.waiting or self.offered)[0], self.decoding
        for number in range(1, steps):
            ticks = decoding.gains(number)
            free = self.cache.free - decoding.claimed(ticks)
            if self._has_room(request, ticks, free):
                return number
        return steps

    def _has_room(self, request: int, ticks: int, free: int) -> bool:
        """Whether it admits when sequences have gained so many tokens and blocks are free."""
        own = min(self.output[request], _OUTPUT_CAP)
        ahead = self._share(ticks) * (self._remaining(ticks) + own)
        return self.length(request) + ahead <= (free - self.windows(request)) * self.rules.block

    def _share(self, ticks: int) -> float:
        """Share of the outputs to come that room is kept for; it starts anew when idle."""
        now = self.decoding.tick
        if not self.decodes:
            self._ratio_from = now
        first, last = _SHARES
        return first + (last - first) * min(1.0, (now + ticks - self._ratio_from) / _FALLING)

    def _remaining(self, ticks: int) -> float:
        """Tokens still to come once each sequence has gained so many, as far as they count."""
        decoding = self.decoding
        if not decoding.end_of:
            return 0.0
        now = decoding.tick + ticks
        if self.longest <= _OUTPUT_CAP:
            return float(decoding.end_ticks - len(decoding.end_of) * now)
        sample = list(itertools.islice(decoding.end_of.values(), _SAMPLE))
        left = sum(min(tick - now, _OUTPUT_CAP) for tick in sample)
        return left * len(decoding.end_of) / len(sample)
