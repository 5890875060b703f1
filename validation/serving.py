"""Measured inference, predicted: errors by family and quantity, coverage and reasons for skips, as Markdown.

Covers: validation/data/inference-runs.csv, measured points of served models, and two request traces beside it.
Question: how far are TTFT, TPOT and throughput from what people measured, family by family, and what is not predicted and why?

Run from the repository's root: python validation/serving.py (two minutes). It rewrites validation/serving.md.
"""

from __future__ import annotations

import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

from mpsim.importers.cells import read_rows
from mpsim.validate import Record, validate_files

ROOT = Path(__file__).resolve().parent.parent
FILE = ROOT / "validation" / "data" / "inference-runs.csv"
HEAD = """# Measured inference, predicted

Every row of `validation/data/inference-runs.csv`, predicted from its configuration columns alone by serving its requests; error = predicted / measured - 1. How a row
becomes a service, and what is assumed where it says nothing, is in `mpsim/validate/data/inference.yaml`; each assumption is listed with its prediction
(`mpsim validate --json`, key `assumed`). Rates of kernels (`mpsim/serving/data/rates.yaml`) come from kernel tables, host times of engines
(`mpsim/serving/catalog/engines.yaml`) and rates of experts were set on measured points: the last table says on whose rows they bear.
Latencies are means unless named p99. Written by `python validation/serving.py`.
"""
RESTS = """Constants of status "calibrated" that rows of a family exercise, so that its errors are no blind test. No family has been left out of a fit in turn yet.
"""
FITTED = {
    "ft-static": "fastertransformer (time a layer, factor of library all-reduces)",
    "splitwise-static": "vllm-2023-eager (host time a layer, slowdown)",
    "trtllm-0.6-static": "tensorrt-llm-0.6 (time a layer)",
    "trtllm-0.17-max": "tensorrt-llm-0.17 (time a step); all-reduces between PCIe peers",
    "trtllm-1.0-max": "tensorrt-llm-1.x (time a step)",
    "aic-silicon-auto": "vllm-v1, sglang, tensorrt-llm-1.x (time a step, a request, to the first token)",
    "aic-silicon-inferencex": "vllm-v1, sglang, tensorrt-llm-1.x (the same, and a layer of experts); shares of grouped products; Blackwell's share of fp8",
    "llmservingsim-refs": "RTX 4090 and RTX PRO 6000 (shares of the bandwidth, one trace each)",
}


def report(records: Sequence[Record]) -> str:
    """The tables as Markdown."""
    rows = {row["id"]: row for row in read_rows(FILE)}
    groups: dict[tuple[str, str, str, str], list[Record]] = defaultdict(list)
    for record in records:
        name, quantity = record.id.rsplit("#", 1)
        row = rows[name]
        kind = "MoE" if row["moe_experts"] else "dense"
        complete = "complete" if row["complete"] == "yes" else f"complete: {row['complete']}"
        groups[record.family, kind, complete, quantity].append(record)
    lines = [HEAD, "\n## By family\n", *_table(groups)]
    lines += ["\n## Skipped\n", *_skipped(records)]
    lines += [
        "\n## What may rest on which family\n",
        RESTS,
        "| family | constants |",
        "| --- | --- |",
    ]
    lines += [f"| {family} | {what} |" for family, what in FITTED.items()]
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


if __name__ == "__main__":
    text = report(validate_files([FILE]).records)
    (ROOT / "validation" / "serving.md").write_text(text, encoding="utf-8")
