"""Growth: processor time of a step or a sweep is at most in proportion to each of its sizes: ``pytest tests/benchmarks/test_growth.py --benchmark-only``.

The exponent is the slope of the logarithm of time over that of a size, fitted over its doublings; each time is the least of some rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pytest

import mpsim
from tests.benchmarks.timing import best

pytestmark = [pytest.mark.benchmark(group="growth"), pytest.mark.usefixtures("heap_of_a_user")]

BASE = {
    "schema": 1,
    "name": "growth",
    "model": {"preset": "gpt3-175b", "layers": 96},
    "cluster": {"preset": "dgx-a100-80gb", "nodes": 16},
    "parallelism": {"tp": 8, "pp": 8},
    "schedule": "1f1b",
    "training": {"global_batch": 1024, "micro_batch": 1, "sequence_length": 2048},
    "framework": "megatron-lm",
}
"""128 GPUs, two replicas."""

SIZES: Mapping[str, tuple[tuple[int, ...], Callable[[int], Mapping[str, object]]]] = {
    "m": ((256, 1024, 4096), lambda m: {"training.global_batch": 2 * m}),
    "pp": ((4, 8, 16, 32), lambda pp: {"parallelism.pp": pp, "cluster.nodes": 2 * pp}),
    "v": (
        (2, 4, 6, 12),
        lambda v: {"schedule": {"name": "interleaved-1f1b", "virtual_stages": v}},
    ),
    "layers": (
        (24, 48, 96, 192),
        lambda layers: {"model": {"preset": "gpt3-175b", "layers": layers}},
    ),
    "dp": (
        (1, 4, 16, 64),
        lambda dp: {"cluster.nodes": 8 * dp, "training.global_batch": 512 * dp},
    ),
    "tp": ((1, 2, 4, 8), lambda tp: {"parallelism.tp": tp, "cluster.nodes": 2 * tp}),
    "ranks": (
        (1, 2, 4, 8),
        lambda k: {
            "parallelism.pp": 4 * k,
            "cluster.nodes": 8 * k * k,
            "training.global_batch": 512 * k,
        },
    ),
}
"""Sizes of a step, and the values that make it so large; ranks are stages and replicas at once."""

BARS = {"pp": 1.2}
USUAL = 1.05


def exponent(sizes: tuple[int, ...], works: list[Callable[[], object]], rounds: int = 4) -> float:
    """Slope of log time over log size."""
    for work in works:
        work()  # what is read once is no growth
    times = [best(work, rounds) for work in works]
    return float(np.polyfit(np.log(sizes), np.log(times), 1)[0])


@pytest.mark.parametrize("size", SIZES)
def test_growth_of_a_step(clear, size: str):
    """From a scenario to its summary."""
    scenario = mpsim.Scenario.from_mapping(BASE)
    sizes, values = SIZES[size]
    scenarios = [scenario.with_values(values(count)) for count in sizes]
    works = [lambda each=each: mpsim.simulate(each).summary for each in scenarios]
    clear(exponent(sizes, works), at_most=BARS.get(size, USUAL))


def test_growth_of_a_sweep(clear):
    """Points of one kind, whose links differ."""
    scenario, sizes = mpsim.Scenario.from_mapping(BASE), (8, 16, 32, 64)
    rates = [[f"{100 + rate} Gb/s" for rate in range(count)] for count in sizes]
    works = [lambda rate=rate: mpsim.sweep(scenario, {"cluster.nic": rate}) for rate in rates]
    clear(exponent(sizes, works, rounds=2), at_most=USUAL)
