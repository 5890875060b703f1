"""Products in whole tiles: waves, small tiles and splits of k."""

from __future__ import annotations

import numpy as np
import pytest

from mpsim.cost import GemmConstants, KernelModel
from mpsim.cost.constants import constant_groups
from mpsim.cost.formulas import Tiling, read_tiling, tiled_gemm_seconds, wave_padding
from mpsim.hardware.lookup import accelerator
from mpsim.workload import (
    Phase,
    Role,
    make_gemm,
)

FLAT = GemmConstants(compute_fraction=1.0, memory_fraction=1.0, launch=0.0, knee=64.0)


def tiling(**changes: object) -> Tiling:
    fields = {
        "processors": 4.0,
        "weight": 1.0,
        "small_tile": 1.0,
        "partial_bytes": 8.0,
        "tiles": ((10, 10),),
        "splits": (1,),
    }
    return Tiling(**{**fields, **changes})  # type: ignore[arg-type]


def seconds(m: float, n: float, k: float, cut: Tiling, moved: float = 0.0) -> float:
    return float(
        tiled_gemm_seconds(m, n, k, 1.0, moved, peak=1e6, bandwidth=1e6, c=FLAT, tiling=cut)
    )


def test_a_full_wave_wastes_nothing_and_one_tile_more_costs_a_wave() -> None:
    """Four tiles on four processors are exact; a fifth takes the time of eight."""
    assert seconds(20, 20, 10, tiling()) == pytest.approx(2 * 20 * 20 * 10 / 1e6)
    assert seconds(50, 10, 10, tiling()) == pytest.approx(2 * seconds(20, 20, 10, tiling()))


def test_the_weight_scales_what_a_partial_wave_wastes() -> None:
    """0 forgets waves, one half lets a partial wave cost half of its idle processors."""
    padding = [
        float(wave_padding(50, 10, 1, tile=(10, 10), split=1, processors=4, weight=weight))
        for weight in (0.0, 0.5, 1.0)
    ]
    assert padding == pytest.approx([1.0, 1.3, 1.6])


def test_splitting_k_fills_the_machine_and_pays_for_partial_sums() -> None:
    """One tile on four processors: four parts of k run four times as fast, unless moving the sums takes longer."""
    whole, parts = tiling(), tiling(splits=(1, 4), partial_bytes=0.0)
    assert seconds(10, 10, 100, parts) == pytest.approx(seconds(10, 10, 100, whole) / 4)
    heavy = tiling(splits=(1, 4), partial_bytes=1e6)
    assert seconds(10, 10, 100, heavy) == seconds(10, 10, 100, whole)


def test_a_smaller_tile_is_taken_where_it_wastes_less() -> None:
    """Half of a tile of rows: the small tile, at 0.8 of the rate, beats a large one that is half empty."""
    both = tiling(tiles=((20, 10), (10, 10)), small_tile=0.8, processors=1.0)
    assert seconds(10, 10, 10, both) == pytest.approx(2 * 10**3 / 1e6 / 0.8)
    assert seconds(20, 10, 10, both) == pytest.approx(2 * 20 * 10 * 10 / 1e6)


def test_the_step_of_a100_is_there_at_both_clocks() -> None:
    """256 x 12288 fills 96 of 108 processors, 256 x 16384 takes two waves: 0.79 against 0.53 of peak measured."""
    chip = accelerator("a100-sxm-80")

    def rate(n: int, clocks: str) -> float:
        work = make_gemm(Role.KERNEL, Phase.FORWARD, m=256, n=n, k=4096)
        time = KernelModel(chip, "bf16", clocks=clocks).seconds([work])[0]
        return float(2.0 * 256 * n * 4096 / time / chip.peak("bf16"))

    for clocks in ("burst", "sustained"):
        assert rate(16384, clocks) < 0.92 * rate(12288, clocks)


def test_the_shipped_tiling_is_read_from_the_data_file() -> None:
    """108 multiprocessors and the three usual tiles of the library."""
    read = read_tiling(constant_groups("kernels")["waves.ampere"])
    assert read.processors == 108
    assert (128, 256) in read.tiles
    assert np.all(np.array(read.splits) >= 1)
