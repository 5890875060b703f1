"""The simpy engine over a fluid network: messages and collectives share links they meet on.

A row pays its latency first, which uses nothing; then it flows, at its own rate alone and max-min
fairly with others. One event is armed for the network as a whole: the next end of any flow. It is
armed again whenever that changes, and what an old one would have said is ignored.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import cast

import numpy as np
import simpy

from mpsim import structs
from mpsim.engine.chains import deadlock, precedence, successors
from mpsim.engine.fluid import Fluid
from mpsim.engine.timeline import Timeline
from mpsim.engine.traffic import Traffic
from mpsim.program.links import Links
from mpsim.program.program import Program


def run_contended(program: Program, links: Links) -> Timeline:
    """Simulate `program` with its links shared. DeadlockError if operations wait for each other.

    Returns Timeline: of the program with the durations that rows turned out to have. Bit-equal to
    the other engines' where no two rows meet.
    """
    flows = Flows(program, links)
    return structs.replace(flows.run(), traffic=flows.traffic(links))


class SharedLinks:
    """Flows under way on links of a simpy environment.

    `capacity`: of every link, in bytes a unit of the environment's time. `ended`: called with a
    flow's number when its last byte has come. `tick`: the network's tick in the environment's time.
    """

    def __init__(
        self,
        environment: simpy.Environment,
        capacity: Sequence[float],
        ended: Callable[[int], None],
        *,
        tick: float = 1.0,
    ) -> None:
        self.network = Fluid([rate * tick for rate in capacity])
        self._environment, self._ended, self._tick = environment, ended, tick
        self._armed = math.inf
        self._clock = 0.0  # of the network: never goes back, whatever times are rounded to

    def start(self, number: int, uses: Mapping[int, float], *, cap: float, work: float) -> None:
        """Let a flow begin now, which takes `work` ticks at its `cap` [B/tick]."""
        self.network.start(number, uses, cap=cap, work=work, now=self._now())
        self.arm()

    def rescale(self, link: int, level: float) -> None:
        """Change the capacity of a link now [B/tick]; `arm` follows the last of several changes."""
        self.network.rescale(link, level, self._now())

    def _now(self) -> float:
        self._clock = max(self._clock, self._environment.now / self._tick)
        return self._clock

    def arm(self) -> None:
        """Have an event at the network's next end."""
        due = self.network.next_end()
        if due == self._armed:
            return
        self._armed = due
        if due < math.inf:
            wait = max(0.0, due * self._tick - self._environment.now)
            event = self._environment.timeout(wait, due)
            assert event.callbacks is not None
            event.callbacks.append(self._settle)

    def _settle(self, event: simpy.events.Event) -> None:
        if event.value != self._armed:  # something has changed since it was armed
            return
        due, self._armed = self._armed, math.inf
        self._clock = max(self._clock, due)
        for number in self.network.finish(due):
            self._ended(number)
        self.arm()


class Flows:
    """One simulation under way, in which transfers share links."""

    def __init__(self, program: Program, links: Links) -> None:
        count = len(program)
        self._program, self._waits = program, precedence(program)
        self.start, self.end = [0.0] * count, [-1.0] * count
        self._environment = simpy.Environment()
        self._links = SharedLinks(self._environment, links.capacity.tolist(), self._end)
        self._waiting = np.diff(self._waits.ptr).tolist()
        following = successors(self._waits)
        self._pointer, self._after = following.ptr.tolist(), following.value.tolist()
        self._latency = (program.duration - links.work).tolist()
        self._work, self._cap, self._uses = links.work.tolist(), links.cap.tolist(), links.uses()

    def run(self) -> Timeline:
        """Go to the end; rows that did not meet anything keep the very numbers they had."""
        for row in [row for row, left in enumerate(self._waiting) if not left]:
            self._begin(row)
        self._environment.run()
        planned, start, end = self._program.duration, np.asarray(self.start), np.asarray(self.end)
        if len(end) and end.min() < 0:
            raise deadlock(self._program, self._waits, end >= 0)
        took = np.where(end == start + planned, planned, end - start)
        program = structs.replace(self._program, duration=took)
        return Timeline(program=program, start=start, end=end, engine="simpy")

    def traffic(self, links: Links) -> Traffic:
        """Traffic that shared links carried."""
        changes = self._links.network.changes
        row, time, rate = zip(*changes, strict=True) if changes else ((), (), ())
        return Traffic(
            links,
            np.array(row, dtype=np.int64),
            np.array(time, dtype=np.float64),
            np.array(rate, dtype=np.float64),
        )

    def _begin(self, row: int) -> None:
        self.start[row] = self._environment.now
        event = self._environment.timeout(self._latency[row], row)
        assert event.callbacks is not None
        event.callbacks.append(self._flow)

    def _flow(self, event: simpy.events.Event) -> None:
        """Let a row that has paid its latency flow, or end where it moves nothing."""
        row = cast(int, event.value)
        if self._work[row]:
            self._links.start(row, self._uses[row], cap=self._cap[row], work=self._work[row])
        else:
            self._end(row)

    def _end(self, row: int) -> None:
        self.end[row] = self._environment.now
        for successor in self._after[self._pointer[row] : self._pointer[row + 1]]:
            self._waiting[successor] -= 1
            if not self._waiting[successor]:
                self._begin(successor)
