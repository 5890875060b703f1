"""Warm-up, then forwards and backwards in turn, then the rest, on a loop.

Shapes: P ranks, K actions of one kind a rank = virtual stages x microbatches.

With whole backwards, forward k of a rank with w warm-up forwards is action ``k + max(0, k - w)`` of
the rank and backward k is action ``k + min(K, w + k + 1)``; GPipe is w = K, 1F1B is w = P - 1 - r.

With split backwards, round j after the warm-up runs forward w + j while there is one, input
gradient j while there is one, and weight gradient j - l once j has reached the lag l. ZB-H1 is w =
P - 1 - r and l = r; ZB-H2 doubles both. The lag is what lets an input gradient leave early: weight
gradients are put off to where the rank would wait.

A schedule says w, l and the (chunk, microbatch) of each direction; nothing loops here.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mpsim import structs
from mpsim.arrays import Ints
from mpsim.schedule.orders import Action, Orders
from mpsim.schedule.stages import loop_map


def loop_orders(
    schedule: str,
    *,
    pp: int,
    warmup_P: Ints,
    forward_chunk_K: Ints,
    forward_microbatch_K: Ints,
    backward_chunk_K: Ints,
    backward_microbatch_K: Ints,
    exchanges: bool = False,
) -> Orders:
    """Pair the two sequences on every rank of a loop (stage s on rank s mod P).

    `schedule`: name the orders carry. `warmup_P` (int64[P]): forwards before the first backward,
    beyond the one of the first pair; 0 to K. `forward_chunk_K`, `forward_microbatch_K`,
    `backward_chunk_K` and `backward_microbatch_K` (int64[K]): what the k-th action of each
    direction works on, the same on every rank. `exchanges`: as in `Orders`.
    """
    count = len(forward_chunk_K)
    rank_P = np.arange(pp)[:, None]
    k_K = np.arange(count)
    warmup = warmup_P[:, None]
    forward_at = k_K + np.maximum(0, k_K - warmup)
    backward_at = k_K + np.minimum(count, warmup + k_K + 1)

    kind = np.empty((pp, 2 * count), dtype=np.int8)
    stage = np.empty((pp, 2 * count), dtype=np.int32)
    microbatch = np.empty((pp, 2 * count), dtype=np.int32)
    for action, at, chunk_K, microbatch_K in (
        (Action.F, forward_at, forward_chunk_K, forward_microbatch_K),
        (Action.B, backward_at, backward_chunk_K, backward_microbatch_K),
    ):
        kind[rank_P, at] = action
        stage[rank_P, at] = chunk_K * pp + rank_P
        microbatch[rank_P, at] = microbatch_K
    virtual_stages = int(forward_chunk_K.max()) + 1
    orders = _on_loop(schedule, kind, stage, microbatch, virtual_stages=virtual_stages)
    return structs.replace(orders, exchanges=exchanges)


def split_loop_orders(
    schedule: str,
    *,
    pp: int,
    warmup_P: Ints,
    lag_P: Ints,
    forward_chunk_K: Ints,
    backward_chunk_K: Ints,
    microbatch_K: Ints,
) -> Orders:
    """Orders on a loop (stage s on rank s mod P) with a split backward.

    `schedule`: name the orders carry. `warmup_P` (int64[P]): forwards before the first round, 0 to
    K. `lag_P` (int64[P]): rounds by which a weight gradient follows its input gradient, at least 0.
    `forward_chunk_K`, `backward_chunk_K` and `microbatch_K` (int64[K]): what the k-th action of
    each kind works on, the same on every rank.
    """
    count = len(microbatch_K)
    action_of = {Action.F: forward_chunk_K, Action.I: backward_chunk_K, Action.W: backward_chunk_K}
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
    return _on_loop(schedule, kind, stage, microbatch, virtual_stages=virtual_stages)


def _places(count: int, warmup: int, lag: int) -> tuple[Ints, ...]:
    """Places in a rank's order of its K forwards, input and weight gradients, int64[K] each."""
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


def _on_loop(
    schedule: str,
    kind_PA: NDArray[np.int8],
    stage_PA: NDArray[np.int32],
    microbatch_PA: NDArray[np.int32],
    *,
    virtual_stages: int,
) -> Orders:
    """Orders of equally many actions a rank on a loop (stage s on rank s mod P).

    `schedule`: name the orders carry. `kind_PA`, `stage_PA` and `microbatch_PA` ([P, A]): the A
    actions of every rank, in order.
    """
    pp, actions = kind_PA.shape
    forwards = int((kind_PA[0] == Action.F).sum())
    return Orders(
        schedule=schedule,
        pp=pp,
        microbatches=forwards // virtual_stages,
        virtual_stages=virtual_stages,
        stage_rank=loop_map(pp, virtual_stages),
        rank_ptr=np.arange(pp + 1, dtype=np.int64) * actions,
        kind=kind_PA.ravel(),
        stage=stage_PA.ravel(),
        microbatch=microbatch_PA.ravel(),
    )
