"""Hours of published trainings against plans of mpsim: ``python validation/plans.py [FILE]`` writes plans.md, or prints the page of another table.

Rows are read and predicted as `validation/published.py` does, as any stranger's (no name is read). Those that their source marks as leads or as of energy alone are predicted, not
scored.
"""

from __future__ import annotations

import csv
import dataclasses
import datetime as dt
import math
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from bench import validate_files
from bench.plans import hours_of
from mpsim import memo
from mpsim.formats.tables import Cells
from mpsim.study.plan import known_trainings
from mpsim.validate.records import Record

ROOT = Path(__file__).parent
PLANS = ROOT / "data" / "training-plans.csv"
SHIPPED = ROOT.parent / "mpsim" / "study" / "data" / "trainings.yaml"
NOT_SCORED = ("lead", "energy")
BOUND = "upper bound"
HEAD = """# Published trainings, planned

Accelerator-hours of whole trainings (`validation/data/training-plans.csv`), predicted as `mpsim plan` does: steps of a simulated step time, over the expected goodput where the source
counts an allocation or days and not steps. Rows are read as any stranger's; most state neither microbatch nor recomputation nor layout, and the column "guessed" counts which of the settings
that matter nobody states. The interval is the one of the plan: that of the step time, wider by every guess and for software that nothing is known of, joined with that of goodput, and as much
farther off as the trainings of all other developers were (`mpsim/study/data/trainings.yaml`). Nothing else was fitted on these rows, so every interval is one of a developer left out; the rules that read them (software, version, date, words) were written with the rows in view. Written by
`python validation/plans.py`, which takes another table of the same columns as its argument.

"""


@dataclasses.dataclass(frozen=True, slots=True)
class Planned:
    """A row with its prediction."""

    row: Mapping[str, str]
    record: Record

    @property
    def error(self) -> float:
        return self.record.error or 0.0

    @property
    def held(self) -> bool:
        interval = self.record.interval
        return interval is not None and (self.record.measured or 0.0) in interval

    @property
    def stated(self) -> bool:
        return bool(self.row["tp"] and self.row["pp"])

    @property
    def scored(self) -> bool:
        return not self.row["use"].startswith(NOT_SCORED)


def planned(path: Path) -> tuple[list[Planned], list[Record]]:
    """Rows with hours and a prediction, and records without."""
    with path.open(encoding="utf-8") as file:
        rows = {row["id"]: row for row in csv.DictReader(file)}
    records = validate_files([path]).records
    whole = [Planned(rows[record.id], record) for record in records if record.error is not None]
    return whole, [record for record in records if record.error is None]


def summary(plans: Sequence[Planned]) -> Iterator[str]:
    """Lines of the table of errors."""
    scored = [plan for plan in plans if plan.scored]
    groups = {
        "layout stated": [plan for plan in scored if plan.stated],
        "layout stated, bounds left out": [
            plan for plan in scored if plan.stated and plan.row["hours_kind"] != BOUND
        ],
        "layout not stated": [plan for plan in scored if not plan.stated],
        "all": scored,
    }
    yield "| | rows | mean error | median | bias | interval holds |"
    yield "| --- | ---: | ---: | ---: | ---: | ---: |"
    for name, group in groups.items():
        if not group:
            continue
        errors = [plan.error for plan in group]
        sizes = [abs(error) for error in errors]
        yield (
            f"| {name} | {len(group)} | {statistics.fmean(sizes):.0%} | {statistics.median(sizes):.0%} | {statistics.fmean(errors):+.0%} | "
            f"{sum(plan.held for plan in group)} of {len(group)} |"
        )


def table(plans: Sequence[Planned]) -> Iterator[str]:
    """Lines of the table of rows."""
    yield "| training | layout from | hours | predicted | error | interval | holds it | guessed |"
    yield "| --- | --- | ---: | ---: | ---: | --- | --- | ---: |"
    for plan in plans:
        record, row = plan.record, plan.row
        interval, setting = record.interval, record.setting
        assert interval is not None, "a predicted row has one"
        assert setting is not None, "a predicted row has one"
        yield (
            f"| {record.id} | {row['layout_from'].split(':')[0] or 'not stated'} | {record.measured:,.0f} | {record.predicted:,.0f} | {plan.error:+.0%} | "
            f"{interval.low:,.0f} to {interval.high:,.0f} | {'yes' if plan.held else 'no'} | {setting.guessed} |"
        )


def report(found: tuple[list[Planned], list[Record]]) -> str:
    """The page."""
    plans, rest = found
    leads = [plan for plan in plans if not plan.scored]
    lines = [HEAD, *summary(plans), "", *table([plan for plan in plans if plan.scored])]
    if leads:
        lines += [
            "",
            f"{len(leads)} leads, whose hours or models are in doubt, are not scored:",
            "",
        ]
        lines += table(leads)
    lines += ["", f"{len(rest)} rows are not compared:", ""]
    lines += [f"* {record.id}: {record.skipped_because or 'no hours stated'}" for record in rest]
    return "\n".join([*lines, ""])


def shipped(plans: Sequence[Planned]) -> str:
    """The file of mpsim that holds what the scored rows show: measured over planned hours, and what they contain."""
    lines = [
        "# Measured over planned accelerator-hours of published trainings; sources in validation/data/training-plans.csv.",
        f"# Written by `python validation/plans.py` on {dt.date.today().isoformat()}; they make the interval of `mpsim plan`.",  # noqa: DTZ011
        "trainings:",
    ]
    for plan in plans:
        ratio = (plan.record.measured or 0.0) / (plan.record.predicted or 1.0)
        name, developer, hours = plan.record.id, plan.row["developer"], hours_of(Cells(plan.row))
        others, ends = known_trainings(hours, without=developer), plan.record.interval
        assert ends is not None, "a scored row has one"
        half = math.log(ends.high / ends.low) / (others.high - others.low)
        lines.append(
            f"  - {{training: {name}, developer: {developer}, hours: {hours}, measured_over_planned: {ratio:.3f}, half: {half:.4f}}}"
        )
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    if sys.argv[1:]:
        sys.stdout.write(report(planned(Path(sys.argv[1]))))
    else:
        found = planned(PLANS)
        SHIPPED.write_text(shipped([plan for plan in found[0] if plan.scored]), encoding="utf-8")
        memo.forget()
        (ROOT / "plans.md").write_text(report(planned(PLANS)), encoding="utf-8")
