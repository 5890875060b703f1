"""The reference engine: a simpy simulation with exactly one event an operation.

Each operation counts what it still waits for. When the last of it ends, the operation starts and
its end is scheduled; the end of an operation is the only thing that ever happens. Simultaneous ends
are handled in the order in which they were scheduled, so equal inputs give equal outputs.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import simpy
from simpy.events import NORMAL

from mpsim.engine.chains import chain_of, deadlock, precedence, successors
from mpsim.engine.timeline import Timeline
from mpsim.program.program import Program


class _Stream(simpy.Event):
    """An in-order queue as the event of its operation's end, which serves all in turn."""

    row: int
    _ok = True


def run_simpy(program: Program) -> Timeline:
    """Simulate `program`. DeadlockError if operations wait for each other."""
    waits = precedence(program)
    following = successors(waits)
    environment = simpy.Environment()
    waiting = np.diff(waits.ptr).tolist()
    duration = program.duration.tolist()
    pointer, after = following.ptr.tolist(), following.value.tolist()
    count = len(program)
    start = [-1.0] * count
    stream = _streams(program, environment)
    schedule = environment.schedule

    def finish(event: _Stream) -> None:
        row, now = event.row, environment.now
        for successor in after[pointer[row] : pointer[row + 1]]:
            left = waiting[successor]
            if left > 1:
                waiting[successor] = left - 1
            else:
                start[successor] = now
                own = stream[successor]
                own.row, own.callbacks = successor, ended
                schedule(own, NORMAL, duration[successor])

    ended: list[Callable[[_Stream], None]] = [finish]
    # one more row ends at the very beginning: what waits for nothing else follows it
    ready = [row for row, left in enumerate(waiting) if not left]
    pointer.append(pointer[-1] + len(ready))
    after += ready
    origin = _Stream(environment)
    origin.row = count
    finish(origin)
    environment.run()
    starts = np.asarray(start)
    if count and starts.min() < 0:
        raise deadlock(program, waits, starts >= 0)
    return Timeline(program=program, start=starts, end=starts + program.duration, engine="simpy")


def _streams(program: Program, environment: simpy.Environment) -> list[_Stream]:
    """The stream that runs each row."""
    chain = chain_of(program)
    streams = [_Stream(environment) for _ in range(int(chain.max(initial=-1)) + 1)]
    return [streams[number] for number in chain.tolist()]
