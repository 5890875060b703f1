"""Interference: what collectives and kernels on one device take from each other.

A collective's kernels hold some of the device's processors and move bytes through its memory;
products beside it have fewer processors, memory-bound kernels less bandwidth, and the collective
itself is dragged. Likewise a step of many accelerators loses time because all wait for the slowest
(straggling).
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from mpsim import structs
from mpsim.cost.constants import Constant, choose_group, constant_groups
from mpsim.hardware.components import Accelerator
from mpsim.parallel.axes import AXIS_NAMES

_STEM = "interference"
_OTHERS = "any"


@structs.dataclass(frozen=True, slots=True)
class Interference:
    """Shares of one kind of device that collectives take under one framework."""

    # share of the device's processors that a collective of an axis holds, in [0, 1]
    held: Mapping[str, float]
    touches: float  # bytes of device memory moved per byte a rank sends
    # by how much longer a collective takes while a kernel runs beside it; 0.1 is a tenth
    drag: float
    # share of processors or bandwidth that all collectives take of a kernel at most, in [0, 1)
    most: float
    # share of its rate that a kernel loses on average while a collective runs beside it at
    # `full_rate` or more, in [0, 1)
    lost: float
    # rate of a collective's ranks from which on it takes all that collectives take [B/s]; below, as
    # much less as it is slower, down to the processors that it holds while it waits
    full_rate: float
    memory_bandwidth: float  # of the device [B/s]
    constants: tuple[Constant, ...]  # where the numbers come from

    def lost_at(self, axis: str, rate: float) -> float:
        """Share of its rate that a kernel loses beside a collective of `axis` at `rate` [B/s].

        `rate`: bytes that a rank sends over the whole time of the collective, latencies included:
        what is lost in that time grows with its bytes or its length, and a faster link never loses
        more.
        """
        moving = self.lost * min(1.0, rate / self.full_rate)
        return min(self.most, max(self.held[axis], moving))


def interference_of(framework: str, chip: Accelerator) -> Interference:
    """Constants for a framework and an accelerator.

    `framework`: name of its preset; one without a group of its own takes those of ``any``. `chip`:
    measured constants called ``interference.any.LEAF`` (or of the framework) take the place of
    those that ship.

    Examples
    --------
    >>> from mpsim.hardware import accelerator
    >>> round(interference_of("megatron-core", accelerator("h100-sxm")).held["dp"], 3)
    0.121
    """
    own = any(
        name.startswith(framework + ".")
        and (group.matches(chip.kind) or chip.family in group.families)
        for name, group in constant_groups(_STEM).items()
    )
    prefix = framework if own else _OTHERS
    group = choose_group(_STEM, prefix, chip.kind, chip.family, chip.calibration)
    return Interference(
        held={
            axis: min(1.0, group.value(f"units_{axis}") / chip.compute_units) for axis in AXIS_NAMES
        },
        touches=group.value("touches"),
        drag=group.value("drag"),
        most=group.value("most"),
        lost=group.value("lost"),
        full_rate=group.value("full_rate"),
        memory_bandwidth=chip.memory_bandwidth,
        constants=tuple(group.values()),
    )


def straggling_constants(chip: Accelerator) -> dict[str, Constant]:
    """``per_doubling`` and ``beyond`` of an accelerator, or measured ``straggling.wait.LEAF``."""
    return dict(choose_group("straggling", "wait", chip.kind, chip.family, chip.calibration))


def straggling_seconds(
    flops: float, accelerators: int, *, rate: float, per_doubling: float, beyond: float
) -> float:
    """Time that a step loses [s].

    `flops`: model FLOPs of the step on one accelerator [FLOP]. `accelerators`: that meet in the
    step. `rate`: of large products in 16 bits [FLOP/s]. `per_doubling`: loss a doubling, over the
    time of `flops` at `rate`. `beyond`: accelerators from which doublings count.

    Notes
    -----
    ``c log2(N / n) F / r``, 0 for N <= n: c `per_doubling`, N `accelerators`, n `beyond`, F
    `flops`, r `rate`. The largest of N normal times grows with ``sqrt(log N)``; that slow machines
    and placements over more switches come with N makes it nearly ``log N`` between 64 and 2,048.

    Examples
    --------
    Three doublings beyond 8, 0.5 % each of a second of work:

    >>> round(straggling_seconds(6e14, 64, rate=6e14, per_doubling=0.005, beyond=8), 6)
    0.015
    """
    doublings = max(0.0, math.log2(accelerators / beyond))
    return per_doubling * doublings * flops / rate
