"""Training runs: published tables of whole steps, in the layout of ``id`` tables, or of ``record_id`` tables of one node."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from bench.assumptions import Filled, guesses, with_batch
from bench.rows import Row
from bench.runs import read_run, reading_of, simulated
from bench.shapes import check_parameters, misnamed
from bench.tables import of_stack, rule_of, seen_as
from mpsim.errors import CalibrationError, MpsimError
from mpsim.formats.tables import Cells
from mpsim.scenario import Scenario
from mpsim.training.intervals import residuals_of
from mpsim.validate.records import Record
from mpsim.workload import model_flops

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
_MILLI, _GIBI, _GIGA, _TERA = 1e-3, 2.0**30, 1e9, 1e12
_BEYOND = "the peak is more than such an accelerator has: of another one, or not of one alone"
_TIMES = ("iter_time_s", "iter_time_s_derived")


def blank(row: Row) -> list[Record]:
    """The row's records without predictions: its time, and its peak memory where that was measured."""
    cells = _stated(row).cells
    time = Record(
        id=row.id,
        family=cells.text("family") or "family not stated",
        kind="training",
        unit="s",
        measured=_time(row, cells),
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
    stated = _stated(row)
    rule, run = read_run(stated.cells)
    seen = rule.get("memory", "memory")
    told = simulated(
        run.scenario,
        layer=rule.get("measures") == "layer",
        seen=reading_of(seen, rule),
    )
    setting = dataclasses.replace(told.setting, guessed=guesses((*stated.assumed, *run.assumed)))
    setting = of_stack(setting, rule)
    check_parameters(stated.cells, told.parameters)
    named = misnamed(stated.cells, told.parameters)
    assumed = tuple(map(str, (*stated.assumed, *run.assumed, *named)))
    figure = residuals_of(setting).figure
    times = [
        dataclasses.replace(
            blank,
            predicted=told.seconds / scale,
            assumed=assumed,
            figure=figure,
            setting=setting,
        )
        for blank in blanks
        if blank.kind != "memory"
    ]
    peaks = [blank for blank in blanks if blank.kind == "memory"]
    if stated.assumed:  # a rate hardly depends on what was assumed, a peak is in proportion to it
        why = "the batch or the length of sequences is not stated, which decides the peak"
        return [*times, *(dataclasses.replace(peak, skipped_because=why) for peak in peaks)]
    read = seen_as(setting, seen)
    capacity = (stated.cells.number("accel_mem_gb") or math.inf) * _GIBI
    known = [
        dataclasses.replace(peak, skipped_because=_BEYOND)
        if peak.measured and peak.measured > capacity
        else dataclasses.replace(
            peak, predicted=told.memory, assumed=assumed, figure="memory", setting=read
        )
        for peak in peaks
    ]
    return [*times, *known]


def memory_record(time: Record, measured: float) -> Record:
    """The second record of a row, for its peak memory [B]."""
    return dataclasses.replace(
        time, id=f"{time.id}#memory", kind="memory", unit="B", measured=measured
    )


def _stated(row: Row) -> Filled:
    """The row's columns, with a batch where it states none and its measured rate hardly depends on one."""
    cells, measured = row.configuration, row.measured
    if cells.text("global_batch_seqs") and cells.text("seq_len"):
        return Filled(cells)
    try:
        rule = rule_of(cells)
    except CalibrationError:
        return Filled(cells)  # predicting says why
    return with_batch(cells, rule, timed=any(measured.text(column) for column in _TIMES))


def _time(row: Row, cells: Cells) -> float | None:
    """Time of a step as printed, or derived, or from the tokens a second or the model FLOP/s of an accelerator [s]."""
    for column in _TIMES:
        if (seconds := row.measured.number(column)) is not None:
            return seconds
    columns = ("global_batch_seqs", "seq_len", "num_accel")
    batch, length, count = (cells.number(column) for column in columns)
    if batch is None or length is None or not count:
        return None
    if rate := row.measured.number("tokens_per_s_per_accel"):
        return batch * length / (rate * count)
    rate = row.measured.number("reported_tflops_per_accel")
    if not rate or cells.text("reported_tflops_kind") != "model":
        return None
    return _model_flops(cells) / (rate * _TERA * count)


def _model_flops(cells: Cells) -> float:
    """Model FLOPs of a step of the row, as its printed rate counts them; 0 where its model is not one that can be read."""
    try:
        scenario = Scenario.from_mapping(read_run(cells)[1].scenario)
    except MpsimError:
        return 0.0
    step = scenario.training_step
    return model_flops(scenario.transformer, step.global_batch, step.sequence_length)


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
