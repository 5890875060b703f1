"""Hours of published trainings against plans of mpsim: ``python validation/plans.py`` writes plans.md.

A row becomes a training run in the layout of published-runs.csv, is predicted by the rules of `mpsim validate` as any stranger's run (no name is
read), and its hours are those of the steps; where the source counts an allocation or days, hours of the steps are divided by the expected
goodput.
"""

from __future__ import annotations

import csv
import math
import statistics
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from mpsim.hardware import lookup
from mpsim.study.reliability import Checkpoint, Reliability, daly_interval, expected_share
from mpsim.validate import validate_files

ROOT = Path(__file__).parent
PLANS, RUNS = ROOT / "data" / "training-plans.csv", ROOT / "data" / "published-runs.csv"
NODE = 8
BYTES_A_PARAMETER = 14  # of a checkpoint: bf16 weights, fp32 master copy, two moments
COMPUTING = ("logged iteration time", "compute hours", "steps x", "tokens/s per GPU")
ASSUMED_COUNT = 256
SPELLINGS = {
    "A100-SXM-80": ("A100-SXM4-80GB", "80"),
    "A100-SXM-40": ("A100-SXM4-40GB", "40"),
    "A100": ("A100-SXM4-80GB", "80"),
    "H100-SXM": ("H100-SXM5-80GB", "80"),
    "H800-SXM": ("H800-SXM5-80GB", "80"),
    "TPUv4": ("TPU v4", "32"),
    "TPUv3": ("TPU v3", "32"),
}
SAME = (
    *(
        "model",
        "layers",
        "hidden",
        "heads",
        "kv_heads",
        "ffn_hidden",
        "gated_mlp",
        "vocab",
        "seq_len",
    ),
    *("tp", "pp", "dp", "ep", "precision", "framework"),
)


def run_of(row: Mapping[str, str], columns: list[str]) -> dict[str, str] | str:
    """A plan as a published run, its mean step time measured; the reason where that is not possible."""
    if not row["accelerator_hours"]:
        return "no hours stated"
    if row["use"].startswith(("lead", "energy")):
        return row["use"]
    if row["accelerator"] not in SPELLINGS:
        return f"no spelling of {row['accelerator']}"
    needed = ("layers", "hidden", "heads", "seq_len", "tokens_b", "global_batch_tokens_m")
    if missing := [name for name in needed if not row[name]]:
        return f"not stated: {', '.join(missing)}"
    accelerator, memory = SPELLINGS[row["accelerator"]]
    count = int(row["accel_count"] or ASSUMED_COUNT)
    sequences = round(float(row["global_batch_tokens_m"]) * 1e6 / float(row["seq_len"]))
    # sources round batches to 4M tokens and the like; the nearest batch that replicas share
    replicas = count // (int(row["tp"] or 1) * int(row["pp"] or 1))
    each = max(1, round(sequences / replicas)) * replicas * float(row["seq_len"])
    steps = math.ceil(float(row["tokens_b"]) * 1e9 / each)
    run = dict.fromkeys(columns, "")
    run |= {name: row[name] for name in SAME}
    run |= {
        "id": row["id"],
        "accelerator": accelerator,
        "accel_mem_gb": memory,
        "num_accel": str(count),
        "accel_per_node": str(NODE),
        "micro_batch_seqs": row["micro_batch"],
        "global_batch_seqs": str(round(each / float(row["seq_len"]))),
        "vp_chunks_per_rank": row["vpp"],
        "measured_date": row["date"],
        "overlap_notes": row["zero_or_fsdp"],
        "zero_stage": _zero(row["zero_or_fsdp"]),
        "iter_time_s": f"{float(row['accelerator_hours']) * 3600 / count / steps:.9g}",
        "iter_time_stat": "mean",
        "complete": "no",
    }
    return run


def _zero(words: str) -> str:
    return next(
        (
            stage
            for word, stage in (("ZeRO-1", "1"), ("ZeRO-3", "3"), ("FSDP", "3"))
            if word in words
        ),
        "",
    )


def goodput_of(row: Mapping[str, str]) -> float:
    """Expected share of an allocation that computes, 1 where the hours are those of the steps."""
    if any(words in row["hours_definition"] for words in COMPUTING):
        return 1.0
    count = int(row["accel_count"] or ASSUMED_COUNT)
    cluster = lookup.system(row["mpsim_system"] or "dgx-a100-80gb", nodes=max(1, count // NODE))
    reliability = Reliability.of(cluster)
    size = float(row["params_total_b"]) * 1e9 * BYTES_A_PARAMETER
    checkpoint = Checkpoint.of(size, count, in_background=False)
    interval = daly_interval(checkpoint.blocking, reliability.mean_time_between)
    return expected_share(reliability, checkpoint, interval)


def predicted() -> Iterator[tuple[dict[str, str], float | None, tuple[float, float] | None, str]]:
    """Every plan with its predicted hours, their interval, and what was assumed or why there are none."""
    plans = list(csv.DictReader(PLANS.open()))
    with RUNS.open() as file:
        columns = next(csv.reader(file))
    runs = {row["id"]: run_of(row, columns) for row in plans}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "plans.csv"
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, columns)
            writer.writeheader()
            writer.writerows(run for run in runs.values() if isinstance(run, dict))
        records = {
            record.id: record
            for record in validate_files([path]).records
            if record.kind == "training"
        }
    for row in plans:
        run = runs[row["id"]]
        if isinstance(run, str):
            yield row, None, None, run
            continue
        record = records[row["id"]]
        if record.predicted is None:
            yield row, None, None, record.skipped_because or ""
            continue
        scale = float(row["accelerator_hours"]) / record.measured / goodput_of(row)
        low, high = (
            (record.interval.low, record.interval.high)
            if record.interval
            else (record.predicted,) * 2
        )
        said = f"assumed {len(record.assumed)}" + (
            "" if row["accel_count"] else f", {ASSUMED_COUNT} accelerators"
        )
        yield row, record.predicted * scale, (low * scale, high * scale), said


HEAD = """# Published trainings, planned

Accelerator-hours of whole trainings (`validation/data/training-plans.csv`), predicted as `mpsim plan` does: steps of a simulated step time, over the expected goodput where the source
counts an allocation or days and not steps. Rows are read as any stranger's run; most state neither microbatch nor recomputation nor layout, and the column "assumed" counts what was put
in their place. The interval is the 80 % interval of the step time. Written by `python validation/plans.py`.

"""


def report() -> str:
    """The page."""
    rows = list(predicted())
    lines = [HEAD]
    scored: dict[str, list[tuple[float, bool]]] = {"layout stated": [], "layout not stated": []}
    table = [
        "| training | layout from | hours | predicted | error | interval holds it | assumed |",
        "| --- | --- | ---: | ---: | ---: | --- | --- |",
    ]
    skipped = []
    for row, hours, interval, said in rows:
        if hours is None or interval is None:
            skipped.append(f"* {row['id']}: {said}")
            continue
        measured = float(row["accelerator_hours"])
        holds = interval[0] <= measured <= interval[1]
        stated = bool(row["tp"] and row["pp"])
        scored["layout stated" if stated else "layout not stated"].append(
            (hours / measured - 1, holds)
        )
        table.append(
            f"| {row['id']} | {row['layout_from'].split(':')[0] or 'not stated'} | {measured:,.0f} | {hours:,.0f} | {hours / measured - 1:+.0%} | "
            f"{'yes' if holds else 'no'} | {said} |"
        )
    lines += [
        "| | rows | mean error | median | interval holds |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for name, errors in scored.items():
        sizes = [abs(error) for error, _ in errors]
        lines.append(
            f"| {name} | {len(errors)} | {statistics.fmean(sizes):.0%} | {statistics.median(sizes):.0%} | "
            f"{sum(holds for _, holds in errors)} of {len(errors)} |"
        )
    lines += ["", *table, "", f"{len(skipped)} rows are not predicted:", "", *skipped, ""]
    return "\n".join(lines)


if __name__ == "__main__":
    (ROOT / "plans.md").write_text(report(), encoding="utf-8")
