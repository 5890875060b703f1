"""Processor time, and the unit that benchmarks are measured in."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable

import simpy


def bare_timeout(count: int = 50_000) -> float:
    """Processor time of one ``yield env.timeout(1)`` in one simpy process [s]."""
    environment = simpy.Environment()

    def process():
        for _ in range(count):
            yield environment.timeout(1)

    environment.process(process())
    begin = time.process_time()
    environment.run()
    return (time.process_time() - begin) / count


def best(work: Callable[[], object], rounds: int = 7) -> float:
    """Least processor time of `work` [s]."""
    times = []
    for _ in range(rounds):
        gc.collect()
        begin = time.process_time()
        work()
        times.append(time.process_time() - begin)
    return min(times)
