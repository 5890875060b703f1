"""Measured inference, predicted: errors by family and quantity, coverage and reasons for skips, as Markdown.

Covers: validation/data/inference-runs.csv, measured points of served models, and two request traces beside it.
Question: how far are TTFT, TPOT and throughput from what people measured, family by family, and what is not predicted and why?

Run from the repository's root: python validation/serving.py (ten minutes). It rewrites validation/serving.md.
python validation/serving.py --sample 8: at most so many rows of each engine, model and chip in each of six sets, printed with the share of the
spread of errors that each column explains alone (a minute).
"""

from __future__ import annotations

import argparse
import math
import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import yaml

from bench import served_points, validate_files
from bench.files import opened, predict_row
from mpsim.calibrate.serving import on_machine
from mpsim.errors import MpsimError
from mpsim.formats.cells import read_rows
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
(`mpsim/serving/catalog/engines.yaml`) the spread of popularity of experts and the rates of 4 bits were set on measured points: the last table leaves each family out.
Latencies are means unless named p99. Written by `python validation/serving.py`.
"""
LEFT_OUT = """Each family's error as predicted (mean of static batches and offline runs, median of loops), and with the constants that were set in its view taken away: refitted on the rows of the other families that exercise them (time a step on TPOT, time to the
first token on TTFT, by factors of 0.5 to 2), or, where no other family does, as literature, kernel tables or a sibling have them (`validation/serving_left_out.yaml`). At most 60 rows of a family, evenly
spread, of static batches and offline runs complete ones; families without constants of their own are not in the table. The bar is 1.5 times: missed by what one family alone has shown, the host of
vLLM of 2023 (splitwise-static) and two workstation boards (llmservingsim-refs, a trace each).
"""
MOST_ROWS = 60  # of a family, and
REFIT_ROWS = 16  # of the others that a refit looks at
FACTORS = (0.5, 0.7, 1.0, 1.4, 2.0)
FIXED = ("static-batch", "offline-max")
SETS: dict[str, tuple[Callable[[dict[str, str]], bool], tuple[str, ...]]] = {
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
    "experts": (lambda r: _loops(r) and bool(r["moe_experts"]), ("tpot", "throughput")),
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
ORDER = ("tpot", "e2e", "throughput", "ttft")


def report(records: Sequence[Record]) -> str:
    """The tables as Markdown."""
    rows = ROWS
    groups: dict[tuple[str, str, str, str], list[Record]] = defaultdict(list)
    for record in records:
        name, quantity = record.id.rsplit("#", 1)
        row = rows[name]
        kind = "MoE" if row["moe_experts"] else "dense"
        complete = "complete" if row["complete"] == "yes" else f"complete: {row['complete']}"
        groups[record.family, kind, complete, quantity].append(record)
    lines = [HEAD, "\n## By family\n", *_table(groups)]
    lines += ["\n## Skipped\n", *_skipped(records)]
    lines += ["\n## Each family left out\n", LEFT_OUT, *_left_out()]
    return "\n".join([*lines, ""])


def _table(groups: dict[tuple[str, str, str, str], list[Record]]) -> Iterable[str]:
    yield "| family | models | rows say | quantity | measured | predicted | mean | median | bias |"
    yield "| --- | --- | --- | --- | ---: | ---: | ---: | ---: | ---: |"
    for key, members in sorted(groups.items()):
        errors = [record.error for record in members if record.error is not None]
        cells = ["", "", ""]
        if errors:
            sizes = [abs(error) for error in errors]
            cells = [f"{statistics.fmean(sizes):.1%}", f"{statistics.median(sizes):.1%}"]
            cells.append(f"{statistics.fmean(errors):+.1%}")
        yield f"| {' | '.join([*key, str(len(members)), str(len(errors)), *cells])} |"


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


def _left_out() -> Iterable[str]:
    """The table of errors with and without the constants of each family."""
    declared = yaml.safe_load(DECLARED.read_text(encoding="utf-8"))["families"]
    points = _points()
    yield "| family | constants | without it | quantity | rows | error | left out | ratio |"
    yield "| --- | --- | --- | --- | ---: | ---: | ---: | ---: |"
    for family, entry in declared.items():
        mine = points[family]
        refitted: dict[str, float] = {}
        for name in entry.get("refit", ()):
            others = [p for other in points if other != family for p in points[other]]
            refitted |= _refit(name, [p for p in others if p.plan.engine.name == name])
        values = {point.id: refitted | _values(entry, point.id) for point in mine}
        before, after = (_errors(mine, given) for given in ({}, values))
        for quantity in before:
            fixed = ROWS[mine[0].id]["regime"] in FIXED
            middle = statistics.fmean if fixed else statistics.median
            error, without = (middle(e[quantity]) for e in (before, after))
            cells = (entry["constants"], entry["without"], quantity, str(len(before[quantity])))
            yield f"| {family} | {' | '.join(cells)} | {error:.1%} | {without:.1%} | {without / error:.2f} |"


def _points() -> dict[str, list[ServedPoint]]:
    """Rows of every family that can be served."""
    found, _ = served_points(FILE) or ([], [])
    points: dict[str, list[ServedPoint]] = defaultdict(list)
    for point in found:
        row = ROWS[point.id]
        fixed = row["regime"] in FIXED
        if not point.plan.problems() and (row["complete"] == "yes" or not fixed):
            points[ROWS[point.id]["family"]].append(point)
    return {family: own[:: -(-len(own) // MOST_ROWS)] for family, own in points.items()}


def _values(entry: dict[str, Any], row: str) -> dict[str, float]:
    """Declared constants that apply to a row."""
    values: dict[str, float] = {}
    for group in entry.get("values", ()):
        where = group.get("where", {})
        if all(re.fullmatch(pattern, ROWS[row][column]) for column, pattern in where.items()):
            values |= {name: value for name, value in group.items() if name != "where"}
    return values


def _refit(name: str, others: Sequence[ServedPoint]) -> dict[str, float]:
    """Times of an engine as the rows of other families have them: the factor with the least median error, one constant after the other."""
    others = others[:: max(1, len(others) // REFIT_ROWS)]
    values: dict[str, float] = {}
    if not others:
        return values
    for field, quantity in (("step_time", "tpot"), ("first_token_time", "ttft")):
        start = float(getattr(others[0].plan.engine, field))
        key = f"serving.engines.{name}.{field}"
        tried = {factor: values | {key: factor * start} for factor in FACTORS}
        medians = {factor: _median(others, given, quantity) for factor, given in tried.items()}
        values = tried[min(medians, key=lambda factor: (medians[factor], abs(factor - 1.0)))]
    return values


def _median(points: Sequence[ServedPoint], values: dict[str, float], quantity: str) -> float:
    errors = _errors(points, {point.id: values for point in points})
    rest = [error for kind in errors.values() for error in kind]
    return statistics.median(errors.get(quantity) or rest)


def _errors(
    points: Sequence[ServedPoint], values: dict[str, dict[str, float]]
) -> dict[str, list[float]]:
    """Sizes of errors by quantity: of a row the first in `ORDER` that was measured, and TTFT."""
    errors: dict[str, list[float]] = defaultdict(list)
    for point in points:
        try:
            figures = measurable(on_machine(point.plan, values.get(point.id, {})))
        except MpsimError:
            continue
        first = next(name for name in ORDER if name in point.measured)
        for name in {first: None, "ttft": None}:
            if name in point.measured:
                errors[name].append(abs(figures[name] / point.measured[name] - 1))
    return errors


def _loops(row: dict[str, str]) -> bool:
    """Whether users of one pool send one request after another."""
    return (
        row["regime"] == "closed-loop" and row["disaggregated"] == "0" and row["complete"] != "no"
    )


def sample(most: int) -> Iterable[str]:
    """Errors of at most so many rows of each engine, model and chip, by set; groups weigh as their rows."""
    kind, rows = opened(FILE)
    by_id = {row.id: row for row in rows}
    yield "| set | quantity | rows | mean | median | bias | explained alone |"
    yield "| --- | --- | ---: | ---: | ---: | ---: | --- |"
    for name, (counts, quantities) in SETS.items():
        groups: dict[tuple[str, ...], list[str]] = defaultdict(list)
        for key, row in ROWS.items():
            if row["trust"] != "low" and counts(row):
                groups[row["engine"], row["model"], row["accelerator"]].append(key)
        errors: dict[str, list[tuple[str, float, float]]] = defaultdict(list)
        for members in groups.values():
            step = max(1.0, len(members) / most)
            chosen = [members[int(at * step)] for at in range(min(most, len(members)))]
            for key in chosen:
                found = {r.id.rsplit("#", 1)[1]: r for r in predict_row(kind, by_id[key])}
                measured = [q for q in quantities if q in found and found[q].error is not None]
                for quantity in measured[:1] if name == "static" else measured:
                    label = "first measured" if name == "static" else quantity
                    error = found[quantity].error or 0.0
                    errors[label].append((key, error, len(members) / len(chosen)))
        for label, each in errors.items():
            yield f"| {name} | {label} | {len(each)} | {_cells(each)} |"


def _cells(errors: Sequence[tuple[str, float, float]]) -> str:
    """Mean, median and bias, and the columns that explain most of the spread of logarithms of errors."""
    whole = sum(weight for _, _, weight in errors)
    mean = sum(abs(error) * weight for _, error, weight in errors) / whole
    bias = sum(error * weight for _, error, weight in errors) / whole
    below, median = 0.0, 0.0
    for size, weight in sorted((abs(error), weight) for _, error, weight in errors):
        below, median = below + weight, size
        if below >= whole / 2.0:
            break
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
    told = ", ".join(f"{column} {shares[column]:.0%}" for column in most)
    return f"{mean:.1%} | {median:.1%} | {bias:+.1%} | {told}"


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--sample", type=int, help="rows of each engine, model and chip")
    most = options.parse_args().sample
    if most:
        print("\n".join(sample(most)))
    else:
        text = report(validate_files([FILE]).records)
        (ROOT / "validation" / "serving.md").write_text(text, encoding="utf-8")
