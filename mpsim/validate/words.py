"""Validation in words: the tables and sentences that commands print and notebooks show."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from mpsim.sheet import Section, Sheet
from mpsim.units import Dimension, format_quantity, percent

if TYPE_CHECKING:
    from mpsim.validate.records import Family, Validation
    from mpsim.validate.steps import Comparison, StepComparison

__all__ = ["comparison_sheet", "validation_sheet", "verdict"]

WORST = 5  # rows named under a table
REASONS = 8  # reasons for skipping named under a table
COLUMNS = ("family", "rows", "predicted", "mean", "median", "p90", "bias", "worst", "differ", "")
STEP_COLUMNS = (
    *("step", "measured", "predicted", "error", "spread", "order"),
    "most of the difference",
)
ACTION_COLUMNS = ("family", "kind", "steps", "mean", "median", "worst", "bias")


def validation_sheet(validation: Validation) -> Sheet:
    """One table a kind of record, then what is furthest off, why rows were skipped, how many intervals hold, and how good choices are."""
    sections = []
    for total in validation.kinds:
        families = [family for family in validation.families if family.kind == total.kind]
        rows = [_family_cells(family) for family in families]
        rows += [_family_cells(total)] if len(families) > 1 else []
        lines = [*_worst(validation, total.kind), *_reasons(validation, total.kind)]
        lines += _covered(validation, total.kind)
        lines += _decisions(validation) if total.kind == "training" else []
        title = f"{total.kind}: error of predictions (predicted / measured - 1)"
        right = tuple(range(1, len(COLUMNS) - 1))
        sections.append(Section(tuple(rows), COLUMNS, right, title, tuple(lines)))
    return Sheet("", tuple(sections))


def _family_cells(family: Family) -> tuple[str, ...]:
    figures = (family.mean_abs_error, family.median_abs_error, family.p90_abs_error)
    return (
        family.family,
        str(family.rows),
        str(family.predicted),
        *("" if figure is None else percent(figure) for figure in figures),
        _signed(family.bias),
        _signed(family.worst),
        str(family.mismatched) if family.kind == "schedule" else "",
        family.worst_id if family.worst else "",
    )


def _signed(error: float | None) -> str:
    return "" if error is None else f"{error:+.1%}"


def _headed(head: str, lines: list[str]) -> list[str]:
    return [head, *lines] if lines else []


def _worst(validation: Validation, kind: str) -> list[str]:
    """The rows that are furthest off, and those whose oracle differs."""
    lines = [
        f"  {row.error:+.1%}  {row.id}: measured {row.measured:.6g}, predicted {row.predicted:.6g} {row.unit}"
        for row in validation.worst(kind, WORST)
        if row.error
    ]
    differ = Counter(
        (record.family, ", ".join(record.mismatched))
        for record in validation.records
        if record.kind == kind and record.mismatched
    )
    lines += [
        f"  {count} rows of {name} differ in {what}" for (name, what), count in differ.items()
    ]
    return _headed("furthest off:", lines)


def _covered(validation: Validation, kind: str) -> list[str]:
    """How many measured values lie in the interval of their prediction."""
    held = [
        record.measured in record.interval
        for record in validation.records
        if record.kind == kind and record.interval and record.figure and record.measured
    ]
    share = f"{sum(held)} of {len(held)} measured values ({sum(held) / max(len(held), 1):.0%})"
    return [f"80 % intervals hold {share}"] if held else []


def _reasons(validation: Validation, kind: str) -> list[str]:
    """Why rows were skipped, the commonest reason first."""
    reasons = Counter(
        record.skipped_because
        for record in validation.records
        if record.kind == kind and record.skipped_because
    )
    lines = [f"  {count} x {reason}" for reason, count in reasons.most_common(REASONS)]
    others = sum(reasons.values()) - sum(count for _, count in reasons.most_common(REASONS))
    lines += [f"  {others} x other reasons"] if others else []
    return _headed("skipped:", lines)


def _decisions(validation: Validation) -> list[str]:
    """How good a choice the predictions make among runs of one model on as many accelerators."""
    lines = [
        f"  {decision.family}: {decision.groups} groups of {decision.rows} rows, tau {decision.tau:.2f}, regret {decision.mean_regret:.1%}, "
        f"at most {decision.worst_regret:.1%}, by chance {decision.random_regret:.1%}"
        for decision in validation.decisions
    ]
    return _headed("layout predicted fastest against the fastest measured:", lines)


def comparison_sheet(comparison: Comparison) -> Sheet:
    """One line a measured step, errors by family and action, then the figures in sentences."""
    families = tuple(
        (
            family.family,
            family.kind,
            str(family.predicted),
            *("" if e is None else f"{e:.1%}" for e in (family.mean_abs_error, family.median_abs_error)),
            _signed(family.worst),
            _signed(family.bias),
        )
        for family in comparison.families
    )  # fmt: skip
    steps = tuple(_step_cells(step) for step in comparison.steps)
    title = f"steps on {comparison.machine}: predicted / measured - 1"
    lines = ("", *verdict(comparison))
    return Sheet(
        "",
        (
            Section(steps, STEP_COLUMNS, tuple(range(1, 5)), title),
            Section(families, ACTION_COLUMNS, tuple(range(2, 7)), "by family and action", lines),
        ),
    )


def _step_cells(step: StepComparison) -> tuple[str, ...]:
    measured = format_quantity(step.measured, Dimension.TIME)
    if step.predicted is None or step.error is None:
        return (step.title, measured, "", "", "", "", (step.skipped_because or "").strip())
    order = {True: "same", False: step.first_difference, None: ""}[step.same_order]
    part = step.explained_by
    return (
        step.title,
        measured,
        format_quantity(step.predicted, Dimension.TIME),
        _signed(step.error),
        f"{step.noise:.0%}" + (" noisy" if step.noisy else ""),
        order,
        f"{part} {step.differences[part]:+.1%} of the step" if part else "",
    )


def verdict(comparison: Comparison) -> list[str]:
    """The figures in sentences."""
    return [*_error_lines(comparison), *_noise_lines(comparison)]


def _error_lines(comparison: Comparison) -> Iterator[str]:
    if comparison.median_error is not None:
        yield f"median error of {len(comparison.scored)} steps: {comparison.median_error:.1%}"
    parts = comparison.components
    if parts:
        most = max(parts, key=lambda part: parts[part])
        bias = [step.differences[most] for step in comparison.scored if step.differences]
        way = "too long" if sum(bias) > 0 else "too short"
        yield (
            f"{most} explains most of the difference: {parts[most]:.0%} of it; predicted {way} by "
            f"{abs(sum(bias)) / len(bias):.1%} of a step in the mean"
        )
    memory = [step.memory_error for step in comparison.scored if step.memory_error is not None]
    if memory:
        mean = sum(map(abs, memory)) / len(memory)
        worst = max(memory, key=abs)
        yield f"peak memory of {len(memory)} steps: mean error {mean:.1%}, worst {worst:+.1%}"


def _noise_lines(comparison: Comparison) -> Iterator[str]:
    if not comparison.tells:
        yield (
            f"the machine was too noisy to tell: steps spread by {comparison.noise:.0%}, the same kernel changed by "
            f"{comparison.drift:.0%} while measuring, other processes used {comparison.busy:.0%} of the host"
        )
