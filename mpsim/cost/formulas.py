"""Kernel times as formulas on floats and arrays: GEMM (also in whole tiles, whose last wave is
partly filled), attention, memory-bound, updates.

Shapes: N operators. Arguments are floats or arrays of N; the result broadcasts as numpy does.
"""

from __future__ import annotations

import itertools
from typing import Final

import numpy as np
from numpy.typing import ArrayLike

from mpsim import structs
from mpsim.arrays import Floats
from mpsim.cost.constants import ConstantGroup, constant_groups
from mpsim.hardware.components import Calibration

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
    work done over work asked for, at least 1 (whole tiles; see `wave_padding`).

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


@structs.dataclass(frozen=True, slots=True, kw_only=True)
class Tiling:
    """Tiles into which a library cuts a product."""

    processors: float  # streaming multiprocessors; each works on one tile at a time
    weight: float  # 0 ignores the partly filled last wave, 1 lets it cost a full one, in [0, 1]
    small_tile: float  # rate of a tile smaller than the largest over that of the largest, in (0, 1]
    # moved for an element of a partial sum when k is split: written and read once [B]
    partial_bytes: float
    tiles: tuple[tuple[int, int], ...]
    splits: tuple[int, ...]  # parts that k may be cut into


def read_tiling(group: ConstantGroup) -> Tiling:
    """The tiling that a group of ``kernels.waves`` describes."""
    shapes = (tile.split("x") for tile in group.words["tiles"])
    return Tiling(
        processors=group.value("processors"),
        weight=group.value("weight"),
        small_tile=group.value("small_tile"),
        partial_bytes=group.value("partial_bytes"),
        tiles=tuple((int(rows), int(columns)) for rows, columns in shapes),
        splits=tuple(int(split) for split in group.words["splits"]),
    )


def wave_padding(
    m: ArrayLike,
    n: ArrayLike,
    batch: ArrayLike,
    *,
    tile: tuple[ArrayLike, ArrayLike],
    split: ArrayLike,
    processors: float,
    weight: float,
) -> Floats:
    """Work of whole waves of whole tiles over the work asked for, at least 1.

    Notes
    -----
    ``1 + weight (waves processors rows columns / (split batch m n) - 1)`` with
    ``waves = ceil(split batch ceil(m / rows) ceil(n / columns) / processors)``.
    """
    m, n, batch, split, rows, columns = (
        np.asarray(size, float) for size in (m, n, batch, split, *tile)
    )
    count = split * batch * np.ceil(m / rows) * np.ceil(n / columns)
    done = np.ceil(count / processors) * processors * rows * columns
    asked = split * batch * m * n
    full = np.divide(done, asked, out=np.ones_like(done), where=asked > 0)
    result: Floats = 1.0 + weight * (full - 1.0)
    return result


def group_padding(
    rows: ArrayLike,
    columns: ArrayLike,
    groups: ArrayLike,
    *,
    ragged: ArrayLike,
    tile: tuple[ArrayLike, ArrayLike],
    processors: float,
) -> Floats:
    """Work of whole tiles of one kernel over groups, over the work asked for, at least 1.

    `rows` and `columns`: of the result of one group; `rows` is the mean over groups where they are
    ragged. `groups`: products of the kernel, such as experts. `ragged`: whether the rows of groups
    differ (tokens of experts; in `Phase.WEIGHT_GRADIENT` they are equal). `tile`: rows and columns
    of a tile. `processors`: streaming multiprocessors.

    Notes
    -----
    A ragged group wastes half a tile in the mean, ``max(rows + tile / 2, tile) / rows``. Groups
    share the waves of the kernel, which is persistent: only a kernel with fewer tiles than
    processors leaves some idle, ``max(1, processors / tiles)``.

    Examples
    --------
    >>> float(group_padding(512, 4096, 8, ragged=True, tile=(128, 128), processors=132))
    1.125
    """
    m, n, count, height, width = (np.asarray(x, float) for x in (rows, columns, groups, *tile))
    done = np.where(ragged, np.maximum(m + height / 2, height), np.maximum(m, height))
    tiles = count * (done / height) * np.maximum(n / width, 1.0)
    filled = np.divide(done, m, out=np.ones_like(done), where=m > 0)
    result: Floats = filled * np.maximum(1.0, processors / np.maximum(tiles, 1.0))
    return result


def tiled_gemm_seconds(
    m: ArrayLike,
    n: ArrayLike,
    k: ArrayLike,
    batch: ArrayLike,
    moved_bytes: ArrayLike,
    *,
    peak: float,
    bandwidth: float,
    c: GemmConstants,
    tiling: Tiling,
) -> Floats:
    """Time of a product with the library's best tiles and splits of k [s]; see `gemm_seconds`.

    Notes
    -----
    A small tile wastes less of a last wave and reuses less of what it reads; a split of k makes
    more tiles and moves partial sums. The fastest counts, as a library's heuristic would have it.
    """
    choices = [(*tile, split) for tile, split in itertools.product(tiling.tiles, tiling.splits)]
    # all choices at once, along an axis of their own before those of the products
    axes = [-1] + [1] * np.broadcast(m, n, k, batch, moved_bytes).ndim
    rows, columns, split = (each.reshape(axes) for each in np.array(choices, float).T)
    felt = {"processors": tiling.processors, "weight": tiling.weight}
    padding = wave_padding(m, n, batch, tile=(rows, columns), split=split, **felt)
    area = rows * columns
    rate = np.where(area == area.max(), 1.0, tiling.small_tile)
    partial = np.asarray(m, float) * np.asarray(n, float) * np.asarray(batch, float)
    sums = np.where(split > 1, split * tiling.partial_bytes * partial, 0.0)
    shape = m, n, k, batch, np.asarray(moved_bytes, float) + sums
    padded = padding / rate
    each = gemm_seconds(*shape, peak=peak, bandwidth=bandwidth, c=c, padding=padded)
    result: Floats = each.min(axis=0)
    return result
