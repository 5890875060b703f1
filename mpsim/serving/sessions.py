"""Sessions: requests of one user, each of which follows the answer to the one before.

The prompt of a turn is all that went before it, answers included, and new tokens. All turns of a
session name the same units of tokens, of which each has as many as it is long; what an engine has
cached of them, answers as well, it does not compute again.
"""

from __future__ import annotations

import numpy as np

from mpsim import structs
from mpsim.arrays import Ints
from mpsim.scenario.serving import Workload
from mpsim.serving.requests import TIMES, Requests, Served

_UNIT = 128  # tokens of a unit: a multiple of the blocks that engines have


def in_sessions(workload: Workload, drawn: Requests) -> Requests:
    """Drawn requests as turns of sessions: the first of each arrives when every `turns`-th did.

    `drawn`: new tokens and answers of each turn, and times before it.
    """
    turns, number = workload.turns, np.arange(len(drawn))
    session, grown = number // turns, np.cumsum(drawn.prompt + drawn.output)
    before = np.concatenate([[0], grown])[session * turns]
    prompt = grown - before - drawn.output
    last = ((number + 1) % turns == 0) | (number + 1 == len(drawn))
    unshared = turns == 1 and not workload.shared_prefix
    return structs.replace(
        drawn,
        prompt=prompt,
        hashes=None if unshared else _units(workload, prompt + drawn.output, session),
        unit=_UNIT,
        following=np.where(last, -1, number + 1),
    )


def _units(workload: Workload, length: Ints, session: Ints) -> tuple[tuple[int, ...], ...]:
    """Units of every request: those of its whole session, the shared ones of its group first."""
    last = np.flatnonzero(np.diff(session, append=session[-1] + 1))
    size = int(length.max()) // _UNIT + 1
    shared = min(workload.shared_prefix // _UNIT, size)
    found = []
    for number, end in enumerate((length[last] // _UNIT).tolist()):
        group = -1 - (number % workload.prefix_groups) * size
        own = tuple(range(number * size, number * size + end))
        found.append(tuple(range(group, group - min(shared, end), -1)) + own[shared:])
    return tuple(found[number] for number in session.tolist())


def as_they_came(requests: Requests, served: Served) -> tuple[Requests, Served]:
    """Requests of sessions, and their times, in the order in which they arrived."""
    if requests.following is None:
        return requests, served
    order = np.argsort(served.arrival, kind="stable")
    place = np.argsort(order)
    times = {n: getattr(served, n)[order] for n in TIMES}
    moves = dict(served.transfers)
    if len(moves.get("request", ())):
        moves["request"] = place[moves["request"].astype(int)].astype(float)
    follows = requests.following[order]
    came = structs.replace(
        requests,
        arrival=times["arrival"],
        prompt=requests.prompt[order],
        output=requests.output[order],
        hashes=tuple(requests.hashes[at] for at in order.tolist()) if requests.hashes else None,
        following=np.where(follows < 0, -1, place[follows]),
        think=None if requests.think is None else requests.think[order],
    )
    return came, structs.replace(served, **times, transfers=moves)
