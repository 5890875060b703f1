"""Columns that tell each kind of published data from the others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

from mpsim.errors import CalibrationError

__all__ = ["TABLES", "table_kind"]

TABLES: Final[Mapping[str, frozenset[str]]] = MappingProxyType(
    {
        "training runs": frozenset(
            {"id", "family", "num_accel", "global_batch_seqs", "iter_time_s"}
        ),
        "training runs on one node": frozenset(
            {"record_id", "gpus", "gpus_per_node", "iteration_time_ms", "layers"}
        ),
        "collectives": frozenset({"collective", "bytes", "time_us", "gpus", "nodes"}),
        "kernels": frozenset({"gpu", "op", "dtype", "time_us", "tflops", "GBps"}),
        "whole trainings": frozenset(
            {"id", "tokens_b", "global_batch_tokens_m", "accel_count", "accelerator_hours"}
        ),
        "inference": frozenset(
            {"id", "regime", "engine", "input_tokens", "output_tokens", "ttft_ms"}
        ),
        "peak memory": frozenset(
            {"id", "method", "optimizer", "memory_statistic", "peak_gib", "micro_batch_seqs"}
        ),
        "schedules": frozenset({"schedule", "pp", "microbatches", "tF", "tB", "tW", "makespan"}),
    }
)
"""Columns that tell each kind of table from the others."""


def table_kind(path: Path, columns: Iterable[str]) -> str:
    """The kind of data, a key of `TABLES`, that a table with these columns holds.

    Raises
    ------
    CalibrationError
        If none is known.
    """
    present = set(columns)
    for title, needed in TABLES.items():
        if needed <= present:
            return title
    wanted = "; ".join(f"{title}: {', '.join(sorted(needed))}" for title, needed in TABLES.items())
    raise CalibrationError(
        f"{path} holds no known kind of measured data; needed the columns of one of: {wanted}"
    )
