"""The service: engines that serve a stream of requests, one simulator event an iteration.

Iterations of an engine between which nothing begins or ends are one event: their times are one array expression, since the context of every sequence grows alike. With several
pipeline stages an instance has as many batches under way as stages; each has requests of its own and waits for the first stage to be free.

Where prefill and decode have pools of their own, a prompt keeps its blocks until its keys and values have come to the engine that decodes it, which starts fetching them once it has
blocks for them: a full decode pool holds up the other one.

Requests that arrive at the same time are handed out in their order; engines act in the order of their numbers. Equal inputs give equal bytes.
"""

from __future__ import annotations

import dataclasses
import math
from collections import deque
from collections.abc import Generator, Mapping, Sequence

import numpy as np
import simpy
from numpy.typing import NDArray

from mpsim.errors import ScenarioError
from mpsim.serving.batching import BatchRules, Engine, Iteration
from mpsim.serving.prices import IterationPrices
from mpsim.serving.ranks import AttentionRanks, JointIteration
from mpsim.serving.requests import Requests
from mpsim.serving.transfers import CacheNetwork, Transfers

__all__ = ["Handover", "Pool", "Served", "serve"]

Floats = NDArray[np.float64]
Events = Generator[simpy.Event, object, None]

_LONGEST_JUMP = 4096  # iterations, so that arrays stay small
_COUNTING = np.arange(_LONGEST_JUMP)
_UNEVEN = (
    32  # requests that loads differ by until a prefix is not followed any more: SGLang's router
)
_COLUMNS = ("start", "seconds", "count", "decodes", "context", "prompt_tokens", "used", "engine")
_MOVES = ("request", "source", "target", "start", "end", "bytes")


@dataclasses.dataclass(frozen=True, slots=True)
class Pool:
    """Equal instances that do the same.

    Parameters
    ----------
    prices : IterationPrices
        Of one instance.
    rules : BatchRules
    blocks : int
        Blocks of cache of each instance.
    replicas : int
        Instances.
    apart : bool
        Whether ranks that keep requests of their own are simulated one by one, each with its part of sequences, tokens and blocks, not as one that spreads them evenly.
    paces : tuple of float
        Time of each instance over that of one without slow ranks; all 1 if empty.
    outages : tuple of (int, float, float)
        Instances that are down, from when to when [s].
    """

    prices: IterationPrices
    rules: BatchRules
    blocks: int
    replicas: int = 1
    apart: bool = False
    paces: tuple[float, ...] = ()
    outages: tuple[tuple[int, float, float], ...] = ()

    def pace(self, replica: int) -> float:
        """Time of an instance over that of one without slow ranks."""
        return self.paces[replica] if self.paces else 1.0

    @property
    def ranks(self) -> int:
        """Ranks of an instance that are simulated one by one."""
        return self.prices.work.attention_dp if self.apart else 1

    @property
    def rank_rules(self) -> BatchRules:
        """How one of them forms iterations."""
        rules, ranks = self.rules, self.ranks
        return dataclasses.replace(
            rules,
            max_sequences=max(1, rules.max_sequences // ranks),
            max_tokens=max(1, rules.max_tokens // ranks),
        )

    @property
    def lanes(self) -> int:
        """Batches that run beside each other: one a pipeline stage of every instance."""
        return self.replicas * self.prices.work.pp

    @property
    def room(self) -> int:
        """Tokens that the cache of one batch holds, or of one rank of it that keeps requests of its own."""
        return self.blocks // (self.prices.work.pp * self.ranks) * self.rules.block


@dataclasses.dataclass(frozen=True, slots=True)
class Handover:
    """How prompts get from the pool that computes them to the one that decodes.

    Parameters
    ----------
    prefill : Pool
    network : CacheNetwork
        From instances that compute prompts to those that decode.
    token_bytes : float
        Keys and values of a token, on all ranks that decode it [B].
    samples_first : bool
        Whether the pool that decodes gives the first token, not the one that computed the prompt.
    """

    prefill: Pool
    network: CacheNetwork
    token_bytes: float
    samples_first: bool = False


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Served:
    """When every request was served, and every iteration ran.

    Shapes: N requests, S iterations or jumps over equal ones, T transfers.

    Parameters
    ----------
    arrival, started, first, last : float64[N]
        Arrival, start of the first iteration that took part of its prompt, end of those that gave its first and its last token [s]. NaN where a closed loop ended before.
    steps : mapping of str to float64[S]
        ``start``, ``seconds`` (of all of a jump), ``count``, ``decodes``, ``context``, ``prompt_tokens``, ``used`` (blocks of cache), ``engine``.
    preemptions, hit_tokens : int
        Requests that were preempted, prompt tokens that the prefix cache had.
    engines : int
        Batches that run beside each other: replicas times pipeline stages.
    end : float
        End of the last iteration [s].
    pools : tuple of int
        Of these batches, those of each pool; prompts first where they have one.
    stalled : tuple of mappings of str to float
        For each pool: time in which its batches had requests but no ``cache`` for them, or waited for a ``transfer``, their sum [s].
    transfers : mapping of str to float64[T]
        ``request``, ``source`` and ``target`` (batches), ``start``, ``end``, ``bytes``.
    moved : int
        Requests that an instance lost to an outage, each time.
    """

    arrival: Floats
    started: Floats
    first: Floats
    last: Floats
    steps: Mapping[str, Floats]
    preemptions: int
    hit_tokens: int
    engines: int
    end: float
    pools: tuple[int, ...]
    stalled: tuple[Mapping[str, float], ...]
    transfers: Mapping[str, Floats]
    moved: int = 0

    def first_requests(self, count: int) -> Served:
        """The same run with the first so many requests: the others were never sent."""
        names = ("arrival", "started", "first", "last")
        return dataclasses.replace(self, **{name: getattr(self, name)[:count] for name in names})

    @property
    def engine_names(self) -> tuple[str, ...]:
        """Names of the batches that run beside each other."""
        kinds = ("engine",) if len(self.pools) == 1 else ("prefill", "decode")
        return tuple(
            f"{kind} {number}"
            for kind, count in zip(kinds, self.pools, strict=True)
            for number in range(count)
        )


def serve(
    requests: Requests,
    prices: IterationPrices,
    rules: BatchRules,
    *,
    blocks: int,
    replicas: int = 1,
    concurrency: int | None = None,
    routing: str = "round-robin",
    handover: Handover | None = None,
    turnaround: float = 0.0,
    until: float | None = None,
    apart: bool = False,
    paces: tuple[float, ...] = (),
    outages: tuple[tuple[int, float, float], ...] = (),
) -> Served:
    """Serve a stream of requests.

    Parameters
    ----------
    requests : Requests
    prices : IterationPrices
        Of one instance; all replicas are alike.
    rules : BatchRules
    blocks : int
        Blocks of cache of each instance.
    replicas : int
    concurrency : int, optional
        Users of a closed loop, each of whom sends the next request when the last one has ended; None for an open one.
    routing : str
        ``round-robin``, ``least-load`` or ``prefix-aware``.
    handover : Handover, optional
        A pool of its own for prompts; these instances then decode.
    turnaround : float
        From the last token of a request to the queue of the same user's next one [s]: server, network and client on the way out and in again. An iteration that begins meanwhile
        goes without it.
    until : float, optional
        When the users of a closed loop send no more [s].
    apart, paces, outages : bool, tuples
        See `Pool`.

    Raises
    ------
    ScenarioError
        If a request does not fit into the cache of an instance.
    """
    own = Pool(prices, rules, blocks, replicas, apart, paces, outages)
    _require_room(requests, own, requests.output + rules.drafts, "an instance")
    if handover is not None:
        ones = np.ones_like(requests.output)
        _require_room(requests, handover.prefill, ones, "an instance of the prefill pool")
    return _Service(requests, own, concurrency, routing, handover, turnaround, until).run()


def _require_room(requests: Requests, pool: Pool, output: NDArray[np.int64], holder: str) -> None:
    """Refuse requests that the cache of no batch can hold."""
    tokens = requests.prompt + output
    longest = int(tokens.max(initial=0))
    if longest > pool.room:
        too_long = int((tokens > pool.room).sum())
        raise ScenarioError(
            f"{too_long} of {len(requests)} requests do not fit into the cache: the longest has {longest:,} tokens, {holder} holds {pool.room:,}; "
            "raise tp or pp, take narrower weights or kv, or shorten the requests"
        )


def _within(steps: int, gap: float, first: float, more: float) -> tuple[int, float]:
    """How many of equally growing iterations end before a gap does, the one that it ends in included, and their seconds.

    The first takes `first`, each later one `more` than the one before: k of them take ``k first + more k (k - 1) / 2``.
    """
    half = more / 2.0
    seconds = steps * (first + half * (steps - 1))
    if gap >= seconds:
        return steps, seconds
    base = first - half
    root = math.sqrt(base * base + 2.0 * more * gap)
    count = max(
        1, min(steps, int(2.0 * gap / (base + root)) - 1)
    )  # one less than it takes, against rounding
    while count < steps and count * (first + half * (count - 1)) < gap:
        count += 1
    return count, count * (first + half * (count - 1))


class _Lane:
    """One engine, or the ranks of an instance that act as one, with what wakes it."""

    __slots__ = (
        *("arrived", "asleep", "down", "engine", "entrance", "nudge"),
        *("number", "pace", "pool", "prices"),
    )

    def __init__(
        self,
        number: int,
        pool: int,
        prices: IterationPrices,
        engine: Engine | AttentionRanks,
        entrance: simpy.Resource,
        pace: float,
    ) -> None:
        self.pace = pace
        self.down = 0  # outages under way
        self.number, self.pool, self.prices, self.engine = number, pool, prices, engine
        self.entrance = entrance  # to the first stage, shared by the batches of an instance
        self.asleep: simpy.Event | None = None
        self.nudge: simpy.Event | None = None  # cuts iterations short that are passed at once
        self.arrived: list[
            int
        ] = []  # keys and values have come: taken up before the next iteration

    def seconds(self, iteration: Iteration) -> float:
        """Time of an iteration [s]."""
        if isinstance(iteration, JointIteration):
            loads = [
                (part.decodes, part.context, part.prompt_tokens, part.pairs)
                for _, part in iteration.parts
            ]
            return self.pace * float(self.prices.apart_seconds(loads, len(iteration.done)))
        step = (iteration.decodes, iteration.context, iteration.prompt_tokens, iteration.pairs)
        return self.pace * float(self.prices.seconds(*step, len(iteration.done)))

    def line(self) -> tuple[float, float] | None:
        """Time of the next decoding iteration, and how much longer each later one is [s]; None where these are no line."""
        engine = self.engine
        if isinstance(engine, AttentionRanks) or not engine.even:
            return None
        line = self.prices.decoding(engine.decodes, engine.context)
        return None if line is None else (self.pace * line[0], self.pace * line[1])

    def seconds_ahead(self, steps: int) -> Floats:
        """Times of so many decoding iterations from now on, in which nothing begins or ends [s]."""
        engine, ahead = self.engine, _COUNTING[:steps]
        if isinstance(engine, AttentionRanks):
            loads = [
                (rank.decodes, _contexts(rank, ahead), 0, 0.0)
                for rank in engine.engines
                if rank.decodes
            ]
            return self.pace * np.asarray(self.prices.apart_seconds(loads, 0))
        return self.pace * self.prices.seconds(engine.decodes, _contexts(engine, ahead))

    def wake(self) -> None:
        """Have it look again."""
        if self.asleep is not None:
            event, self.asleep = self.asleep, None
            event.succeed()
        elif self.nudge is not None:
            event, self.nudge = self.nudge, None
            event.succeed()


def _contexts(engine: Engine, ahead: NDArray[np.int64]) -> Floats:
    """Tokens of the contexts of an engine so many iterations from now."""
    gains: Floats = engine.context + engine.decodes * engine.gains(ahead).astype(np.float64)
    return gains


class _Service:
    """One run."""

    def __init__(
        self,
        requests: Requests,
        own: Pool,
        concurrency: int | None,
        routing: str,
        handover: Handover | None,
        turnaround: float,
        until: float | None,
    ) -> None:
        count = len(requests)
        self._count = count
        self._concurrency = concurrency
        self._routing = routing
        self._until = np.inf if until is None else until
        self._handover = handover
        self._requests = requests
        self._fragile = bool(own.outages)
        self._turnaround = turnaround
        self._due: deque[float] = deque()  # when requests of a closed loop that are under way come
        self._arrival = requests.arrival.tolist()
        if concurrency is not None:
            self._arrival = [0.0] * min(concurrency, count) + [np.nan] * max(0, count - concurrency)
        self._prompt, self._output = requests.prompt.tolist(), requests.output.tolist()
        self._env = simpy.Environment()
        self._pools = [own] if handover is None else [handover.prefill, own]
        self._lanes: list[list[_Lane]] = []
        for place, pool in enumerate(self._pools):
            self._lanes.append(self._open(place, pool))
        self._alone = len(self._lanes[0]) == 1
        self._started = [np.nan] * count
        self._first = [np.nan] * count
        self._last = [np.nan] * count
        self._rows: list[tuple[float, ...]] = []
        self._stalled = [{"cache": 0.0, "transfer": 0.0, "down": 0.0} for _ in self._pools]
        self._moved = 0
        self._homeless: list[tuple[int, int]] = []  # while every instance is down
        self._moves: list[list[float]] = []
        self._under_way: dict[int, tuple[_Lane, _Lane, int]] = {}  # source, target, row of a move
        self._computed: dict[
            int, _Lane
        ] = {}  # where each prompt waits that is to be decoded elsewhere
        self._sent = 0
        self._handed = 0
        self._end = 0.0
        if handover is not None:
            self._transfers = Transfers(self._env, handover.network.capacity, self._come)

    def _open(self, place: int, pool: Pool) -> list[_Lane]:
        """The batches of a pool."""
        requests, stages = self._requests, pool.prices.work.pp
        computes = self._handover is not None and place == 0
        first = sum(len(lanes) for lanes in self._lanes)
        output = [1] * len(requests) if computes else self._output
        lanes: list[_Lane] = []
        for replica in range(pool.replicas):
            entrance = simpy.Resource(self._env)
            for _ in range(stages):
                ranks = [
                    Engine(
                        pool.rank_rules,
                        pool.blocks // (stages * pool.ranks),
                        self._prompt,
                        output,
                        hashes=requests.hashes,
                        unit=requests.unit,
                        hands_over=computes,
                        samples_first=self._handover is not None and self._handover.samples_first,
                    )
                    for _ in range(pool.ranks)
                ]
                engine = ranks[0] if len(ranks) == 1 else AttentionRanks(ranks)
                lanes.append(
                    _Lane(
                        first + len(lanes), place, pool.prices, engine, entrance, pool.pace(replica)
                    )
                )
        return lanes

    def run(self) -> Served:
        """Serve all requests."""
        if self._concurrency is None:
            self._env.process(self._arrivals())
        else:
            for _ in range(min(self._concurrency, self._count)):
                self._hand_out()
        lanes = [lane for pool in self._lanes for lane in pool]
        for lane in lanes:
            self._env.process(self._work(lane))
        for outage in self._pools[-1].outages:
            self._env.process(self._fail(*outage))
        self._env.run()
        table = np.array(self._rows, dtype=float).reshape(-1, len(_COLUMNS))
        moves = np.array(self._moves, dtype=float).reshape(-1, len(_MOVES))
        return Served(
            arrival=np.array(self._arrival),
            started=np.array(self._started),
            first=np.array(self._first),
            last=np.array(self._last),
            steps=dict(zip(_COLUMNS, table.T, strict=True)),
            preemptions=sum(lane.engine.preempted for lane in lanes),
            hit_tokens=sum(lane.engine.hit_tokens for lane in lanes),
            engines=len(lanes),
            end=self._end,
            pools=tuple(len(pool) for pool in self._lanes),
            stalled=tuple(self._stalled),
            transfers=dict(zip(_MOVES, moves.T, strict=True)),
            moved=self._moved,
        )

    def _arrivals(self) -> Events:
        """Hand requests out when they come."""
        for at in self._arrival:
            if at > self._env.now:
                yield self._env.timeout(at - self._env.now)
            self._hand_out()

    def _hand_out(self) -> None:
        """Give the next request to an engine, and wake it."""
        request = self._sent
        self._sent += 1
        lane = self._choose(self._lanes[0], request, request)
        if lane is None:
            self._homeless.append((request, 0))
            return
        lane.engine.enter(request)
        lane.wake()

    def _fail(self, replica: int, begin: float, end: float) -> Events:
        """Take an instance down for a while; the iteration under way still ends."""
        stages = self._pools[-1].prices.work.pp
        lanes = self._lanes[-1][replica * stages : (replica + 1) * stages]
        yield self._env.timeout(begin)
        for lane in lanes:
            lane.down += 1
            lane.wake()
        yield self._env.timeout(end - begin)
        for lane in lanes:
            lane.down -= 1
        if not lanes[0].down:
            waiting, self._homeless = self._homeless, []
            for request, generated in waiting:
                self._adopt(request, generated)
        for lane in lanes:
            lane.wake()

    def _empty(self, lane: _Lane) -> None:
        """Hand the requests of an instance that is down to others: what they had generated is computed again."""
        lost = lane.engine.clear()
        self._moved += len(lost)
        for request, generated in lost:
            self._adopt(request, generated)

    def _adopt(self, request: int, generated: int) -> None:
        lane = self._choose(self._lanes[-1], self._handed, request)
        self._handed += 1
        if lane is None:
            self._homeless.append((request, generated))
            return
        lane.engine.adopt(request, generated)
        lane.wake()

    def _choose(self, lanes: Sequence[_Lane], turn: int, request: int) -> _Lane | None:
        """The batch that a request joins; None where all are down."""
        if self._fragile:
            lanes = [lane for lane in lanes if not lane.down]
            if not lanes:
                return None
        if self._routing == "round-robin" or len(lanes) == 1:
            return lanes[turn % len(lanes)]
        loads = [lane.engine.load for lane in lanes]
        if self._routing == "prefix-aware" and max(loads) - min(loads) <= _UNEVEN:
            cached = [lane.engine.cached(request) for lane in lanes]
            units = self._requests.hashes[request] if self._requests.hashes else ()
            if 0 < len(units) <= 2 * max(cached):  # else nobody knows it
                return lanes[min(range(len(lanes)), key=lambda at: (-cached[at], loads[at]))]
        return lanes[min(range(len(lanes)), key=loads.__getitem__)]

    def _gap(self, lane: _Lane) -> float | None:
        """Seconds until the next request comes to a batch; None where only the others can tell."""
        if self._concurrency is not None:
            if self._alone:
                return self._due[0] - self._env.now if self._due else np.inf
            return None
        if not self._alone and self._routing != "round-robin":
            return None
        lanes = len(self._lanes[0])
        request = self._sent + (lane.number - self._sent) % lanes
        return self._arrival[request] - self._env.now if request < self._count else np.inf

    def _work(self, lane: _Lane) -> Events:
        """Run one engine, iteration after iteration, as long as something comes."""
        env, engine, prices = self._env, lane.engine, lane.prices
        entrance = lane.entrance if prices.work.pp > 1 else None
        receives = lane.pool > 0
        while True:
            if lane.down:
                self._empty(lane)
                yield from self._sleep(lane, "down")
                continue
            request = entrance.request() if entrance is not None else None
            if request is not None:
                yield request
            if receives:
                self._take_up(lane)
            iteration = engine.next()
            if iteration is None:
                if entrance is not None and request is not None:
                    entrance.release(request)
                yield from self._sleep(lane)
                continue
            for started in iteration.started:
                if (
                    self._started[started] != self._started[started]
                ):  # not the first time where it was preempted
                    self._started[started] = env.now
            step = (iteration.decodes, iteration.context, iteration.prompt_tokens, iteration.pairs)
            seconds = lane.seconds(iteration)
            self._rows.append((env.now, seconds, 1, *step[:3], engine.used, lane.number))
            if entrance is not None and request is not None:
                # the first stage is free again before the last one ends
                stage = lane.pace * float(prices.stage_seconds(*step))
                yield env.timeout(min(stage, seconds))
                entrance.release(request)
                yield env.timeout(max(0.0, seconds - stage))
            else:
                yield env.timeout(seconds)
            self._end = env.now
            self._note(lane, *engine.finish(iteration))
            if receives:  # what came during the iteration
                self._take_up(lane)
            if entrance is None and (steps := engine.steady()) > 1:
                yield from self._go_on(lane, steps)
                self._end = env.now

    def _go_on(self, lane: _Lane, steps: int) -> Events:
        """Pass as many iterations at once as nothing disturbs."""
        if lane.down:  # since the iteration that has just ended
            return
        gap = None if lane.pool or self._fragile else self._gap(lane)
        if gap is None:
            yield from self._jump_while_undisturbed(lane, steps)
        else:
            yield self._env.timeout(self._jump(lane, steps, gap))

    def _sleep(self, lane: _Lane, why: str = "") -> Events:
        """Wait until something changes, and note what for."""
        begin, reason = self._env.now, why or lane.engine.waits_for
        stalls = self._stalled[lane.pool]
        event = lane.asleep = self._env.event()
        yield event
        if reason:
            stalls[reason] += self._env.now - begin

    def _jump(self, lane: _Lane, steps: int, gap: float) -> float:
        """Pass iterations in which nothing begins or ends, to the end of the one during which the next request comes; their seconds."""
        line = lane.line()
        if line is not None:
            steps, seconds = _within(min(steps, _LONGEST_JUMP), gap, *line)
            return self._pass(lane, steps, seconds, self._env.now)
        steps, times = self._ahead(lane, steps)
        if gap < times[-1]:
            steps = min(steps, int(np.searchsorted(times, gap)) + 1)
        return self._pass(lane, steps, float(times[steps - 1]), self._env.now)

    def _jump_while_undisturbed(self, lane: _Lane, steps: int) -> Events:
        """Pass iterations to the end of the one during which something comes, or the instance goes down."""
        begin = self._env.now
        steps, times = self._ahead(lane, steps)
        nudge = lane.nudge = self._env.event()
        yield nudge | self._env.timeout(float(times[-1]))
        lane.nudge = None
        passed = self._env.now - begin
        if passed < times[-1]:
            steps = min(steps, int(np.searchsorted(times, passed)) + 1)
            if (rest := float(times[steps - 1]) - passed) > 0:
                yield self._env.timeout(rest)
        self._pass(lane, steps, float(times[steps - 1]), begin)

    def _ahead(self, lane: _Lane, steps: int) -> tuple[int, Floats]:
        """How many iterations to look ahead, and when each ends, from now on [s]."""
        steps = min(steps, _LONGEST_JUMP)
        return steps, lane.seconds_ahead(steps).cumsum()

    def _pass(self, lane: _Lane, steps: int, seconds: float, begin: float) -> float:
        """Write down iterations that are passed at once; their seconds."""
        engine = lane.engine
        row = (begin, seconds, steps, engine.decodes, engine.context, 0, engine.used, lane.number)
        self._rows.append(row)
        engine.jump(steps)
        return seconds

    def _note(self, lane: _Lane, first: Sequence[int], last: Sequence[int]) -> None:
        """Write down first and last tokens; a user of a closed loop then sends the next request."""
        handover, now = self._handover, self._env.now
        if handover is not None and lane.pool == 0:
            for request in first:
                if not handover.samples_first:
                    self._first[request] = now
                if self._output[request] == 1 and not handover.samples_first:
                    lane.engine.release(request)
                    self._ended(request)
                else:
                    self._offer(lane, request)
            return
        for request in first:
            if self._first[request] != self._first[request]:  # computed again after a preemption
                self._first[request] = now
        for request in last:
            self._ended(request)

    def _ended(self, request: int) -> None:
        """A request has its last token."""
        self._last[request] = self._env.now
        more = self._sent + len(self._due) < self._count
        in_time = self._env.now + self._turnaround < self._until
        if self._concurrency is not None and more and in_time:
            self._send_next()

    def _send_next(self) -> None:
        """Let the same user's next request come."""
        if not self._turnaround:
            self._arrival[self._sent] = self._env.now
            self._hand_out()
            return
        self._due.append(self._env.now + self._turnaround)
        self._env.timeout(self._turnaround).callbacks.append(self._reach)

    def _reach(self, _: simpy.Event) -> None:
        """A request under way reaches the queue."""
        self._arrival[self._sent] = self._due.popleft()
        self._hand_out()

    def _offer(self, lane: _Lane, request: int) -> None:
        """Offer a computed prompt to an engine that decodes."""
        target = self._choose(self._lanes[1], self._handed, request)
        assert target is not None, "pools have no outages"
        self._handed += 1
        self._computed[request] = lane
        target.engine.offer(request)
        target.wake()

    def _take_up(self, lane: _Lane) -> None:
        """Let requests decode whose keys and values have come, and fetch those of others."""
        handover, engine = self._handover, lane.engine
        assert handover is not None, "only a pool that decodes takes requests up"
        for request in lane.arrived:
            engine.land(request)
        lane.arrived.clear()
        for request in engine.accept():
            source = self._computed.pop(request)
            stages = [pool.prices.work.pp for pool in self._pools]
            here = source.number // stages[0]
            there = (lane.number - len(self._lanes[0])) // stages[1]
            size = handover.token_bytes * self._prompt[request]
            self._under_way[request] = source, lane, len(self._moves)
            now = self._env.now
            self._moves.append([request, source.number, lane.number, now, np.nan, size])
            self._transfers.start(request, handover.network.path(here, there), size)

    def _come(self, request: int) -> None:
        """Keys and values of a request have come."""
        source, target, move = self._under_way.pop(request)
        self._moves[move][4] = self._env.now
        source.engine.release(request)
        source.wake()
        target.arrived.append(request)
        target.wake()
