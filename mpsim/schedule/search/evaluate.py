"""When each action of an order starts and ends, for searches that must ask this thousands of times.

Shapes: P ranks, S stages, M microbatches.

The meaning is that of the engine on bare actions (`mpsim.training.from_orders`, fused blocks as
``late-send``), which tests hold it to: an action starts when the one before it on its rank has
ended and its input is there. Messages of one direction between two ranks go one after the other, in
the order in which they are produced.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mpsim import structs
from mpsim.errors import DeadlockError, ScheduleError
from mpsim.schedule.orders import Action, Orders
from mpsim.schedule.tape import Step, steps_of

_F, _W = int(Action.F), int(Action.W)


@structs.dataclass(frozen=True, slots=True, eq=False)
class Setting:
    """Times of actions and messages, and where stages lie."""

    microbatches: int  # per optimizer step
    stage_rank: list[int]  # rank of each stage
    feeds: list[bool]  # whether stage s hands its output to stage s + 1
    duration: list[list[float]]  # by `Action` value and stage [any one unit]
    # ``[0][s]`` of a message from stage s to s + 1, ``[1][s]`` to s - 1; nothing within a rank
    send: list[list[float]]

    @classmethod
    def of(
        cls,
        stage_rank: NDArray[np.int32],
        *,
        microbatches: int,
        forward: ArrayLike,
        backward: ArrayLike,
        weight: ArrayLike,
        send: ArrayLike = 0.0,
        feeds: NDArray[np.bool_] | None = None,
    ) -> Setting:
        """Setting from scalars or arrays by stage. ScheduleError if a time is negative or not a
        number, or there are not as many as stages.
        """
        stages = len(stage_rank)
        f, b, w = (
            by_stage(name, given, stages)
            for name, given in (("forward", forward), ("backward", backward), ("weight", weight))
        )
        try:
            messages = np.broadcast_to(np.asarray(send, float), (2, stages))
        except ValueError as error:
            raise ScheduleError(f"send: {error}; needed one number, or 2 by {stages}") from error
        checked = [by_stage("send", row, stages).tolist() for row in messages]
        feeding = np.arange(stages) < stages - 1 if feeds is None else feeds
        local = np.append(stage_rank[1:] == stage_rank[:-1], True)
        return cls(
            microbatches=microbatches,
            stage_rank=stage_rank.tolist(),
            feeds=feeding.tolist(),
            duration=[f.tolist(), (b + w).tolist(), b.tolist(), w.tolist()],
            send=[
                np.where(local, 0.0, checked[0]).tolist(),
                np.where(np.append(True, local[:-1]), 0.0, checked[1]).tolist(),
            ],
        )

    @property
    def pp(self) -> int:
        """Ranks."""
        return max(self.stage_rank) + 1


def by_stage(name: str, given: ArrayLike, stages: int) -> NDArray[np.float64]:
    """A number, or one a stage [S]. ScheduleError: negative, none, or not as many as stages."""
    values = np.asarray(given, float)
    if values.shape not in ((), (stages,)) or not (np.isfinite(values) & (values >= 0)).all():
        raise ScheduleError(
            f"{name}: got {values.tolist()}; needed one finite number of at least 0, or {stages},"
            " one a stage"
        )
    return np.broadcast_to(values, (stages,)).astype(float)


@structs.dataclass(frozen=True, slots=True, eq=False)
class Room:
    """How much each activation takes, and how much fits."""

    limit: list[float]  # by rank [any unit, such as activations or bytes]; may be infinite
    # until_input, until_weight: what a forward of each stage saves: the part freed by I and the
    # part freed by W; B frees both [same unit]
    until_input: list[float]
    until_weight: list[float]

    def change(self, kind: int, stage: int) -> float:
        """Change of what a rank holds when it runs an action, negative where the action frees."""
        freed = {
            Action.I: self.until_input[stage],
            Action.W: self.until_weight[stage],
            Action.B: self.until_input[stage] + self.until_weight[stage],
        }
        return (
            self.until_input[stage] + self.until_weight[stage]
            if kind == _F
            else -freed[Action(kind)]
        )

    def fits(self, rank: int, held: float) -> bool:
        """Whether a rank may hold so much, but for rounding."""
        return held <= self.limit[rank] or math.isclose(held, self.limit[rank])


@structs.dataclass(frozen=True, slots=True, eq=False)
class Run:
    """Start and end of every action, in the order of each rank, and when the last one ends."""

    start: list[list[float]]
    end: list[list[float]]

    @property
    def makespan(self) -> float:
        """End of the last action; the first starts at 0."""
        return max((ends[-1] for ends in self.end if ends), default=0.0)


def evaluate_orders(setting: Setting, orders: Orders) -> Run:
    """Evaluate `orders`, fused blocks included. DeadlockError if actions wait for each other."""
    ends = orders.rank_ptr.tolist()
    fused = orders.fused.tolist()
    heads = [fused[ends[rank] : ends[rank + 1]] for rank in range(orders.pp)]
    return evaluate(setting, steps_of(orders), heads)


def evaluate(
    setting: Setting, steps: Sequence[Sequence[Step]], fused: list[list[bool]] | None = None
) -> Run:
    """Start and end of every action.

    `steps`: one order a rank, each with F before B or I, and I before W, of the same stage and
    microbatch. `fused`: whether an action and the next are one block, whose outputs leave at its
    end. DeadlockError if actions wait for each other.
    """
    walk = _Walk(setting, steps, fused)
    # Each rank is on the list once to begin with, and again whenever it is handed an input; a rank
    # that is visited without a new input stops where it stopped before, so the order of the visits
    # changes nothing but the work.
    todo = list(range(len(steps)))[::-1]
    while todo:
        todo.extend(walk.advance(todo.pop()))
    stuck = [rank for rank, ends in enumerate(walk.end) if len(ends) < len(steps[rank])]
    if stuck:
        kind, stage, microbatch = steps[stuck[0]][len(walk.end[stuck[0]])]
        raise DeadlockError(
            f"{len(stuck)} ranks wait for each other; rank {stuck[0]} waits for the input of "
            f"{stage}{Action(kind).name}{microbatch}; let its producer come earlier"
        )
    return Run(walk.start, walk.end)


class _Walk:
    """Ranks that each run on until an input is missing."""

    def __init__(
        self, setting: Setting, steps: Sequence[Sequence[Step]], fused: list[list[bool]] | None
    ) -> None:
        self.setting, self.steps, self.fused = setting, steps, fused
        size = len(setting.stage_rank) * setting.microbatches
        self.input: list[list[float | None]] = [[None] * size, [None] * size]
        for stage in range(len(setting.stage_rank)):
            if stage == 0 or not setting.feeds[stage - 1]:
                first = stage * setting.microbatches
                self.input[0][first : first + setting.microbatches] = [0.0] * setting.microbatches
        self.start: list[list[float]] = [[] for _ in steps]
        self.end: list[list[float]] = [[] for _ in steps]
        self.channel: dict[tuple[int, int, int], float] = {}

    def advance(self, rank: int) -> list[int]:
        """Run a rank as far as its inputs are there; return the ranks that got new ones."""
        setting, order = self.setting, self.steps[rank]
        starts, ends = self.start[rank], self.end[rank]
        woken: list[int] = []
        clock = ends[-1] if ends else 0.0
        for place in range(len(ends), len(order)):
            kind, stage, microbatch = order[place]
            if kind != _W:
                there = self.input[kind != _F][stage * setting.microbatches + microbatch]
                if there is None:
                    break
                clock = max(clock, there)
            starts.append(clock)
            clock += setting.duration[kind][stage]
            ends.append(clock)
            if kind != _W and not (self.fused and self.fused[rank][place]):
                if self.fused and place and self.fused[rank][place - 1]:
                    woken.extend(self.deliver(order[place - 1], clock))
                woken.extend(self.deliver(order[place], clock))
        return woken

    def deliver(self, step: Step, time: float) -> list[int]:
        """Hand the output of an F, B or I on; return the rank that gets it, if another."""
        kind, stage, microbatch = step
        setting = self.setting
        direction = int(kind != _F)
        here = stage * setting.microbatches + microbatch
        if not direction and not setting.feeds[stage]:
            self.input[1][here] = time  # the loss turns the microbatch round
            return []
        if direction and (stage == 0 or not setting.feeds[stage - 1]):
            return []
        target = stage - 1 if direction else stage + 1
        there = here - setting.microbatches if direction else here + setting.microbatches
        source_rank, target_rank = setting.stage_rank[stage], setting.stage_rank[target]
        if source_rank == target_rank:
            self.input[direction][there] = time
            return []
        channel = (source_rank, target_rank, direction)
        arrival = max(time, self.channel.get(channel, 0.0)) + setting.send[direction][stage]
        self.channel[channel] = self.input[direction][there] = arrival
        return [target_rank]


def peak_held(room: Room, steps: Sequence[Step]) -> float:
    """Most that the rank with this order holds at once, from F in the order on [unit of `room`]."""
    held = most = 0.0
    for kind, stage, _ in steps:
        held += room.change(kind, stage)
        most = max(most, held)
    return most
