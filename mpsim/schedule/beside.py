"""Forwards beside backwards in an order that has them one after the other.

Megatron-Core's overlap of expert exchanges runs one more forward in warm-up, so that the next
forward and a backward of the steady state have nothing to do with each other, and then each such
pair as one block: F F B F B ... becomes F F (F beside B) ...

References
----------
NVIDIA/Megatron-LM, megatron/core/pipeline_parallel/combined_1f1b.py, schedules.py (warm-up), 2025.
"""

from __future__ import annotations

import numpy as np

from mpsim import structs
from mpsim.schedule.orders import Action, Orders


def forwards_beside_backwards(orders: Orders) -> Orders:
    """Make a block of every full backward and the forward that follows it at once, forward first.

    `orders`: without blocks; on one rank, or interleaved: with one chunk on each of several ranks a
    block would wait for the block that it feeds.

    Returns Orders: the same actions.

    Examples
    --------
    >>> from mpsim.schedule import make_orders
    >>> forwards_beside_backwards(make_orders("1f1b", pp=1, microbatches=3)).tokens()
    [['0F0', '(0F1;0B0)OVERLAP_F_B', '(0F2;0B1)OVERLAP_F_B', '0B2']]
    """
    follows = (orders.kind[:-1] == Action.B) & (orders.kind[1:] == Action.F)
    head = np.flatnonzero(follows & (orders.rank[:-1] == orders.rank[1:]))
    place = np.arange(len(orders))
    place[head], place[head + 1] = head + 1, head
    fused = np.zeros(len(orders), dtype=bool)
    fused[head] = True
    return structs.replace(
        orders,
        kind=orders.kind[place],
        stage=orders.stage[place],
        microbatch=orders.microbatch[place],
        fused=fused,
    )
