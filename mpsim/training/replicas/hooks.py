"""Hooks: where gathers and reductions hook into the rows of the pipeline, columnar.

Shapes: N actions, V visits (a piece of an action on a rank, in the order a rank runs them), E events.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from mpsim.training.replicas.segments import Amount, Piece

__all__ = ["Events", "Hooks", "Inside"]

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclasses.dataclass(frozen=True, slots=True)
class Inside:
    """Pieces of an action with the rows each became, counted from the action's first.

    Parameters
    ----------
    pieces : sequence of Piece
    first, last, ready : sequence of int
        First and last row that computes, and the row after which its gradients can be reduced (later where they are copied first).
    """

    pieces: Sequence[Piece]
    first: Sequence[int]
    last: Sequence[int]
    ready: Sequence[int]


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Events:
    """Gathers before visits, or reductions after them.

    Parameters
    ----------
    visit : int64[E]
        Ascending.
    dense, experts : float64[E]
        Parameters on one rank.
    """

    visit: Ints
    dense: Floats
    experts: Floats


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Hooks:
    """All visits of a Plan and what hooks into them.

    Parameters
    ----------
    action : int64[V]
        Which action a visit belongs to; a rank's visits follow each other in the order it runs them.
    first, last, ready : int64[V]
        Rows of the action, see `Inside`.
    gathers, reduces : Events
    """

    action: Ints
    first: Ints
    last: Ints
    ready: Ints
    gathers: Events
    reduces: Events

    @classmethod
    def of(cls, insides: Sequence[Inside], chosen: Ints) -> Hooks:
        """Lay out the insides that actions have.

        Parameters
        ----------
        insides : sequence of Inside
        chosen : int64[N]
            Which of them each action is.
        """
        count = np.array([len(one.pieces) for one in insides])
        action, source = _spread(count, chosen)
        base = np.cumsum(count[chosen]) - count[chosen]

        def column(name: str) -> Ints:
            flat = [row for one in insides for row in getattr(one, name)]
            result: Ints = np.array(flat, dtype=np.int64)[source]
            return result

        return cls(
            action=action,
            first=column("first"),
            last=column("last"),
            ready=column("ready"),
            gathers=_events([[one.gathers for one in i.pieces] for i in insides], chosen, base),
            reduces=_events([[one.reduces for one in i.pieces] for i in insides], chosen, base),
        )


def _spread(count: Ints, chosen: Ints) -> tuple[Ints, Ints]:
    """For every element of every chosen list: which of `chosen`, and the element counted over all lists."""
    begin = np.cumsum(count) - count
    some = np.flatnonzero(count[chosen])
    each = count[chosen[some]]
    which = np.repeat(some, each)
    within = np.arange(len(which)) - np.repeat(np.cumsum(each) - each, each)
    return which, begin[chosen[which]] + within


def _events(amounts: Sequence[Sequence[tuple[Amount, ...]]], chosen: Ints, base: Ints) -> Events:
    flat = [
        [(place, *amount) for place, several in enumerate(pieces) for amount in several]
        for pieces in amounts
    ]
    table = np.array([one for pieces in flat for one in pieces], dtype=float).reshape(-1, 3)
    which, source = _spread(np.array([len(pieces) for pieces in flat]), chosen)
    place, dense, experts = table[source].T
    return Events(base[which] + place.astype(np.int64), dense, experts)
