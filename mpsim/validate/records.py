"""Records of measured and predicted figures: errors by family, and whether picks were fastest."""

from __future__ import annotations

import itertools
import math
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from mpsim import structs
from mpsim.result.residuals import EXACT, Interval, Setting, decisions, residuals
from mpsim.shipped import say
from mpsim.table import Section, Sheet, Shown
from mpsim.units import Dimension, format_quantity, percent

_DIMENSIONS = {"s": Dimension.TIME, "B": Dimension.BYTES}
_WORST = 5  # rows named under a table
_UNIT = 30.0  # times off: more than any prediction errs, less than a thousandth for one
_REASONS = 8  # reasons for skipping named under a table
_COLUMNS = ("family", "rows", "predicted", "mean", "median", "p90", "bias", "worst", "differ", "")
_TAIL = 0.9  # the quantile of absolute errors that a family reports besides mean and median


@structs.dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One measured value and its prediction."""

    # the row's ``id`` or ``record_id``, else its number in the file from 1; ``#memory`` is added
    # for a peak memory, ``#ttft`` and such for a quantity of inference
    id: str
    family: str  # what it is summarised with
    kind: str  # ``training``, ``memory``, ``collective``, ``kernel``, ``schedule`` or ``inference``
    unit: str  # of both figures: that of the file's own column (bytes for a memory)
    measured: float | None
    predicted: float | None = None
    # columns of a schedule's oracle that differ; empty for other kinds
    mismatched: tuple[str, ...] = ()
    skipped_because: str | None = None  # why there is no prediction; None for a predicted row
    # what the error is drawn against: bytes, FLOPs, accelerators or chunks
    size: float | None = None
    assumed: tuple[str, ...] = ()  # what the prediction takes for granted and the row does not say
    # model, sequence length and number of accelerators of a training run: runs of one group differ
    # in layout. "" for other kinds
    group: str = ""
    sequences: float = 0.0  # of a step; 0 for other kinds
    # of `mpsim.result.residuals.FIGURES`: whose residuals give the interval. "" for what is exact
    figure: str = ""
    setting: Setting | None = None  # what the residual depends on; None without a prediction
    # odds that it runs out of memory, predicted of a run that did
    ran_out: float | None = None
    # the interval where it is not that of the figure's residuals alone
    ends: Interval | None = None

    @property
    def interval(self) -> Interval | None:
        """Range that holds the measured value in four cases of five; None without a prediction."""
        if self.predicted is None or self.ends is not None:
            return self.ends
        if not self.figure or self.setting is None or not self.predicted:
            return Interval(self.predicted, self.predicted, EXACT)
        return residuals(self.figure).interval(self.predicted, self.setting)

    @property
    def error(self) -> float | None:
        """``predicted / measured - 1``; None where either is missing."""
        if self.predicted is None or not self.measured:
            return None
        return self.predicted / self.measured - 1

    def to_json(self) -> dict[str, object]:
        """The keys of the outside contract."""
        return {
            **structs.named(self, "id", "family", "kind", "unit", "measured", "predicted", "error"),
            "interval": None if self.interval is None else self.interval.to_json(),
            "mismatched": list(self.mismatched),
            "skipped_because": self.skipped_because,
            "assumed": list(self.assumed),
            "ran_out": self.ran_out,
            "setting": self.setting and self.setting.to_json(),
        }


@structs.dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Errors of the rows of one family."""

    family: str
    kind: str
    # rows, predicted: in the files, and predicted
    rows: int
    predicted: int
    # mean_abs_error, median_abs_error, p90_abs_error, bias: fractions; bias is the mean with its
    # sign. None where nothing was scored
    mean_abs_error: float | None
    median_abs_error: float | None
    p90_abs_error: float | None
    bias: float | None
    worst: float | None  # the error that is largest in absolute value, with its sign
    worst_id: str
    mismatched: int  # rows whose oracle differs in some column (schedules)

    def to_json(self) -> dict[str, object]:
        """The keys of the outside contract."""
        data = structs.asdict(self)
        return {key: data[key] for key in data if key not in ("worst_id", "mismatched")}


@structs.dataclass(frozen=True, slots=True, repr=False)
class Validation(Shown):
    """Every record of some files, or those before a KeyboardInterrupt."""

    records: tuple[Record, ...]
    interrupted: bool = False
    remarks: tuple[str, ...] = ()  # columns of files that were ignored

    def sheet(self) -> Sheet:
        """Errors by kind and family, as ``mpsim validate`` prints them."""
        return _validation_sheet(self)

    @property
    def families(self) -> tuple[Family, ...]:
        """One for each family and kind, in the order they come."""
        groups: dict[tuple[str, str], list[Record]] = {}
        for record in self.records:
            groups.setdefault((record.family, record.kind), []).append(record)
        return tuple(summarise(group) for group in groups.values())

    @property
    def kinds(self) -> tuple[Family, ...]:
        """All records of a kind as one family each."""
        kinds = dict.fromkeys(record.kind for record in self.records)
        return tuple(structs.replace(summarise(self.of(kind)), family="all") for kind in kinds)

    def of(self, kind: str) -> list[Record]:
        """Records of a kind."""
        return [record for record in self.records if record.kind == kind]

    @property
    def decisions(self) -> tuple[Decisions, ...]:
        """How good a choice among runs of a model on as many accelerators is, by family."""
        return summarise_decisions(decisions_of(self.records))

    def worst(self, kind: str, count: int) -> list[Record]:
        """Records of a kind with the largest absolute errors."""
        scored = [record for record in self.of(kind) if record.error is not None]
        return sorted(scored, key=lambda record: -abs(record.error or 0.0))[:count]

    def to_json(self) -> dict[str, object]:
        """The object of the outside contract."""
        return {
            "families": [family.to_json() for family in self.families],
            "rows": [record.to_json() for record in self.records],
            "decisions": [decision.to_json() for decision in self.decisions],
            "decisions_by_kind": [told._asdict() for told in told_apart(self.records)],
            "interrupted": self.interrupted,
        }


def summarise(records: Sequence[Record]) -> Family:
    """Sum up records of one family and kind, at least one."""
    scored = [(record.error, record.id) for record in records if record.error is not None]
    errors = [error for error, _ in scored]
    sizes = sorted(map(abs, errors))
    worst, worst_id = max(scored, key=lambda pair: abs(pair[0]), default=(None, ""))
    return Family(
        family=records[0].family,
        kind=records[0].kind,
        rows=len(records),
        predicted=sum(record.predicted is not None for record in records),
        mean_abs_error=statistics.fmean(sizes) if sizes else None,
        median_abs_error=statistics.median(sizes) if sizes else None,
        p90_abs_error=sizes[min(len(sizes) - 1, int(_TAIL * len(sizes)))] if sizes else None,
        bias=statistics.fmean(errors) if errors else None,
        worst=worst,
        worst_id=worst_id,
        mismatched=sum(bool(record.mismatched) for record in records),
    )


SMALLEST = 3  # rows from which a group is a choice


class Decision(NamedTuple):
    """One group of runs of the same model on as many accelerators."""

    family: str
    group: str
    rows: int
    # Kendall's rank correlation of predicted and measured times a sequence, from -1 to 1
    tau: float
    # how much slower the run predicted fastest was measured than the fastest: 0 where they are one
    regret: float
    random: float  # the same for a run picked at random, in the mean
    chosen: str  # chosen, best: ids of both
    best: str


@structs.dataclass(frozen=True, slots=True, kw_only=True)
class Decisions:
    """All groups of a family, in the mean."""

    family: str
    groups: int
    rows: int
    tau: float
    mean_regret: float
    worst_regret: float
    random_regret: float
    worst_group: str

    def to_json(self) -> dict[str, object]:
        """By name."""
        return structs.asdict(self)


def _groups(records: Iterable[Record]) -> list[list[Record]]:
    """Scored runs of one model on as many accelerators, with a ``group`` or sequences."""
    groups: dict[tuple[str, str], list[Record]] = {}
    for record in records:
        chosen = record.kind == "training" and record.group and record.sequences
        if chosen and record.error is not None:
            groups.setdefault((record.family, record.group), []).append(record)
    return [*groups.values()]


def decisions_of(records: Iterable[Record]) -> list[Decision]:
    """One for each group of training runs with `SMALLEST` scored rows or more."""
    return [_decision(rows) for rows in _groups(records) if len(rows) >= SMALLEST]


class Told(NamedTuple):
    """Pairs of runs that differ in one kind of decision, in ``several``, or not (``same``)."""

    kind: str
    pairs: int
    # pairs whose faster one is predicted: the interval of their difference leaves out zero
    told: int
    right: int  # of these, pairs that were measured in that order
    held: int  # pairs whose measured difference lies in that interval


def told_apart(records: Iterable[Record]) -> list[Told]:
    """How well pairs of runs are told apart by their difference, most frequent kinds first."""
    counts: dict[str, Counter[str]] = {}
    for group in _groups(records):
        for a, b in itertools.combinations(group, 2):
            if a.setting is None or b.setting is None:
                continue
            kinds = decisions(a.setting, b.setting)
            kind = "several" if len(kinds) > 1 else next(iter(kinds), "same")
            half = residuals(a.figure).difference(a.setting, b.setting)
            ahead, measured = (
                math.log((x[1] or 0.0) / b.sequences / ((x[0] or 0.0) / a.sequences))
                for x in ((a.predicted, b.predicted), (a.measured, b.measured))
            )
            told = abs(ahead) > half
            counts.setdefault(kind, Counter()).update(
                pairs=1,
                told=told,
                right=told and ahead * measured > 0,
                held=abs(measured - ahead) <= half,
            )
    ordered = sorted(counts.items(), key=lambda item: -item[1]["pairs"])
    return [Told(kind, **{key: int(n) for key, n in each.items()}) for kind, each in ordered]


def _decision(rows: Sequence[Record]) -> Decision:
    measured = [(row.measured or 0.0) / row.sequences for row in rows]
    predicted = [(row.predicted or 0.0) / row.sequences for row in rows]
    best, chosen = measured.index(min(measured)), predicted.index(min(predicted))
    return Decision(
        family=rows[0].family,
        group=rows[0].group,
        rows=len(rows),
        tau=kendall_tau(predicted, measured),
        regret=measured[chosen] / measured[best] - 1,
        random=statistics.fmean(measured) / measured[best] - 1,
        chosen=rows[chosen].id,
        best=rows[best].id,
    )


def kendall_tau(first: Sequence[float], second: Sequence[float]) -> float:
    """Kendall's rank correlation (tau a): pairs in order less pairs in the opposite, over all.

    Examples
    --------
    >>> kendall_tau([1.0, 2.0, 3.0], [10.0, 20.0, 15.0])
    0.3333333333333333
    """
    a, b = (np.sign(np.subtract.outer(values, values)) for values in (first, second))
    return float((a * b).sum()) / (len(first) * (len(first) - 1))


def summarise_decisions(found: Sequence[Decision]) -> tuple[Decisions, ...]:
    """One for each family, in the order they come."""
    families: dict[str, list[Decision]] = {}
    for decision in found:
        families.setdefault(decision.family, []).append(decision)
    return tuple(
        Decisions(
            family=family,
            groups=len(own),
            rows=sum(decision.rows for decision in own),
            tau=statistics.fmean(decision.tau for decision in own),
            mean_regret=statistics.fmean(decision.regret for decision in own),
            worst_regret=max(decision.regret for decision in own),
            random_regret=statistics.fmean(decision.random for decision in own),
            worst_group=max(own, key=lambda decision: decision.regret).group,
        )
        for family, own in families.items()
    )


def _validation_sheet(validation: Validation) -> Sheet:
    """A table a kind of record; then what is furthest off, skipped, and how intervals hold."""
    sections = []
    for total in validation.kinds:
        families = [family for family in validation.families if family.kind == total.kind]
        rows = [_family_cells(family) for family in families]
        rows += [_family_cells(total)] if len(families) > 1 else []
        lines = [*_worst(validation, total.kind), *_reasons(validation, total.kind)]
        lines += [*_ran_out(validation, total.kind), *_covered(validation, total.kind)]
        lines += _decisions(validation) if total.kind == "training" else []
        title = f"{total.kind}: error of predictions (predicted / measured - 1)"
        right = tuple(range(1, len(_COLUMNS) - 1))
        sections.append(Section(tuple(rows), _COLUMNS, right, title, tuple(lines)))
    return Sheet("", tuple(sections))


def _family_cells(family: Family) -> tuple[str, ...]:
    figures = (family.mean_abs_error, family.median_abs_error, family.p90_abs_error)
    return (
        family.family,
        str(family.rows),
        str(family.predicted),
        *("" if figure is None else percent(figure) for figure in figures),
        signed(family.bias),
        signed(family.worst),
        str(family.mismatched) if family.kind == "schedule" else "",
        family.worst_id if family.worst else "",
    )


def signed(error: float | None) -> str:
    """An error with its sign as tables show it; nothing where there is none."""
    return "" if error is None else f"{error:+.1%}"


def _headed(head: str, lines: list[str]) -> list[str]:
    return [head, *lines] if lines else []


def _quantity(value: float | None, unit: str) -> str:
    """A value in the unit that a reader of it would choose."""
    if value is None or unit not in _DIMENSIONS:
        return f"{value:.6g} {unit}".rstrip()
    return format_quantity(value, _DIMENSIONS[unit])


def _worst(validation: Validation, kind: str) -> list[str]:
    """The rows that are furthest off, and those whose oracle differs."""
    furthest = [(row, row.error) for row in validation.worst(kind, _WORST) if row.error]
    lines = [
        f"  {error:+.1%}  {row.id}: measured {_quantity(row.measured, row.unit)},"
        f" predicted {_quantity(row.predicted, row.unit)}"
        for row, error in furthest
    ]
    if any(not 1.0 / _UNIT < 1.0 + error < _UNIT for _, error in furthest):
        lines.append(say("validate.unit", times=_UNIT))
    differ = Counter(
        f"{record.family} differ in {', '.join(record.mismatched)}"
        for record in validation.of(kind)
        if record.mismatched
    )
    lines += [f"  {count} rows of {what}" for what, count in differ.items()]
    return _headed("furthest off:", lines)


def _ran_out(validation: Validation, kind: str) -> list[str]:
    """Runs that ran out of memory where they were measured, and the odds of that."""
    ran = [row for row in validation.of(kind) if row.ran_out is not None]
    lines = [say("validate.ran_out", row=r, peak=_quantity(r.predicted, r.unit)) for r in ran]
    return _headed("ran out of memory, and how many such cases do:", lines)


def _covered(validation: Validation, kind: str) -> list[str]:
    """How many measured values lie in the interval of their prediction."""
    held = [
        record.measured in record.interval
        for record in validation.of(kind)
        if record.interval and record.figure and record.measured
    ]
    share = f"{sum(held)} of {len(held)} measured values ({sum(held) / max(len(held), 1):.0%})"
    return [f"80 % intervals hold {share}"] if held else []


def _reasons(validation: Validation, kind: str) -> list[str]:
    """Why rows were skipped, the commonest reason first."""
    skipped = [record.skipped_because for record in validation.of(kind) if record.skipped_because]
    most = Counter(skipped).most_common(_REASONS)
    lines = [f"  {count} x {reason}" for reason, count in most]
    others = len(skipped) - sum(count for _, count in most)
    lines += [f"  {others} x other reasons"] if others else []
    return _headed("skipped:", lines)


def _decisions(validation: Validation) -> list[str]:
    """How good a choice the predictions make among runs of one model on as many accelerators."""
    lines = [say("validate.decision", decision=decision) for decision in validation.decisions]
    pairs = [
        say("validate.pairs", told=told, held=told.held / told.pairs)
        + (f", {told.right / told.told:.0%} of them in the measured order" if told.told else "")
        for told in told_apart(validation.records)
    ]
    return [
        *_headed("layout predicted fastest against the fastest measured:", lines),
        *_headed(
            "runs of one model on as many accelerators, by what two of them differ in:", pairs
        ),
    ]
