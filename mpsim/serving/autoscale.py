"""Autoscaling: instances of a service that start and stop with the requests it has.

Every so often the requests in the service over what an instance is meant to have say how many
instances are wanted. One that starts serves after its start-up time; fewer are wanted for a while
before one stops, which first serves what it has.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Sequence

import simpy

from mpsim.scenario.serving import Autoscale
from mpsim.serving.lane import Lane


class Autoscaler:
    """Opens and closes instances, each a few batches, until `is_done`: all requests are served."""

    def __init__(
        self,
        env: simpy.Environment,
        rules: Autoscale,
        instances: Sequence[Sequence[Lane]],
        is_done: Callable[[], bool],
    ) -> None:
        self._env, self._rules, self._instances = env, rules, instances
        self._is_done = is_done
        self._begun: dict[int, float] = {}  # of instances that are paid for
        self._starting: set[int] = set()
        self._draining: set[int] = set()
        self._fewer_since = math.inf
        # each instance, and from its start to its last token, for which it is paid [s]
        self.spans: list[tuple[int, float, float]] = []
        self.starts = 0
        for number, lanes in enumerate(instances):
            if number < rules.least:
                self._begun[number] = 0.0
            for lane in lanes:
                lane.closed = number >= rules.least

    def run(self) -> Generator[simpy.Event, object, None]:
        """Look at the service until all has been served."""
        rules, now = self._rules, 0.0
        while not self._is_done():
            yield self._env.timeout(rules.interval)
            now = self._env.now
            for number in [n for n in self._draining if not self._load(n)]:
                self._draining.remove(number)
                self.spans.append((number, self._begun.pop(number), now))
            serving = len(self._begun) - len(self._draining)
            load = sum(map(self._load, range(len(self._instances))))
            wanted = min(len(self._instances), max(rules.least, math.ceil(load / rules.load)))
            if wanted > serving:
                self._start(wanted - serving)
            self._fewer_since = min(self._fewer_since, now) if wanted < serving else math.inf
            if now - self._fewer_since >= rules.patience:
                self._stop(serving - wanted)
                self._fewer_since = math.inf

    def finish(self, end: float) -> None:
        """Stop what still runs at the end [s]."""
        self.spans += [(n, begin, max(begin, end)) for n, begin in self._begun.items()]
        self._begun.clear()

    def _load(self, number: int) -> int:
        return sum(lane.load for lane in self._instances[number])

    def _start(self, count: int) -> None:
        """Start instances: first those that still drain, then others."""
        for number in sorted(self._draining)[:count]:
            self._draining.remove(number)
            self._open(number)
            count -= 1
        idle = [n for n in range(len(self._instances)) if n not in self._begun]
        for number in idle[:count]:
            self.starts += 1
            self._begun[number] = self._env.now
            self._starting.add(number)
            self._env.process(self._after_start(number))

    def _after_start(self, number: int) -> Generator[simpy.Event, object, None]:
        yield self._env.timeout(self._rules.startup)
        if number in self._starting:
            self._starting.remove(number)
            self._open(number)

    def _open(self, number: int) -> None:
        for lane in self._instances[number]:
            lane.closed = False

    def _stop(self, count: int) -> None:
        """Have instances take no more requests: those that still start, then the emptiest."""
        able = [n for n in self._begun if n not in self._draining]
        able.sort(key=lambda n: (n not in self._starting, self._load(n), -n))
        for number in able[:count]:
            self._starting.discard(number)
            self._draining.add(number)
            for lane in self._instances[number]:
                lane.closed = True
