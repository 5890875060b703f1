"""A design in words: the chosen cluster, the Pareto front in ten lines, upgrades, flips, and what it rests on."""

from __future__ import annotations

from collections.abc import Iterator

from mpsim.sheet import Section, Sheet
from mpsim.study.design.outcome import Design, Option, beats
from mpsim.study.search.outcome import shown
from mpsim.table import plural
from mpsim.units import Dimension, format_quantity, percent

_MOST = 10  # lines of the front
_TOLD = 3  # flips and constants


def sheet_of(design: Design) -> Sheet:
    """The answer as ``mpsim design`` prints it."""
    sections = [Section(lines=tuple(_answer(design)))]
    if design.front:
        sections.append(_front(design))
    if design.upgrades:
        sections.append(_upgrades(design))
    return Sheet("", (*sections, Section(lines=tuple(_below(design)))))


def _answer(design: Design) -> Iterator[str]:
    best = design.best
    if best is None:
        yield "no cluster keeps every bound"
        if near := design.nearest:
            yield f"  the nearest, {near.name}, misses {near.misses}"
        yield from (f"  {row.name}: {row.reason}" for row in design.options[:_TOLD] if row.reason)
        return
    least = "cheapest" if design.by == "cost" else "fastest"
    odds = "" if design.odds is None else f"; the best with odds of {percent(design.odds)}"
    yield f"{least} that keeps every bound: {best.name}{odds}"
    yield f"  {_figures(best)}"
    yield f"  {_taken(best)}"
    yield from (f"  {job}: {entry['name']}" for job, entry in best.entries.items())


def _figures(row: Option) -> str:
    """Days or requests/s, and dollars, with their intervals."""
    hour = f"{row.hourly:,.4g} USD/h"
    served = "" if row.rate is None else f"{row.rate:.4g} requests/s, "
    if row.days is None:
        return served + hour
    (early, late), (low, high) = (
        [each * end for end in row.spread] for each in (row.days, row.cost)
    )
    days = f"{row.days:.3g} days (80 %: {early:.3g} to {late:.3g})"
    return f"{days}, {served}{row.cost:,.0f} USD ({low:,.0f} to {high:,.0f}), {hour}"


def _taken(row: Option) -> str:
    capital = row.bill.capital
    words = [plural(row.accelerators, "accelerator")]
    words += [] if capital is None else [f"{capital:,.0f} USD of capital"]
    words += [f"{format_quantity(row.power_w, Dimension.POWER)} at the meter"]
    return ", ".join(words + ([] if row.racks is None else [plural(row.racks, "rack")]))


def _front(design: Design) -> Section:
    front, best = design.front, design.best
    points = front if len(front) <= _MOST else shown(front, lambda row: row.slowness)
    unit = "USD" if any(row.days is not None for row in front) else "USD/h"
    rows = tuple(
        (
            f"{row.cost:,.0f}",
            f"{row.slowness:.3g}" if row.days is not None else f"{row.rate or 0.0:.4g}",
            "-" if row.days is None else " - ".join(f"{row.days * end:.3g}" for end in row.spread),
            "-" if row.bill.capital is None else f"{row.bill.capital / 1e6:,.2f}",
            f"{row.power_w / 1e3:,.0f}",
            _verdict(design, row),
            row.name,
        )
        for row in points
    )
    speed = "days" if unit == "USD" else "requests/s"
    header = (unit, speed, "80 % between", "capital (MUSD)", "kW", "against the chosen", "cluster")
    some = "" if len(points) == len(front) else f"; {len(points)} of {len(front)}"
    title = f"Pareto front: no other is cheaper and faster{some}"
    note = _left(design)
    return Section(rows, header, tuple(range(5)), title, (note,) if note and best else ())


def _verdict(design: Design, row: Option) -> str:
    best = design.best
    if best is None or row is best:
        return "chosen"
    ratio, lead = beats(best, row), design.lead(best, row)
    if ratio is None or lead is None:
        return "-"
    tie = "tie in speed, " if ratio.tie else ""
    return f"{tie}worse with odds of {percent(lead)}"


def _left(design: Design) -> str:
    """Count of what is not on the front."""
    looked = len(design.options)
    wrong = sum(bool(row.reason) for row in design.options)
    over = sum(bool(row.over) for row in design.options)
    words = [f"{plural(looked, 'cluster')}: {len(design.possible)} possible"]
    words += [f"{over} over a bound"] * bool(over) + [f"{wrong} cannot run the work"] * bool(wrong)
    if design.ruled_out:
        words.append(f"{design.ruled_out} ruled out at the best rate of their accelerators")
    return ", ".join(words)


def _upgrades(design: Design) -> Section:
    rent = design.spec.money.basis == "rent"
    rows = tuple(
        (
            upgrade.name,
            percent(upgrade.faster, signed=True),
            "no price" if upgrade.dearer is None else percent(upgrade.dearer, signed=True),
            f"{upgrade.worth_usd:,.3g}" if rent else f"{upgrade.worth_usd:,.0f}",
        )
        for upgrade in design.upgrades
    )
    unit = "USD/h" if rent else "USD"
    header = ("upgrade of the chosen one", "throughput", "cost", f"may cost more ({unit} an acc.)")
    return Section(rows, header, (1, 2, 3), "each with its own best layout")


def _below(design: Design) -> Iterator[str]:
    for flip in design.flips[:_TOLD]:
        yield f"with {flip.name} x {flip.times:.3g} as good: {flip.instead}"
    if design.rests:
        yield f"rests on what nobody measured on this hardware: {'; '.join(design.rests[:_TOLD])}"
    yield from design.remarks
