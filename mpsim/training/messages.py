"""Messages between pipeline stages: who sends to whom, over which channel, and who waits meanwhile.

Shapes: N actions, S stages, X messages.

An asynchronous message starts when its producer has ended and its channel is free, and holds up
only its consumer. Around a *blocking* action communication is part of the program's own order: the
send after an action has to end before the next action of that rank starts.

Some orders (`Orders.exchanges`: GPipe and 1F1B) are executed as exchanges between neighbours, and
there the receiving end blocks as well:

* the receive for an action is posted when the action before it on that rank has ended, so the
  message cannot start earlier;
* where two actions of the same direction follow each other (warm-up and flush), the send of the
  first and the receive of the second are separate calls, so the receive is posted only when the
  send has ended. Between a forward and a backward they are one exchange, or, `one_way`, the
  activation and then the gradient.

All others post receives ahead of their use, so only the sending end is held there.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mpsim import structs
from mpsim.arrays import Flags, Ints
from mpsim.cost import COLLECTIVES
from mpsim.framework import BlockingSends, PipelineBehaviour
from mpsim.program.program import Stream
from mpsim.program.rows import Rows
from mpsim.schedule import Action, Orders
from mpsim.training.vocabulary import PARTS, Kind

_ALWAYS = (BlockingSends.ALWAYS, BlockingSends.ONE_WAY)
_EXPOSED_PP = PARTS.index("exposed_pp")

MESSAGES = ("send activation", "send gradient")
"""Labels of messages to the next stage and to the one before, and names of their prices, one a
stage that sends."""


@structs.dataclass(frozen=True, slots=True, eq=False)
class PipelineRows:
    """Where the actions went: first and last row of each."""

    first: Ints
    last: Ints


@structs.dataclass(frozen=True, slots=True, eq=False)
class Messages:
    """Action of producer and consumer of each message [X], its direction (1: gradient)."""

    producer: Ints
    consumer: Ints
    direction: Ints


def add_messages(
    rows: Rows,
    orders: Orders,
    placed: PipelineRows,
    messages: Messages,
    blocking: Flags | None,
    *,
    one_way: bool,
) -> None:
    """Append a row for each message. `blocking` (bool[N], optional): around which actions
    communication blocks; around none by default. `one_way`: whether what neighbours exchange there
    goes one direction after the other.
    """
    # channels deliver in their sender's order; an action sends one message a direction at most
    place = np.full(2 * len(orders), -1)
    place[2 * messages.producer + messages.direction] = np.arange(len(messages.producer))
    order = place[place >= 0]
    producer, consumer = messages.producer[order], messages.consumer[order]
    direction = messages.direction[order]
    stage = orders.stage[producer]
    source, target = orders.stage_rank[stage], orders.stage_rank[orders.stage[consumer]]
    out, into = _channels(direction, source, target, orders.pp)
    ids = np.empty(len(order), dtype=np.int64)
    for which, label in enumerate(MESSAGES):
        mine = np.flatnonzero(direction == which)
        ids[mine] = rows.add(
            len(mine),
            rank=source[mine],
            stream=out[mine],
            kind=Kind.SEND,
            part=_EXPOSED_PP,
            stage=stage[mine],
            chunk=orders.stage_chunk[stage[mine]],
            microbatch=orders.microbatch[producer[mine]],
            peer=target[mine],
            label=label,
            collective=COLLECTIVES.index("send_recv"),
            price=label,
            place=stage[mine],
        )
    rows.occupy(ids, target, into)
    rows.depend(ids, placed.last[producer])
    rows.depend(placed.first[consumer], ids)
    if blocking is not None:
        exchanged = Messages(producer, consumer, direction)
        _block(rows, orders, placed, exchanged, ids, blocking, one_way=one_way)


def _block(
    rows: Rows,
    orders: Orders,
    placed: PipelineRows,
    messages: Messages,
    ids: Ints,
    blocking: Flags,
    *,
    one_way: bool,
) -> None:
    """Let both ends wait as blocking communication makes them."""
    rank = orders.rank
    last = len(orders) - 1
    following = np.minimum(messages.producer + 1, last)
    holds = blocking[messages.producer] & (following > messages.producer)
    holds &= rank[following] == rank[messages.producer]
    rows.depend(placed.first[following[holds]], ids[holds])
    if not orders.exchanges:
        return
    before = np.maximum(messages.consumer - 1, 0)
    late = blocking[messages.consumer] & (before < messages.consumer)
    late &= rank[before] == rank[messages.consumer]
    rows.depend(ids[late], placed.last[before[late]])
    sent = np.full(len(orders), -1, dtype=np.int64)
    sent[messages.producer] = ids
    answered = late & (sent[before] >= 0)
    alike = orders.kind[before] == orders.kind[messages.consumer]
    separate = answered & (alike | (one_way & (messages.direction == 1)))
    rows.depend(ids[separate], sent[before[separate]])
    first = answered & ~alike & one_way & (messages.direction == 0)
    rows.depend(sent[before[first]], ids[first])


def blocking_actions(orders: Orders, software: PipelineBehaviour, *, fuses: bool) -> Flags:
    """Actions around which messages block, bool[N]; a fused block has both on either side."""
    sends = software.blocking_sends
    if sends in _ALWAYS or (orders.exchanges and sends is not BlockingSends.NEVER):
        blocking = np.ones(len(orders), dtype=bool)
    elif sends is BlockingSends.NEVER or software.overlap_warmup_flush:
        return np.zeros(len(orders), dtype=bool)
    else:
        blocking = warmup_and_flush(orders)
    fused = orders.fused | np.roll(orders.fused, 1)
    return blocking & ~(fuses & fused)


def warmup_and_flush(orders: Orders) -> Flags:
    """Actions before the first backward of their rank, and after its last forward, bool[N]."""
    is_forward = orders.kind == Action.F
    result = np.zeros(len(orders), dtype=bool)
    for rank in range(orders.pp):
        rows = slice(int(orders.rank_ptr[rank]), int(orders.rank_ptr[rank + 1]))
        forwards = np.flatnonzero(is_forward[rows])
        others = np.flatnonzero(~is_forward[rows])
        place = np.arange(rows.stop - rows.start)
        begin = others[0] if len(others) else len(place)
        end = forwards[-1] if len(forwards) else -1
        result[rows] = (place < begin) | (place > end)
    return result


def _channels(
    direction: Ints, source: NDArray[np.int32], target: NDArray[np.int32], pp: int
) -> tuple[Ints, Ints]:
    """Sending and receiving stream of each message: one channel a neighbour and direction."""
    usual = target == (source + np.where(direction == 0, 1, -1)) % pp
    streams = np.array(
        [
            [(Stream.SEND_PREV_BACK, Stream.RECV_NEXT_BACK), (Stream.SEND_NEXT, Stream.RECV_PREV)],
            [(Stream.SEND_NEXT_BACK, Stream.RECV_PREV_BACK), (Stream.SEND_PREV, Stream.RECV_NEXT)],
        ]
    )
    pair = 2 * direction + usual
    out, into = streams.reshape(4, 2).T.copy()
    return out.take(pair), into.take(pair)
