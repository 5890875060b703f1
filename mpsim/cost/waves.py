"""Matrix products in whole tiles: the cost of a last, partly filled wave of tiles.

Shapes: N products. Every array argument may be a float or an array of N.
"""

from __future__ import annotations

import itertools

import numpy as np
from numpy.typing import ArrayLike

from mpsim import structs
from mpsim.arrays import Floats
from mpsim.cost.constants import ConstantGroup
from mpsim.cost.formulas import GemmConstants, gemm_seconds


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
