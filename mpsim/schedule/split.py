"""Warm-up, then forward, input gradient and a weight gradient that lags behind: what zero-bubble schedules on a loop share.

Shapes: P ranks, K actions of one kind a rank = virtual stages x microbatches.

After w warm-up forwards, round j of a rank runs forward w + j while there is one, input gradient j while there
is one, and weight gradient j - l once j has reached the lag l. ZB-H1 is w = P - 1 - r and l = r; ZB-H2 doubles
both. The lag is what lets an input gradient leave early: weight gradients are put off to where the rank would
wait.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mpsim.schedule.orders import Action, Orders
from mpsim.schedule.pairing import on_loop

__all__ = ["split_loop_orders"]


def split_loop_orders(
    schedule: str,
    *,
    pp: int,
    warmup_P: NDArray[np.int64],
    lag_P: NDArray[np.int64],
    forward_chunk_K: NDArray[np.int64],
    backward_chunk_K: NDArray[np.int64],
    microbatch_K: NDArray[np.int64],
) -> Orders:
    """Orders on a loop (stage s on rank s mod P) with a split backward.

    Parameters
    ----------
    schedule : str
        Name the orders carry.
    pp : int
        Ranks.
    warmup_P : int64[P]
        Forwards before the first round, 0 to K.
    lag_P : int64[P]
        Rounds by which a weight gradient follows its input gradient, at least 0.
    forward_chunk_K, backward_chunk_K, microbatch_K : int64[K]
        What the k-th action of each kind works on, the same on every rank.

    Returns
    -------
    Orders
    """
    count = len(microbatch_K)
    action_of = {
        Action.F: forward_chunk_K,
        Action.I: backward_chunk_K,
        Action.W: backward_chunk_K,
    }
    kind = np.empty((pp, len(action_of) * count), dtype=np.int8)
    stage = np.empty(kind.shape, dtype=np.int32)
    microbatch = np.empty(kind.shape, dtype=np.int32)
    for rank, (warmup, lag) in enumerate(zip(warmup_P.tolist(), lag_P.tolist(), strict=True)):
        places = _places(count, warmup, lag)
        for (action, chunk_K), at_K in zip(action_of.items(), places, strict=True):
            kind[rank, at_K] = action
            stage[rank, at_K] = chunk_K * pp + rank
            microbatch[rank, at_K] = microbatch_K
    virtual_stages = int(forward_chunk_K.max()) + 1
    return on_loop(schedule, kind, stage, microbatch, virtual_stages=virtual_stages)


def _places(count: int, warmup: int, lag: int) -> tuple[NDArray[np.int64], ...]:
    """Where in a rank's order its K forwards, input gradients and weight gradients are, int64[K] each."""
    k_K = np.arange(count)
    round_J = np.arange(count + lag)
    forward_J = round_J < count - warmup
    gradient_J = round_J < count
    size_J = forward_J.astype(np.int64) + gradient_J + (round_J >= lag)
    start_J = warmup + np.cumsum(size_J) - size_J
    return (
        np.where(k_K < warmup, k_K, start_J[np.maximum(k_K - warmup, 0)]),
        (start_J + forward_J)[:count],
        (start_J + forward_J + gradient_J)[lag:],
    )
