"""Kernel times as formulas on floats and arrays: GEMM, attention, memory-bound, updates.

Shapes: N operators. Arguments are floats or arrays of N; the result broadcasts as numpy does.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import ArrayLike

from mpsim import structs
from mpsim.arrays import Floats
from mpsim.cost.constants import constant_groups
from mpsim.hardware.calibrated import Calibration

UPDATES: Final = "optimizer"  # group of constants of updates in place
_UPDATE_FRACTION = f"kernels.{UPDATES}.fraction"
_COPY_FRACTION = "kernels.copy.fraction"


@structs.dataclass(frozen=True, slots=True, kw_only=True)
class GemmConstants:
    """Constants of the GEMM formula for one accelerator and precision."""

    compute_fraction: float  # share of the dense peak that large products reach, in (0, 1]
    memory_fraction: float  # share of the memory rate that thin products reach, in (0, 1]
    launch: float  # fixed time of a kernel [s]
    # sharpness of the bend between the two limits, at least 1; infinite for the roofline
    knee: float


def gemm_seconds(
    m: ArrayLike,
    n: ArrayLike,
    k: ArrayLike,
    batch: ArrayLike,
    moved_bytes: ArrayLike,
    *,
    peak: float,
    bandwidth: float,
    c: GemmConstants,
    padding: ArrayLike = 1.0,
) -> Floats:
    """Time of ``batch`` products (m, k) @ (k, n): a roofline whose corner is rounded.

    `m`, `n`, `k` and `batch`: shape. `moved_bytes`: to and from device memory, all of the batch
    [B]. `peak`: dense peak of the precision [FLOP/s]. `bandwidth`: device memory [B/s]. `padding`:
    work done over work asked for, at least 1 (whole tiles; see `mpsim.cost.waves`).

    Returns: time [s].

    Notes
    -----
    ``t = t0 + (Tc^p + Tm^p)^(1/p)`` with ``Tc = 2 m n k batch padding / (e_c peak)``, ``Tm =
    moved_bytes / (eta bandwidth)``; t0 is `c.launch`, e_c `c.compute_fraction`, eta
    `c.memory_fraction`, p `c.knee`. ``larger * (1 + ratio^p)^(1/p)`` never overflows.

    Examples
    --------
    >>> flat = GemmConstants(compute_fraction=1.0, memory_fraction=1.0, launch=0.0, knee=1.0)
    >>> float(gemm_seconds(10, 10, 10, 1, 500, peak=1000.0, bandwidth=100.0, c=flat))
    7.0
    """
    shape = np.asarray(m, float) * np.asarray(n, float) * np.asarray(k, float)
    work = 2.0 * shape * np.asarray(batch, float) * np.asarray(padding, float)
    compute = work / (c.compute_fraction * peak)
    memory = np.asarray(moved_bytes, float) / (c.memory_fraction * bandwidth)
    larger, smaller = np.maximum(compute, memory), np.minimum(compute, memory)
    ratio = np.divide(smaller, larger, out=np.zeros_like(larger), where=larger > 0)
    result: Floats = c.launch + larger * (1.0 + ratio**c.knee) ** (1.0 / c.knee)
    return result


def attention_pairs(
    queries: ArrayLike,
    keys: ArrayLike,
    *,
    causal: ArrayLike,
    window: ArrayLike,
    diagonal: bool = False,
) -> Floats:
    """Query-key pairs that a kernel works on: half of them when causal, fewer with a sliding
    window.

    `queries` and `keys`: lengths; with context parallelism `queries` is a rank's balanced share of
    the sequence, half masked like the whole. `window`: keys that a query sees at most [tokens]; 0
    for all. `diagonal`: count the pair of a query with itself in whole. Published rates of kernels
    count half of it: exactly half the square when causal.

    Notes
    -----
    With s keys and a window w below s a causal query at position i sees ``min(i, w)`` keys: ``w/s -
    w^2/(2 s^2)`` of the square, and ``w/(2 s^2)`` with the diagonal; ``(s + 1)/(2 s)`` without a
    window. Without the mask it sees w of s.
    """
    s = np.asarray(keys, float)
    w = np.where(np.asarray(window) > 0, np.minimum(np.asarray(window, float), s), s)
    share = np.divide(w, s, out=np.ones_like(s * w), where=s > 0)
    masked = share - share**2 / 2.0
    if diagonal:
        masked = masked + share / (2.0 * np.maximum(s, 1.0))
    visible = np.where(causal, masked, share)
    result: Floats = np.asarray(queries, float) * s * visible
    return result


def attention_seconds(
    forward_flops: ArrayLike,
    sequence: ArrayLike,
    *,
    rate: ArrayLike,
    half: ArrayLike,
    share: ArrayLike,
    launch: float,
) -> Floats:
    """Time of one pass of a fused attention kernel whose rate saturates with the sequence.

    `forward_flops`: of the forward pass, only the pairs that are worked on [FLOP]. `sequence`: keys
    [tokens]. `rate`: reached by an endless sequence, forward and backward together [FLOP/s].
    `half`: sequence that reaches half of `rate` [tokens]. `share`: time of this pass, in units of
    forward FLOPs over rate. `launch`: shortest kernel [s].

    Notes
    -----
    ``t = max(launch, share * forward_flops / (rate * sequence / (sequence + half)))``. Both passes
    do 3.5 forward FLOPs and share that time 1 : 3, so `share` is 0.875 forward and 2.625 backward.
    """
    tokens = np.asarray(sequence, float)
    reached = np.asarray(rate, float) * tokens / (tokens + np.asarray(half, float))
    result: Floats = np.maximum(launch, np.asarray(share) * np.asarray(forward_flops) / reached)
    return result


def memory_seconds(
    moved_bytes: ArrayLike,
    *,
    bandwidth: float,
    fraction: ArrayLike,
    slowdown: ArrayLike = 1.0,
    floor: float = 0.0,
) -> Floats:
    """Time of a memory-bound kernel: ``max(floor, slowdown * moved_bytes / (fraction *
    bandwidth))``.

    `moved_bytes`: ideal traffic, every operand once [B]. `bandwidth`: device memory [B/s].
    `fraction`: share of `bandwidth` that a kernel of this kind reaches, in (0, 1]. `slowdown`: time
    over that, in real training. `floor`: shortest kernel [s].
    """
    ideal = np.asarray(moved_bytes, float) / (np.asarray(fraction, float) * bandwidth)
    result: Floats = np.maximum(floor, np.asarray(slowdown, float) * ideal)
    return result


def update_seconds(moved: float, bandwidth: float, calibration: Calibration | None = None) -> float:
    """Time of updating values where they lie, which reads what it overwrites: an addition, or the
    step of an Adam.

    `moved`: read and written [B]. `bandwidth`: device memory [B/s]. `calibration`: of the
    accelerator; its fraction counts.

    Notes
    -----
    ``moved / (0.8 bandwidth)``; 0.8 is an estimate (``kernels.optimizer.fraction``).
    """
    measured = calibration.value(_UPDATE_FRACTION) if calibration else None
    fraction = measured or constant_groups("kernels")[UPDATES].value("fraction")
    return moved / (fraction * bandwidth)


def copy_seconds(moved: float, bandwidth: float, calibration: Calibration | None = None) -> float:
    """Time of a copy within the memory of a device. `moved`, `bandwidth` and `calibration`: as of
    `update_seconds`.

    Notes
    -----
    ``moved / (fraction * bandwidth)`` with the fraction that was measured
    (``kernels.copy.fraction``), else that of updates in place. They differ on CPUs, whose copies
    read what they will overwrite into the cache first.
    """
    measured = calibration.value(_COPY_FRACTION) if calibration else None
    if measured is None:
        return update_seconds(moved, bandwidth, calibration)
    return moved / (measured * bandwidth)
