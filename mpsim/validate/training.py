"""Training runs: published tables of whole steps, in the layout of ``id`` tables, or of ``record_id`` tables of one node."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from mpsim.importers.cells import Cells
from mpsim.training.intervals import residuals_of
from mpsim.validate.assumptions import guesses
from mpsim.validate.records import Record, Row
from mpsim.validate.runs import read_run, simulated
from mpsim.validate.tables import rule_of, stands_in

__all__ = [
    "MEASURED",
    "MEASURED_ON_NODE",
    "as_published",
    "blank",
    "blank_on_node",
    "fill",
    "group_of",
    "memory_record",
    "predict",
    "predict_on_node",
]

MEASURED = (
    *("iter_time_s", "iter_time_s_derived", "iter_time_stat", "tokens_per_s_per_accel"),
    *("samples_per_s_per_accel", "reported_tflops_per_accel", "mfu_pct", "hfu_pct"),
    *("memory_gb_reported", "check_model_tflops_per_accel"),
    *("check_hw_full_recompute_tflops_per_accel", "check_ratio"),
)
MEASURED_ON_NODE = (
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
_MILLI, _GIBI, _GIGA = 1e-3, 2.0**30, 1e9


def blank(row: Row) -> list[Record]:
    """The row's records without predictions: its time, and its peak memory where that was measured."""
    cells = row.configuration
    time = Record(
        id=row.id,
        family=cells.text("family") or "family not stated",
        kind="training",
        unit="s",
        measured=_time(row),
        size=cells.number("num_accel"),
        group=group_of(cells),
        sequences=cells.number("global_batch_seqs") or 0.0,
    )
    memory = row.measured.number("memory_gb_reported")
    return [time] if memory is None else [time, memory_record(time, memory * _GIGA)]


def group_of(cells: Cells) -> str:
    """A run's model and number of accelerators: somebody chooses between runs that share them."""
    shape = "-".join(cells.text(column) for column in ("layers", "hidden", "heads", "ffn_hidden"))
    where = f"{cells.text('num_accel')} x {cells.text('accelerator')}"
    return f"{cells.text('model')} ({shape}), {cells.text('seq_len')} tokens, {where}"


def predict(row: Row, blanks: Sequence[Record]) -> list[Record]:
    """Fill in the time of a step and the peak memory.

    Raises
    ------
    CalibrationError, ScenarioError
        If the row does not describe a run that can be simulated.
    """
    return fill(row, blanks, scale=1.0)


def fill(row: Row, blanks: Sequence[Record], *, scale: float) -> list[Record]:
    """Records of a row with predictions.

    Parameters
    ----------
    row : Row
        With the configuration columns of published runs.
    blanks : sequence of Record
    scale : float
        The unit of the time in seconds.
    """
    rule, run = read_run(row.configuration)
    told = simulated(
        run.scenario,
        layer=rule.get("measures") == "layer",
        seen=rule.get("memory", "memory"),
    )
    setting = dataclasses.replace(told.setting, guessed=guesses(run.assumed))
    if stands_in(rule):
        unknown = {"framework": ("", ""), "stack": ("",)}
        setting = dataclasses.replace(setting, labels={**setting.labels, **unknown})
    return [
        dataclasses.replace(
            blank,
            predicted=told.memory if blank.kind == "memory" else told.seconds / scale,
            assumed=tuple(map(str, run.assumed)),
            figure="memory" if blank.kind == "memory" else residuals_of(setting).figure,
            setting=setting,
        )
        for blank in blanks
    ]


def memory_record(time: Record, measured: float) -> Record:
    """The second record of a row, for its peak memory [B]."""
    return dataclasses.replace(
        time, id=f"{time.id}#memory", kind="memory", unit="B", measured=measured
    )


def _time(row: Row) -> float | None:
    """Time of a step as printed, or derived, or from the tokens a second and accelerator [s]."""
    for column in ("iter_time_s", "iter_time_s_derived"):
        if (seconds := row.measured.number(column)) is not None:
            return seconds
    rate = row.measured.number("tokens_per_s_per_accel")
    sizes = [
        row.configuration.number(column) for column in ("global_batch_seqs", "seq_len", "num_accel")
    ]
    batch, length, count = sizes
    if not rate or batch is None or length is None or not count:
        return None
    return batch * length / (rate * count)


def blank_on_node(row: Row) -> list[Record]:
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
        group=group_of(as_published(cells)),
        sequences=cells.number("global_batch_seqs") or 0.0,
    )
    memory = row.measured.number("peak_mem_GiB_per_gpu")
    return [time] if memory is None else [time, memory_record(time, memory * _GIBI)]


def predict_on_node(row: Row, blanks: Sequence[Record]) -> list[Record]:
    """Fill in the time of a step and the peak memory.

    Raises
    ------
    CalibrationError, ScenarioError
        If the row does not describe a run that can be simulated.
    """
    return fill(
        dataclasses.replace(row, configuration=as_published(row.configuration)),
        blanks,
        scale=_MILLI,
    )


def as_published(cells: Cells) -> Cells:
    """The columns under the names that published runs have."""
    return Cells({_NAMES.get(column, column): value for column, value in cells.values.items()})
