"""Straggling: the time that a step of many accelerators loses because all wait for the slowest."""

from __future__ import annotations

import math

from mpsim.cost.constants import Constant, choose_group
from mpsim.hardware.components import Accelerator

__all__ = ["straggling_constants", "straggling_seconds"]


def straggling_constants(chip: Accelerator) -> dict[str, Constant]:
    """The constants ``per_doubling`` and ``beyond`` of an accelerator; measured ones called ``straggling.wait.LEAF`` take their place."""
    return dict(choose_group("straggling", "wait", chip.name, chip.family, chip.calibration))


def straggling_seconds(
    flops: float, accelerators: int, *, rate: float, per_doubling: float, beyond: float
) -> float:
    """Time that a step loses [s].

    Parameters
    ----------
    flops : float
        Model FLOPs of the step on one accelerator [FLOP].
    accelerators : int
        That meet in the step.
    rate : float
        Of large products in 16 bits [FLOP/s].
    per_doubling : float
        Loss a doubling, over the time of `flops` at `rate`.
    beyond : float
        Accelerators from which doublings count.

    Notes
    -----
    ``c log2(N / n) F / r``, 0 for N <= n: c `per_doubling`, N `accelerators`, n `beyond`, F `flops`, r `rate`. The largest of N normal times grows with
    ``sqrt(log N)``; that slow machines and placements over more switches come with N makes it nearly ``log N`` between 64 and 2,048.

    Examples
    --------
    Three doublings beyond 8, 0.5 % each of a second of work:

    >>> round(straggling_seconds(6e14, 64, rate=6e14, per_doubling=0.005, beyond=8), 6)
    0.015
    """
    doublings = max(0.0, math.log2(accelerators / beyond))
    return per_doubling * doublings * flops / rate
