"""A search of layouts in words: the ranking, the front, and what became of all others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol

from mpsim.sheet import Section, Sheet
from mpsim.study.search.decisions import Decision
from mpsim.study.search.found import Found, Line
from mpsim.study.search.naming import SHORT, runs
from mpsim.table import plural
from mpsim.units import Dimension, format_quantity, percent

__all__ = ["search_sheet"]

_TOLD = 3  # parts of the step by which the second layout differs


class Ranked(Protocol):
    """A search as words need it; that of `mpsim.study.search.outcome` is one."""

    @property
    def objective(self) -> str: ...
    @property
    def keys(self) -> tuple[str, ...]: ...
    @property
    def leaders(self) -> tuple[Found, ...]: ...
    @property
    def rows(self) -> tuple[Found, ...]: ...
    @property
    def lines(self) -> tuple[Line, ...]: ...
    @property
    def best(self) -> Found | None: ...
    @property
    def front(self) -> tuple[Found, ...]: ...
    @property
    def front_complete(self) -> bool: ...
    @property
    def decisions(self) -> tuple[Decision, ...]: ...
    @property
    def best_by_value(self) -> Mapping[str, Mapping[str, Found]]: ...
    @property
    def runner_up(self) -> Mapping[str, float]: ...
    @property
    def own_step_time_s(self) -> float | None: ...
    @property
    def own_reason(self) -> str: ...
    @property
    def ties(self) -> int: ...
    @property
    def undivided(self) -> int: ...
    @property
    def unbatched(self) -> int: ...
    @property
    def counts(self) -> Mapping[str, int]: ...
    @property
    def legal(self) -> int: ...
    @property
    def complete(self) -> bool: ...
    @property
    def gap(self) -> float | None: ...


def search_sheet(outcome: Ranked, reasons: Mapping[str, str], *, front: bool = True) -> Sheet:
    """Tables and sentences of a search.

    Parameters
    ----------
    outcome : Ranked
    reasons : mapping of str to str
        What can become of a layout, in words.
    front : bool
        Whether to tell the front of time and memory.
    """
    varied = outcome.objective == "cost" or bool(outcome.keys)  # else MFU says it all
    priced = varied and any(row.price_per_hour for row in outcome.leaders)
    return Sheet(
        "",
        (
            _ranking(outcome, varied=varied, priced=priced),
            *_decisions(outcome),
            *_by_value(outcome, priced=priced),
            *(_front(outcome) if front else ()),
            _others(outcome, reasons),
        ),
    )


def _ranking(outcome: Ranked, *, varied: bool, priced: bool) -> Section:
    header = (
        *("#", "step (s)", "80 % between", *(("tokens/s/acc.",) if varied else ()), "MFU"),
        *("memory (GB)", "bubble", "exposed", *(("USD/step",) if priced else ()), "layout"),
    )
    rows = tuple(_line(line, varied=varied, priced=priced) for line in outcome.lines)
    return Section(rows, header, tuple(range(7 + varied + priced)), lines=tuple(_beside(outcome)))


def _line(line: Line, *, varied: bool, priced: bool) -> tuple[str, ...]:
    row = line.row
    flat = row.flat()
    exposed = sum(
        float(value)
        for key, value in flat.items()
        if key.startswith("exposed_") and isinstance(value, int | float)
    )
    known = row.summary is not None
    figures = (
        str(line.rank),
        f"{row.step_time_s:.4g}",
        _range(row, "step_time_s", 1.0),
        *((f"{row.tokens_per_s_per_accelerator:.5g}",) if varied else ()),
        percent(float(str(flat["mfu"]))) if known else "-",
        f"{row.memory_bytes / 1e9:.1f}",
        percent(float(str(flat["bubble_fraction"]))) if known else "-",
        percent(exposed / row.step_time_s) if known else "-",
    )
    return (*figures, *_price(row, priced=priced), f"{row.name}{_twins(line)}")


def _twins(line: Line) -> str:
    """How many layouts are as good for all that is known, and what varies among them."""
    if not line.twins:
        return ""
    count = len(line.twins)
    varied = "; ".join(
        f"{SHORT.get(last, last.replace('_', ' ')) or 'schedule'} {', '.join(map(_value, values))}"
        for last, values in ((key.rpartition(".")[2], each) for key, each in line.varies.items())
    )
    return f" (+{count} {'twin' if count == 1 else 'twins'}: {varied})"


def _value(value: object) -> str:
    """A value in a list of others."""
    if isinstance(value, bool):
        return "on" if value else "off"
    return (
        "usual" if value is None else runs(value) if isinstance(value, list | tuple) else str(value)
    )


def _decisions(outcome: Ranked) -> Iterator[Section]:
    """The decisions of the best layout that matter most."""
    if not outcome.decisions or outcome.best is None:
        return
    step = outcome.best.step_time_s
    priced = [item for item in outcome.decisions if item.cost_s is not None][:_TOLD]
    rows = tuple(
        (
            _said(item),
            ("" if item.proved else "at most ") + _signed(item.cost_s or 0.0),
            percent((item.cost_s or 0.0) / step, signed=True),
            item.without.name if item.without else "",
        )
        for item in priced
    )
    forced = ", ".join(_said(item) for item in outcome.decisions if item.without is None)
    lines = (f"without these nothing fits into memory: {forced}",) if forced else ()
    yield Section(
        rows,
        ("decision", "without it", "", "the best without it"),
        (1, 2),
        "decisions of the best layout that matter most",
        lines,
    )


def _said(decision: Decision) -> str:
    last = decision.key.rpartition(".")[2]
    name = "schedule" if decision.key == "schedule.name" else last.replace("_", " ")
    value = {"True": "on", "False": "off"}.get(decision.value, decision.value)
    return f"{name} {value}"


def _price(row: Found, *, priced: bool) -> tuple[str, ...]:
    if not priced:
        return ()
    return (f"{row.cost_per_step:.4g}" if row.cost_per_step else "-",)


def _by_value(outcome: Ranked, *, priced: bool) -> Iterator[Section]:
    """The best layout for each value of each key searched beside the layout."""
    for key, chosen in outcome.best_by_value.items():
        rows = tuple(
            (
                value,
                f"{row.step_time_s:.5g}",
                f"{row.tokens_per_s_per_accelerator:.5g}",
                *_energies(row),
                *_price(row, priced=priced),
                row.name,
            )
            for value, row in chosen.items()
        )
        header = (
            *(key, "step (s)", "tokens/s/acc.", "J/token", "at meter"),
            *(("USD/step",) if priced else ()),
            "layout",
        )
        yield Section(rows, header, tuple(range(1, 5 + priced)), title="the best for each value")


def _energies(row: Found) -> tuple[str, ...]:
    """Energy a token of the accelerators and at the meter; unknown where only the step was simulated."""
    flat = row.flat()
    known = (flat[f"{name}energy_j_per_token"] for name in ("", "meter_"))
    return tuple(f"{each:.3g}" if isinstance(each, float) else "-" for each in known)


def _front(outcome: Ranked) -> Iterator[Section]:
    if len(outcome.front) > 1:
        among = "" if outcome.front_complete else "of those simulated "
        yield Section(
            tuple(map(_front_line, outcome.front)),
            ("step (s)", "80 % between", "memory (GB)", "80 % between", "layout"),
            (0, 1, 2, 3),
            title=f"Pareto front: no other {among}is better in step time and memory",
        )


def _front_line(row: Found) -> tuple[str, ...]:
    step, memory = _range(row, "step_time_s", 1.0), _range(row, "memory_bytes", 1e9)
    return (f"{row.step_time_s:.5g}", step, f"{row.memory_bytes / 1e9:.1f}", memory, row.name)


def _range(row: Found, figure: str, unit: float) -> str:
    """The interval of a figure."""
    ends = (row.interval or {}).get(figure)
    return " - ".join(f"{end / unit:.3g}" for end in ends) if isinstance(ends, list) else "-"


def _beside(outcome: Ranked) -> Iterator[str]:
    """Why the second loses, where the scenario's own layout stands, and who ties with the best."""
    if parts := [(name, gap) for name, gap in outcome.runner_up.items() if gap][:_TOLD]:
        gaps = ", ".join(f"{name.replace('_', ' ')} {_signed(gap)}" for name, gap in parts)
        yield f"second against best: {gaps}"
    best, own = outcome.best, outcome.own_step_time_s
    if outcome.own_reason:
        took = f", in {format_quantity(own, Dimension.TIME)}" if own is not None else ""
        yield f"the scenario's own layout: {outcome.own_reason}{took}"
    elif best is not None and own is not None:
        faster = sum(row.step_time_s < own for row in outcome.rows)
        yield (
            f"the scenario's own layout: {format_quantity(own, Dimension.TIME)}, "
            f"{percent(own / best.step_time_s - 1, signed=True)} against the best; {faster:,} of those simulated are faster"
        )
    if outcome.ties:
        what = "the other is" if outcome.ties == 1 else f"{outcome.ties} others are"
        yield f"tie: {what} not slower beyond the error of such differences (80 % interval)"


def _signed(seconds: float) -> str:
    return ("+" if seconds > 0 else "") + format_quantity(seconds, Dimension.TIME, digits=3)


def _others(outcome: Ranked, reasons: Mapping[str, str]) -> Section:
    """All layouts by what became of them."""
    lines = []
    if outcome.undivided:
        lines.append(
            f"{plural(outcome.undivided, 'layout')} more: layers do not divide, and the framework needs that"
        )
    if outcome.unbatched:
        lines.append(
            f"{plural(outcome.unbatched, 'layout')} more: the batch does not divide among their replicas"
        )
    if not outcome.rows:
        lean = "; '--also recompute-modules,offload' has layouts that hold less"
        lines.append(
            f"nothing was simulated: no layout is within the limits{lean if outcome.counts.get('memory') else ''}"
        )
    rows = tuple((f"{count:,}", reasons[name]) for name, count in outcome.counts.items())
    title = f"{plural(outcome.legal, 'legal layout')}; {_proof(outcome)}"
    return Section(rows, (), (0,), title, tuple(lines))


def _proof(outcome: Ranked) -> str:
    """How far it is proved that nothing is better than the best."""
    if outcome.complete:
        return "no other can be among the best"
    if outcome.gap is None:
        return "not all were looked at, so a better one may be among the others"
    if outcome.best is not None and outcome.gap <= 0.0:
        return "not all were simulated, but none can be better than the best"
    return f"not all were simulated, and by its bound one of the others may be up to {percent(outcome.gap)} better"
