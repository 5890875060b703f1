"""Plans of whole trainings in words: the tables that ``mpsim plan`` prints and notebooks show."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from mpsim.sheet import Section, Sheet
from mpsim.table import plural
from mpsim.units import percent

if TYPE_CHECKING:
    from mpsim.study.plan import Plans, Training

__all__ = ["changed", "plans_sheet", "training_sheet"]

_JOULES, _KILOGRAMS, _MINUTE = 3.6e9, 1e3, 60.0  # of a MWh, of a tonne; seconds
_COUNTS = (("T", 1e12), ("B", 1e9), ("M", 1e6))
_WHOLE = 1000.0  # above it nobody writes decimals


def plans_sheet(plans: Plans) -> Sheet:
    """One line a plan where there are several, then the best in full."""
    several = [_rows(plans)] if len(plans.rows) > 1 else []
    lead = plans.best or (plans.rows[0] if len(plans.rows) == 1 else None)
    told = training_sheet(lead, facility=plans.facility) if lead is not None else Sheet("", ())
    if not several:
        return told
    best = (Section(section.rows, title=told.title) for section in told.sections)
    return Sheet("", (*several, *best))


def _rows(plans: Plans) -> Section:
    rows = tuple(
        (
            f"{row.accelerators:,}",
            f"{row.days:.1f}",
            f"{row.hours:,.0f}",
            "-" if row.cost is None else f"{row.cost / 1e6:,.2f}",
            f"{row.energy_j / _JOULES:,.0f}",
            percent(row.goodput),
            "yes" if plans.meets(row) else "no",
            changed(row.values),
        )
        for row in plans.rows
    )
    header = (
        *("accelerators", "days", "GPU-hours", "million USD", "MWh", "goodput", "possible"),
        "values",
    )
    return Section(rows, header, tuple(range(6)))


def changed(values: Mapping[str, object]) -> str:
    """Values by the last part of their keys, those that switch nothing on left out."""
    pairs = ((key.rpartition(".")[2], value) for key, value in values.items())
    return ", ".join(f"{name} {value}" for name, value in pairs if value not in (None, False))


def training_sheet(training: Training, *, facility: str = "") -> Sheet:
    """One plan in full.

    Parameters
    ----------
    training : Training
    facility : str
        Assumed of the building and the grid, in words.
    """
    values = changed(training.values)
    title = f"{training.scenario}, {values}" if values else training.scenario
    return Sheet(title, (Section(tuple(_lines(training, facility))),))


def _lines(row: Training, facility: str) -> Iterator[tuple[str, str]]:
    accelerators = plural(row.accelerators, "accelerator")
    yield (
        "tokens",
        f"{_count(row.tokens)} in {plural(row.steps, 'step')} of {row.step_time_s:.4g} s",
    )
    yield "days", f"{_span(row.days, row.spread)} on {accelerators}"
    computing = f"{row.computing_hours:,.0f} of them computing"
    yield "GPU-hours", f"{_span(row.hours, row.spread)} of the allocation, {computing}"
    every = f"a checkpoint every {row.checkpoint_interval_s / _MINUTE:.3g} min"
    yield "goodput", f"{percent(row.goodput)}, {_number(row.interruptions)} interruptions, {every}"
    yield "price", _price(row)
    if row.rate is not None and row.rate.offer == "spot":
        yield "", "spot offers are withdrawn at any time: what that costs is not counted"
    yield "energy", f"{_span(row.energy_j / _JOULES, row.spread)} MWh at the meter"
    yield "CO2", f"{_span(row.carbon_kg / _KILOGRAMS, row.spread)} t, embodied carbon left out"
    if facility:
        yield "assumed", facility
    yield "interval", f"80 %: {row.basis}"
    if not row.fits:
        yield "memory", "does not fit: these figures are of no use"


def _price(row: Training) -> str:
    rate = row.rate
    if rate is None or row.cost is None:
        return "no public price; give --prices FILE"
    each = f"{rate.usd_per_hour:.3g} USD an accelerator-hour, {rate.offer}"
    public = f"({rate.low:.3g} to {rate.high:.3g}; {rate.source})"
    return f"{_span(row.cost, row.spread)} USD at {each} {public}"


def _span(value: float, spread: tuple[float, float]) -> str:
    """A figure with its interval; the figure alone where none is known."""
    if spread[0] == spread[1]:
        return _number(value)
    low, high = (_number(value * side) for side in spread)
    return f"{_number(value)} ({low} to {high})"


def _number(value: float) -> str:
    """Three digits, or all before the point.

    Examples
    --------
    >>> _number(28.04), _number(26104.2)
    ('28', '26,104')
    """
    return f"{value:,.0f}" if abs(value) >= _WHOLE else f"{value:.3g}"


def _count(value: float) -> str:
    """A count of tokens as people write it.

    Examples
    --------
    >>> _count(15e12), _count(15.6e12), _count(3e11), _count(5000)
    ('15T', '15.6T', '300B', '5,000')
    """
    for unit, scale in _COUNTS:
        if value >= scale:
            return f"{value / scale:.4g}{unit}"
    return f"{value:,.0f}"
