"""The replay engine, and the steady state of a program: what repeats itself in its middle is walked
a few times, not every time.

Between warm-up and flush a schedule repeats itself every so many microbatches: the same actions
follow each other on every rank. A *turn* is what rows of one microbatch do, a *period* a number of
turns. In it the same durations follow each other in each chain, with gates as many nodes later as
their own chain advances. With some periods left out the graph keeps its form. Where it has become
steady, so that every node ends a fixed time after the one a period before it, the nodes left out
end at multiples of that time.

That is a guess until it is checked: a node ends when `Chains` says it does, from the ends of the
two nodes it waits for. If one of all nodes does not, everything is walked.

Shapes: N rows, G nodes, C chains, P chains that repeat themselves.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from mpsim import structs
from mpsim.arrays import Flags, Floats, Ints
from mpsim.engine.chains import Chains, deadlock, precedence, walk
from mpsim.engine.timeline import Timeline
from mpsim.program.program import Program

# periods that are walked: to become steady, two that show it, to run out
_WALKED = 5
_WORTH = 4096  # from so many nodes left out finding them costs less than walking them (measured)


def ends_of(program: Program, chains: Chains, duration: Floats) -> Floats:
    """When each node of the chains of `program` ends. `chains`: of the program. `duration`
    (float64[N]): of each row, not negative.

    Returns float64[G]: equal, bit for bit, to ``chains.run(duration)``.
    """
    steady = _Steady.of(program, chains, duration)
    ends = steady.ends() if steady else None
    return chains.run(duration) if ends is None else ends


@structs.dataclass(frozen=True, slots=True, eq=False)
class _Steady:
    """Periods of a graph that need not be walked."""

    chains: Chains
    takes: Floats  # float64[G], duration of each node
    chain: Ints  # int64[G], of each node
    # int64[C], nodes of each chain in a period; 0 for those that do not repeat themselves
    step: Ints
    first: Ints  # int64[C], from which node on each does
    cut: Ints  # int64[C], before which node periods are left out
    periods: int  # how many

    @classmethod
    def of(cls, program: Program, chains: Chains, duration: Floats) -> _Steady | None:
        """Find what repeats itself; None where it would not pay."""
        if len(program) < _WORTH or not duration[program.vocabulary.is_action(program.kind)].all():
            return None
        period = periods_of(program)
        if period is None:
            return None
        periods = period.turns // period.length - _WALKED
        if periods < 1 or periods * period.length * len(program) < _WORTH * period.turns:
            return None
        chain, turn = _nodes(period.turn, chains)
        # at the begin of a period, of an odd number the later of the two in the middle: filling up
        # takes longer to become steady than running out
        middle = (period.turns // period.length + 1) // 2 * period.length
        inside = (turn >= middle) & (turn < middle + period.length)
        step = np.bincount(chain[inside], minlength=len(chains.begin))
        begins = np.flatnonzero(turn == middle)
        begins = begins[np.diff(chain[begins], prepend=-1) > 0]
        anchor = np.full(len(step), -1)
        anchor[chain[begins]] = begins
        takes = chains.spread(duration)
        repeats = _repeats(chains, takes, chain, step)
        # chains that take part; the anchor of each is its first node of the middle period, around
        # which repetition has to hold without a break
        mine = np.flatnonzero(step)
        if not len(mine) or (anchor[mine] < 0).any() or not repeats[anchor[mine]].all():
            return None
        breaks = np.append(
            np.flatnonzero(~repeats), -1
        )  # the last stands for before the first node
        behind = np.searchsorted(breaks[:-1], anchor)
        first = breaks[behind - 1] + 1
        whole = (breaks[behind] - first)[mine] // step[mine] + 1
        periods = min(periods, int(whole.min()) - 2)
        cut = anchor - step * (periods // 2)
        if periods < 1 or (cut - step < first)[mine].any():
            return None
        return cls(chains, takes, chain, step, first, cut, periods)

    def ends(self) -> Floats | None:
        """When each node ends; None where this does not become steady."""
        out, mine = self.periods * self.step, np.flatnonzero(self.step)
        # nodes cut .. cut + out of every chain, as one index array
        left_out = np.repeat(self.cut[mine] - np.cumsum(out[mine]) + out[mine], out[mine])
        left_out += np.arange(len(left_out))
        stays = np.ones(len(self.chain), dtype=bool)
        stays[left_out] = False
        walked = self._walked(np.flatnonzero(stays))
        if walked is None:
            return None
        ends = np.empty(len(stays))
        ends[stays] = walked
        # the graph is steady if one period takes every chain the same time; checked at the end
        passed = ends[self.cut[mine] - 1] - ends[self.cut[mine] - 1 - self.step[mine]]
        ends[self._late()] += self.periods * passed[0]
        ends[self.chains.gate == self.chains.never] = -1.0  # the node behind each chain
        owner = self.chain[left_out]
        back = (left_out - self.cut[owner]) // self.step[owner] + 1
        ends[left_out] = ends[left_out - back * self.step[owner]] + back * passed[0]
        return ends if self._holds(ends) else None

    def _walked(self, nodes: Ints) -> Floats | None:
        """Ends of some nodes, as if those between them did not exist."""
        begin, gate = self.chains.begin, self.chains.gate[nodes]
        place = np.searchsorted(nodes, begin)
        owner = np.append(self.chain, [len(begin)] * 2)[gate]  # of gates
        step, first, cut = (np.append(column, 0) for column in (self.step, self.first, self.cut))
        out = (self.periods * step)[owner]
        # gates behind what is left out move forward with it; those before it stay where they are
        late = self._behind(nodes) & (gate - out >= first[owner])
        late |= (self.step[self.chain[nodes]] == 0) & (gate >= cut[owner] + out)
        # a gate loses the nodes left out before it, the whole graph those of the chains before
        moved = gate - late * out - np.append(begin - place, 0)[owner]
        known = owner < len(begin)
        if (moved >= np.append(place[1:], [len(nodes)] * 2)[owner])[known].any():
            return None
        moved[~known] += len(nodes) - len(self.chain)
        ends = walk(place, moved, self.takes[nodes])
        return ends if not ((ends < 0) & (moved <= len(nodes))).any() else None

    def _behind(self, nodes: Ints) -> Flags:
        """Whether nodes come behind those left out of their chain."""
        owner = self.chain[nodes]
        out = self.periods * self.step[owner]
        behind: Flags = (out > 0) & (nodes >= self.cut[owner] + out)
        return behind

    def _late(self) -> Flags:
        """Nodes that end later by all periods left out: behind them, or waiting for one that is."""
        late = np.append(self._behind(np.arange(len(self.chain))), [False, False])
        others = np.flatnonzero(self.step[self.chain] == 0)
        owner, known = self.chain[others], -1
        # to the fixed point: a chain outside the periods may wait for a late node of another
        while late.sum() > known:
            known = late.sum()
            waits = late[others] | late[self.chains.gate[others]]
            # what follows a late node in its chain is late
            latest = np.maximum.accumulate(np.where(waits, others, -1))
            late[others] = latest >= self.chains.begin[owner]
        result: Flags = late[:-2]
        return result

    def _holds(self, ends: Floats) -> bool:
        """Whether every node ends when its waits let it: without a circle the only solution."""
        known = np.append(ends, [0.0, -1.0])
        before = np.append(-1.0, ends[:-1])
        law = np.maximum(before, known[self.chains.gate]) + self.takes
        return bool(((ends == law) | (self.chains.gate == self.chains.never)).all())


def _nodes(turn: Ints, chains: Chains) -> tuple[Ints, Ints]:
    """Chain and turn of each node [G]; -1 for what belongs to no turn."""
    nodes = len(chains.gate)
    chain = np.repeat(np.arange(len(chains.begin)), np.diff(np.append(chains.begin, nodes)))
    # the last node of each row, and those before it back to its first
    result, size = np.full(nodes, -1), chains.last - chains.first + 1
    back = np.repeat(np.cumsum(size), size) - 1 - np.arange(size.sum())
    result[np.repeat(chains.last, size) - back] = np.repeat(turn, size)
    return chain, result


def _repeats(chains: Chains, takes: Floats, chain: Ints, step: Ints) -> Flags:
    """Whether each node is followed by its like a period later [G]."""
    nodes = len(chain)
    ahead = np.minimum(np.arange(nodes) + step[chain], nodes - 1)
    gate, owner = chains.gate, np.append(chain, [len(step)] * 2)[chains.gate]
    shifted = gate + np.append(step, 0)[owner]
    result: Flags = (gate[ahead] == shifted) & (takes[ahead] == takes) & (chain[ahead] == chain)
    result &= (step[chain] > 0) & (gate != chains.never)
    return result


class Periods(NamedTuple):
    """Turns of the rows of a program, and how many of them are a period."""

    # int64[N], turn of each row, ascending on each rank; -1 for what belongs to none
    turn: Ints
    turns: int  # turns of the whole program
    length: int  # turns of a period


def periods_of(program: Program) -> Periods | None:
    """The periods of a program, each of at least its ranks; None where nothing repeats."""
    microbatch = program.microbatch
    acts = np.flatnonzero((microbatch >= 0) & program.vocabulary.is_action(program.kind))
    if not len(acts):
        return None
    # the rank with most actions shows the period; its middle third has to come again a period later
    ranks = np.bincount(program.rank[acts], minlength=1)
    mine = acts[program.rank[acts] == ranks.argmax()]
    code = (program.stage[mine] * len(program.vocabulary.kinds) + program.kind[mine]) * (
        len(program.templates) + 1
    ) + program.template[mine]
    own, middle = microbatch[mine], len(mine) // 2
    wide = slice(middle - len(mine) // 6, middle + len(mine) // 6)
    for later in middle + 1 + np.flatnonzero(code[middle + 1 : len(mine) * 3 // 4] == code[middle]):
        after = slice(wide.start + later - middle, wide.stop + later - middle)
        passed = int(own[later] - own[middle])
        alike = code[after] == code[wide]
        if passed > 0 and (alike & (own[after] - own[wide] == passed)).all():
            length = passed * -(-program.ranks // passed)
            return Periods(microbatch.astype(np.int64), int(microbatch.max()) + 1, length)
    return None


def run_replay(program: Program) -> Timeline:
    """Evaluate `program` once, chain by chain: an operation starts at the latest end of what it
    waits for. DeadlockError if operations wait for each other.

    Returns Timeline: equal, bit for bit, to that of the simpy engine.
    """
    chains = Chains.of(program)
    ends = ends_of(program, chains, program.duration)
    end = ends[chains.last]
    if len(end) and end.min() < 0:
        raise deadlock(program, precedence(program), end >= 0)
    return Timeline(program=program, start=chains.starts(ends), end=end, engine="replay")
