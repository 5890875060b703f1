"""The precedence graph of a Program: dependencies plus stream order.

"Starts when its dependencies have ended and it is at the head of every stream it occupies" means: after the rows before it on
each of its streams. So stream order is more edges of the same graph, and a program that cannot finish is a graph with a cycle.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mpsim.errors import DeadlockError
from mpsim.program.csr import Lists, compress, owners, stable_order
from mpsim.program.program import Program, Stream

Ints = NDArray[np.int64]


def chain_of(program: Program) -> NDArray[np.int32]:
    """Which chain each row is in: the first slot it occupies, or one of its own."""
    chain = np.arange(len(program), dtype=np.int32) + (int(program.slot.max(initial=0)) + 1)
    has = program.slot_ptr[1:] > program.slot_ptr[:-1]
    chain[has] = program.slot[program.slot_ptr[:-1][has]]
    return chain


def implied(chain: NDArray[np.int32], row: Ints, before: Ints) -> NDArray[np.bool_]:
    """Whether each pair (row, row it waits for) follows from the order of the chain."""
    result: NDArray[np.bool_] = (chain.take(row) == chain.take(before)) & (before < row)
    return result


def precedence(program: Program) -> Lists:
    """Waits of each row: the row before it on each of its streams, and dependencies that do not follow from these.

    Returns
    -------
    Lists
        Each pair once, rows ascending.
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


def deadlock(program: Program, waits: Lists, finished: NDArray[np.bool_]) -> DeadlockError:
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
