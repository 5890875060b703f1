"""Training steps of small GPTs on two gloo ranks of a CPU, predicted blind: the report of ``mpsim validate --runs``, as Markdown.

Covers: kernels, collectives, layers and training steps in validation/measured/cpu-2-ranks.jsonl and the same once more, recorded by ``mpsim measure``.
Question: how far off are steps that calibrate never saw, and what explains the difference?

Run from the repository's root: python validation/measured/report.py [FIRST.jsonl AGAIN.jsonl]. It rewrites README.md, cpu-2-ranks.yaml and the pictures
beside it; two new recordings take the place of those that are there.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

from mpsim.calibration.compare import Comparison, StepComparison, compare_runs
from mpsim.calibration.fit import Calibrated, Score, calibrate
from mpsim.calibration.readers import read_any
from mpsim.calibration.reading import read_measured
from mpsim.cli.validate_runs import verdict
from mpsim.plot.measured import BesideDisplay
from mpsim.plot.residuals import ResidualDisplay

HERE = Path(__file__).resolve().parent
DATA, AGAIN = HERE / "cpu-2-ranks.jsonl", HERE / "cpu-2-ranks-again.jsonl"
SHOWN = 6  # steps of the picture
HEAD = """# Measured on our own machines

Written by `python validation/measured/report.py` from what `mpsim measure` recorded. `calibrate` never looks at steps, and only at the first recording; the steps of both are
predicted. The figures are blind as far as constants go, not as far as rules go: people who had seen errors of such steps added that gradients are copied into buckets and back,
that Python has a price (hooks of FSDP2, the runtime of pipelines, backwards in two halves), and that the median of a collective counts.

`cpu-2-ranks.jsonl` ({first}) and `cpu-2-ranks-again.jsonl` ({again}): two gloo ranks, one thread each, on a virtual machine with two cores of an AMD EPYC on which nothing else of
ours ran (what others took is in the tables). Recorded with

    torchrun --nproc-per-node 2 --no-python mpsim measure --device cpu --out cpu-2-ranks.jsonl --budget 240s

Host and kernel names were replaced in their headers. To repeat it on your machine: [how to calibrate](../../docs/how-to/calibrate.md); to put two recordings of your own here:
`python validation/measured/report.py FIRST.jsonl AGAIN.jsonl`.

## Left out

- **GPUs.** No GPU was at hand when this was recorded: the code paths that GPUs take in `measure`, `calibrate` and `validate --runs` ran on made-up devices and files alone. One command measures all
  of it, `mpsim measure --budget 9m`.
- Four ranks and more: the machine has two cores.
- Steps that the budget had no room for: some of the model of 512, and the compiled ones.
"""
ALONE = """- One rank alone is predicted 5 to 9 % too fast, and everything else with it: these recordings time a layer that is repeated alone and finds its weights in a cache. `mpsim measure`
  times layers within a stack of four by now.
"""
TAIL = """
## What falls short

- FSDP2 is about a fifth too fast. Its rules (passes over gathered and reduced units, hooks) were found on two recordings of the same morning, on which they gave 7 to 15 %; nobody has found what is left.
- The bubble of ZBV in the narrowest model is 5.5 points off; the eight other pipelines are within 5.
- The memory's rate, and with it the optimizer, differs by half from recording to recording.
- Collectives of less than a megabyte wait for two processes to be scheduled: repeated measurements of one size spread by a third, and their medians differ by a third from one recording to the next.
- Where others compute on the same cores, kernels count with the time that the process itself ran; steps and collectives count in full, and are slower than predicted by about the share in the column
  `others`. The verdict then says that the machine was too noisy to tell.
"""


def report(found: Calibrated, comparison: Comparison, again: Comparison) -> str:
    """Tables of fits and of steps."""
    read = [read_measured(path) for path in (DATA, AGAIN)]
    first, second = (one.header.created[:16].replace("T", " ") + " UTC" for one in read)
    layers = read[0].of("blocks", "transformer_layer")
    alone = "" if any(one.shape.get("layers", 1) > 1 for one in layers) else ALONE
    lines = [HEAD.format(first=first, again=second), "\n## Steps, blind\n"]
    lines += [f"- {text}" for text in verdict(comparison)]
    lines += [
        "- the other recording: " + "; ".join(verdict(again)),
        f"- {_repeats(comparison, again)}",
    ]
    lines += ["", "| step | measured (ms) | predicted (ms) | error | spread | others | order |"]
    lines += ["| --- | --: | --: | --: | --: | --: | --- |", *map(_step, comparison.steps)]
    lines += ["", "![both timelines](timelines.png)", "", "By family and action:", ""]
    lines += [
        "| family | kind | steps | median | worst | bias |",
        "| --- | --- | --: | --: | --: | --: |",
    ]
    for one in comparison.families:
        figures = (one.median_abs_error, one.worst, one.bias)
        cells = [_percent(figures[0]), *(_signed(value) for value in figures[1:])]
        lines.append(f"| {one.family} | {one.kind} | {one.predicted} | {' | '.join(cells)} |")
    lines += ["", "Waiting (bubbles and messages), share of the step:", ""]
    lines += ["| pipeline | measured | predicted |", "| --- | --: | --: |"]
    lines += [_waiting(one) for one in comparison.scored if one.same_order is not None]
    lines += ["", "The other recording, predicted by the same machine file:", ""]
    lines += ["| step | measured (ms) | predicted (ms) | error | spread | others | order |"]
    lines += ["| --- | --: | --: | --: | --: | --: | --- |", *map(_step, again.steps)]
    lines += ["\n## Fits\n", "| what | form | points | error | held out | error | spread |"]
    lines += ["| --- | --- | --: | --: | --: | --: | --: |", *map(_fit, found.fit.scores)]
    lines += ["", "![residuals](residuals.png)", "", "Warnings of `mpsim calibrate`:", ""]
    lines += [f"- {text}" for text in found.warnings]
    return "\n".join([*lines, TAIL + alone])


def _repeats(first: Comparison, again: Comparison) -> str:
    """How far the same steps are apart in the two recordings."""
    other = {one.id: one.measured for one in again.steps}
    apart = [abs(other[one.id] / one.measured - 1.0) for one in first.steps if one.id in other]
    middle = statistics.median(apart)
    return f"the same steps are {middle:.1%} apart in the two recordings in the median, {max(apart):.1%} at most"


def _step(one: StepComparison) -> str:
    order = {True: "same", False: one.first_difference, None: ""}[one.same_order]
    predicted = "" if one.predicted is None else f"{1e3 * one.predicted:.1f}"
    cells = (predicted, _signed(one.error), _percent(one.noise), _percent(one.others), order)
    return f"| {one.title} | {1e3 * one.measured:.1f} | {' | '.join(cells)} |"


def _waiting(one: StepComparison) -> str:
    measured = one.measured_parts["waiting"] / one.measured
    predicted = one.predicted_parts["waiting"] / (one.predicted or 1.0)
    return f"| {one.title} | {measured:.1%} | {predicted:.1%} |"


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
    for recording, into in zip(recordings, (DATA, AGAIN), strict=bool(recordings)):
        take(Path(recording), into)
    found = calibrate([read_any(DATA)], name="cpu-2-ranks")
    found.write(HERE / "cpu-2-ranks.yaml")
    comparison, again = (compare_runs(found.cluster, [one]) for one in (DATA, AGAIN))
    text = report(found, comparison, again)
    (HERE / "README.md").write_text(text, encoding="utf-8")
    BesideDisplay.from_steps(comparison.scored[:SHOWN]).save(HERE / "timelines.png")
    ResidualDisplay.from_scores(found.fit.scores).save(HERE / "residuals.png")


if __name__ == "__main__":
    main(sys.argv[1:])
