"""Published peak memory of training runs: every row of full training, predicted, and every miss; runs that ran, held against their capacity.

Covers: memory-runs.csv and published-runs.csv of validation/data (each row with its source), predicted from configuration columns.
Question: how far is the predicted peak from what an allocator reported, and which runs that ran are predicted not to fit?

Run from the repository's root: python validation/memory.py. It rewrites validation/memory.md.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import math
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path

from bench import files, validate_files
from bench.peaks import MEASURED, scenario_of
from bench.runs import read_run, simulated
from bench.torch_steps import cases, parts_of
from decisions import SWEEPS, Tried, sweeps
from mpsim.errors import MpsimError
from mpsim.formats.tables import Cells
from mpsim.scenario import Scenario
from mpsim.simulate import simulate_step
from mpsim.validate import Record

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / "validation" / "data" / "memory-runs.csv"
RAN = ROOT / "validation" / "data" / "published-runs.csv"
TORCH = ROOT / "validation" / "data" / "torch-memory.csv"
PAGE = ROOT / "validation" / "memory.md"
FAR, GIBI = 0.15, 2.0**30
CLOSE = 0.02
POINTS = 50  # of an integral over what a microbatch may take
ODDS = (0.0, 0.05, 0.2, 0.5, 0.8, 0.95)
SAME = ("model", "num_accel", "tp", "pp", "recompute", "sequence_parallel", "seq_len")
TOO_FAR = 1.1  # of the capacity: no run that ran should be predicted above

Pair = tuple[Record, dict[str, str]]


def read() -> list[Pair]:
    """Every record with its row."""
    with DATA.open(newline="", encoding="utf-8") as file:
        rows = {row["id"]: row for row in csv.DictReader(file)}
    return [(record, rows[record.id]) for record in validate_files([DATA]).records]


def line(record: Record, row: dict[str, str]) -> str:
    """A row of the table."""
    measured = f"{record.measured / GIBI:.1f}" if record.measured else row["outcome"]
    predicted = f"{record.predicted / GIBI:.1f}" if record.predicted else "-"
    error = record.error
    shown = "" if error is None else f"{100 * error:+.1f} %"
    bold = f"**{shown}**" if error is not None and abs(error) > FAR else shown
    return f"| {record.id} | {row['memory_statistic'].split(' (')[0]} | {row['outcome']} | {measured} | {predicted} | {bold} |"


def table(pairs: Iterable[Pair]) -> list[str]:
    """Rows with their measured and predicted peaks."""
    head = "| row | statistic | outcome | measured [GiB] | predicted [GiB] | error |"
    return [head, "| --- | --- | --- | ---: | ---: | ---: |", *(line(*pair) for pair in pairs)]


def summary(title: str, pairs: Sequence[Pair]) -> str:
    """Mean, worst and bias of some rows."""
    errors = [record.error for record, _ in pairs if record.error is not None]
    if not errors:
        return f"| {title} | {len(pairs)} | 0 | | | | | |"
    sizes = [abs(error) for error in errors]
    return (
        f"| {title} | {len(pairs)} | {len(errors)} | {100 * statistics.fmean(sizes):.1f} % | {100 * statistics.median(sizes):.1f} % | "
        f"{100 * statistics.fmean(errors):+.1f} % | {100 * max(sizes):.1f} % | {sum(size > FAR for size in sizes)} |"
    )


def timed(row: dict[str, str]) -> tuple[float, float] | None:
    """Measured and predicted time of a step [s]; None where none was measured, or how long its sequences were is not known."""
    tokens, step = row["tokens_per_s_per_accel"], row["step_time_ms"]
    if not (tokens or step) or "maximum" in row["seq_len_kind"]:
        return None
    cells = Cells({name: value for name, value in row.items() if name not in MEASURED})
    try:
        scenario = Scenario.from_mapping(scenario_of(cells)[0])
        predicted = simulate_step(scenario).timeline.step_time_s
    except MpsimError:
        return None
    batch = scenario.training_step.global_batch * scenario.training_step.sequence_length
    seconds = float(step) / 1e3 if step else batch / (float(tokens) * int(row["num_accel"]))
    return seconds, predicted


def adapter_section(pairs: Sequence[Pair]) -> list[str]:
    """Fine-tuning with adapters, and time of steps of fine-tuning where it was printed."""
    adapted = [pair for pair in pairs if pair[1]["method"] in ("lora", "qlora", "lora-rslora")]
    by_method = {
        name: [pair for pair in adapted if pair[1]["method"].startswith(name)]
        for name in ("lora", "qlora")
    }
    rows = [
        (row, *times)
        for _, row in pairs
        if row["family"] == "torchtune" and row["complete"] == "yes" and (times := timed(row))
    ]
    return [
        "## Adapters (LoRA, QLoRA)",
        "",
        "| rows with adapters | rows | scored | mean | median | bias | worst | beyond 15 % |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
        *(
            summary(f"{name}, complete", [pair for pair in chosen if pair[1]["complete"] == "yes"])
            for name, chosen in by_method.items()
        ),
        *(summary(f"{name}, all", chosen) for name, chosen in by_method.items()),
        "",
        *table([pair for pair in adapted if pair[0].error is not None]),
        "",
        (
            "litgpt's Gemma 2 caps its scores in kernels of torch, of which the softmax is counted and the cap's own output is not; Hugging Face's rows are reserved peaks of batches padded to their longest. Of the "
            "RTX 4090 rows LoRA comes out too slow, its products being set by one search of shapes: what was measured is 84 % of the datasheet's rate over the whole step."
        ),
        "",
        "| step of torchtune | measured [s] | predicted [s] | error |",
        "| --- | ---: | ---: | ---: |",
        *(
            f"| {row['id']} | {measured:.3f} | {predicted:.3f} | {100 * (predicted / measured - 1):+.1f} % |"
            for row, measured, predicted in rows
        ),
        "",
    ]


def witnesses() -> list[tuple[float, str]]:
    """Share of its accelerator's memory that each published run is predicted to take, all of which ran; fullest first."""
    filled = []
    for row in files.opened(RAN)[1]:
        try:
            rule, run = read_run(row.configuration)
            told = simulated(run.scenario, layer=rule.get("measures") == "layer", seen="memory")
        except MpsimError:
            continue  # refused: its time is not predicted either
        filled.append((told.filled, row.id))
    return sorted(filled, reverse=True)


def witness_section(filled: Sequence[tuple[float, str]]) -> list[str]:
    """Runs that ran and are predicted not to fit."""
    over = [(share, name) for share, name in filled if share > TOO_FAR]
    worst = [f"| {name} | {share:.2f} |" for share, name in over]
    return [
        "## Runs that ran",
        "",
        (
            f"Of {len(filled)} published runs, which all ran, {sum(share > 1 for share, _ in filled)} are predicted above the capacity of their accelerator, {len(over)} above "
            f"{TOO_FAR:g} times it and {sum(share > 1.3 for share, _ in filled)} above 1.3 times:"
        ),
        "",
        "| run | what it is predicted to need over capacity |",
        "| --- | ---: |",
        *worst,
        "",
        (
            "Not understood: rows of Megatron-Bridge that have other micro batches and stages than its recipes of that release (GPT-OSS on H100 at v0.2.0, Llama 3 70B on GB300 at v0.3.1: one sequence a microbatch), under which they fit; "
            "fine-tuning of Llama 2 70B on 16 H100, whose own script keeps parameters in 8 bits (fp8_params), and so whole masters: as many bytes as remainders beside 16-bit ones."
        ),
        "",
    ]


def torch_section() -> list[str]:
    """Peaks of torch's own code on tensors without data, by what the steps have in common."""
    with TORCH.open(newline="", encoding="utf-8") as file:
        measured = {row["id"]: row for row in csv.DictReader(file)}
    errors: dict[str, list[float]] = {}
    lost: dict[str, list[float]] = {}
    version = next(iter(measured.values()))["torch"]
    for case in cases():
        if (row := measured.get(case.name)) is None:
            continue
        allocated = int(row["allocated_bytes"])
        error = abs(sum(parts_of(case).values()) / allocated - 1.0)
        layout = "one device" if case.fsdp == 1 else f"fsdp {case.fsdp}, tp {case.tp}"
        names = (
            "all",
            case.model,
            layout,
            f"recompute {case.recompute}",
            f"optimizer {case.optimizer}",
        )
        for name in names:
            errors.setdefault(name, []).append(error)
        if row["reserved_bytes"]:
            kind = f"{'one device' if case.fsdp == 1 else 'sharded'}, recompute {case.recompute}"
            lost.setdefault(kind, []).append(int(row["reserved_bytes"]) / allocated)
    return [
        "## Against torch itself",
        "",
        (
            f"`python validation/memory_torch.py` runs {len(errors['all'])} steps of torch {version}'s own `fully_shard`, DTensor, checkpoints and optimizers on tensors without data and ranks "
            "that exist by name, and counts every storage ([torch-memory.csv](data/torch-memory.csv)). What mpsim says of the same steps, from a preset and the few fields in which this "
            "model differs (`validation/bench/torch_steps.py`), nothing fitted:"
        ),
        "",
        "| steps | number | mean | worst | within 2 % |",
        "| --- | ---: | ---: | ---: | ---: |",
        *(
            f"| {name} | {len(sizes)} | {100 * statistics.fmean(sizes):.2f} % | {100 * max(sizes):.2f} % | {sum(size <= CLOSE for size in sizes)} |"
            for name, sizes in sorted(errors.items(), key=lambda item: -len(item[1]))
        ),
        "",
        (
            "The same allocations, played through mpsim's copy of torch's caching allocator on one stream, reserve more than is allocated; few layers with large logits are the worst case. "
            "Reserved over allocated:"
        ),
        "",
        "| steps | number | tenth | median | ninth tenth |",
        "| --- | ---: | ---: | ---: | ---: |",
        *(
            f"| {kind} | {len(ratios)} | {tenths[0]:.2f} | {statistics.median(ratios):.2f} | {tenths[-1]:.2f} |"
            for kind, ratios in sorted(lost.items())
            for tenths in [statistics.quantiles(ratios, n=10)]
        ),
        "",
    ]


def edges(tried: Sequence[Tried]) -> list[tuple[Tried, Tried]]:
    """Pairs of layouts that differ in the micro batch alone, of which m sequences ran and 2 m ran out of memory."""
    with SWEEPS.open(newline="", encoding="utf-8") as file:
        rows = {row["id"]: row for row in csv.DictReader(file)}
    alike: dict[tuple[str, ...], list[tuple[int, Tried]]] = {}
    for each in tried:
        row = rows[each.id]
        key = each.kernels, *(row[name] for name in SAME)
        alike.setdefault(key, []).append((int(row["micro_batch_seqs"]), each))
    return [
        (less, more)
        for group in alike.values()
        for (m, less), (n, more) in itertools.product(group, group)
        if n == 2 * m and less.measured and not more.measured
    ]


def tellable(pairs: Sequence[tuple[Tried, Tried]], error: float) -> float:
    """Share of edges of which peaks so far off on average, normally and alike for m and 2 m, would tell both right.

    What a microbatch takes is anything that lets m sequences run and 2 m not, beside what is predicted to stand all the time.
    """
    spread = statistics.NormalDist(sigma=error * math.sqrt(math.pi / 2))
    shares = []
    for less, more in pairs:
        standing = max(2 * less.filled - more.filled, 0.0)
        for place in range(POINTS):
            sequence = (1 - standing) * (0.5 + 0.5 * (place + 0.5) / POINTS)
            room, over = (1 / (standing + m * sequence) - 1 for m in (1, 2))
            shares.append(spread.cdf(room) - spread.cdf(over))
    return statistics.fmean(shares)


def odds_section(tried: Sequence[Tried]) -> list[str]:
    """Odds of fitting that were said, and the share that ran."""
    edges = (*ODDS, 1.01)
    bands = [
        (low, high, [t for t in tried if low <= t.odds < high])
        for low, high in itertools.pairwise(edges)
    ]
    return [
        "## Odds",
        "",
        (
            f"`fits_probability` of {len(tried)} layouts of whole sweeps that somebody launched (`data/layout-sweeps.csv`; none of them has a peak, so that none is among the residuals "
            "that the odds are made of), and the share of them that ran:"
        ),
        "",
        "| odds said | layouts | mean of the odds | ran |",
        "| --- | ---: | ---: | ---: |",
        *(
            f"| {100 * low:.0f} to {min(100 * high, 100):.0f} % | {len(band)} | {100 * statistics.fmean(t.odds for t in band):.0f} % | {100 * statistics.fmean(bool(t.measured) for t in band):.0f} % |"
            for low, high, band in bands
            if band
        ),
        "",
        *verdicts(tried),
    ]


def verdicts(tried: Sequence[Tried]) -> list[str]:
    """How often the likelier of both answers was right, of all layouts and at the edge; no peak of these models is among the residuals."""
    ran, ended = ([each for each in tried if bool(each.measured) == kind] for kind in (True, False))
    close = edges(tried)
    less, more = (
        statistics.fmean(right)
        for right in ([pair[0].fits for pair in close], [not pair[1].fits for pair in close])
    )
    both = statistics.fmean(pair[0].fits and not pair[1].fits for pair in close)
    return [
        (
            f"By the likelier answer {100 * statistics.fmean(each.fits for each in ran):.0f} % of the {len(ran)} layouts that ran and "
            f"{100 * statistics.fmean(not each.fits for each in ended):.0f} % of the {len(ended)} that ran out of memory were told right (asked: 95 %). Of {len(close)} edges, where m sequences "
            f"ran and 2 m did not, m was told right in {100 * less:.0f} %, 2 m in {100 * more:.0f} %, both in {100 * both:.0f} % (asked: 85 %); peaks off by 4 % on average would tell both "
            f"in {100 * tellable(close, 0.04):.0f} %, off by 8 % in {100 * tellable(close, 0.08):.0f} %. Not understood: eager attention under full recomputation ran out at 8 sequences a "
            "microbatch under every layout, which is nothing that doubles with the sequences: 4 of them ran under tp 1 and pp 1, and twice as much fits beside the 17 GB of tp 2 and pp 2; "
            "65 B ran 4 sequences under tp 8 without sequence parallelism, in 4 and 8 % more than there is and in the time that sequence parallelism takes. Played through torch's allocator, "
            "steps of this stack lose 1 to 8 % between tensors of layers, and 8 to 15 GiB beside a loss of 8 sequences, as much with one kernel for attention as without, of which one ran."
        ),
        "",
    ]


def page(pairs: Sequence[Pair], filled: Sequence[tuple[float, str]]) -> str:
    """The whole page."""
    trains = [pair for pair in pairs if pair[1]["method"].startswith("full")]
    complete = [pair for pair in trains if pair[1]["complete"] == "yes"]
    rest = [pair for pair in trains if pair[1]["complete"] != "yes"]
    families = list(dict.fromkeys(record.family for record, _ in trains))
    reasons: dict[str, int] = {}
    for record, _ in pairs:
        if record.skipped_because:
            reasons[record.skipped_because] = reasons.get(record.skipped_because, 0) + 1
    skipped = sorted(reasons.items(), key=lambda item: -item[1])
    parts = [
        "# Peak memory of published training runs",
        "",
        (
            "Written by `python validation/memory.py` from [memory-runs.csv](data/memory-runs.csv); each row has its source there. A row is predicted from its configuration "
            "columns; [memory](../docs/explanation/memory.md) says what is counted."
        ),
        "",
        "| rows of full training | rows | scored | mean | median | bias | worst | beyond 15 % |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
        summary("complete", complete),
        summary(
            "the same without litgpt-llama-3.2-1B",
            [pair for pair in complete if "llama-3.2-1B" not in pair[0].id],
        ),
        summary("all", trains),
        *(
            summary(family, [pair for pair in trains if pair[0].family == family])
            for family in families
        ),
        "",
        "Runs that ended for want of memory (`oom`) and whose peak is not known are predicted beyond the 24 GB of their accelerator, or refused because their states alone are.",
        "",
        "## Complete rows",
        "",
        *table(complete),
        "",
        "What is missed, and what is not predicted:",
        "",
        (
            "- litgpt-llama-3.2-1B-full: weights, gradients and moments in bf16, as the row's file has them, are 12 GB of the 8.7 GB that its source prints; the same file's runs of 3B and phi-3 "
            "print less than their states take and are refused, as states alone would be more than the accelerator has. Two bytes of weights and two of gradients a parameter would fit all "
            "three; the first line of the table counts the row, the second does not."
        ),
        (
            "- mbridge-70b-sft: logs of the last rank, which are Megatron-Bridge's until 2026-05-08. Seven rows are within 1.2 %; tensor parallelism of 8 takes 2 GiB more than "
            "predicted. FP8 weights without transposed copies, 16-bit casts of their masters, narrow inputs of linear layers and bf16 gradients are counted."
        ),
        (
            "- flagperf: what nvidia-smi shows is 5 to 20 % more than predicted where tensor parallelism divides a model or ZeRO-1 its states (some 5 GiB beside activations of any size), and 10 % less "
            "with four and eight stages, whose first keeps as much as with two. DeepSpeed's ZeRO-3: short sequences reserve as much as the whole model in 16 bits, which plain "
            "`deepspeed.initialize` moves to the device before it divides it (engine.py, module.to), long ones 4.5 GiB beside what is allocated, however long. torchtitan's NVFP4 leaves layers in "
            "bf16, which are not modelled. Fragments of torch's played allocations are 5 % off with both shares as they stand, 6 % with 2 and 100 %."
        ),
        "",
        *adapter_section(pairs),
        "## Other rows of full training",
        "",
        "Rows whose sequence length, batch or states are a guess of the table (`complete` partial) or missing; batches padded to their longest reach the stated maximum seldom.",
        "",
        *table(rest),
        "",
        *torch_section(),
        *odds_section([each for sweep in sweeps() for each in sweep.tried]),
        *witness_section(filled),
        "Layouts of whole sweeps that ran and that ran out of memory: [decisions](decisions.md).",
        "",
        "## Not predicted",
        "",
        "| rows | because |",
        "| ---: | --- |",
        *(f"| {count} | {reason} |" for reason, count in skipped),
        "",
    ]
    return "\n".join(parts)


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    PAGE.write_text(page(read(), witnesses()), encoding="utf-8")
