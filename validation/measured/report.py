"""Training steps of small GPTs on two gloo ranks of a CPU, predicted blind: the report of ``mpsim validate --runs``, as Markdown.

Covers: kernels, collectives, layers and training steps in validation/measured/cpu-2-ranks.jsonl and steps of three more recordings, by ``mpsim measure``.
Question: how far off are steps that calibrate never saw, and what explains the difference?

Run from the repository's root: python validation/measured/report.py [FIRST.jsonl AGAIN.jsonl ...]. It rewrites README.md, cpu-2-ranks.yaml and the pictures
beside it; new recordings, four of them, take the place of those that are there.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

from mpsim.calibrate import Calibrated, Score, calibrate
from mpsim.calibrate.parts import residuals_of
from mpsim.measured.files import read_measured
from mpsim.measured.sources import read_source
from mpsim.validate import Comparison, StepComparison, compare_runs
from mpsim.validate.pictures import beside

HERE = Path(__file__).resolve().parent
DATA = HERE / "cpu-2-ranks.jsonl"
RECORDINGS = (DATA, *(HERE / f"cpu-2-ranks-{number}.jsonl" for number in (2, 3, 4)))
SHOWN = 6  # steps of the picture
HEAD = """# Measured on our own machines

Written by `python validation/measured/report.py` from what `mpsim measure` recorded. `calibrate` never looks at steps, and only at the first recording; the steps of all four are
predicted. The figures are blind as far as constants go, not as far as rules go: people who had seen errors of such steps added that gradients are copied into buckets and back,
that Python has a price (hooks of FSDP2, the runtime of pipelines, backwards in two halves), and that the median of a collective counts.

Two gloo ranks, one thread each, on a virtual machine with two cores of an AMD EPYC on which nothing else of ours ran (what others took is in the tables; what its host gave to
others nobody can see). Recorded four times, {created}, with

    torchrun --nproc-per-node 2 --no-python mpsim measure --device cpu --out cpu-2-ranks.jsonl --budget 240s

Host and kernel names were replaced in their headers. To repeat it on your machine: [how to calibrate](../../docs/how-to/calibrate.md); to put recordings of your own here:
`python validation/measured/report.py FIRST.jsonl SECOND.jsonl THIRD.jsonl FOURTH.jsonl`.

## Left out

- **GPUs.** No GPU was at hand when this was recorded: the code paths that GPUs take in `measure`, `calibrate` and `validate --runs` ran on made-up devices and files alone. One command measures all
  of it, `mpsim measure --budget 9m`.
- Four ranks and more: the machine has two cores.
- Steps that the budget had no room for: some of the model of 512, and the compiled ones.
"""
TAIL = """
## What falls short

- The machine is not the same from one hour to the next: steps of the recording that the machine file is from, and of the one right after it, are slower than its kernels say; those of two hours before are
  not. What another guest of the host takes is in no column.
- FSDP2 and, in the narrowest model, bubbles of interleaved 1F1B and ZBV miss their targets (15 %, 5 points) in some recordings and meet them in the median of the four.
- The memory's rate, and with it the optimizer, differs by half from recording to recording.
- Collectives of less than a megabyte wait for two processes to be scheduled: repeated measurements of one size spread by a third, and their medians differ by a third from one recording to the next.
- Where others compute on the same cores, kernels count with the time that the process itself ran; steps and collectives count in full, and are slower than predicted by about the share in the column
  `others`. The verdict then says that the machine was too noisy to tell.
"""


def report(found: Calibrated, comparisons: Sequence[Comparison]) -> str:
    """Tables of fits and of steps."""
    created = [read_measured(path).header.created[:16].replace("T", " ") for path in RECORDINGS]
    comparison = comparisons[0]
    lines = [HEAD.format(created=", ".join(created) + " UTC"), "\n## Steps, blind\n"]
    lines += _head(["recording", "steps", "median error", "verdict"], right=1)
    for name, one in zip(RECORDINGS, comparisons, strict=True):
        said = "; ".join(one.sheet().sections[-1].lines[2:])  # after the median error
        lines.append(
            f"| `{name.name}` | {len(one.scored)} | {_percent(one.median_error)} | {said} |"
        )
    lines += ["", f"{_repeats(comparisons)}", "", "Median error of each family:", ""]
    lines += _head(["family", *(str(i) for i in range(1, 5)), "median"], right=1)
    lines += [_across(name, errors) for name, errors in over_families(comparisons).items()]
    lines += ["", "Waiting (bubbles and messages), predicted less measured share of the step:", ""]
    lines += _head(["pipeline", *(str(i) for i in range(1, 5)), "median"], right=1)
    lines += [_across(name, points) for name, points in over_pipelines(comparisons).items()]
    lines += ["", "Steps of the first recording:", ""]
    lines += _head(
        ["step", "measured (ms)", "predicted (ms)", "error", "spread", "others"], right=1
    )
    lines += [_step(one) for one in comparison.steps]
    lines += ["", "![both timelines](timelines.png)", "", "By family and action:", ""]
    lines += _head(["family", "kind", "steps", "median", "worst", "bias"], right=2)
    for one in comparison.families:
        figures = (one.median_abs_error, one.worst, one.bias)
        cells = [_percent(figures[0]), *(_signed(value) for value in figures[1:])]
        lines.append(f"| {one.family} | {one.kind} | {one.predicted} | {' | '.join(cells)} |")
    lines += ["\n## Fits\n"]
    lines += _head(["what", "form", "points", "error", "held out", "error", "spread"], right=2)
    lines += [_fit(one) for one in found.fit.scores]
    lines += ["", "![residuals](residuals.png)", "", "Warnings of `mpsim calibrate`:", ""]
    lines += [f"- {text}" for text in found.warnings]
    return "\n".join([*lines, TAIL])


def over_families(comparisons: Sequence[Comparison]) -> dict[str, list[float | None]]:
    """Median error of the steps of each family in each recording."""
    medians = [
        {one.family: one.median_abs_error for one in each.families if one.kind == "step"}
        for each in comparisons
    ]
    return {name: [each.get(name) for each in medians] for name in medians[0]}


def over_pipelines(comparisons: Sequence[Comparison]) -> dict[str, list[float | None]]:
    """By how much of the step the waiting of each pipeline is predicted too long, in each recording."""
    points = [
        {
            one.title: one.predicted_parts["waiting"] / one.predicted
            - one.measured_parts["waiting"] / one.measured
            for one in each.scored
            if one.same_order is not None
        }
        for each in comparisons
    ]
    titles = dict.fromkeys(title for each in points for title in each)
    return {title: [each.get(title) for each in points] for title in titles}


def _head(names: Sequence[str], *, right: int) -> list[str]:
    rule = ["---"] * right + ["--:"] * (len(names) - right)
    return [f"| {' | '.join(names)} |", f"| {' | '.join(rule)} |"]


def _across(name: str, figures: Sequence[float | None]) -> str:
    known = [one for one in figures if one is not None]
    cells = [*map(_percent, figures), _percent(statistics.median(known))]
    return f"| {name} | {' | '.join(cells)} |"


def _repeats(comparisons: Sequence[Comparison]) -> str:
    """How far the same steps are apart in the recordings."""
    times: dict[str, list[float]] = {}
    for one in (step for each in comparisons for step in each.steps):
        times.setdefault(one.id, []).append(one.measured)
    apart = [max(one) / min(one) - 1.0 for one in times.values() if len(one) > 1]
    middle = statistics.median(apart)
    return f"The slowest and the fastest measurement of a step are {middle:.1%} apart in the median, {max(apart):.1%} at most. Torch and mpsim order the actions of every pipeline alike."


def _step(one: StepComparison) -> str:
    predicted = "" if one.predicted is None else f"{1e3 * one.predicted:.1f}"
    cells = (predicted, _signed(one.error), _percent(one.noise), _percent(one.others))
    return f"| {one.title} | {1e3 * one.measured:.1f} | {' | '.join(cells)} |"


def _fit(one: Score) -> str:
    held = sum(one.held_out)
    cells = (
        str(len(one.ids) - held),
        _percent(one.median(held_out=False)),
        str(held),
        _percent(one.median(held_out=True)),
        _percent(one.noise),
    )
    return f"| {one.what} | {one.form} | {' | '.join(cells)} |"


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:.1%}"


def _signed(value: float | None) -> str:
    return "" if value is None else f"{value:+.1%}"


def take(recording: Path, into: Path) -> None:
    """Put a recording here, without the names of host and kernel."""
    head, rest = recording.read_text(encoding="utf-8").split("\n", 1)
    header = json.loads(head)
    hosts = list(dict.fromkeys(one["host"] for one in header["ranks"]))
    for one in header["ranks"]:
        one["host"] = f"node{hosts.index(one['host']) + 1}"
    header["os"] = header["os"].split()[0]
    into.write_text(json.dumps(header, separators=(",", ":")) + "\n" + rest, encoding="utf-8")


def main(recordings: Sequence[str]) -> None:
    """Take new recordings where they are given; calibrate, validate, write."""
    for recording, into in zip(recordings, RECORDINGS, strict=bool(recordings)):
        take(Path(recording), into)
    found = calibrate([read_source(DATA)], name="cpu-2-ranks")
    found.write(HERE / "cpu-2-ranks.yaml")
    comparisons = [compare_runs(found.cluster, [one]) for one in RECORDINGS]
    comparison = comparisons[0]
    (HERE / "README.md").write_text(report(found, comparisons), encoding="utf-8")
    beside(comparison.scored[:SHOWN]).save(HERE / "timelines.png")
    residuals_of(found.fit.scores).save(HERE / "residuals.png")


if __name__ == "__main__":
    main(sys.argv[1:])
