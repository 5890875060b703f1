"""Show that a change moves no byte of any output: record what every command says, compare after the change.

    python scripts/same_bytes.py record before.json.gz            # at the commit to compare with
    python scripts/same_bytes.py compare before.json.gz           # after the change: exits 1 and shows what moved
    python scripts/same_bytes.py compare before.json.gz --quick   # a seventh of the commands, without the slow ones
    python scripts/same_bytes.py compare before.json.gz --only sweep

It runs each scenario of the repository through run, check, trace, sweep, goodput and the studies; the quickstart under every framework, model, schedule and way to
share memory; every broken scenario; every schedule; every measured table; and everything that `mpsim show` knows. Each command runs in a fork of its own, so none
profits from another, and what it writes goes to an empty folder. Standard output, standard error, exit code and every file count, letter by letter.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import gzip
import hashlib
import importlib
import io
import itertools
import json
import os
import shutil
import sys
import tempfile
import traceback
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
QUICK = 7
"""Under --quick every so many commands is run."""

SLOW = ("validate", "published", "search", "calibrate")
FILES = "FILES"
"""Stands in a command for the folder that it may write to."""

Command = tuple[str, ...]
Outcome = dict[str, object]

QUICKSTART = "scenarios/quickstart.yaml"
MIXTURE = "scenarios/mixtral-8x7b-h100.yaml"

SETTINGS = [
    "simulation.network=flow",
    "simulation.interference=true",
    "simulation.engine=simpy",
    "training.recompute=full",
    "training.recompute=selective",
    "training.micro_batch=2",
    "training.precision=fp8",
    "training.sequence_length=32768 parallelism.cp=2 parallelism.tp=1",
    "parallelism.cp=2",
    "parallelism.cp=2 framework.context_exchange=all-gather",
    "parallelism.sequence_parallel=false",
    "parallelism.order=tp-pp-cp-ep-dp",
    *(f"parallelism.zero={zero}" for zero in range(4)),
    *(f"parallelism.zero={zero} parallelism.pp=1" for zero in range(4)),
    "parallelism.zero=3 parallelism.pp=1 parallelism.shard=2",
    "parallelism.zero=1 parallelism.offload=optimizer",
    "parallelism.zero=3 parallelism.pp=1 parallelism.offload=parameters",
    "parallelism.pp=2 parallelism.layers_per_stage=[14,18]",
    "parallelism.tp=16 parallelism.pp=1",
    "model.layers=35",
    "framework.gradient_norm=false",
    "framework.launch_blocking=true",
    "variation.slow=[{ranks: [3], speed: 0.8}]",
    "cluster.nodes=3",
    "training.global_batch=31",
    "parallelism.tpp=3",
]
"""What the quickstart is run with, one after the other; several keys stand side by side."""

MIXTURES = [
    "model.moe.imbalance=1.3",
    "parallelism.ep=4",
    "parallelism.etp=2 parallelism.ep=4",
    "framework.expert_overlap=microbatch",
    "framework.expert_dispatch=all-gather",
    "schedule.name=dualpipe schedule.virtual_stages=1",
    "simulation.network=flow training.global_batch=64",
]

SHAPES = ((4, 8, 1), (8, 32, 1), (4, 8, 2), (8, 16, 2), (2, 3, 1))
"""Ranks, microbatches and chunks that each schedule is asked for."""

KERNELS = (
    ("kernel", "gemm=4096x4096x4096", "--on", "a100-sxm-80"),
    ("kernel", "gemm=512x4096x11008", "--precision", "fp8", "--on", "h100-sxm"),
    ("kernel", "attention=4x32x4096x128", "--attention", "flash3", "--on", "h100-sxm"),
    ("collective", "all_reduce=256 MiB", "--on", "dgx-h100"),
    ("collective", "all_gather=1 MiB", "--on", "dgx-a100-80gb", "--ranks", "64"),
    ("collective", "all_to_all=4 KiB", "--on", "dgx-h100", "--ranks", "16"),
    ("collective", "all_reduce=64 KiB", "--on", "dgx-h100", "--library", "gloo", "--ranks", "4"),
    ("fabric", "dgx-h100", "--nodes", "64"),
)


ENTRIES = (
    ("accelerator", "h100-sxm"),
    ("system", "dgx-h100"),
    ("model", "deepseek-v3"),
    ("framework", "megatron-core"),
    ("link", "nvlink4"),
    ("schedule", "zb-v"),
)


def settings(words: str) -> list[str]:
    """``--set`` for each of some settings that stand side by side."""
    result: list[str] = []
    parts: list[str] = []
    for word in words.split(" "):  # values may hold spaces, keys are dotted and hold an equals sign
        if "=" in word and "." in word.split("=")[0]:
            parts.append(word)
        else:
            parts[-1] += f" {word}"
    for part in parts:
        result += ["--set", part]
    return result


def commands() -> Iterator[Command]:
    """Every command line, in an order that stays."""
    yield from of_scenarios()
    yield from of_settings()
    yield from of_schedules()
    yield from of_comparisons()
    yield from of_measurements()
    yield from of_catalogs()


def of_scenarios() -> Iterator[Command]:
    """Each scenario of the repository through what takes one scenario; the broken ones are refused."""
    for path in files("scenarios/**/*.yaml"):
        yield "run", path, "--json", "--trace", f"{FILES}/trace.json"
        yield "run", path
        yield "check", path
        yield "check", path, "--json"
        yield "goodput", path, "--json", "--trials", "20"
        if "sweep:" in (ROOT / path).read_text(encoding="utf-8"):
            yield "sweep", path, "--csv", f"{FILES}/rows.csv", "--jobs", "1"
            yield "sweep", path, "--json", "--jobs", "1"
    for path in files("tests/scenarios/broken/*"):
        yield "run", path
        yield "check", path, "--json"
    studied = (QUICKSTART, MIXTURE, "scenarios/what-if/mixed.yaml", "scenarios/what-if/rails.yaml")
    for path in studied:
        yield "run", path, "--sensitivity", "--json"
        yield "run", path, "--sensitivity"


def of_settings() -> Iterator[Command]:
    """Two scenarios with other settings, frameworks and schedules."""
    from mpsim.framework import framework_names
    from mpsim.schedule import schedule_names

    for words in SETTINGS:
        yield "run", QUICKSTART, "--json", "--trace", f"{FILES}/trace.json", *settings(words)
        yield "run", QUICKSTART, *settings(words)
        yield "check", QUICKSTART, *settings(words)
    for words in MIXTURES:
        yield "run", MIXTURE, "--json", *settings(words)
        yield "check", MIXTURE, *settings(words)
    for name in framework_names():
        yield "run", QUICKSTART, "--json", *settings(f"framework.preset={name}")
        yield "run", MIXTURE, "--json", *settings(f"framework.preset={name}")
    for name in schedule_names():
        chosen = f"schedule.name={name}"
        yield "run", QUICKSTART, "--json", *settings(chosen)
        yield "run", QUICKSTART, "--json", *settings(f"{chosen} schedule.virtual_stages=2")


def of_schedules() -> Iterator[Command]:
    """Every schedule in some shapes."""
    from mpsim.schedule import schedule_names

    for name in schedule_names():
        for pp, microbatches, virtual in SHAPES:
            shape = (
                "--pp",
                str(pp),
                "--microbatches",
                str(microbatches),
                "--virtual",
                str(virtual),
            )
            yield "schedule", name, *shape, "--times", "5,7,3", "--p2p", "1", "--json"
    yield "schedule", "all", "--pp", "4", "--microbatches", "8"
    yield "schedule", "all", "--pp", "8", "--microbatches", "24", "--memory", "8", "--json"
    yield "schedule", "zb-v", "--pp", "4", "--microbatches", "8", "--csv", f"{FILES}/orders.csv"
    yield "schedule", "1f1bb", "--pp", "4", "--microbatches", "8"


def of_comparisons() -> Iterator[Command]:
    """Comparisons and searches."""
    yield "compare", "scenarios/nics-4.yaml", "scenarios/nics-8.yaml"
    yield "compare", "scenarios/nics-4.yaml", "scenarios/nics-8.yaml", "--json"
    yield "compare", QUICKSTART, MIXTURE
    limits = ("parallelism.tp=4,8", "parallelism.pp=2,4", "training.micro_batch=1,2")
    over = [word for limit in limits for word in ("--over", limit)]
    yield "search", "scenarios/best-layout.yaml", *over
    yield "search", "scenarios/best-layout.yaml", *over, "--json"


def of_measurements() -> Iterator[Command]:
    """Measured tables and recordings."""
    for table in files("validation/data/*.csv"):
        yield "published", table, "--json"
        yield "published", table
    recordings = files("validation/measured/*.jsonl")[:2]
    machine = "validation/measured/cpu-2-ranks.yaml"
    for path in recordings:
        yield "calibrate", path, "--out", f"{FILES}/machine.yaml", "--json"
        yield "validate", machine, "--runs", path, "--json"
    yield "validate", machine, "--runs", recordings[0]


def of_catalogs() -> Iterator[Command]:
    """What `mpsim show` knows."""
    yield ("show",)
    for question in KERNELS:
        yield "show", *question
        yield "show", *question, "--json"
    for catalog, name in ENTRIES:
        yield "show", catalog
        yield "show", catalog, "--json"
        yield "show", catalog, name
        yield "show", catalog, name, "--json"
    yield "show", "accelerator", "h1000"


def files(pattern: str) -> list[str]:
    """Files of the repository, as commands name them."""
    return sorted(str(path.relative_to(ROOT)) for path in ROOT.glob(pattern))


def start(command: Command, folder: Path) -> int:
    """Run a command in a fork of this process; the fork's number."""
    (folder / "files").mkdir()
    child = os.fork()
    if child == 0:
        os._exit(_say([part.replace(FILES, str(folder / "files")) for part in command], folder))
    return child


def _say(arguments: list[str], folder: Path) -> int:
    """Run a command with its outputs in files; returns its exit code."""
    from mpsim.cli import main

    if arguments[0] == "published":  # the bench of published tables is a script beside mpsim
        sys.path.insert(0, str(ROOT / "validation"))
        main, arguments = importlib.import_module("published").main, arguments[1:]
    # lines that a busy machine makes a command write are none of its outputs
    os.environ |= {"COLUMNS": "120", "MPSIM_PROGRESS": "off"}
    out, err = io.StringIO(), io.StringIO()
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main(arguments)
    except BaseException:  # noqa: BLE001  a crash is an outcome too
        err.write(traceback.format_exc())
        code = 99
    (folder / "stdout").write_text(out.getvalue(), encoding="utf-8")
    (folder / "stderr").write_text(err.getvalue(), encoding="utf-8")
    return code


def finish(folder: Path, code: int) -> Outcome:
    """What a command said and wrote; its folder goes."""
    texts = {
        name: (folder / name).read_text(encoding="utf-8").replace(str(folder / "files"), FILES)
        for name in ("stdout", "stderr")
        if (folder / name).exists()  # a killed command leaves none
    }
    files = {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted((folder / "files").iterdir())
    }
    shutil.rmtree(folder)
    return {"code": code, **texts, "files": files}


def chosen(*, quick: bool, only: str) -> list[Command]:
    """The commands that this call is to run."""
    wanted = [command for command in commands() if only in " ".join(command)]
    if quick:
        wanted = [command for command in wanted if command[0] not in SLOW][::QUICK]
    return wanted


def outcomes(wanted: list[Command], jobs: int) -> dict[str, Outcome]:
    """What each command said, under its command line; `jobs` of them run at a time."""
    import mpsim.cli.app  # so that forks need not
    import mpsim.stamp

    mpsim.stamp._ENDINGS = ("no file",)  # the stamp of outputs is that of the code, which moves

    results: dict[str, Outcome] = {" ".join(command): {} for command in wanted}
    running: dict[int, tuple[Command, Path]] = {}
    waiting = iter(wanted)
    while True:
        for command in itertools.islice(waiting, jobs - len(running)):
            folder = Path(tempfile.mkdtemp(prefix="same-bytes-"))
            running[start(command, folder)] = (command, folder)
        if not running:
            return results
        child, status = os.wait()
        command, folder = running.pop(child)
        results[" ".join(command)] = finish(folder, os.waitstatus_to_exitcode(status))


def differences(before: Outcome, after: Outcome) -> Iterator[str]:
    """Lines that say how two outcomes of one command differ."""
    if before["code"] != after["code"]:
        yield f"    exit code {before['code']} -> {after['code']}"
    if before["files"] != after["files"]:
        yield f"    files {before['files']} -> {after['files']}"
    for name in ("stdout", "stderr"):
        old, new = str(before.get(name)), str(after.get(name))
        if old != new:
            changes = difflib.unified_diff(old.splitlines(), new.splitlines(), lineterm="", n=0)
            yield f"    {name}:"
            yield from (f"      {line[:300]}" for line in list(changes)[2:12])


def compare(before: dict[str, Outcome], after: dict[str, Outcome]) -> int:
    """Print what moved; how many commands did."""
    moved = 0
    for line, outcome in after.items():
        if line not in before:
            print(f"new: mpsim {line}")
        elif lines := list(differences(before[line], outcome)):
            moved += 1
            print(f"moved: mpsim {line}", *lines, sep="\n")
    print(f"{len(after)} commands, {moved} moved")
    return moved


def main() -> int:
    """Record or compare; the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("action", choices=("record", "compare"))
    parser.add_argument("file", type=Path, help="the recording, a .json.gz outside the repository")
    parser.add_argument("--only", default="", help="commands whose line holds this")
    parser.add_argument(
        "--quick", action="store_true", help=f"one command in {QUICK}, none of the slow ones"
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    os.chdir(ROOT)
    after = outcomes(chosen(quick=options.quick, only=options.only), options.jobs)
    if options.action == "record":
        options.file.write_bytes(gzip.compress(json.dumps(after).encode(), mtime=0))
        print(f"{len(after)} commands recorded")
        return 0
    before = json.loads(gzip.decompress(options.file.read_bytes()))
    return 1 if compare(before, after) else 0


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    sys.exit(main())
