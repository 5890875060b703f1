"""Faults on trial: recordings with known faults, explained: which cause comes first, its seconds, and alarms on clean ones.

Covers: twice 60 simulated recordings of `tests/faults.py` (half with two faults) and 20 clean ones, pipelines, faults spliced into a real recording, and the real ones of validation/measured/explained. Question: can an explanation be believed?

Run from any folder, with mpsim installed (two minutes): python validation/explain.py [--check]. It writes validation/explain.md.

    python validation/explain.py --score DIR...        # recordings of measured/record_faults.py, explained: explain-recordings.csv
    python validation/explain.py --calibrate DIR...    # machines from those without a fault of the machine: explain-machines.csv
    python validation/explain.py --watch               # logs with noise of five kinds (five minutes): explain-watch.csv

These are kept beside the page, as recordings of hundreds of kilobytes each are not.
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import yaml

import mpsim
from mpsim.calibrate import calibrate_recorded
from mpsim.explain import Explanation, account, explain, read_ranks
from mpsim.explain.watch import Watch

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
from tests import faults as trial  # noqa: E402 - beside the package
from tests import noise  # noqa: E402
from tests import spliced as splicing  # noqa: E402

PAGE, REAL = HERE / "explain.md", HERE / "measured" / "explained"
COUNT, CLEAN, NEAR, ALARM = 60, 20, 0.15, 0.05
ERRORS = 3  # standard errors of its truth that a fault must have, beside `ALARM` of the step, to have one right answer
SEEN = ("s0", "s1")
"""Recordings in whose sight rules were made; all others are held out."""
RECORDINGS, MACHINES, WATCHED = (HERE / f"explain-{what}.csv" for what in ("recordings", "machines", "watch"))  # fmt: skip
SHARES = (0.15, 0.25, 0.4)
"""Of a step, that a spliced fault adds; rules were made in sight of the first two."""
HEAD = """# Faults on trial

Recordings whose faults are known, explained by `mpsim explain`. Written by `python validation/explain.py`.

- *Tuned*: 60 simulated recordings of `tests/faults.py`, in whose sight the rules were made: four ranks of DDP on H100, names of kernels as torch.profiler writes them, noise of 1 %, every fault in turn with 12 to
  35 % of the step, half of them with a second one.
- *Held out*: 60 more, of another model, with other names of kernels and twice the noise, drawn after the rules were made; nothing was changed after they were scored.
- *Spliced*: real recordings of two gloo ranks into which faults were let to the microsecond (`tests/spliced.py`): operators, gaps and noise are real. Rules were made in sight of the clean recording with 15 and 25 to 30 %.

Simulated recordings come from the simulator itself, so they try the taking apart of a trace, not the prediction.

"""


class Tried(NamedTuple):
    """One recording: the larger of its faults, true seconds by fault, and what was said."""

    first: str
    truth: dict[str, float]
    said: Explanation

    @property
    def cause(self) -> str:
        """The first cause that was named."""
        return self.said.causes[0].cause if self.said.causes else "none"

    @property
    def error(self) -> float:
        """Error of the seconds of the first fault; 1 where another was named."""
        return (
            abs(self.said.causes[0].seconds / self.truth[self.first] - 1)
            if self.cause == self.first
            else 1.0
        )


def simulated(*, held_out: bool) -> tuple[list[Tried], list[Explanation]]:
    """Faulty recordings, and clean ones."""
    result, kernels = trial.simulated(trial.OTHER if held_out else trial.SCENARIO)
    names, noise = (trial.OTHER_NAMES, 0.02) if held_out else (trial.NAMES, 0.01)
    first, quiet = (COUNT, 2000) if held_out else (0, 1000)
    step, tried, clean = float(result.summary["step_time_s"]), [], []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(first, first + COUNT):
            chosen = trial.drawn(number, step)
            truth = trial.seconds_of(kernels, chosen, number, noise=noise)
            traces = trial.recorded(kernels, chosen, number, noise=noise)
            said = explain(result, trial.write(traces, Path(folder), names))
            tried.append(Tried(max(truth, key=lambda name: truth[name]), truth, said))
        for number in range(quiet, quiet + CLEAN):
            traces = trial.recorded(kernels, {}, number, noise=noise)
            clean.append(explain(result, trial.write(traces, Path(folder), names)))
    return tried, clean


def staged() -> list[tuple[str, Tried]]:
    """Pipelines that ran otherwise than the scenario says."""
    result, found = mpsim.simulate(mpsim.Scenario.from_mapping(trial.STAGED)), []
    step = float(result.timeline.step_time_s)
    with tempfile.TemporaryDirectory() as folder:
        for how, (cause, changes) in trial.RUNS.items():
            took, files = trial.staged(changes, Path(folder), 1)
            found.append((how, Tried(cause, {cause: took - step}, explain(result, files))))
        result = mpsim.simulate(mpsim.Scenario.from_mapping(trial.EXPERTS))
        even, _ = trial.experts(0.0, Path(folder), 1)
        for uneven in (0.0, 0.3, 0.6, 1.0):
            took, files = trial.experts(uneven, Path(folder), 1)
            cause = "expert_imbalance" if uneven else "none"
            how = f"fullest rank of experts {uneven:+.0%}"
            found.append((how, Tried(cause, {cause: took - even}, explain(result, files))))
    return found


def spliced() -> list[tuple[str, list[Tried]]]:
    """Real recordings with a fault let into them, by what was done."""
    base = REAL / "clean"
    result, files = (
        mpsim.simulate(mpsim.load(base / "scenario.yaml")),
        sorted(base.glob("rank*.json.gz")),
    )
    clean, found = explain(result, files).measured, []
    with tempfile.TemporaryDirectory() as folder:
        for how, (cause, _, one) in splicing.FAULTS.items():
            tried = []
            for share in SHARES:
                for late in (0, 1) if one else (0,):
                    said = explain(
                        result, splicing.splice(files, how, share * clean, Path(folder), late)
                    )
                    tried.append(Tried(cause, {cause: said.measured - clean}, said))
            found.append((how, tried))
    return found


def read(folder: Path, preset: Path | None = None) -> tuple[dict[str, object], mpsim.Result, list[Path]]:  # fmt: skip
    """The truth of a recording, the simulated step, on another machine where one is given, and the traces."""
    data = yaml.safe_load((folder / "scenario.yaml").read_text())
    data["cluster"]["preset"] = str(preset or folder / "machine.yaml")
    truth = json.loads((folder / "truth.json").read_text())
    return truth, mpsim.simulate(mpsim.Scenario.from_mapping(data)), sorted(folder.glob("rank*.gz"))


def real() -> list[tuple[str, Tried]]:
    """Recordings of gloo ranks."""
    found = []
    for folder in sorted(path for path in REAL.iterdir() if path.is_dir()):
        truth, result, files = read(folder)
        found.append((folder.name, Tried(truth["cause"], {truth["cause"]: _seconds(truth)}, explain(result, files))))  # fmt: skip
    return found


def _seconds(truth: Mapping[str, object]) -> float:
    return float(truth.get("injected_s", truth["seconds_per_step"]))


def folders(parents: Iterable[str]) -> list[Path]:
    """Recordings in some folders."""
    return [file.parent for parent in parents for file in sorted(Path(parent).glob("*/truth.json"))]


def scored(parents: Iterable[str]) -> Iterator[dict[str, object]]:
    """Recordings of `record_faults.py`: what was done, and what was said of it."""
    for folder in folders(parents):
        truth, result, files = read(folder)
        said, true, error = explain(result, files), _seconds(truth), truth["standard_error_s"]
        first = said.causes[0] if said.causes else None
        if first and truth["cause"] == "none" and first.seconds <= ALARM * said.measured:
            first = None
        layout = next(each for each in LAYOUTS if folder.name.rpartition("-")[0].endswith(f"-{each}"))  # fmt: skip
        fault = folder.name.rpartition("-")[0].removesuffix(f"-{layout}")
        clear = truth["cause"] == "none" or true >= max(ALARM * said.measured, ERRORS * error * ("injected_s" not in truth))  # fmt: skip
        yield {
            "set": folder.parent.name, "fault": fault, "layout": layout, "cause": truth["cause"], "also": " ".join(truth["also"]), "clear": int(clear), "step_ms": f"{1e3 * said.measured:.2f}",
            "true_ms": f"{1e3 * true:.2f}", "error_ms": f"{1e3 * error:.2f}", "first": first.cause if first else "none", "said_ms": f"{1e3 * first.seconds:.2f}" if first else "0", "unexplained_ms": f"{1e3 * said.unexplained:.2f}",
        }  # fmt: skip


def machines(parents: Iterable[str]) -> Iterator[dict[str, object]]:
    """A machine from each recording whose operators are as they should be (no fault, a loader, or a slower kernel that is not clear), and the steps of all of them there."""
    known = HERE / "measured" / "cpu-2-ranks.yaml"
    chosen = [folder for folder in folders(parents) if _as_it_should_be(folder)]
    with tempfile.TemporaryDirectory() as scratch:
        machine = Path(scratch) / "machine.yaml"
        for folder in chosen:
            _, before, files = read(folder, known)
            taken = account(read_ranks(files))
            calibrate_recorded(before, files).write(machine)
            for other in chosen:
                truth, first, _ = read(other, known)
                _, now, _ = read(other, machine)
                clean = truth["recorded_step_s"] - _seconds(truth)
                off = (each.timeline.step_time_s / clean - 1 for each in (first, now))
                waits = float(taken.of("wait").mean() / taken.steps.mean())
                yield {"from": f"{folder.parent.name}/{folder.name}", "of": f"{other.parent.name}/{other.name}", "waits": f"{waits:.3f}", **{key: f"{error:.4f}" for key, error in zip(("before", "now"), off, strict=True)}}  # fmt: skip


def _as_it_should_be(folder: Path) -> bool:
    truth = json.loads((folder / "truth.json").read_text())
    small = truth["seconds_per_step"] < max(ERRORS * truth["standard_error_s"], ALARM * truth["recorded_step_s"])  # fmt: skip
    return truth["cause"] in ("none", "data_stall") or (truth["cause"] == "slow_kernel" and small)


def watched() -> Iterator[dict[str, object]]:
    """Logs with noise of each kind: false alarms, when 3 % more is found, and how well the mean of a thousand steps is known after twenty."""
    for kind in noise.KINDS:
        alarms = sum(len(fed(times).changes) for times in noise.logs(kind))
        delays = {}
        for sigma in (0.01, 0.02):
            late = []
            for seed in range(40):
                times = noise.steps(kind, 300, sigma, seed)
                times[200:] *= 1.03
                watch, count = Watch(1.0), 0
                while count < len(times) and not any(change.step > 150 for change in watch.changes):
                    watch.take(count, float(times[count]), None)
                    count += 1
                late.append(count - 200)
            delays[sigma] = late
        off = []
        for seed in range(200):
            times = noise.steps(kind, 1020, 0.02, 1000 + seed)
            told = fed(times[:20].tolist()).told()
            mean = float(times[20:].mean())
            off.append((abs(told["step_time_s"] / mean - 1), told["interval"][0] <= mean <= told["interval"][1]))  # fmt: skip
        yield {
            "noise": kind, "false_alarms": alarms,
            **{f"delay_{sigma:.0%}": f"{statistics.median(late):.0f}" for sigma, late in delays.items()}, **{f"within_30_{sigma:.0%}": f"{sum(each <= 30 for each in late) / len(late):.2f}" for sigma, late in delays.items()},
            "eta_p90": f"{np.quantile([error for error, _ in off], 0.9):.4f}", "eta_within_1%": f"{sum(error <= 0.01 for error, _ in off) / len(off):.2f}", "covered": f"{sum(inside for _, inside in off) / len(off):.2f}",
        }  # fmt: skip


def fed(times: Sequence[float]) -> Watch:
    """A watch that took these steps."""
    watch = Watch(1.0)
    for number, seconds in enumerate(times):
        watch.take(number, seconds, None)
    return watch


def keep(file: Path, rows: Iterable[dict[str, object]]) -> None:
    """Write rows beside the page."""
    rows = list(rows)
    with file.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def kept(file: Path) -> list[dict[str, str]]:
    """Rows that were kept."""
    with file.open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


def _recordings() -> Iterator[str]:
    """Tables of the scored recordings: by fault, by layout, and those without one right answer."""
    rows = kept(RECORDINGS)
    clear = [row for row in rows if row["clear"] == "1"]
    halves = {"in sight": [row for row in clear if row["set"] in SEEN], "held out": [row for row in clear if row["set"] not in SEEN]}  # fmt: skip
    yield "| | | in sight | seconds | held out | seconds | named instead |\n| --- | --- | ---: | ---: | ---: | ---: | --- |\n"
    for by in ("fault", "layout", ""):
        for name in dict.fromkeys(row[by] for row in clear) if by else ("all",):
            cells, other = [], Counter[str]()
            for half in halves.values():
                mine = [row for row in half if not by or row[by] == name]
                right = [
                    row for row in mine if row["first"] in (row["cause"], *row["also"].split())
                ]
                strict = sum(row["first"] == row["cause"] for row in mine)
                near = sum(abs(float(row["said_ms"]) - float(row["true_ms"])) <= max(NEAR * float(row["true_ms"]), 2 * float(row["error_ms"])) for row in right)  # fmt: skip
                words = f"{strict} of {len(mine)}" + (f", {len(right)} with what looks alike" if len(right) > strict else "")  # fmt: skip
                cells += [words if mine else "", str(near) if mine else ""]
                other.update(row["first"] for row in mine if row["first"] != row["cause"])
            named = ", ".join(f"{cause} {count}" for cause, count in other.items()) if by else ""
            yield f"| {by or 'all'} | {name if by else ''} | {' | '.join(cells)} | {named} |\n"
    small = [row for row in rows if row["clear"] == "0"]
    fine = sum(row["first"] in ("none", row["cause"], *row["also"].split()) or float(row["said_ms"]) <= ALARM * float(row["step_ms"]) for row in small)  # fmt: skip
    yield f"\nOf {len(small)} further recordings the fault is smaller than {ERRORS} standard errors of its truth or {ALARM:.0%} of the step: of {fine} it or nothing above {ALARM:.0%} is named, of {len(small) - fine} another cause.\n"


def _machines() -> Iterator[str]:
    """Table of machines from recordings: the step they are from, and the steps of the others."""
    rows = kept(MACHINES)
    yield "| from | waits | before | now | the others, before | now |\n| --- | ---: | ---: | ---: | ---: | ---: |\n"
    for name in dict.fromkeys(row["from"] for row in rows):
        own = next(row for row in rows if row["from"] == row["of"] == name)
        others = [row for row in rows if row["from"] == name != row["of"]]
        yield f"| {name} | {float(own['waits']):.0%} | {float(own['before']):+.0%} | {float(own['now']):+.0%} | {_off(others, 'before'):.0%} | {_off(others, 'now'):.0%} |\n"
    own, others = ([row for row in rows if (row["from"] == row["of"]) == same] for same in (True, False))  # fmt: skip
    yield f"\nMedian absolute error: {_off(own, 'before'):.1%} before and {_off(own, 'now'):.1%} now of their own steps, {_off(others, 'before'):.1%} and {_off(others, 'now'):.1%} of the others. "
    yield "The machine itself ran at 0.75 to 2 times its measured speed from one recording to the next, which no recording knows of another.\n"


def _off(rows: Sequence[Mapping[str, str]], key: str) -> float:
    """Median absolute error."""
    return statistics.median(abs(float(row[key])) for row in rows)


def _watched() -> Iterator[str]:
    """Table of the watch."""
    yield "| noise | false alarms | 3 % in noise of 1 %: delay | within 30 | in 2 %: delay | within 30 | error of the mean, 90th percentile | within 1 % | interval holds |\n| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n"
    for row in kept(WATCHED):
        shares = {key: f"{float(row[key]):.0%}" for key in ("within_30_1%", "within_30_2%", "eta_within_1%", "covered")}  # fmt: skip
        yield f"| {row['noise']} | {row['false_alarms']} | {row['delay_1%']} | {shares['within_30_1%']} | {row['delay_2%']} | {shares['within_30_2%']} | {float(row['eta_p90']):.1%} | {shares['eta_within_1%']} | {shares['covered']} |\n"


def _named(tried: list[Tried]) -> Iterator[str]:
    names = [*trial.FAULTS, "none"]
    named = Counter((each.first, each.cause) for each in tried)
    yield f"| fault | {' | '.join(name.replace('_', ' ') for name in names)} |\n| --- |{' ---: |' * len(names)}\n"
    for fault in trial.FAULTS:
        cells = " | ".join(str(named[fault, name] or "") for name in names)
        yield f"| {fault.replace('_', ' ')} | {cells} |\n"


def _each(rows: list[tuple[str, Tried]]) -> Iterator[str]:
    yield "| recording | fault | named first | true (ms) | said (ms) | unexplained (ms) |\n| --- | --- | --- | ---: | ---: | ---: |\n"
    for name, each in rows:
        said = f"{1e3 * each.said.causes[0].seconds:.0f}" if each.said.causes else "0"
        yield f"| {name} | {each.first} | {each.cause} | {1e3 * each.truth[each.first]:.0f} | {said} | {1e3 * each.said.unexplained:.0f} |\n"


def page() -> str:
    """The page as Markdown."""
    both = [simulated(held_out=held_out) for held_out in (False, True)]
    let = spliced()
    sets = [*(tried for tried, _ in both), [each for _, tried in let for each in tried]]
    right = [f"{sum(each.cause == each.first for each in tried)} of {len(tried)}" for tried in sets]
    near = [f"{sum(each.error <= NEAR for each in tried) / len(tried):.0%}" for tried in sets]
    alarms = [
        f"{sum(any(cause.seconds > ALARM * each.measured for cause in each.causes) for each in clean)} of {len(clean)}"
        for _, clean in both
    ]
    lines = [
        HEAD,
        "| | asked | tuned | held out | spliced |\n| --- | ---: | ---: | ---: | ---: |\n",
        f"| first cause right | 85% | {' | '.join(right)} |\n",
        f"| its seconds within 15% | | {' | '.join(near)} |\n",
        f"| clean recordings with a cause above 5% of the step | 0 | {' | '.join(alarms)} | |\n\n",
        "## Which fault was named first, held out\n\n",
        *_named(both[1][0]),
        "\n## The same, tuned\n\n",
        *_named(both[0][0]),
        "\n## Pipelines and experts\n\nFour stages of 1F1B that ran with other layers, or with fewer and larger microbatches, than the scenario says; experts of four ranks of which in every layer another one has more (`tests/faults.py`). Simulated, and made in sight of the rules.\n\n",
        *_each(staged()),
        "\n## Spliced\n\nEach with 15, 25 and 40 % of the step, those of one rank with either.\n\n| what was done | cause | right | within 15% | else named |\n| --- | --- | ---: | ---: | --- |\n",
    ]
    for how, tried in let:
        good = sum(each.cause == each.first for each in tried)
        close = sum(each.error <= NEAR for each in tried)
        other = ", ".join(sorted({each.cause for each in tried} - {tried[0].first}))
        lines.append(f"| {how} | {tried[0].first} | {good} of {len(tried)} | {close} | {other} |\n")
    lines += [
        REAL_HEAD,
        *_recordings(),
        "\nEight recordings are kept in `validation/measured/explained`:\n\n",
        *_each(real()),
        MACHINES_HEAD,
        *_machines(),
        WATCH_HEAD,
        *_watched(),
        *LIMITS,
    ]
    return "".join(lines)


LAYOUTS = ("ddp", "fsdp2", "tp", "interleaved-1f1b", "1f1b", "gpipe")
REAL_HEAD = f"""
## Real recordings

Two gloo ranks on two cores that nothing else used, 20 faults a set, layout and model drawn by chance (`validation/measured/record_faults.py --seed N`): DDP, FSDP2, tensor parallelism and pipelines. Rules were
made in sight of the sets {" and ".join(SEEN)}; the others are held out, of which the last ten were made while others used the machine. Counted are faults of at least {ERRORS} standard errors of their truth (the step with and without, in turns) and {ALARM:.0%} of the step. Seconds are
right within {NEAR:.0%} or two standard errors. What a trace cannot tell from a fault was written down with it before.

"""
MACHINES_HEAD = """
## Machines from recordings

`mpsim calibrate --from` one recording, beginning at `measured/cpu-2-ranks.yaml` as it was measured in another hour: error of the step (without its fault) that the recording is of, which is not fitted, and median absolute error of the steps of
all other recordings, of other layouts and models (those without a fault of the machine, made while nothing else ran). Waits for the last rank are a share of the step that no constant of a machine has.

"""
WATCH_HEAD = """
## A watched log

`mpsim watch` on simulated logs: false alarms in 100,000 steps of each kind of noise (0.2 to 5 % a step; one is promised); 40 runs that get 3 % slower after 200 steps; 200 runs whose next thousand steps are foretold after
twenty, with noise of 2 %: error of the mean, and how often the 80 % interval holds it.

"""
LIMITS = (
    "\n## Limits\n\n",
    "- What is inferred explains no more than measured minus predicted: on a machine that the scenario takes for slower than it is, a fault hides in the difference (`mpsim calibrate --from` first).\n",
    "- A lower clock and slower products alone differ only by the other classes; below a fifth of the step they are taken for each other.\n",
    "- Two steps of a busy machine hold pauses of others: they are told as pauses.\n",
    "- A rank whose neighbour was not recorded waits for it as for a slow link.\n",
)


def main() -> int:
    """Write the page, or say whether it is as it would be written."""
    parser = argparse.ArgumentParser(prog="explain.py", description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; 1 if it is stale")
    parser.add_argument("--score", nargs="+", metavar="DIR", help="explain recordings anew")
    parser.add_argument("--calibrate", nargs="+", metavar="DIR", help="machines from them anew")
    parser.add_argument("--watch", action="store_true", help="watch logs anew")
    options = parser.parse_args()
    if options.score:
        keep(RECORDINGS, scored(options.score))
    if options.calibrate:
        keep(MACHINES, machines(options.calibrate))
    if options.watch:
        keep(WATCHED, watched())
    if options.score or options.calibrate or options.watch:
        return 0
    text = page()
    if options.check:
        return int(PAGE.read_text(encoding="utf-8") != text)
    PAGE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
