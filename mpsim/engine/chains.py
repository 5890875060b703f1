"""Chains: the rows of a Program one stream after the other, with what each waits for elsewhere.

Shapes: N rows, C chains, G nodes.

"Starts when its dependencies have ended and it is at the head of every stream it occupies" means:
after the rows before it on each of its streams. So stream order is more edges of the same graph
(`precedence`), and a program that cannot finish is a graph with a cycle.

A row belongs to the chain of the first stream it occupies, and follows the row before it there.
Whatever else it waits for is a *gate*. A row is one node, or one a gate if it has several: the
earlier ones take no time. So a node ends at

    end[node] = max(end[node - 1], end[gate[node]]) + duration[node]

which is all there is to the time of a program whose durations do not depend on what else runs.

A chain whose nodes wait for nodes of one other chain, one by one and in order, *follows* that
chain, as the sends of a rank follow its compute: each of its nodes can be evaluated along with the
node that it waits for.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mpsim import structs
from mpsim.arrays import Flags, Floats, Ints
from mpsim.errors import DeadlockError
from mpsim.program.csr import Lists, compress, owners, stable_order
from mpsim.program.program import Program, Stream


@structs.dataclass(frozen=True, slots=True, eq=False)
class Chains:
    """Rows as chains of nodes; after the last node of each chain stands one that never ends."""

    begin: Ints  # int64[C], first node of each chain
    # int64[G], the node that each waits for besides the one before it: `open` where there is none,
    # `never` at the end of a chain
    gate: Ints
    first: Ints  # first, last: int64[N], nodes of each row
    last: Ints

    @property
    def open(self) -> int:
        """Stands for what has always ended."""
        return len(self.gate)

    @property
    def never(self) -> int:
        """Stands for what never ends."""
        return len(self.gate) + 1

    @classmethod
    def of(cls, program: Program) -> Chains:
        """Chain the rows of a program."""
        chain = chain_of(program)
        row, before = _gates(program, chain)
        count = np.bincount(row, minlength=len(program))
        order = stable_order(chain)
        ordered = chain[order]
        opens = np.ones(len(order), dtype=bool)
        opens[1:] = ordered[1:] != ordered[:-1]
        size = np.maximum(count, 1)[order]
        ends = np.cumsum(size) + np.cumsum(opens) - 1
        first, last = np.empty_like(ends), np.empty_like(ends)
        first[order], last[order] = ends - size, ends - 1
        nodes = int(ends[-1]) + 1 if len(ends) else 0
        gate = np.full(nodes, nodes, dtype=np.int64)
        closing = np.append(opens[1:], True)[: len(ends)]
        gate[ends[closing]] = nodes + 1
        within = np.arange(len(row)) - (np.cumsum(count) - count)[row]
        gate[first[row] + within] = last[before]
        return cls(begin=(ends - size)[opens], gate=gate, first=first, last=last)

    def spread(self, duration: Floats) -> Floats:
        """Durations of nodes from durations of rows [..., N] to [..., G]."""
        result = np.zeros((*duration.shape[:-1], len(self.gate)))
        result[..., self.last] = duration
        return result

    def starts(self, ends: Floats) -> Floats:
        """When each row starts [G]: at the latest end of what it waits for."""
        known = np.append(ends, 0.0)
        began = np.zeros(len(ends), dtype=bool)
        began[self.begin] = True
        before = np.where(began[self.last], 0.0, known[self.last - 1])
        starts: Floats = np.maximum(before, known[self.gate[self.last]])
        return starts

    def run(self, duration: Floats) -> Floats:
        """Let every chain run as far as it can, again and again. `duration` (float64[N]): of each
        row, not negative.

        Returns float64[G]: end of each node; -1 where it never ends, as at the end of each chain.
        """
        return walk(self.begin, self.gate, self.spread(duration))


def walk(begin: Ints, gates: Ints, durations: Floats) -> Floats:
    """Let every chain run as far as it can, again and again. `begin` and `gates` (int64[C],
    int64[G]): as of `Chains`. `durations` (float64[G]): of each node, not negative.

    Returns float64[G]: end of each node; -1 where it never ends, as at the end of each chain.
    """
    nodes = len(gates)
    gate, takes = gates.tolist(), durations.tolist()
    end = [-1.0] * nodes + [0.0, -1.0]
    waiter = [-1] * (nodes + 2)  # the last node that waits for each, and from there
    fellow = [-1] * nodes  # the one that waited for the same before it
    follows, followers = _followers(begin, gates)
    follower = followers.tolist()
    # a stack, no queue: what the chain that was opened last reads is in the cache
    ready = begin[~follows].tolist()
    while ready:
        node = ready.pop()
        now = end[node - 1]  # -1 at the begin of a chain: its gate is later
        while True:
            awaited = gate[node]
            opened = end[awaited]
            if opened < 0:
                # not ended yet: the chain goes on when it has, and joins the list of its waiters
                fellow[node] = waiter[awaited]
                waiter[awaited] = node
                break
            if opened > now:
                now = opened
            now += takes[node]
            end[node] = now
            waiting = waiter[node]
            while waiting >= 0:
                ready.append(waiting)
                waiting = fellow[waiting]
            along = follower[node]
            if along >= 0:
                free = end[along - 1]
                end[along] = (now if now > free else free) + takes[along]  # noqa: FURB136
                waiting = waiter[along]
                while waiting >= 0:
                    ready.append(waiting)
                    waiting = fellow[waiting]
            node += 1
    return np.array(end[:nodes])


def _followers(begin: Ints, gate: Ints) -> tuple[Flags, Ints]:
    """Which chains follow another [C], and the node evaluated along with each, or -1 [G]."""
    nodes = len(gate)
    length = np.diff(np.append(begin, nodes))
    chain = np.repeat(np.arange(len(length)), length)
    leader = np.append(chain, [-1, -1])[gate]
    inner = gate <= nodes
    led = inner & (leader >= 0) & (leader != chain)
    again = inner[1:] & (chain[1:] == chain[:-1])
    led[1:] &= ~again | ((leader[1:] == leader[:-1]) & (gate[1:] > gate[:-1]))
    follows = np.bincount(chain, weights=led, minlength=len(length)) == length - 1
    # whom a follower follows goes by itself
    follows &= ~np.append(follows, False)[leader[begin]]
    mine = np.flatnonzero(follows[chain] & inner)
    mine = mine[np.argsort(length[chain[mine]], kind="stable")]
    follower = np.full(nodes, -1, dtype=np.int64)
    follower[gate[mine]] = mine  # the last assignment stays: that of the longest chain
    follows[chain[mine[follower[gate[mine]] != mine]]] = False
    stays = follows[chain[mine]]
    follower[gate[mine[~stays]]] = -1
    follower[gate[mine[stays]]] = mine[stays]
    return follows, follower


def _gates(program: Program, chain: NDArray[np.int32]) -> tuple[Ints, Ints]:
    """Pairs of (row, row it waits for) that are not in the order of its chain anyway, by row."""
    row, before = program.waits()
    own = np.flatnonzero(~implied(chain, row, before))
    row, before = row.take(own), before.take(own)
    if not len(own) or own[-1] < len(program.dep):  # dependencies alone, which come by row
        return row, before
    order = stable_order(row)
    return row.take(order), before.take(order)


def chain_of(program: Program) -> NDArray[np.int32]:
    """Which chain each row is in: the first slot it occupies, or one of its own."""
    chain = np.arange(len(program), dtype=np.int32) + (int(program.slot.max(initial=0)) + 1)
    has = program.slot_ptr[1:] > program.slot_ptr[:-1]
    chain[has] = program.slot[program.slot_ptr[:-1][has]]
    return chain


def implied(chain: NDArray[np.int32], row: Ints, before: Ints) -> Flags:
    """Whether each pair (row, row it waits for) follows from the order of the chain."""
    result: Flags = (chain.take(row) == chain.take(before)) & (before < row)
    return result


def precedence(program: Program) -> Lists:
    """Waits of each row: the row before it on its streams, and dependencies beyond these.

    Returns Lists: each pair once, rows ascending.
    """
    row, before = program.waits()
    needed = ~implied(chain_of(program), row, before)
    needed[len(program.dep) :] = True  # these are the order of the streams
    return compress(row[needed], before[needed], len(program))


def successors(waits: Lists) -> Lists:
    """Rows that wait for each row, from those that each row waits for."""
    pointer = np.zeros_like(waits.ptr)
    np.cumsum(np.bincount(waits.value, minlength=len(pointer) - 1), out=pointer[1:])
    return Lists(pointer, owners(waits.ptr)[stable_order(waits.value)].astype(np.int32))


def describe(program: Program, row: int) -> str:
    """Name one operation the way a person would: what, where, which microbatch."""
    kind = program.vocabulary.kinds[program.kind[row]].replace("_", " ")
    label = program.labels[program.label[row]] or kind
    where = program.rank_name[program.rank[row]]
    peer = int(program.peer[row])
    if peer >= 0:
        where += f" -> {program.rank_name[peer]}"
    stage, microbatch = int(program.stage[row]), int(program.microbatch[row])
    what = f" stage {stage}" if stage >= 0 else ""
    what += f" microbatch {microbatch}" if microbatch >= 0 else ""
    return f"{label}{what} on {where} ({Stream(int(program.stream[row])).name.lower()})"


def deadlock(program: Program, waits: Lists, finished: Flags) -> DeadlockError:
    """Explain which operations wait for each other. `finished` (bool[N]): rows that ran."""
    row = int(np.flatnonzero(~finished)[0])
    seen: dict[int, int] = {}
    path: list[int] = []
    while row not in seen:
        seen[row] = len(path)
        path.append(row)
        before = waits.value[waits.ptr[row] : waits.ptr[row + 1]]
        row = int(before[~finished[before]][0])
    circle = path[seen[row] :]
    lines = [f"  {describe(program, row)} waits for" for row in circle[:12]]
    if len(circle) > 12:
        lines.append(f"  ... {len(circle) - 12} more ...")
    stuck = int((~finished).sum())
    return DeadlockError(
        f"{stuck} of {len(finished)} operations can never start; these wait for each other:\n"
        + "\n".join(lines)
        + f"\n  {describe(program, circle[0])}\n"
        "Change the order of actions so that a producer comes before what it waits for."
    )
