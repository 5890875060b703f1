"""The outcome of a search: what was simulated, ranked, and what became of the rest; of a training
step with its front, its ties and its decisions. Above 600 lines, as figures of one answer and the
words that print them stand together.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import ClassVar, Generic, Protocol, TypeVar

from mpsim import structs
from mpsim.errors import ScenarioError
from mpsim.frame import Tabular, aligned
from mpsim.parallel import EXPOSED
from mpsim.result.residuals import fastest_measured
from mpsim.shipped import read_shipped, say
from mpsim.study.rows import times_of, warned
from mpsim.study.search.found import SHORT, Found, Line, expected, folded, name_of_layout, runs, tie
from mpsim.study.search.layouts import AXES
from mpsim.study.search.switches import Decision, Switched, Switches
from mpsim.study.ties import front_of
from mpsim.table import Section, Sheet, Shown, plural
from mpsim.units import Dimension, format_quantity, percent

OBJECTIVES = ("time", "cost")
"""What the best layout has least of: seconds or USD a token, dead launches counted."""

WORDS: Mapping[str, Mapping[str, str]] = read_shipped("mpsim.study.data", "outcomes.yaml")
REASONS = WORDS["reasons"]
"""What can become of a legal layout, in words."""

_SHOWN = 8  # of the front
_SURE = 0.995  # odds of fitting that are not worth a word
_TOLD = 3  # parts of the step by which the second layout differs


class Row(Protocol):
    """Something simulated that is a row of a ranking."""

    def flat(self) -> dict[str, object]:
        """Values and figures in one mapping, units in the names."""


R = TypeVar("R", bound=Row)
P = TypeVar("P")


@structs.dataclass(frozen=True, slots=True, repr=False)
class Outcome(Shown, Tabular, Generic[R]):
    """Outcome of a search."""

    reasons: ClassVar[Mapping[str, str]]  # what can become of a layout, in words
    scenario: str
    objective: str  # what the rows are ranked by
    top: int
    # everything simulated, the best first; the first `top` are the best of all if `complete`
    rows: tuple[R, ...]
    counts: Mapping[str, int]  # what became of everything that was looked at, by reason
    # whether everything was simulated or ruled out, so that nothing else can be among the best
    complete: bool
    interrupted: bool = False
    remarks: tuple[str, ...] = ()  # entries of a resumed file that were simulated again, and why

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[R]:
        return iter(self.rows)

    @property
    def looked_at(self) -> int:
        """Layouts in all."""
        return sum(self.counts.values())

    @property
    def leaders(self) -> tuple[R, ...]:
        """The best `top`."""
        return self.rows[: self.top]

    def table(self) -> list[dict[str, object]]:
        """One flat mapping a row, all with the same keys in the same order."""
        return aligned([row.flat() for row in self.rows])

    @property
    def best(self) -> R | None:
        """The best row; None if nothing was simulated."""
        return self.rows[0] if self.rows else None

    def chosen(self) -> R:
        """The best row of a search that ended. ScenarioError with what became of all where there
        is none; KeyboardInterrupt if it was interrupted: what it left out may be better.
        """
        if self.interrupted:
            raise KeyboardInterrupt
        if self.best is None:
            raise ScenarioError(f"{self.scenario}: {self.why_nothing} ({self.counted})")
        return self.best

    @property
    def why_nothing(self) -> str:
        """Why there is no best: nothing is within the limits, or nobody looked."""
        if self.rows:
            return "no layout keeps the limits"
        if {"unseen", "unsimulated"} & self.counts.keys():
            return say("study.nothing_simulated")
        return "nothing was simulated: no layout is within the limits"

    @property
    def tally(self) -> tuple[tuple[str, str], ...]:
        """Everything looked at by what became of it, in words."""
        return tuple((f"{count:,}", self.reasons[name]) for name, count in self.counts.items())

    @property
    def counted(self) -> str:
        """The same in one line."""
        return "; ".join(" ".join(row) for row in self.tally)


@structs.dataclass(frozen=True, slots=True)
class Own:
    """Result of the scenario's own layout."""

    # its step [s]; None where it cannot run, or nobody asked before an interrupt
    step_time_s: float | None = None
    reason: str = ""  # why it cannot be used; empty where it can
    objective: float | None = None  # its seconds, or dollars, a token
    # the best layout of the same machine as keys beside the layout make it; None if not searched
    rival: Found | None = None


@structs.dataclass(frozen=True, repr=False)  # no slots: `tied` is kept
class Search(Outcome[Found]):
    """Outcome of a search of training steps."""

    reasons = REASONS
    # whether everything was simulated or ruled out that may lead in time and memory at once
    front_complete: bool = True
    # least objective that a layout which fits and was not simulated may have; None where there is
    # none, or where layouts were not looked at, of which nothing is known
    floor: float | None = None
    # layouts that are not legal for one reason alone: their layers do not divide among the stages,
    # and the framework runs no split that holds them
    undivided: int = 0
    unbatched: int = 0  # layouts whose replicas the batch does not divide among
    # choices of the best layout with the best layout without each, those that nothing fits without
    # first, then the dearest; empty unless asked for
    decisions: tuple[Decision, ...] = ()
    keys: tuple[str, ...] = ()  # of a scenario that were searched beside the layout
    own: Own = Own()  # what the layout of the scenario itself does
    # layouts that fit and were not simulated, and may tie with the best by their bounds
    may_tie: int = 0
    # what switches of the stack that were not searched would give
    switches: Switches = structs.field(default_factory=Switches)
    usable_bytes: float = math.inf  # of an accelerator; infinite where they differ

    def sheet(self, *, front: bool = True, long: bool = False) -> Sheet:
        """The best in ten lines and a short `front`, or `long`, as ``mpsim search`` prints them."""
        if not long:
            beside = _by_value(self, priced=any(row.price_per_hour for row in self.leaders))
            tables = (
                *_decisions(self),
                *beside,
                *(_front(self, shown(self.front, lambda row: row.memory_bytes)) if front else ()),
            )
            return Sheet("", (Section(lines=tuple(_answer(self))), *tables))
        varied = self.objective == "cost" or bool(self.keys)  # else MFU says it all
        priced = varied and any(row.price_per_hour for row in self.leaders)
        return Sheet(
            "",
            (
                _ranking(self, varied=varied, priced=priced),
                *_decisions(self),
                *_by_value(self, priced=priced),
                *(_front(self, self.front) if front else ()),
                Section(
                    self.tally,
                    right=(0,),
                    title=f"{plural(self.looked_at, 'legal layout')}; {_proof(self)}",
                    lines=_left(self),
                ),
            ),
        )

    @property
    def gap(self) -> float | None:
        """Share by which a layout that was not simulated may at most be better, or None.

        0 once the search is complete.
        """
        if self.complete:
            return 0.0
        if self.floor is None or self.best is None:
            return None
        return max(0.0, 1.0 - self.floor / self.best.objective(self.objective))

    @property
    def front(self) -> tuple[Found, ...]:
        """Layouts that no other beats in step time, memory and price, the shortest step first."""
        return front_of(
            self.rows, lambda row: (row.step_time_s, row.memory_bytes, row.price_per_hour or 0.0)
        )

    @functools.cached_property
    def tied(self) -> tuple[Found, ...]:
        """Everything simulated that cannot be told from the best: differences may be zero."""
        return tuple(row for row in self.rows[1:] if tie(self.rows[0], row))

    @property
    def ties(self) -> int:
        """How many of those simulated tie with the best."""
        return len(self.tied)

    @property
    def expected_step_time_s(self) -> float | None:
        """Step time to expect of the best, as predictions err [s]; None without one."""
        return expected(self.rows[0], self.tied, self.objective) if self.rows else None

    @property
    def simplest(self) -> Found | None:
        """The simplest of the best and its ties: fewest axes and switches, then the fastest."""
        return min(self._undecided, key=lambda row: row.complexity, default=None)

    @property
    def safest(self) -> Found | None:
        """The safest in memory of the best and its ties: it needs least."""
        return min(self._undecided, key=lambda row: row.filled, default=None)

    @property
    def _undecided(self) -> tuple[Found, ...]:
        return (*self.rows[:1], *self.tied)

    @property
    def lines(self) -> tuple[Line, ...]:
        """The leaders, twins folded in: the same degrees, times that cannot be told apart."""
        return folded(self.leaders)

    @property
    def best_by_value(self) -> dict[str, dict[str, Found]]:
        """The best layout for each value of each of `keys`, in the order of the ranking."""
        best: dict[str, dict[str, Found]] = {key: {} for key in self.keys}
        for key, chosen in best.items():
            for row in self.rows:
                chosen.setdefault(str(row.values[key]), row)
        return best

    @property
    def runner_up(self) -> dict[str, float]:
        """Parts of the step that the second takes longer for [s], the most first; or none."""
        known = [parts for row in self.rows[:2] if (parts := times_of(row.summary))]
        if not known[1:]:
            return {}
        best, second = known
        longer = {name: second.get(name, 0.0) - best[name] for name in best}
        return dict(sorted(longer.items(), key=lambda item: -abs(item[1])))

    def to_json(self) -> dict[str, object]:
        """Plain data."""
        return {
            **structs.named(self, "scenario", "objective", "top", "complete", "interrupted"),
            **structs.named(self, "gap", "undivided", "unbatched"),
            "lines": [line.to_json() for line in self.lines],
            "decisions": [decision.to_json() for decision in self.decisions],
            "own": structs.named(self.own, "step_time_s", "reason"),
            "runner_up": self.runner_up,
            "best_by_value": {
                key: {value: structs.asdict(row) for value, row in chosen.items()}
                for key, chosen in self.best_by_value.items()
            },
            "legal": self.looked_at,
            **structs.named(self, "ties", "may_tie", "expected_step_time_s"),
            "switches": self.switches.to_json(),
            "simplest": None if self.simplest is None else dict(self.simplest.values),
            "safest": None if self.safest is None else dict(self.safest.values),
            "counts": dict(self.counts),
            "rows": [row.to_json() for row in self.leaders],
            "front": [row.to_json() for row in self.front],
        }


def _ranking(search: Search, *, varied: bool, priced: bool) -> Section:
    header = (
        *("#", "step (s)", "80 % between", *(("tokens/s/acc.",) if varied else ()), "MFU"),
        *("memory (GB)", "fits", "ranked by (s)", "bubble", "exposed"),
        *(*(("USD/step",) if priced else ()), "layout"),
    )
    rows = tuple(_line(search, line, varied=varied, priced=priced) for line in search.lines)
    return Section(rows, header, tuple(range(9 + varied + priced)), lines=tuple(_beside(search)))


def _line(search: Search, line: Line, *, varied: bool, priced: bool) -> tuple[str, ...]:
    row = line.row
    flat, odds = row.flat(), row.fits_probability
    known = row.summary is not None
    exposed = math.fsum(float(str(flat[f"{part}_s"])) for part in EXPOSED) if known else 0.0
    figures = (
        str(line.rank),
        f"{row.step_time_s:.4g}",
        _range(row, "step_time_s", 1.0),
        *((f"{row.tokens_per_s_per_accelerator:.5g}",) if varied else ()),
        percent(float(str(flat["mfu"]))) if known else "-",
        f"{row.memory_bytes / 1e9:.1f}",
        "-" if odds is None else percent(odds),
        f"{row.ranked_by_s:.4g}",
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


def _decisions(search: Search) -> Iterator[Section]:
    """The decisions of the best layout that matter most."""
    if not search.decisions or search.best is None:
        return
    step = search.best.step_time_s
    priced = [item for item in search.decisions if item.cost_s is not None][:_TOLD]
    rows = tuple(
        (
            _said(item),
            ("" if item.proved else "at most ") + _signed(item.cost_s or 0.0),
            percent((item.cost_s or 0.0) / step, signed=True),
            item.without.name if item.without else "",
        )
        for item in priced
    )
    forced = ", ".join(_said(item) for item in search.decisions if item.without is None)
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


def _by_value(search: Search, *, priced: bool) -> Iterator[Section]:
    """The best layout for each value of each key searched beside the layout."""
    for key, chosen in search.best_by_value.items():
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
    """Energy a token, of accelerators and at the meter; unknown if the step alone was run."""
    flat = row.flat()
    known = (flat[f"{name}energy_j_per_token"] for name in ("", "meter_"))
    return tuple(f"{each:.3g}" if isinstance(each, float) else "-" for each in known)


def shown(front: tuple[P, ...], figure: Callable[[P], float]) -> tuple[P, ...]:
    """At most eight points of a front, in even ratios of a falling figure, both ends among them."""
    if len(front) <= _SHOWN:
        return front
    figures = [figure(point) for point in front]
    most, least = figures[0], figures[-1]
    rooms = [most * (least / most) ** (step / (_SHOWN - 1)) for step in range(_SHOWN)]
    rooms[-1] = least  # which rounding must not lose
    places = [next(n for n, held in enumerate(figures) if held <= room) for room in rooms]
    return tuple(front[place] for place in dict.fromkeys(places))


def _front(search: Search, front: Sequence[Found]) -> Iterator[Section]:
    if len(front) > 1:
        among = "" if search.front_complete else "of those simulated "
        some = "" if len(front) == len(search.front) else f"; {len(front)} of {len(search.front)}"
        yield Section(
            tuple((str(rank), *_front_line(row)) for rank, row in enumerate(front, start=1)),
            ("#", "step (s)", "80 % between", "memory (GB)", "80 % between", "layout"),
            (0, 1, 2, 3, 4),
            title=f"Pareto front: no other {among}is better in step time and memory{some}",
        )


def _front_line(row: Found) -> tuple[str, ...]:
    step, memory = _range(row, "step_time_s", 1.0), _range(row, "memory_bytes", 1e9)
    return (f"{row.step_time_s:.5g}", step, f"{row.memory_bytes / 1e9:.1f}", memory, row.name)


def _range(row: Found, figure: str, unit: float) -> str:
    """The interval of a figure."""
    ends = (row.interval or {}).get(figure)
    return " - ".join(f"{end / unit:.3g}" for end in ends) if isinstance(ends, list) else "-"


def _answer(search: Search) -> Iterator[str]:
    """First lines of a search: the best, how sure that is, and what was looked at."""
    if best := search.best:
        step, rate = format_quantity(best.step_time_s, Dimension.TIME), _rate(best)
        yield f"best: {best.name}"
        yield (
            f"  {step} a step (80 %: {_range(best, 'step_time_s', 1.0)} s){rate};"
            f" {_memory(search, best)}{_record(best)}"
        )
        yield from _beside(search)
    yield f"{plural(search.looked_at, 'legal layout')}: {search.counted}; {_proof(search)}"
    if not search.rows:
        yield from _left(search)
    yield from warned({"": best.summary.get("warnings")} if best and best.summary else {})


def _rate(row: Found) -> str:
    mfu = (row.summary or {}).get("mfu")
    each = f", {row.tokens_per_s_per_accelerator:,.5g} tokens/s/accelerator"
    return each + (f", MFU {percent(float(str(mfu)))}" if mfu is not None else "")


def _record(row: Found) -> str:
    """Judge a prediction that beats every measurement of its kind."""
    known = fastest_measured(row.setting) if row.setting is not None else None
    rate = (row.summary or {}).get("model_tflops_per_accelerator")
    if known is None or not isinstance(rate, int | float) or 1e12 * rate <= known:
        return ""
    return say("study.faster_than_measured", rate=rate, known=known / 1e12)


def _memory(search: Search, row: Found) -> str:
    """Memory of the fullest rank, and how likely it fits."""
    held = f"{row.memory_bytes / 1e9:.1f} GB"
    if not math.isinf(search.usable_bytes):
        held += f" of {search.usable_bytes / 1e9:.1f} GB"
    odds = row.fits_probability
    return f"{held}, fits in {percent(odds)} of such cases" if odds and odds < _SURE else held


def _beside(search: Search) -> Iterator[str]:
    """Where the scenario's own layout stands, why the second loses, and who ties with the best."""
    best, own = search.best, search.own
    took = "" if own.step_time_s is None else format_quantity(own.step_time_s, Dimension.TIME)
    if own.reason:
        yield f"the file's own layout: {own.reason}{f', in {took}' if took else ''}"
    elif best is not None and own.objective is not None:
        yield f"the file's own layout: {took}, {_against(search, own.objective)}"
    yield from _ties(search)
    if parts := [(name, gap) for name, gap in search.runner_up.items() if gap][:_TOLD]:
        gaps = ", ".join(f"{name.replace('_', ' ')} {_signed(gap)}" for name, gap in parts)
        yield f"second: {search.rows[1].name}; {_memory(search, search.rows[1])}"
        yield f"  against the best: {gaps}"
    yield from _switches(search)


def _against(search: Search, objective: float) -> str:
    """The objective of the file's own layout against the best on the same machine."""
    rival = search.own.rival
    if rival is None:
        return f"with other {', '.join(search.keys)} than were searched"
    least = rival.objective(search.objective)
    what = "time" if search.objective == "time" else "cost"
    on = ", ".join(f"{key} {rival.values[key]}" for key in search.keys)
    where = f" with {on}" if on and rival is not search.best else ""
    faster = sum(row.objective(search.objective) < objective for row in search.rows)
    told = f"{percent(objective / least - 1, signed=True)} {what} a token against the best{where}"
    die = ", launches that die counted" * ((rival.fits_probability or 1.0) < _SURE)
    return f"{told}{die}; {faster:,} of those simulated are better"


def _switches(search: Search) -> Iterator[str]:
    """Gains of what was not searched, each switch by itself and those that help together."""
    if (together := search.switches.together) is None:
        return
    alone = ", ".join(
        f"{_turned(each)} {percent(-each.gain, signed=True)}"
        for each in search.switches.alone[:_TOLD]
    )
    step = format_quantity(together.step_time_s, Dimension.TIME)
    layout = name_of_layout({k: v for k, v in together.values.items() if k not in together.turned})
    where = "" if search.best is None or layout == search.best.name else f" as {layout}"
    yield (
        f"not searched: {alone}; together {step} ({percent(-together.gain, signed=True)}){where}:"
        f" try {_overs(together)}"
    )


def _turned(switched: Switched) -> str:
    values = {key: value for key, value in switched.turned.items() if key != AXES["recompute"]}
    return ", ".join(
        f"{key.rpartition('.')[2].replace('_', ' ')}"
        f" {' '.join(value) if isinstance(value, tuple) else value}"
        for key, value in (values or switched.turned).items()
    )


def _overs(switched: Switched) -> str:
    """Options of the command line that search what was turned."""
    words = (
        "--also recompute-modules" if key == AXES["modules"] else f"--over {key}='{value}'"
        for key, value in switched.turned.items()
        if key != AXES["recompute"]
    )
    return " ".join(words)


def _ties(search: Search) -> Iterator[str]:
    """How many tie with the best, and which of them to take for other reasons."""
    best = search.best
    if best is None or not search.ties:
        return
    more = f", and up to {search.may_tie:,} of those ruled out" if search.may_tie else ""
    step = format_quantity(search.expected_step_time_s or best.step_time_s, Dimension.TIME)
    yield f"  expect {step}: the best of many predictions is one that erred towards fast"
    yield say("study.no_winner", ties=search.ties, count=len(search.rows), more=more)
    for name, row in (("simplest", search.simplest), ("least memory", search.safest)):
        if row is not None and row is not best:
            slower = percent(
                row.objective(search.objective) / best.objective(search.objective) - 1, signed=True
            )
            yield f"  {name} of these: {row.name}; {slower}, {_memory(search, row)}"


_signed = functools.partial(format_quantity, dimension=Dimension.TIME, digits=3, signed=True)


def _left(search: Search) -> tuple[str, ...]:
    """Name what is not among the legal layouts, and why nothing may be."""
    skipped = (
        (search.undivided, "their layers do not divide into stages as this framework needs"),
        (search.unbatched, "the batch does not divide among their replicas"),
    )
    lines = [f"{plural(n, 'layout')} more: skipped, as {why}" for n, why in skipped if n]
    if not search.rows:
        lean = "; '--also recompute-modules,offload' has layouts that hold less"
        lines.append(f"{search.why_nothing}{lean if search.counts.get('memory') else ''}")
    return tuple(lines)


def proof(*, complete: bool, gap: float | None, space: str = "") -> str:
    """How far it is proved that nothing is better than the best; `space` says of what."""
    if complete:
        return f"no other of these layouts can be among the best{space}"
    if gap is None:
        return "not all were looked at, so a better one may be among the others"
    if gap <= 0.0:
        return "not all were simulated, but none can be better than the best"
    return say("study.gap", gap=percent(gap))


def _proof(search: Search) -> str:
    space = ", with these switches as the file has them" if search.switches.alone else ""
    return proof(complete=search.complete, gap=search.gap, space=space)
