"""The synthesiser: an order for times and a memory, at least as good as every named one.

It starts from all named schedules that are built for this stage map and fit the memory, adds orders
by list scheduling under a grid of policies and by the search of ZB-1p, and improves the best of
them by local search until its budget of evaluations is spent or the lower bound is reached. The
budget counts evaluations, not seconds, and every choice comes from the seed: the same call gives
the same order on every machine.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mpsim import structs
from mpsim.errors import DeadlockError, ScheduleError
from mpsim.schedule.orders import Action, Orders
from mpsim.schedule.registry import Schedule, check_counts
from mpsim.schedule.search.bound import lower_bound
from mpsim.schedule.search.evaluate import (
    Room,
    Setting,
    by_stage,
    evaluate,
    evaluate_orders,
    peak_held,
)
from mpsim.schedule.search.greedy import Candidate, Policy, build_greedily, improve
from mpsim.schedule.search.times import Memory
from mpsim.schedule.search.v_search import zb_v_search
from mpsim.schedule.search.zb_auto import zb_search
from mpsim.schedule.stages import loop_map, v_map
from mpsim.schedule.tape import Step, from_steps, steps_of
from mpsim.shipped import say

STAGE_MAPS = {"loop": loop_map, "v": v_map}  # how stages lie on ranks

_BUDGET = 1000  # evaluations
# Part of an action by which a message on its way may be kept waiting.
_PATIENCE = (0.0, 0.5, 1.0)
# Orders that local search starts from: the best build is often not the one that improves most.
_STARTS = 3


@structs.dataclass(frozen=True, slots=True, eq=False)
class Synthesis:
    """The order found, and how good it is."""

    orders: Orders
    makespan: float  # of these orders [unit of the times]
    lower_bound: float  # no order within the memory limit takes less [same unit]
    # the best named schedule within the limit and its makespan; None where none fits
    best_named: tuple[str, float] | None
    evaluations: int  # orders that were built or evaluated

    @property
    def gap(self) -> float:
        """Makespan over the lower bound, less 1; the best order of all lies somewhere between."""
        return self.makespan / self.lower_bound - 1 if self.lower_bound else 0.0

    @property
    def gain(self) -> float:
        """Part of the best named schedule's makespan that is saved; 0 where none fits."""
        if self.best_named is None or not self.best_named[1]:
            return 0.0
        return 1 - self.makespan / self.best_named[1]


def auto(
    *,
    pp: int,
    microbatches: int,
    virtual_stages: int = 1,
    times: Sequence[float] = (1, 1, 1),
    send: float = 0,
    memory_limit: float | None = None,
    budget: int = _BUDGET,
    seed: int = 0,
) -> Orders:
    """Orders of the synthesiser for equal stages on a loop; see `synthesise`.

    `times`: of a forward, an input gradient and a weight gradient of one chunk [any one unit].
    `memory_limit`: activations of one chunk that fit on a rank, counted until W.
    """
    forward, backward, weight = times
    best = synthesise(
        pp=pp,
        microbatches=microbatches,
        virtual_stages=virtual_stages,
        forward=forward,
        backward=backward,
        weight=weight,
        send=send,
        memory_limit=memory_limit,
        budget=budget,
        seed=seed,
    )
    return structs.replace(best.orders, schedule="auto")


def synthesise(
    *,
    pp: int,
    microbatches: int,
    forward: ArrayLike,
    backward: ArrayLike,
    weight: ArrayLike,
    send: ArrayLike = 0.0,
    memory_limit: ArrayLike | None = None,
    held_until_input: ArrayLike = 0.0,
    held_until_weight: ArrayLike = 1.0,
    virtual_stages: int = 1,
    stage_map: str = "loop",
    budget: int = _BUDGET,
    seed: int = 0,
) -> Synthesis:
    """Find an order that is never worse than the best named one.

    `forward`, `backward` and `weight` (float or float64[S]): time of a forward, an input gradient
    and a weight gradient of each stage, not negative [any one unit]. `send` (float or float64[2,
    S]): time of a message: ``[0, s]`` from stage s to s + 1, ``[1, s]`` from s to s - 1 [same
    unit]. `memory_limit` (float or float64[P], optional): what the activations on a rank may take:
    a count, or bytes where the next two are bytes. None: no limit. `held_until_input` and
    `held_until_weight` (float or float64[S]): what a forward of each stage saves, the part that is
    freed by I and the part that is freed by W [same unit]. `virtual_stages`: stages a rank, at
    least 1. `stage_map`: ``loop``: stage s on rank s mod pp; ``v``: two stages a rank, down and up
    again. `budget`: orders to build or evaluate beyond the named ones, at least 1. `seed`: of the
    local search. ScheduleError if a number is out of its range, or nothing fits the limit.

    Examples
    --------
    >>> best = synthesise(pp=2, microbatches=4, forward=1, backward=1, weight=1, memory_limit=2)
    >>> best.makespan, best.lower_bound, best.best_named
    (13.0, 13.0, ('zb-h1', 13.0))
    """
    check_counts("auto", pp=pp, microbatches=microbatches, virtual_stages=virtual_stages)
    if budget < 1:
        raise ScheduleError(f"auto: got budget = {budget}; needed at least 1 evaluation")
    if stage_map not in STAGE_MAPS:
        raise ScheduleError(f"got stage_map {stage_map!r}; needed one of {', '.join(STAGE_MAPS)}")
    stage_rank = STAGE_MAPS[stage_map](pp, virtual_stages)
    setting = Setting.of(
        stage_rank,
        microbatches=microbatches,
        forward=forward,
        backward=backward,
        weight=weight,
        send=send,
    )
    room = _room(pp, len(stage_rank), memory_limit, held_until_input, held_until_weight)
    search = _Search(setting, room, stage_rank, budget)
    search.run(random.Random(seed))
    return search.result()


def _room(
    pp: int, stages: int, limit: ArrayLike | None, until_input: ArrayLike, until_weight: ArrayLike
) -> Room:
    limits = np.asarray(math.inf if limit is None else limit, float)
    if limits.shape not in ((), (pp,)) or not (limits >= 0).all():
        raise ScheduleError(say("schedule.limit_of_ranks", got=limits.tolist(), pp=pp))
    return Room(
        limit=np.broadcast_to(limits, (pp,)).tolist(),
        until_input=by_stage("held_until_input", until_input, stages).tolist(),
        until_weight=by_stage("held_until_weight", until_weight, stages).tolist(),
    )


class _Search:
    """The best orders so far, and the budget that is left."""

    def __init__(
        self, setting: Setting, room: Room, stage_rank: NDArray[np.int32], budget: int
    ) -> None:
        self.setting, self.room, self.stage_rank = setting, room, stage_rank
        self.bound = lower_bound(setting, room)
        self.budget, self.spent = budget, 0
        self.named: tuple[Orders, float] | None = None
        self.starts: list[Candidate] = []

    @property
    def left(self) -> int:
        """Evaluations left; none once the lower bound is reached."""
        reached = any(start.run.makespan <= self.bound for start in self.starts)
        return 0 if reached else self.budget - self.spent

    def run(self, rng: random.Random) -> None:
        for orders in _named(self.setting, self.stage_rank):
            self.add_named(orders)
        builds = itertools.chain(self.zero_bubble(), self.zero_bubble_v(), self.greedy())
        for steps in itertools.takewhile(lambda _: self.left > 0, builds):
            self.spent += 1
            if steps:
                self.add(steps)
        self.refine(rng)

    def add_named(self, orders: Orders) -> None:
        steps = steps_of(orders)
        if not self.fits(steps):
            return
        makespan = evaluate_orders(self.setting, orders).makespan
        if self.named is None or makespan < self.named[1]:
            self.named = orders, makespan
        self.add(_split(steps))  # the moves of local search know I and W only

    def fits(self, steps: Sequence[Sequence[Step]]) -> bool:
        return all(self.room.fits(r, peak_held(self.room, order)) for r, order in enumerate(steps))

    def add(self, steps: list[list[Step]]) -> None:
        """Remember an order if it can be run and fits."""
        if not self.fits(steps):
            return
        try:
            self.starts.append(Candidate(steps, evaluate(self.setting, steps)))
        except DeadlockError:
            return
        self.starts.sort(key=lambda start: start.cost)  # stable: of equals the earlier stays first
        del self.starts[_STARTS:]

    def zero_bubble(self) -> Iterator[list[list[Step]]]:
        """The best of the builds of ZB-1p and ZB-2p for these times and this memory."""
        setting, room = self.setting, self.room
        if setting.pp != len(setting.stage_rank):
            return
        forward, backward, weight = (
            setting.duration[kind] for kind in (Action.F, Action.I, Action.W)
        )
        memory = [
            Memory(limit, (a + b, -a, -b))
            for limit, a, b in zip(room.limit, room.until_input, room.until_weight, strict=True)
        ]
        messages = [*setting.send[0][:-1], *setting.send[1][1:], 0.0]
        try:
            yield zb_search(
                microbatches=setting.microbatches,
                forward=forward,
                backward=backward,
                weight=weight,
                send=max(messages),
                memory=memory,
            )
        except ScheduleError:
            return  # its warm-up does not fit

    def zero_bubble_v(self) -> Iterator[list[list[Step]]]:
        """The search of ZB-V for the mean times, whose memory is checked like that of any order."""
        setting = self.setting
        pp, chunks = setting.pp, len(setting.stage_rank) // setting.pp
        if chunks != len(("down", "up")) or setting.stage_rank != v_map(pp, chunks).tolist():
            return
        send = max(map(max, setting.send))
        orders = zb_v_search(
            pp=pp, microbatches=setting.microbatches, times=_mean_times(setting), send=send
        )
        yield steps_of(orders)

    def greedy(self) -> Iterator[list[list[Step]] | None]:
        """Orders by list scheduling, under a grid of policies; None where one gets stuck."""
        for policy in _policies(self.setting):
            yield build_greedily(self.setting, self.room, policy)

    def refine(self, rng: random.Random) -> None:
        """Improve the best few, then go on with the best of them."""
        for start in [*self.starts]:
            # Half of the budget is for all starts, the rest for the best of what they become.
            share = self.left // (2 * _STARTS)
            self.improve(start, share, rng)
        if self.starts:
            self.improve(self.starts[0], self.left, rng)

    def improve(self, start: Candidate, evaluations: int, rng: random.Random) -> None:
        better, spent = improve(
            self.setting, self.room, start, bound=self.bound, evaluations=evaluations, rng=rng
        )
        self.spent += spent
        self.starts = sorted([*self.starts, better], key=lambda start: start.cost)

    def result(self) -> Synthesis:
        best = self.starts[0] if self.starts else None
        if self.named and (best is None or self.named[1] <= best.run.makespan):
            orders, makespan = self.named
        elif best:
            makespan = best.run.makespan
            orders = from_steps(
                "auto",
                best.steps,
                microbatches=self.setting.microbatches,
                stage_rank=self.stage_rank,
            )
        else:
            raise ScheduleError(say("schedule.no_order", limit=self.room.limit))
        named = None if self.named is None else (self.named[0].schedule, self.named[1])
        return Synthesis(orders, makespan, self.bound, named, self.spent)


def _policies(setting: Setting) -> Iterator[Policy]:
    """Policies to build with: one microbatch at a time, which fits if any, then promising ones."""
    pp, m = setting.pp, setting.microbatches
    yield Policy((1,) * pp)
    depths = {
        tuple(min(m, max(1, scale * (pp - rank) + extra)) for rank in range(pp))
        for scale, extra in itertools.product((1, 2), (-1, 0, 1))
    }
    grid = itertools.product(
        [(m,) * pp, *sorted(depths)],
        _PATIENCE,
        (False, True),
        (True, False),
        (False, True) if pp < len(setting.stage_rank) else (True,),
    )
    for ahead, patience, weights, gradients, deep in grid:
        yield Policy(ahead, patience, not gradients, weights, deep)


def _split(steps: list[list[Step]]) -> list[list[Step]]:
    """Every B as an I and a W next to each other, which is never later."""
    backward, gradient, weight = int(Action.B), int(Action.I), int(Action.W)
    return [
        [
            part
            for step in order
            for part in (
                ((gradient, *step[1:]), (weight, *step[1:])) if step[0] == backward else (step,)
            )
        ]
        for order in steps
    ]


def _named(setting: Setting, stage_rank: NDArray[np.int32]) -> Iterator[Orders]:
    """Every registered schedule that can be built for this stage map, with these times."""
    from mpsim.schedule import registry  # it imports the searches, this one among them

    given: dict[str, float | Sequence[float]] = {
        "times": _mean_times(setting),
        "send": max(map(max, setting.send)),
    }
    for known in registry.schedules():
        if known.synthesises:
            continue
        try:
            orders = known.build(
                pp=setting.pp,
                microbatches=setting.microbatches,
                virtual_stages=len(stage_rank) // setting.pp,
                **{key: value for key, value in given.items() if key in known.options},
            )
        except ScheduleError:
            continue  # not for these numbers
        if _is_whole_step(orders, setting, stage_rank):
            yield structs.replace(orders, schedule=known.name)


def _mean_times(setting: Setting) -> list[float]:
    return [float(np.mean(setting.duration[kind])) for kind in (Action.F, Action.I, Action.W)]


def _is_whole_step(orders: Orders, setting: Setting, stage_rank: NDArray[np.int32]) -> bool:
    """Whether orders are this training step on this stage map, with one copy of the weights."""
    chain = np.arange(len(stage_rank))
    return (
        orders.microbatches == setting.microbatches
        and np.array_equal(orders.stage_rank, stage_rank)
        and np.array_equal(orders.model_stage, chain)
        and not orders.forward_only
    )


AUTO = Schedule("auto", auto, interleaves=True, synthesises=True)
