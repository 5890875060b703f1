"""Training runs on one node, in the layout of record_id tables."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from mpsim.importers.cells import Cells
from mpsim.validate import training
from mpsim.validate.records import Record, Row
from mpsim.validate.runs import rule_of

__all__ = ["MEASURED", "blank", "predict"]

MEASURED = (
    *("iteration_time_ms", "op_time_us", "busbw_GBps", "tflops_per_gpu"),
    *("fraction_of_peak", "peak_mem_GiB_per_gpu"),
)
_NAMES = {
    "gpu": "accelerator",
    "gpus": "num_accel",
    "gpus_per_node": "accel_per_node",
    "model_or_op": "model",
    "seq_len_tokens": "seq_len",
    "interleave_chunks_per_stage": "vp_chunks_per_rank",
}
_MILLI, _GIBI = 1e-3, 2.0**30


def blank(row: Row) -> list[Record]:
    """The row's records without predictions: its time, and its peak memory where that was measured."""
    cells = row.configuration
    rule = rule_of(cells)
    time = Record(
        id=row.id,
        family=str(rule.get("label", cells.text("software"))),
        kind="training",
        unit="ms",
        measured=row.measured.number("iteration_time_ms"),
        size=cells.number("gpus"),
        group=training.group_of(_renamed(cells)),
        sequences=cells.number("global_batch_seqs") or 0.0,
    )
    memory = row.measured.number("peak_mem_GiB_per_gpu")
    return [time] if memory is None else [time, training.memory_record(time, memory * _GIBI)]


def predict(row: Row, blanks: Sequence[Record]) -> list[Record]:
    """Fill in the time of a step and the peak memory.

    Raises
    ------
    CalibrationError, ScenarioError
        If the row does not describe a run that can be simulated.
    """
    return training.fill(
        dataclasses.replace(row, configuration=_renamed(row.configuration)), blanks, scale=_MILLI
    )


def _renamed(cells: Cells) -> Cells:
    """The columns under the names that published runs have."""
    return Cells({_NAMES.get(column, column): value for column, value in cells.values.items()})
