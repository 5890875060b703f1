"""Two results side by side, and which part of the step explains the difference."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

from mpsim import structs
from mpsim.errors import ScenarioError
from mpsim.formats.ledger import flat
from mpsim.frame import Tabular
from mpsim.result import Result
from mpsim.result.words import Figures, of_peak
from mpsim.scenario.layers import Data, expand_shorthand
from mpsim.scenario.settled import settled_by
from mpsim.serving.words import time_that_ran
from mpsim.shipped import say
from mpsim.study.facility import Facility
from mpsim.study.plan import Assumptions, plan_training
from mpsim.study.rows import (
    FIGURES,
    PLAN_FIGURES,
    SERVICE_FIGURES,
    column_of,
    figure_of,
    figure_text,
    part_text,
    share_text,
    title_of,
    warned,
    worded,
)
from mpsim.study.ties import Ratio, ratio_of
from mpsim.table import Section, Sheet, Shown
from mpsim.units import percent

if TYPE_CHECKING:
    from mpsim.serving import ServiceResult

# keys of a file that decide no result
_UNSAID = ("schema", "name", "include", "sweep", "design", "overrides")
Side: TypeAlias = "Result | ServiceResult | Mapping[str, object]"  # of a comparison
_SIDES = ("a", "b", "difference", "relative")
_TOLD, _LONGEST = 4, 60  # changes that are spelled out, characters of a value


@structs.dataclass(frozen=True, slots=True)
class Difference:
    """One figure of both results; None where a result has none."""

    name: str  # key of the summary, with its unit
    a: float | None
    b: float | None
    # ``[low, high]`` of each, where both results have one
    intervals: tuple[Sequence[float], Sequence[float]] | None = None

    @property
    def difference(self) -> float | None:
        """Difference b - a, in the unit of the figure."""
        return None if self.a is None or self.b is None else self.b - self.a

    @property
    def relative(self) -> float | None:
        """The difference as a share of a; None where a is zero."""
        difference = self.difference
        return None if difference is None or not self.a else difference / self.a

    @property
    def cells(self) -> tuple[str, ...]:
        """Both figures, their difference and what share of a it is, as people write them."""
        told = (figure_text(self.name, side) for side in (self.a, self.b))
        change = figure_text(self.name, self.difference, signed=True)
        return *told, change, share_text(self.relative)

    def to_json(self) -> dict[str, object]:
        """Plain data."""
        ends = self.intervals
        data: dict[str, object] = {key: getattr(self, key) for key in _SIDES}
        return data | ({"interval": {"a": [*ends[0]], "b": [*ends[1]]}} if ends else {})


def differences(a: Mapping[str, float], b: Mapping[str, float]) -> tuple[Difference, ...]:
    """Parts of two wholes, those that one lacks as 0, the largest difference first."""
    names = dict.fromkeys([*a, *b])
    parts = [Difference(name, a.get(name, 0.0), b.get(name, 0.0)) for name in names]
    return tuple(sorted(parts, key=lambda part: -abs(part.difference or 0.0)))


def most_of(parts: Iterable[Difference], change: float) -> str:
    """The part of most of a change, in words; nothing where none goes that way."""
    largest = next((part for part in parts if (part.difference or 0.0) * change > 0), None)
    if largest is None:
        return ""
    more = figure_text(largest.name, largest.difference, signed=True)
    return f"; most of it is {largest.name.replace('_', ' ')} ({more})"


@structs.dataclass(frozen=True, slots=True, repr=False)
class Comparison(Shown, Tabular):
    """Result b against result a."""

    a: str  # a, b: names of the scenarios
    b: str
    figures: tuple[Difference, ...]  # in the order of `FIGURES` or `SERVICE_FIGURES`
    # of the step time, or of the accelerator's time that an output token takes [s], the largest
    # difference first; their differences sum to that of the whole
    parts: tuple[Difference, ...]
    # step time of b over that of a, common errors cancelled; None without intervals
    ratio: Ratio | None = None
    whole: str = "step_time_s"  # figure that the parts sum to
    # what both scenarios say of each dotted key that differs; None where one says nothing
    changes: Mapping[str, tuple[object, object]] = structs.field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    peaks: str = ""  # which peaks MFU is a share of, where not both are those of 16 bits

    @property
    def tie(self) -> bool:
        """Whether it cannot be said which step is faster."""
        return self.ratio is not None and self.ratio.tie

    def table(self) -> list[dict[str, object]]:
        """One mapping a figure or part: name, a, b, difference and its share of a; SI units."""
        return [
            {"name": figure.name, **{key: getattr(figure, key) for key in _SIDES}}
            for figure in (*self.figures, *self.parts)
        ]

    def sheet(self) -> Sheet:
        """Both results side by side, as ``mpsim compare`` prints them."""
        rows: tuple[tuple[str, ...], ...] = tuple(
            (
                title_of(figure.name) + (self.peaks if figure.name in ("mfu", "hfu") else ""),
                *figure.cells,
                *(_range(figure, side) for side in range(2)),
            )
            for figure in (*self.figures, *self.parts)
            if figure.a or figure.b
        )
        header: tuple[str, ...] = ("", "A", "B", "B - A", "of A", "80 % of A", "80 % of B")
        if not any(row[-1] for row in rows):
            rows, header = tuple(row[:-2] for row in rows), header[:-2]
        names = Section((("A", self.a), ("B", ", ".join([self.b, *self._changed()]))))
        lines = (self.explanation, *self.warnings)
        return Sheet("", (names, Section(rows, header, tuple(range(1, len(header))), lines=lines)))

    @property
    def variant(self) -> str:
        """Name of b, or what it changes where it keeps that of a."""
        changed = self._changed() if self.a == self.b else []
        return "\n".join(changed) or self.b

    def _changed(self) -> list[str]:
        """Keys and values of B instead of those of A, the first few."""
        words = [
            f"{key} {' to '.join(worded(value)[:_LONGEST] for value in values)}"
            for key, values in list(self.changes.items())[:_TOLD]
        ]
        more = len(self.changes) - len(words)
        return [*words, f"{more} more differences"] if more else words

    @property
    def explanation(self) -> str:
        """One sentence: how step times, or times of an output token, differ, and by which part."""
        # variants of a scenario keep its name
        first, second = ("A", "B") if self.a == self.b else (self.a, self.b)
        step = next(figure for figure in self.figures if figure.name == self.whole)
        assert step.a is not None
        assert step.b is not None
        change = step.b - step.a
        serves = self.whole != "step_time_s"
        if not change:
            what = "of an accelerator a token" if serves else "a step"
            return self._measured(f"both take {part_text(step.a)} {what}")
        size = f"{part_text(abs(change))} ({percent(abs(change) / step.a)})"
        if serves:
            less = "less" if change < 0 else "more"
            text = f"takes {size} of an accelerator {less} for an output token than {first}"
        else:
            text = f"is {size} a step {'faster' if change < 0 else 'slower'} than {first}"
        return self._measured(f"{second} {text}{most_of(self.parts, change)}")

    def _measured(self, text: str) -> str:
        """A sentence with the interval that the measured difference lies in, where it is known."""
        if self.ratio is None:
            return text
        low, high = 100 * (self.ratio.low - 1), 100 * (self.ratio.high - 1)
        lead = f"no clear winner: real difference {low:+.1f} to {high:+.1f} % (80 % interval)"
        return f"{lead}; {text}" if self.tie else f"{text}; measured: {low:+.1f} to {high:+.1f} %"

    def to_json(self) -> dict[str, object]:
        """Plain data, one mapping a figure."""
        return {
            "a": self.a,
            "b": self.b,
            "changes": {key: list(values) for key, values in self.changes.items()},
            "explanation": self.explanation,
            "step_time": None if self.ratio is None else self.ratio.to_json(),
            "figures": {figure.name: figure.to_json() for figure in self.figures},
            "breakdown_s": {part.name: part.to_json() for part in self.parts},
            "warnings": list(self.warnings),
        }


def _range(figure: Difference, side: int) -> str:
    ends = figure.intervals[side] if figure.intervals else ()
    return " - ".join(figure_text(figure.name, end, digits=3) for end in ends)


def compare(a: Side, b: Side, *, tokens: float | None = None) -> Comparison:
    """Set two results side by side.

    Parameters
    ----------
    a, b : Result, ServiceResult or mapping
        Results, or the objects that ``mpsim run --json`` printed.
    tokens : float, optional
        To train on: the plans of both trainings stand side by side too.

    Raises ScenarioError: if a mapping is not a result, or one whose training is to be planned.
    """
    first, second = _summary(a, "the first"), _summary(b, "the second")
    serve = [summary.get("job") == "serving" for summary in (first, second)]
    if serve[0] != serve[1]:
        raise ScenarioError(say("study.two_kinds"))
    chosen, whole = FIGURES, "step_time_s"
    if serve[0]:
        first, second = _per_token(first), _per_token(second)
        chosen, whole = SERVICE_FIGURES, "accelerator_s_per_output_token"
    planned = [] if tokens is None else _plans(a, b, tokens)
    return Comparison(
        a=str(first["scenario"]),
        b=str(second["scenario"]),
        figures=(*_differences(first, second, chosen), *planned),
        parts=differences(_parts(first), _parts(second)),
        ratio=None if serve[0] else ratio_of(first, second),
        whole=whole,
        changes=_changes(a, b),
        warnings=warned({"A": first.get("warnings"), "B": second.get("warnings")}),
        peaks=_peaks(of_peak(first), of_peak(second)),
    )


def _peaks(a: str, b: str) -> str:
    usual = " of the 16-bit peak"
    return a if a == b else f" (A{a or usual}, B{b or usual})"


def _changes(a: Side, b: Side) -> dict[str, tuple[object, object]]:
    """Keys in which the scenarios differ, settled ones too; those of stored ones are not known."""
    files = [side.scenario.source.data for side in (a, b) if not isinstance(side, Mapping)]
    if len(files) < 2:
        return {}
    first, second = map(_said, files)
    both = {key: (first.get(key), second.get(key)) for key in {**first, **second}}
    return {key: values for key, values in both.items() if values[0] != values[1]}


def _said(data: Data) -> dict[str, object]:
    """Values by key that a file says or leaves to be settled, shorthands as the keys they mean."""
    said = flat({key: data[key] for key in data if key not in _UNSAID}) | settled_by(data)
    return flat({key: expand_shorthand(key, value) for key, value in said.items()})


def _plans(a: object, b: object, tokens: float) -> list[Difference]:
    """Days, hours, price, energy and carbon of both trainings."""
    if not (isinstance(a, Result) and isinstance(b, Result)):
        raise ScenarioError(say("study.two_steps"))
    assumed = Assumptions(facility=Facility.of())
    first, second = (plan_training(side, tokens, assumed).to_json() for side in (a, b))
    return _differences(first, second, PLAN_FIGURES)


def _differences(
    first: Mapping[str, object], second: Mapping[str, object], names: Iterable[str]
) -> list[Difference]:
    """Figures of both results by name."""
    return [
        Difference(name, _number(first, name), _number(second, name), _ranges(first, second, name))
        for name in names
    ]


def _per_token(summary: Figures) -> dict[str, object]:
    """A service's figures side by side, and the accelerator's time of an output token."""
    rate = summary["output_tokens_per_s"]
    if not rate:
        raise ScenarioError(f"{summary['scenario']}: no token was generated: nothing to compare")
    token, whole = summary["accelerators"] / rate, summary["duration_s"]
    parts = {part: seconds / whole * token for part, seconds in time_that_ran(summary).items()}
    known = [f"{name}_s.{which}" for name in ("ttft", "tpot", "e2e") for which in ("mean", "p99")]
    latencies = {column_of(name): figure_of(summary, name) for name in known}
    return {
        **summary,
        **latencies,
        "accelerator_s_per_output_token": sum(parts.values()),
        "breakdown_s": parts,
    }


_NEEDED = ("scenario", "step_time_s", "breakdown_s")
_SERVICE_NEEDED = ("scenario", "accelerators", "duration_s", "output_tokens_per_s", "account_s")


def needed_keys(summary: Mapping[str, object]) -> tuple[str, ...]:
    """Keys that a result has to have to be compared."""
    return _SERVICE_NEEDED if summary.get("job") == "serving" else _NEEDED


def _summary(result: Side, which: str) -> Mapping[str, object]:
    summary = result if isinstance(result, Mapping) else result.summary
    missing = [key for key in needed_keys(summary) if key not in summary]
    if missing:
        raise ScenarioError(say("study.no_result", which=which, missing=", ".join(missing)))
    return summary


def _number(summary: Mapping[str, object], name: str) -> float | None:
    value = summary.get(name)
    return float(value) if isinstance(value, int | float) else None


def _ranges(
    first: Mapping[str, object], second: Mapping[str, object], name: str
) -> tuple[Sequence[float], Sequence[float]] | None:
    """The intervals of a figure of both results."""
    both = [summary.get("interval") for summary in (first, second)]
    ranges = [entry.get(name) for entry in both if isinstance(entry, Mapping)]
    known = [each for each in ranges if each is not None]
    return (known[0], known[1]) if len(known) == len(both) else None


def _parts(summary: Mapping[str, object]) -> dict[str, float]:
    parts = summary["breakdown_s"]
    if not isinstance(parts, Mapping):
        raise ScenarioError(say("study.no_parts", name=summary["scenario"]))
    return {str(name): float(part) for name, part in parts.items()}
