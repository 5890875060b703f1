"""Experts placed by their load (EPLB), hot ones with copies: the busiest rank over the mean.

Tokens choose experts by a power law, steep enough that ranks of neighbouring experts show the
imbalance that was stated. Spare slots go one by one to the expert whose copies have the most tokens
each, and copies, the busiest first, to the rank with the fewest tokens that has a slot left [1]_.

References
----------
.. [1] deepseek-ai/EPLB, ``eplb.py``: ``replicate_experts`` and ``balanced_packing``.
"""

from __future__ import annotations

import heapq
from typing import Final

import numpy as np

from mpsim.memo import remembered

_ORDERS: Final = 8  # random orders of the experts that the mean is over
_STEEPEST: Final = 4.0  # exponent of the power law
_HALVINGS: Final = 30


@remembered(256)
def balanced(imbalance: float, experts: int, ranks: int, copies: int) -> float:
    """Tokens of the busiest rank over the mean where experts are placed by their load.

    `imbalance`: the same where neighbours share a rank, 1 or more. `copies`: slots beyond one for
    each expert.

    Examples
    --------
    >>> [round(balanced(1.5, 256, 32, copies), 2) for copies in (0, 32, 64)]
    [1.22, 1.0, 1.0]
    """
    if imbalance <= 1.0 or ranks <= 1:
        return imbalance
    orders = [np.random.default_rng(number).permutation(experts) for number in range(_ORDERS)]
    share = np.arange(1.0, experts + 1.0)
    low, high = 0.0, _STEEPEST
    for _ in range(_HALVINGS):
        middle = (low + high) / 2.0
        loads = share**-middle
        parts = (np.array_split(loads[order], ranks) for order in orders)
        busiest = np.mean([max(part.sum() for part in split) for split in parts])
        low, high = (low, middle) if busiest > imbalance * loads.sum() / ranks else (middle, high)
    return min(imbalance, _packed(share**-low, ranks, copies))


def _packed(loads: np.ndarray[tuple[int], np.dtype[np.float64]], ranks: int, copies: int) -> float:
    """Load of the busiest rank over the mean after copies were made and packed."""
    held = [(-load, 1, load) for load in loads.tolist()]
    heapq.heapify(held)
    for _ in range(copies):
        _, count, load = held[0]
        heapq.heapreplace(held, (-load / (count + 1), count + 1, load))
    each = sorted((-least for least, count, _ in held for _ in range(count)), reverse=True)
    slots = -(-len(each) // ranks)
    filled = [(0.0, 0, rank) for rank in range(ranks)]
    busiest = 0.0
    for load in each:
        have, count, rank = heapq.heappop(filled)
        busiest = max(busiest, have + load)
        if count + 1 < slots:
            heapq.heappush(filled, (have + load, count + 1, rank))
    return busiest / (sum(each) / ranks)
