"""Plans of whole trainings in words: the tables that ``mpsim plan`` prints and notebooks show, from the data of ``mpsim plan --json``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mpsim.sheet import Section, Sheet
from mpsim.table import plural
from mpsim.units import percent

__all__ = ["changed", "plans_sheet", "training_sheet"]

_MINUTE = 60.0  # [s]
_COUNTS = (("T", 1e12), ("B", 1e9), ("M", 1e6))
_WHOLE = 1000.0  # above it nobody writes decimals


def plans_sheet(told: Mapping[str, Any], *, facility: str = "") -> Sheet:
    """One line a plan where there are several, then the best in full.

    Parameters
    ----------
    told : mapping
        All plans, and the figures of the best.
    facility : str
        Assumed of the building and the grid, in words.
    """
    several = len(told["rows"]) > 1
    best = Sheet("", ())
    if told["possible"] or (told["rows"] and not several):
        best = training_sheet(told, facility=facility)
    if not several:
        return best
    below = (Section(section.rows, title=best.title) for section in best.sections)
    return Sheet("", (_rows(told["rows"]), *below))


def _rows(plans: Sequence[Mapping[str, Any]]) -> Section:
    rows = tuple(
        (
            f"{row['accelerators']:,}",
            f"{row['days']:.1f}",
            f"{row['gpu_hours']:,.0f}",
            "-" if row["usd"] is None else f"{row['usd'] / 1e6:,.2f}",
            f"{row['mwh']:,.0f}",
            percent(row["goodput"]),
            "yes" if row["possible"] else "no",
            changed(row["values"]),
        )
        for row in plans
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


def training_sheet(told: Mapping[str, Any], *, facility: str = "") -> Sheet:
    """One plan in full; `facility` is assumed of the building and the grid, in words."""
    values = changed(told["values"])
    title = f"{told['scenario']}, {values}" if values else str(told["scenario"])
    return Sheet(title, (Section(tuple(_lines(told, facility))),))


def _lines(row: Mapping[str, Any], facility: str) -> Iterator[tuple[str, str]]:
    accelerators = plural(row["accelerators"], "accelerator")
    steps = plural(row["steps"], "step")
    yield "tokens", f"{_count(row['tokens'])} in {steps} of {row['step_time_s']:.4g} s"
    yield "days", f"{_span(row, 'days')} on {accelerators}"
    computing = f"{row['computing_gpu_hours']:,.0f} of them computing"
    yield "GPU-hours", f"{_span(row, 'gpu_hours')} of the allocation, {computing}"
    every = f"a checkpoint every {row['checkpoint_interval_s'] / _MINUTE:.3g} min"
    failures = f"{_number(row['interruptions'])} interruptions"
    yield "goodput", f"{percent(row['goodput'])}, {failures}, {every}"
    rate = row["usd_per_gpu_hour"]
    yield "price", _price(row, rate)
    if rate is not None and rate["offer"] == "spot":
        yield "", "spot offers are withdrawn at any time: what that costs is not counted"
    yield "energy", f"{_span(row, 'mwh')} MWh at the meter"
    yield "CO2", f"{_span(row, 'tco2')} t, embodied carbon left out"
    if facility:
        yield "assumed", facility
    yield "interval", f"80 %: {row['interval']['basis']}"
    if not row["fits_memory"]:
        yield "memory", "does not fit: these figures are of no use"


def _price(row: Mapping[str, Any], rate: Mapping[str, Any] | None) -> str:
    if rate is None or row["usd"] is None:
        return "no public price; give --prices FILE"
    each = f"{rate['usd_per_hour']:.3g} USD an accelerator-hour, {rate['offer']}"
    public = f"({rate['low']:.3g} to {rate['high']:.3g}; {rate['source']})"
    return f"{_span(row, 'usd')} USD at {each} {public}"


def _span(row: Mapping[str, Any], name: str) -> str:
    """A figure with its interval; the figure alone where none is known."""
    low, high = row["interval"][name]
    if low == high:
        return _number(row[name])
    return f"{_number(row[name])} ({_number(low)} to {_number(high)})"


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
