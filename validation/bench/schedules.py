"""Schedules against an oracle: makespan, spans, peaks and transfers of each row."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bench.rows import Row
from bench.tables import lookup, table
from mpsim.engine import Timeline, run
from mpsim.errors import CalibrationError
from mpsim.formats.tables import Cells
from mpsim.memo import remembered
from mpsim.schedule import Action, Orders, make_orders, schedule
from mpsim.schedule.search.v_search import zb_v_search
from mpsim.study import Times
from mpsim.training import from_orders
from mpsim.validate.records import Record

__all__ = ["MEASURED", "blank", "predict"]

MEASURED = (
    *("makespan", "bubble_fraction", "peak_inflight_activations", "max_rank_span"),
    *("span_bubble_fraction", "peak_until_input_grad", "peak_pending_wgrad"),
    *("crossrank_sends_fwd", "crossrank_sends_bwd"),
)
_DIGITS = 6  # of the oracle's fractions


def blank(row: Row) -> list[Record]:
    """The row's record without a prediction."""
    return [
        Record(
            id=row.id,
            family=row.configuration.text("schedule") or "schedule not stated",
            kind="schedule",
            unit="unit of tF",
            measured=row.measured.number("makespan"),
        )
    ]


def predict(row: Row, blanks: Sequence[Record]) -> list[Record]:
    """Fill in the makespan, and which columns of the oracle differ.

    Raises
    ------
    CalibrationError, ScheduleError
        If the row names a schedule that cannot be built.
    """
    cells = row.configuration
    figures = _figures(cells)
    makespan = figures["makespan"]
    assert isinstance(makespan, float)
    return [
        dataclasses.replace(
            blanks[0],
            predicted=makespan,
            mismatched=_mismatched(figures, row.measured),
            size=float(cells.required("pp") * cells.required("microbatches")),
        )
    ]


def _figures(cells: Cells) -> Mapping[str, float | list[int]]:
    entry = lookup("schedules", "schedules", cells.text("schedule"))
    times = Times.of(*(cells.number(column) or 0.0 for column in ("tF", "tB", "tW")))
    orders = _orders(
        entry, cells, (float(times.forward), float(times.backward), float(times.weight))
    )
    timeline = _timeline(orders, times, cells)
    spans, busy = _spans(timeline), _busy(timeline)
    makespan, span = timeline.makespan, max(spans)
    if not makespan:
        raise CalibrationError("tF, tB and tW are 0; needed one above 0")
    sends = _sends(timeline)
    return {
        "makespan": makespan / times.scale,
        "bubble_fraction": 1 - max(busy) / makespan,
        "max_rank_span": span / times.scale,
        "span_bubble_fraction": 1 - max(busy) / span,
        "peak_inflight_activations": orders.peak_inflight(),
        "peak_until_input_grad": orders.peak_until_input_grad(),
        "peak_pending_wgrad": _peak_pending(orders),
        "crossrank_sends_fwd": sends["send activation"],
        "crossrank_sends_bwd": sends["send gradient"],
    }


def _orders(entry: Mapping[str, Any], cells: Cells, times: tuple[float, float, float]) -> Orders:
    options = {**entry.get("options", {}), **_note_options(cells.text("note"))}
    return _cached_orders(
        entry["name"],
        bool(entry.get("searched")),
        cells.required("pp"),
        cells.required("microbatches"),
        cells.whole("virtual_stages") or 1,
        times if entry.get("searched") or "times" in schedule(entry["name"]).options else None,
        tuple(sorted(options.items())),
    )


@remembered(4096)
def _cached_orders(
    name: str,
    searched: bool,
    pp: int,
    microbatches: int,
    virtual_stages: int,
    times: tuple[float, float, float] | None,
    options: tuple[tuple[str, int], ...],
) -> Orders:
    """Orders of equal rows are built once; only searched ones depend on times."""
    if searched:
        assert times is not None
        return zb_v_search(
            pp=pp, microbatches=microbatches, virtual_stages=virtual_stages, times=times
        )
    more: dict[str, Any] = dict(options) if times is None else {**dict(options), "times": times}
    return make_orders(
        name, pp=pp, microbatches=microbatches, virtual_stages=virtual_stages, **more
    )


def _note_options(note: str) -> dict[str, int]:
    """Options of a schedule that the oracle states in its note."""
    options = {}
    for entry in table("schedules")["notes"]:
        match = re.fullmatch(entry["pattern"], note)
        if match and "option" in entry:
            options[entry["option"]] = int(match[1])
    return options


def _first_stage_weight_only(note: str) -> bool:
    return any(
        "first_stage" in entry and re.fullmatch(entry["pattern"], note)
        for entry in table("schedules")["notes"]
    )


def _timeline(orders: Orders, times: Times, cells: Cells) -> Timeline:
    ticks = [
        float(duration * times.scale) for duration in (times.forward, times.backward, times.weight)
    ]
    forward, backward, weight = (np.full(orders.stages, duration) for duration in ticks)
    if _first_stage_weight_only(cells.text("note")):
        weight[0] += backward[0]
        backward[0] = 0.0
    overlap = lookup("schedules", "overlaps", cells.text("overlap_block") or "none")["overlap"]
    program = from_orders(
        orders, forward=forward, backward=backward, weight=weight, overlap=overlap
    )
    return run(program, "replay")


def _spans(timeline: Timeline) -> list[float]:
    """From the first start to the last end of each rank."""
    rank = timeline.program.rank
    return [
        float(timeline.end[rank == number].max() - timeline.start[rank == number].min())
        for number in range(timeline.program.ranks)
    ]


def _busy(timeline: Timeline) -> list[float]:
    """Time each rank computes; sends take none here."""
    taken = timeline.end - timeline.start
    rank = timeline.program.rank
    return [float(taken[rank == number].sum()) for number in range(timeline.program.ranks)]


def _sends(timeline: Timeline) -> dict[str, list[int]]:
    """Messages each rank sends, by what they carry."""
    program = timeline.program
    label = np.array(program.labels)[program.label]
    return {
        name: np.bincount(
            program.rank[(program.peer >= 0) & (label == name)], minlength=program.ranks
        ).tolist()
        for name in ("send activation", "send gradient")
    }


def _peak_pending(orders: Orders) -> list[int]:
    """Most weight gradients that wait at once on each rank."""
    change = np.where(orders.kind == Action.I, 1, np.where(orders.kind == Action.W, -1, 0))
    pieces = np.split(change, orders.rank_ptr[1:-1])
    return [max(0, int(np.cumsum(piece).max(initial=0))) for piece in pieces]


def _mismatched(figures: Mapping[str, float | list[int]], oracle: Cells) -> tuple[str, ...]:
    return tuple(column for column in MEASURED if not _agrees(figures[column], oracle, column))


def _counts(oracle: Cells, column: str) -> list[int]:
    """A list of whole numbers, one a rank; CalibrationError if it is something else."""
    text = oracle.text(column)
    if not re.fullmatch(r"\[\s*\d+(\s*,\s*\d+)*\s*\]", text):
        raise CalibrationError(f"{column} is {text!r}; needed a list such as [2, 1]")
    return [int(number) for number in re.findall(r"\d+", text)]


def _agrees(figure: float | list[int], oracle: Cells, column: str) -> bool:
    """Whether a column is empty, or equal to `figure` as far as it is printed."""
    if not oracle.text(column):
        return True
    if isinstance(figure, list):
        return figure == _counts(oracle, column)
    return round(figure, _DIGITS) == round(oracle.number(column) or 0.0, _DIGITS)
