"""The precedence graph of a Program: dependencies plus stream order.

"Starts when its dependencies have ended and it is at the head of every stream it occupies" means: after the rows before it on
each of its streams. So stream order is more edges of the same graph, and a program that cannot finish is a graph with a cycle.
"""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import NDArray

from mpsim.errors import DeadlockError
from mpsim.program.csr import compress, owners
from mpsim.program.program import Kind, Program, Stream

__all__ = ["Graph", "deadlock", "describe", "precedence"]


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Graph:
    """Predecessors and successors of every row, CSR, each edge once."""

    before_ptr: NDArray[np.int64]
    before: NDArray[np.int32]
    after_ptr: NDArray[np.int64]
    after: NDArray[np.int32]


def precedence(program: Program) -> Graph:
    """Build the graph of `program`.

    Returns
    -------
    Graph
        With N rows and one edge per distinct (row, predecessor) pair.
    """
    count = len(program)
    before = compress(*program.waits(), count)
    after = compress(before.value.astype(np.int64), owners(before.ptr), count)
    return Graph(before.ptr, before.value, after.ptr, after.value)


def describe(program: Program, row: int) -> str:
    """Name one operation the way a person would: what, where, which microbatch."""
    kind = Kind(int(program.kind[row])).name.lower().replace("_", " ")
    label = program.labels[program.label[row]] or kind
    where = program.rank_name[program.rank[row]]
    peer = int(program.peer[row])
    if peer >= 0:
        where += f" -> {program.rank_name[peer]}"
    stage, microbatch = int(program.stage[row]), int(program.microbatch[row])
    what = f" stage {stage}" if stage >= 0 else ""
    what += f" microbatch {microbatch}" if microbatch >= 0 else ""
    return f"{label}{what} on {where} ({Stream(int(program.stream[row])).name.lower()})"


def deadlock(program: Program, graph: Graph, finished: NDArray[np.bool_]) -> DeadlockError:
    """Explain which operations wait for each other.

    Parameters
    ----------
    program : Program
    graph : Graph
    finished : bool[N]
        Rows that ran.
    """
    row = int(np.flatnonzero(~finished)[0])
    seen: dict[int, int] = {}
    path: list[int] = []
    while row not in seen:
        seen[row] = len(path)
        path.append(row)
        before = graph.before[graph.before_ptr[row] : graph.before_ptr[row + 1]]
        row = int(before[~finished[before]][0])
    circle = path[seen[row] :]
    lines = [f"  {describe(program, one)} waits for" for one in circle[:12]]
    if len(circle) > 12:
        lines.append(f"  ... {len(circle) - 12} more ...")
    stuck = int((~finished).sum())
    return DeadlockError(
        f"{stuck} of {len(finished)} operations can never start; these wait for each other:\n"
        + "\n".join(lines)
        + f"\n  {describe(program, circle[0])}\n"
        "Change the order of actions so that a producer comes before what it waits for."
    )
