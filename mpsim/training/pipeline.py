"""Pipeline rows: the orders of all ranks with their sends, and orders searched for a Plan's times.

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

Shapes: N actions, S stages, M microbatches, V variants (actions that consist of the same rows), X
messages.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mpsim import structs
from mpsim.arrays import Flags, Ints
from mpsim.cost import COLLECTIVES
from mpsim.errors import ScheduleError
from mpsim.framework import BlockingSends, PipelineBehaviour
from mpsim.program.program import Program, Stream
from mpsim.program.rows import Prices, Rows
from mpsim.schedule import Action, Orders, make_orders, schedule
from mpsim.training.blocks import Blocks
from mpsim.training.plan import Plan, PlanCosts
from mpsim.training.vocabulary import PARTS, PIPELINE, TRAINING, Kind

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


OVERLAPS = ("serial", "late-send", "fused")
"""How a fused block of a forward and a backward runs; see `from_orders`."""

ACTIONS = "actions"
"""Name of the prices of the rows of all variants, one after the other."""

_KIND = np.array(PIPELINE, dtype=np.int8)
_PART = np.array(
    [PARTS.index(name) for name in ("forward", "backward", "backward", "weight_gradient")],
    dtype=np.int8,
)


def add_pipeline(
    rows: Rows,
    orders: Orders,
    variant: NDArray[np.int64],
    size: NDArray[np.int64],
    *,
    overlap: str = "late-send",
    blocking: NDArray[np.bool_] | None = None,
    one_way: bool = False,
) -> PipelineRows:
    """Append the compute rows of all ranks and the sends between them; prices are those of
    `ACTIONS` and `MESSAGES`.

    `variant` (int64[N]): which variant each action is. `size` (int64[V]): rows of each of them,
    several where data parallelism cuts it. `overlap`: how a fused block runs, one of `OVERLAPS`.
    `blocking` (bool[N], optional) and `one_way`: around which actions communication blocks, and
    whether one direction waits for the other (see the module); around none by default.
    """
    segments = size[variant]
    action = np.repeat(np.arange(len(variant)), segments)
    starts = np.cumsum(segments) - segments
    # row number within its action, added to the first row of the action's variant
    source = (np.cumsum(size) - size)[variant[action]] + np.arange(len(action)) - starts[action]
    rank = orders.stage_rank[orders.stage]
    ids = rows.add(
        len(action),
        rank=rank[action],
        stream=Stream.COMPUTE,
        kind=_KIND[orders.kind[action]],
        part=_PART[orders.kind[action]],
        stage=orders.stage[action],
        chunk=orders.stage_chunk[orders.stage[action]],
        microbatch=orders.microbatch[action],
        price=ACTIONS,
        place=source,
    )
    own = PipelineRows(first=ids[starts], last=ids[starts + segments - 1])
    placed = _blocks(own, orders, overlap)
    _depend(rows, orders, placed, blocking, one_way=one_way)
    return own


def _blocks(own: PipelineRows, orders: Orders, overlap: str) -> PipelineRows:
    """Let outputs (and for ``fused`` inputs) of a block's halves count as the block's."""
    if overlap not in OVERLAPS:
        raise ScheduleError(f"got overlap {overlap!r}; needed one of {', '.join(OVERLAPS)}")
    head = np.flatnonzero(orders.fused)
    first, last = own.first.copy(), own.last.copy()
    if overlap != "serial":
        last[head] = own.last[head + 1]
    if overlap == "fused":
        first[head + 1] = own.first[head]
    return PipelineRows(first, last)


def _positions(orders: Orders) -> NDArray[np.int64]:
    """Action index by (kind, stage, microbatch), -1 where there is none."""
    table = np.full((len(Action), orders.stages, orders.microbatches), -1, dtype=np.int64)
    table[orders.kind, orders.stage, orders.microbatch] = np.arange(len(orders.kind))
    return table


def _depend(
    rows: Rows,
    orders: Orders,
    placed: PipelineRows,
    blocking: NDArray[np.bool_] | None,
    *,
    one_way: bool,
) -> None:
    table = _positions(orders)
    forward, weight = table[Action.F], table[Action.W]
    backward = np.where(table[Action.B] >= 0, table[Action.B], table[Action.I])
    _edges(rows, placed, backward, forward)
    _edges(rows, placed, weight, backward)
    rank = orders.stage_rank
    local = (rank[1:] == rank[:-1])[:, None]
    feeds = orders.feeds[:-1, None]
    remote = []
    for direction, producer, consumer in (
        (0, forward[:-1], forward[1:]),
        (1, backward[1:], backward[:-1]),
    ):
        exists = feeds & (producer >= 0) & (consumer >= 0)
        near, far = exists & local, exists & ~local
        rows.depend(placed.first[consumer[near]], placed.last[producer[near]])
        remote.append((producer[far], consumer[far], np.full(int(far.sum()), direction)))
    messages = Messages(*(np.concatenate(columns) for columns in zip(*remote, strict=True)))
    add_messages(rows, orders, placed, messages, blocking, one_way=one_way)


def _edges(
    rows: Rows, placed: PipelineRows, after: NDArray[np.int64], before: NDArray[np.int64]
) -> None:
    """Let actions `after` wait for actions `before`, where both exist."""
    both = (after >= 0) & (before >= 0)
    rows.depend(placed.first[after[both]], placed.last[before[both]])


def from_orders(
    orders: Orders,
    *,
    forward: ArrayLike,
    backward: ArrayLike,
    weight: ArrayLike = 0.0,
    send: ArrayLike = 0.0,
    overlap: str = "late-send",
    blocking: bool = False,
    one_way: bool = False,
) -> Program:
    """A Program of bare actions with given times, for studying schedules.

    `forward`, `backward`, `weight` (float64[S]): time of a forward, an input gradient and a weight
    gradient of one chunk [any unit, used as ticks]; a full backward takes ``backward + weight``.
    `send`: time of every message between ranks [same unit]; messages of one channel (sender,
    receiver, direction) follow each other. `overlap`: how a fused block of a forward and a backward
    runs. ``serial``: one half after the other, each waiting for its own input and sending its own
    output. ``late-send``: the same, but both outputs leave after the block, as PyTorch executes it.
    ``fused``: one unit that waits for both inputs. `blocking`, `one_way`: whether both ends of a
    message wait for it, and one direction for the other (see the module).

    Returns Program: without templates. Raises ScheduleError: if a time is negative or not a number.
    """
    stages = orders.stages
    times = [np.broadcast_to(np.asarray(t, float), (stages,)) for t in (forward, backward, weight)]
    message = np.broadcast_to(np.asarray(send, float), (2, stages))
    if not all(np.isfinite(time).all() and (time >= 0).all() for time in (*times, message)):
        raise ScheduleError(
            "times must be finite and not negative; got a negative, infinite or missing one"
        )
    f, b, w = times
    rows = Rows(TRAINING)
    variant = orders.kind.astype(np.int64) * stages + orders.stage
    alone, around = np.ones(len(Action) * stages, dtype=np.int64), np.full(len(orders), blocking)
    add_pipeline(rows, orders, variant, alone, overlap=overlap, blocking=around, one_way=one_way)
    prices = {ACTIONS: Prices(np.concatenate([f, b + w, b, w]))}
    prices |= {name: Prices(took) for name, took in zip(MESSAGES, message, strict=True)}
    graph = rows.graph(f"pp {rank}" for rank in range(orders.pp))
    return graph.priced(prices, class_size=np.ones(orders.pp))


class ActionTimes(NamedTuple):
    """Mean ticks over stages of a forward, input gradient, weight gradient, message."""

    forward: float
    backward: float
    weight: float
    send: float


def action_times(plan: Plan, costs: PlanCosts) -> ActionTimes:
    """Measure the actions of a Plan."""
    blocks = Blocks(plan, costs)

    def mean(action: Action) -> float:
        ticks = [
            sum(block.template.ticks for block in blocks.of(stage, action).blocks)
            for stage in plan.layout.stages
        ]
        return float(np.mean(ticks))

    sends = np.stack([messages.duration for messages in costs.sends()])
    sent = sends[sends > 0]
    send = float(sent.mean()) if len(sent) else 0.0
    return ActionTimes(mean(Action.F), mean(Action.I), mean(Action.W), send)


def with_timed_orders(plan: Plan, costs: PlanCosts) -> Plan:
    """Search the orders again for the plan's own times. `plan`: of a schedule that asks for times
    (`Schedule.is_timed`), with orders searched for equal ones.

    Returns Plan: with other orders of the same actions.
    """
    orders = plan.orders
    if plan.classes:
        searched_parts = [with_timed_orders(part.plan, part).orders for part in costs.parts]
        classes = tuple(
            structs.replace(replicas, orders=orders)
            for replicas, orders in zip(plan.classes, searched_parts, strict=True)
        )
        return structs.replace(plan, classes=classes, orders=classes[0].orders)
    times = action_times(plan, costs)
    options: dict[str, object] = {"times": times[:3]}
    if "send" in schedule(plan.schedule).options:
        options["send"] = times.send
    searched = make_orders(
        plan.schedule,
        pp=orders.pp,
        microbatches=orders.microbatches,
        virtual_stages=orders.virtual_stages,
        flushes=orders.flushes,
        **options,  # type: ignore[arg-type]
    )
    return structs.replace(plan, orders=searched.validate())
