"""Charts of validation: records against measurements, steps beside recordings."""

from __future__ import annotations

from collections.abc import Iterable

from mpsim.plot import Actions, Lines, Scored, Timeline, agreement_chart, error_chart
from mpsim.validate.actions import Slice
from mpsim.validate.records import Record
from mpsim.validate.steps import StepComparison

_GB = 1e9
_MS = 1e3
_MOST_LANES = 64
_SPLIT = {"I": "input_gradient", "W": "weight_gradient"}


def agreement_of(records: Iterable[Record]) -> Lines:
    """Predicted against measured of records of one kind that have both."""
    scored = [record for record in records if record.measured and record.predicted]
    units = list(dict.fromkeys(record.unit for record in scored))
    in_gb = units == ["B"]
    return agreement_chart(
        _points(scored, _GB if in_gb else 1.0), unit="GB" if in_gb else ", ".join(units)
    )


def errors_of(records: Iterable[Record]) -> Lines:
    """Their errors against size."""
    scored = [record for record in records if record.measured and record.predicted]
    return error_chart(_points(scored, 1.0), kind=scored[0].kind if scored else "")


def _points(records: Iterable[Record], unit: float) -> list[Scored]:
    return [
        Scored(
            record.family,
            (record.measured or 0.0) / unit,
            (record.predicted or 0.0) / unit,
            record.size or float("nan"),
        )
        for record in records
    ]


def beside(steps: Iterable[StepComparison]) -> Timeline:
    """Measured and simulated timelines: two lanes for each rank of steps with actions."""
    names: list[str] = []
    rows: list[list[Slice]] = []
    for step in steps:
        if not (step.measured_slices and step.predicted_slices):
            continue
        ranks = sorted({part.rank for part in step.measured_slices})
        classes = sorted({part.rank for part in step.predicted_slices})
        for place, rank in enumerate(ranks):
            like = classes[place * len(classes) // len(ranks)]
            title = f"{step.title}: rank {rank}" if not place else f"rank {rank}"
            names += [f"{title}, measured", "simulated"]
            rows.append([each for each in step.measured_slices if each.rank == rank])
            rows.append([each for each in step.predicted_slices if each.rank == like])
    bars = [
        (lane, _MS * each.start, _MS * each.end, _event(each))
        for lane, row in enumerate(rows[:_MOST_LANES])
        for each in row
    ]
    return Timeline(
        names=names[:_MOST_LANES],
        actions=Actions.plain(bars),
        unit="ms since the step began",
        size=(11.0, 1.4 + 0.22 * min(len(names), _MOST_LANES)),
    )


def _event(interval: Slice) -> str:
    """Kind of event of the palette."""
    split = next((_SPLIT[letter] for letter in interval.token if letter in _SPLIT), "")
    return split or {"gradients": "dp"}.get(interval.part, interval.part)
