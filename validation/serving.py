"""Measured inference, predicted: errors by family and quantity, coverage and reasons for skips, as Markdown.

Covers: validation/data/inference-runs.csv, measured points of served models, and two request traces beside it.
Question: how far are TTFT, TPOT and throughput from what people measured, family by family, and what is not predicted and why?

Run from the repository's root: python validation/serving.py (a quarter of an hour). It rewrites validation/serving.md.
python validation/serving.py --sample 8: at most so many rows of each engine, model and chip in each of six sets, printed with the share of the
spread of errors that each column explains alone (a minute). python validation/serving.py --left-out engine (or family, model, accelerator): the same rows, each
predicted with the constants that rows of its own engine shaped refitted without them, or taken back (five minutes).
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import math
import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from bench import validate_files
from bench.files import opened
from bench.inference import served_point
from mpsim.calibrate.serving import on_machine
from mpsim.errors import MpsimError
from mpsim.formats.tables import read_rows
from mpsim.serving.result import ServedPoint, measurable
from mpsim.validate import Record

ROOT = Path(__file__).resolve().parent.parent
DECLARED = ROOT / "validation" / "serving_left_out.yaml"
FILE = ROOT / "validation" / "data" / "inference-runs.csv"
ROWS = {row["id"]: row for row in read_rows(FILE)}
HEAD = """# Measured inference, predicted

Every row of `validation/data/inference-runs.csv`, predicted from its configuration columns alone by serving its requests; error = predicted / measured - 1. How a row
becomes a service, and what is assumed where it says nothing, is in `validation/bench/data/inference.yaml`; each assumption is listed with its prediction
(`python validation/published.py --json`, key `assumed`). Products are priced as in training, other rates (`mpsim/serving/data/rates.yaml`) come from kernel tables; host times of engines
(`mpsim/serving/catalog/engines.yaml`) and the spread of popularity of experts were set on measured points: the last tables leave each family, engine, model and chip out.
Latencies are means unless named p99. Written by `python validation/serving.py`.
"""
LEFT_OUT = """Errors of a sample of rows (of static batches and offline runs complete ones), as predicted and with every constant that rows of one family, engine, model or chip shaped refitted on the others by factors of 0.5 to 2, or,
where no other shaped it, as literature, kernel tables or a sibling have it (`validation/serving_left_out.yaml`): each left out in turn, then all together. The bar is 1.5 times.
"""
PAGE_ROWS = 6  # of each engine, model and chip in the tables of the page
REFIT_ROWS = 16  # that a refit looks at
FACTORS = (0.5, 0.7, 1.0, 1.4, 2.0)
COLUMNS = ("family", "engine", "model", "accelerator")
Row = dict[str, str]
SETS: dict[str, tuple[Callable[[Row], bool], tuple[str, ...]]] = {
    "static": (
        lambda r: r["regime"] == "static-batch" and r["complete"] == "yes",
        ("tpot", "e2e", "throughput", "ttft"),
    ),
    "offline, dense": (
        lambda r: r["regime"] == "offline-max" and r["complete"] == "yes" and not r["moe_experts"],
        ("throughput",),
    ),
    "closed loop, dense": (
        lambda r: _loops(r) and not r["moe_experts"],
        ("tpot", "ttft", "throughput"),
    ),
    "open loop": (lambda r: r["regime"] == "open-loop" and r["complete"] != "no", ("tpot", "ttft")),
    "experts": (
        lambda r: _loops(r) and bool(r["moe_experts"]),
        ("tpot", "ttft", "throughput"),
    ),
    "pools": (lambda r: r["disaggregated"] == "1" and r["complete"] == "partial", ("tpot",)),
}
"""Rows that count, and quantities: of static batches the first one that was measured, else each by itself."""
CAUSES = (
    "engine",
    "model",
    "accelerator",
    "tp",
    "ep",
    "weight_dtype",
    "concurrency",
    "input_tokens",
    "output_tokens",
)


@dataclasses.dataclass(frozen=True, slots=True)
class Sampled:
    """A row of a set that stands for so many of its engine, model and chip."""

    group: str
    point: ServedPoint
    weight: float

    @property
    def row(self) -> Row:
        """Its columns as the file has them, engines without their versions and ways to run."""
        row = ROWS[self.point.id]
        return {**row, "engine": row["engine"].split(maxsplit=1)[0]}


Errors = dict[tuple[str, str], list[tuple[str, float, float]]]
"""Row, signed error and weight, by set and quantity."""
Values = Mapping[str, float]
"""Constants by the name that `mpsim calibrate` writes."""


def report(records: Sequence[Record]) -> str:
    """The tables as Markdown."""
    groups: dict[tuple[str, str, str, str], list[Record]] = defaultdict(list)
    for record in records:
        name, quantity = record.id.rsplit("#", 1)
        row = ROWS[name]
        kind = "MoE" if row["moe_experts"] else "dense"
        complete = "complete" if row["complete"] == "yes" else f"complete: {row['complete']}"
        groups[record.family, kind, complete, quantity].append(record)
    lines = [HEAD, "\n## By family\n", *_table(groups)]
    lines += ["\n## Skipped\n", *_skipped(records)]
    lines += ["\n## Each left out\n", LEFT_OUT]
    points = sampled(PAGE_ROWS)
    for column in COLUMNS:
        lines += [*left_out(points, column), ""]
    return "\n".join([*lines, ""])


def _table(groups: dict[tuple[str, str, str, str], list[Record]]) -> Iterable[str]:
    yield "| family | models | rows say | quantity | measured | predicted | mean | median | bias |"
    yield "| --- | --- | --- | --- | ---: | ---: | ---: | ---: | ---: |"
    for key, members in sorted(groups.items()):
        errors = [(r.id, r.error, 1.0) for r in members if r.error is not None]
        cells = _middles(errors) if errors else " | | "
        yield f"| {' | '.join([*key, str(len(members)), str(len(errors))])} | {cells} |"


def _skipped(records: Sequence[Record]) -> Iterable[str]:
    """Reasons with their numbers blanked, so that alike ones count together."""
    reasons = Counter(
        re.sub(r"\d[\d.,]*", "N", record.skipped_because)
        for record in records
        if record.skipped_because
    )
    done = sum(record.predicted is not None for record in records)
    yield f"{done:,} of {len(records):,} quantities are predicted.\n"
    for reason, count in reasons.most_common():
        yield f"- {count} x {reason}"


def sampled(most: int) -> list[Sampled]:
    """Rows that can be served: at most so many of each engine, model and chip in each set."""
    _, rows = opened(FILE)
    by_id = {row.id: row for row in rows}
    found: list[Sampled] = []
    for name, (counts, _) in SETS.items():
        groups: dict[tuple[str, ...], list[str]] = defaultdict(list)
        for key, row in ROWS.items():
            if row["trust"] != "low" and counts(row):
                groups[row["engine"], row["model"], row["accelerator"]].append(key)
        for members in groups.values():
            step = max(1.0, len(members) / most)
            # the middle of each part: sweeps begin anew with the fewest users, every so many rows
            chosen = [members[int((at + 0.5) * step)] for at in range(min(most, len(members)))]
            for key in chosen:
                with contextlib.suppress(MpsimError, ArithmeticError, ValueError):
                    point = served_point(by_id[key])
                    if point is not None and not any(point.plan.problems()):
                        found.append(Sampled(name, point, len(members) / len(chosen)))
    return found


def left_out(points: Sequence[Sampled], column: str) -> Iterable[str]:
    """Errors as predicted, and without what rows of the same `column` shaped: of each of its values, and of all."""
    values: dict[str, Values] = {}
    for name in sorted({point.row[column] for point in points}):
        without = _without(points, column, name)
        values |= {p.point.id: without(p) for p in points if p.row[column] == name}
    of = {point.point.id: point.row[column] for point in points}
    before = errors_of(points, {})
    after = errors_of([p for p in points if values[p.point.id]], values)
    yield f"| {column} | set | quantity | rows | mean | median | bias | left out: mean | median | bias |"
    yield "| --- | --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"
    for key, errors in before.items():
        moved = {each[0]: each for each in after.get(key, ())}
        pairs = [(each, moved.get(each[0], each)) for each in errors]
        for name in [*sorted({of[row] for row in moved}), ""]:
            own = [pair for pair in pairs if name in ("", of[pair[0][0]])]
            cells = [_middles([pair[at] for pair in own]) for at in (0, 1)]
            yield f"| {name or 'all'} | {' | '.join(key)} | {len(own)} | {' | '.join(cells)} |"


def _without(points: Sequence[Sampled], column: str, value: str) -> Callable[[Sampled], Values]:
    """The constants of a row had no row with a value in a column been there."""
    declared = yaml.safe_load(DECLARED.read_text(encoding="utf-8"))
    back: list[dict[str, Any]] = []  # what nothing else shaped
    for entry in declared["constants"]:
        shaping = [row for row in ROWS.values() if _fits(entry["shaped_by"], row)]
        if all(row[column].startswith(value) for row in shaping):
            back.append(entry)
    refit, refitted = declared["refit"], dict[str, float]()
    each: list[tuple[Mapping[str, str], Values]] = []  # of which rows, what
    looked = [point for point in points if _fits(refit["shaped_by"], point.row)]
    left = [point for point in looked if point.row[column] != value]
    if left and len(left) < len(looked):
        for entry in refit["constants"]:
            each.append((entry.get("where", {}), _refit(entry, left, refitted)))
            refitted |= each[-1][1]

    def values(point: Sampled) -> Values:
        own = [entry for entry in back if _fits(entry.get("where", {}), point.row)]
        taken = {name: number for entry in own for name, number in entry["without"].items()}
        fitting = [found for where, found in each if _fits({**refit["where"], **where}, point.row)]
        return {name: number for found in (*fitting, taken) for name, number in found.items()}

    return values


def _fits(patterns: Mapping[str, str], row: Row) -> bool:
    """Whether a row's columns are as patterns say."""
    return all(re.fullmatch(pattern, row[column]) for column, pattern in patterns.items())


def _refit(entry: dict[str, Any], points: Sequence[Sampled], given: Values) -> dict[str, float]:
    """Constants that are scaled together, by the factor with the least median error."""
    points = [p for p in points if _fits(entry.get("where", {}), p.row)]
    points = points[:: max(1, len(points) // REFIT_ROWS)]
    tried: dict[float, dict[str, float]] = {}
    medians: dict[float, float] = {}
    for factor in FACTORS:
        tried[factor] = {name: factor * value for name, value in entry["from"].items()}
        values = {p.point.id: {**given, **tried[factor]} for p in points}
        found = errors_of(points, values).items()
        sizes = [abs(e[1]) for (_, name), each in found if name == entry["by"] for e in each]
        medians[factor] = statistics.median(sizes) if sizes else 0.0
    return tried[min(medians, key=lambda factor: (medians[factor], abs(factor - 1.0)))]


def errors_of(points: Sequence[Sampled], values: Mapping[str, Values]) -> Errors:
    """Errors with some constants of each row replaced."""
    errors: Errors = defaultdict(list)
    for each in points:
        point, quantities = each.point, SETS[each.group][1]
        try:
            figures = measurable(on_machine(point.plan, values.get(point.id, {})))
        except MpsimError:
            continue
        measured = [name for name in quantities if name in point.measured]
        static = each.group == "static"
        for name in measured[:1] if static else measured:
            error = figures[name] / point.measured[name] - 1.0
            label = "first measured" if static else name
            errors[each.group, label].append((point.id, error, each.weight))
    return errors


def _loops(row: Row) -> bool:
    """Whether users of one pool send one request after another."""
    return (
        row["regime"] == "closed-loop" and row["disaggregated"] == "0" and row["complete"] != "no"
    )


def sample(points: Sequence[Sampled]) -> Iterable[str]:
    """Errors by set; groups weigh as their rows."""
    yield "| set | quantity | rows | mean | median | bias | explained alone |"
    yield "| --- | --- | ---: | ---: | ---: | ---: | --- |"
    for key, each in errors_of(points, {}).items():
        yield f"| {' | '.join(key)} | {len(each)} | {_middles(each)} | {_causes(each)} |"


def _middles(errors: Sequence[tuple[str, float, float]]) -> str:
    """Weighted mean, median and bias."""
    whole = sum(weight for _, _, weight in errors)
    mean = sum(abs(error) * weight for _, error, weight in errors) / whole
    bias = sum(error * weight for _, error, weight in errors) / whole
    below, median = 0.0, 0.0
    for size, weight in sorted((abs(error), weight) for _, error, weight in errors):
        below, median = below + weight, size
        if below >= whole / 2.0:
            break
    return f"{mean:.1%} | {median:.1%} | {bias:+.1%}"


def _causes(errors: Sequence[tuple[str, float, float]]) -> str:
    """The columns that explain most of the spread of logarithms of errors."""
    logs = {key: math.log1p(error) for key, error, _ in errors}
    spread = statistics.pvariance(logs.values())
    shares: dict[str, float] = {}
    for column in CAUSES:
        parts: dict[str, list[float]] = defaultdict(list)
        for key, value in logs.items():
            parts[ROWS[key][column]].append(value)
        inside = sum(len(part) * statistics.pvariance(part) for part in parts.values())
        shares[column] = 1.0 - inside / (len(logs) * spread) if spread else 0.0
    most = sorted(shares, key=lambda column: -shares[column])[:4]
    return ", ".join(f"{column} {shares[column]:.0%}" for column in most)


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--sample", type=int, help="rows of each engine, model and chip")
    options.add_argument("--left-out", choices=COLUMNS, help="without each of these in turn")
    chosen = options.parse_args()
    if chosen.left_out:
        print(LEFT_OUT, *left_out(sampled(chosen.sample or PAGE_ROWS), chosen.left_out), sep="\n")
    elif chosen.sample:
        print("\n".join(sample(sampled(chosen.sample))))
    else:
        text = report(validate_files([FILE]).records)
        (ROOT / "validation" / "serving.md").write_text(text, encoding="utf-8")
