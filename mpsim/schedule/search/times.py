"""Times of the three actions and room for activations, for searches on measured times."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from mpsim import structs
from mpsim.errors import ScheduleError
from mpsim.shipped import say

UNTIL_WEIGHT = 0.5
"""Part of an activation that the zero-bubble authors' searches take to be held until W.

Their own estimate is 32 of 34 + 5as/h parts (a heads, s sequence, h hidden; their commit 39f2c186,
runtime.py), so half at as/h = 6.
"""

_ROUNDING = 1e-9  # of the limit: sums of parts of an activation do not exceed it by rounding alone


@structs.dataclass(frozen=True, slots=True)
class Memory:
    """Room for activations on a rank."""

    # most that may be held at once [any unit, such as activations or bytes]; may be infinite
    limit: float
    # what a forward, an input gradient and a weight gradient add to what is held [same unit]
    change: tuple[float, float, float] = (1.0, 0.0, -1.0)

    @classmethod
    def of_count(cls, activations: float, *, until_weight: float = 1.0) -> Memory:
        """Room for so many activations, a part (0 to 1) held until W and the rest until I."""
        if not 0 <= until_weight <= 1:
            raise ScheduleError(say("schedule.part_until_weight", until_weight=until_weight))
        return cls(activations, (1.0, until_weight - 1.0, -until_weight))

    def fits(self, held: float) -> bool:
        """Whether so much may be held."""
        return held <= self.limit * (1 + _ROUNDING)


class Times(NamedTuple):
    """Times of a forward, an input gradient, a weight gradient and a message [any one unit]."""

    forward: float
    backward: float
    weight: float
    send: float


def check_times(schedule: str, times: Sequence[float], send: float) -> Times:
    """Refuse times that are not three, or are negative or not numbers."""
    given = [*map(float, times), float(send)]
    if len(given) != len(Times._fields) or not all(math.isfinite(t) and t >= 0 for t in given):
        raise ScheduleError(
            say("schedule.finite_times", schedule=schedule, times=tuple(times), send=send)
        )
    return Times(*given)
