"""A time that no order can undercut: lower bounds on the makespan of a pipelined step.

Notation: rank r with stages s, m microbatches, f, b, w the times of F, I and W.

* Path: one microbatch passes all stages both ways, then the weight gradient of stage 0 is left.
* Work: before the first input gradient can reach a rank, it can only run forwards, and only as many
  as fit; after its last input gradient, whose result still has to travel to stage 0, it can only
  run weight gradients, and only as many as fit. Whatever else there is to do lies between.
* Memory: an activation occupies its room from the start of its F to the end of its I or W, so a
  rank's room times its time from first action to end is at least what all its activations occupy.

Each bound holds for every rank; the largest counts. Splitting B never takes longer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from mpsim.schedule.orders import Action
from mpsim.schedule.search.evaluate import Room, Setting


def lower_bound(setting: Setting, room: Room) -> float:
    """The largest of the bounds. `setting`: all stages one chain. Returns: lower bound on the
    makespan of every order that keeps within `room` [unit of the times].
    """
    chain = _Chain(setting)
    path = chain.turn[0] + chain.weight[0]
    ranks = range(setting.pp)
    return max(
        path,
        *(_work(setting, room, chain, rank) for rank in ranks),
        *(_memory(setting, room, chain, rank) for rank in ranks),
    )


class _Chain:
    """Sums along the chain of stages, all of them by stage."""

    def __init__(self, setting: Setting) -> None:
        forward, backward, self.weight = (
            setting.duration[kind] for kind in (Action.F, Action.I, Action.W)
        )
        stages = range(len(forward))
        # earliest start of F: through the stages before
        self.head = [math.fsum(forward[:s]) + math.fsum(setting.send[0][:s]) for s in stages]
        # from the end of I to the end of the last weight gradient of stage 0
        self.tail = [
            math.fsum(backward[:s]) + math.fsum(setting.send[1][1 : s + 1]) + self.weight[0]
            for s in stages
        ]
        # from the start of F to the end of I of the same stage and microbatch
        self.turn = [
            math.fsum(forward[s:])
            + math.fsum(backward[s:])
            + math.fsum(setting.send[0][s:-1])
            + math.fsum(setting.send[1][s + 1 :])
            for s in stages
        ]


def _held_by(setting: Setting, rank: int) -> list[int]:
    return [stage for stage, home in enumerate(setting.stage_rank) if home == rank]


def _work(setting: Setting, room: Room, chain: _Chain, rank: int) -> float:
    stages = _held_by(setting, rank)
    m = setting.microbatches
    forward, backward, weight = (setting.duration[k] for k in (Action.F, Action.I, Action.W))
    busy = m * sum(forward[s] + backward[s] + weight[s] for s in stages)
    head = min(chain.head[s] for s in stages)
    gradient = min(chain.head[s] + chain.turn[s] - backward[s] for s in stages)
    tail = min(chain.tail[s] for s in stages)
    size = [room.until_input[s] + room.until_weight[s] for s in stages]
    before = _fits(room.limit[rank], [forward[s] for s in stages], size, m)
    left = [room.until_weight[s] for s in stages]
    after = _fits(room.limit[rank], [weight[s] for s in stages], left, m)
    return gradient + busy + tail - min(gradient - head, before) - min(tail, after)


def _fits(limit: float, time: Sequence[float], size: Sequence[float], most: int) -> float:
    """Longest total time of actions, at most `most` of each kind, whose sizes fit a limit together.

    With one kind the count is whole; with several it may be broken, which only raises the answer.
    """
    total, left = 0.0, limit * (1 + _ROUNDING)
    kinds = [(t, s) for t, s in zip(time, size, strict=True) if t > 0]
    # Those that take least room for their time come first: this fills the limit best.
    for duration, each in sorted(kinds, key=lambda kind: kind[1] / kind[0]):
        count: float = most
        if each > 0 and left < most * each:
            count = math.floor(left / each) if len(kinds) == 1 else left / each
        total += count * duration
        left -= count * each
    return total


# a limit that is meant to hold a whole number of activations does, whatever its last digit
_ROUNDING = 1e-9


def _memory(setting: Setting, room: Room, chain: _Chain, rank: int) -> float:
    limit = room.limit[rank]
    if not 0 < limit < math.inf:
        return 0.0
    stages = _held_by(setting, rank)
    occupied = sum(
        room.until_input[s] * chain.turn[s]
        + room.until_weight[s] * (chain.turn[s] + chain.weight[s])
        for s in stages
    )
    head = min(chain.head[s] for s in stages)
    return head + setting.microbatches * occupied / (limit * (1 + _ROUNDING))
