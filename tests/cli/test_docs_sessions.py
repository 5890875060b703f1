"""README and docs read as sessions: the command lines of a page, run in their order in one folder, and what they show is what is printed.

A block of YAML whose first line is a comment with a file's name is written to that file first, as the page tells its reader to do. Commands that take minutes run in the
tutorials, and elsewhere with MPSIM_EVERY_LINE=1 (`ci/optional docs`), as searches of services do everywhere. What several pages ask of the scenarios that ship is computed once.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from mpsim.training.memory.account import memory_constants
from tests import faults
from tests.conftest import Outcome

ROOT = Path(__file__).resolve().parents[2]
MADE = {"site", "_build"}  # what a build of the site leaves under docs/
PAGES = [
    ROOT / "README.md",
    *(
        page
        for page in sorted((ROOT / "docs").rglob("*.md"))
        if not MADE & set(page.relative_to(ROOT).parts)
    ),
]
BLOCK = re.compile(
    r"^```(?P<language>\w*)\n(?P<fenced>.*?)^```|(?P<indented>(?:^    [^\n]*\n?|^\n(?=    ))+)",
    re.MULTILINE | re.DOTALL,
)
LONG = {"search", "sweep", "validate", "plan", "report", "calibrate"}
GIVEN = {  # what a reader of a page has already, and what stands for it here
    "search.md": {"my-run.yaml": "scenarios/quickstart.yaml"},
    "sweep.md": {"my-run.yaml": "scenarios/quickstart.yaml"},
    "import.md": {
        "config.json": "tests/imports/samples/hf/llama3p2_1b.config.json",
        "train.sh": "tests/imports/samples/megatron/cmd_core_v0.12_era.sh",
        "ds_config.json": '{"zero_optimization": {"stage": 1}, "bf16": {"enabled": true}}',
    },
    "validate.md": {
        "my-run.yaml": "scenarios/quickstart.yaml",
        "my-runs.csv": "scenario,training.micro_batch,step_time\nmy-run.yaml,1,950 ms",
        "my-services.csv": "scenario,parallelism.tp,memory_gb\nmy-run.yaml,2,20",
        "table-with-times.csv": "training.micro_batch,step_time_s,measured.mfu,mpsim\n1,1,40 %,0",
    },
}
ELSEWHERE = {  # parts of lines that do not run here, and where they do or why not
    "mpsim explore": "serves until it is interrupted: tests/cli/test_explore_command.py",
    "scenarios/quickstart.yaml --plots out": ".ci/run runs it as a user",
    "slack-1f1b": "a schedule that the page has the reader write",
    "mpsim measure": "needs torch and minutes: tests/cli and tests/measure",
    "--plots out --trace step.json.gz": "tests/cli/test_run_command.py writes both",
    "mpsim explain my-run.yaml": "a reader's own recording: tests/unit/explain explains recordings",
    "--with-runs launches": "logs of a reader's own runs: tests/unit/study/test_shortlist.py",
    "mpsim compare my-step.yaml": "a reader's own recording: tests/cli/test_run_command.py compares recordings",
}
NO_SESSIONS = (
    "calibrate.md",  # rests on what `mpsim measure` has written
    "tutorial-decisions.md",  # tests/cli/test_decisions.py
)


def steps(page: Path) -> Iterator[tuple[str, str, list[str]]]:
    """What a reader does: ``("write", name, lines)``, or ``("run", line, lines that it shows)``."""
    for block in BLOCK.finditer(page.read_text(encoding="utf-8")):
        text = block["fenced"] or ""
        if block["indented"]:
            text = re.sub(r"^    ", "", block["indented"], flags=re.MULTILINE)
        named = re.match(r"# (\S+\.yaml)\n", text)
        if block["language"] == "yaml" and named:
            yield "write", named[1], text.splitlines()
        elif block["language"] in ("console", "", None):
            yield from _commands(text)


def _commands(text: str) -> Iterator[tuple[str, str, list[str]]]:
    lines = text.replace("\\\n", " ").splitlines()
    shown: list[str] = []
    for line in lines:
        if re.match(r"(\$ )?(pip install .* && )?mpsim ", line) and "[OPTIONS]" not in line:
            for part in line.removeprefix("$ ").split("&&"):
                if part.strip().startswith("mpsim "):
                    shown = []
                    yield "run", part.strip(), shown
        elif line.strip() and not line.startswith("$ "):
            shown.append(line.strip())


SESSIONS = [
    page
    for page in PAGES
    if page.name not in NO_SESSIONS and any(kind == "run" for kind, _, _ in steps(page))
]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A copy of what the repository ships; tables of measured rows are cut to a few rows."""
    shutil.copytree(ROOT / "scenarios", tmp_path / "scenarios")
    (tmp_path / "tests").symlink_to(ROOT / "tests")
    data = tmp_path / "validation" / "data"
    data.mkdir(parents=True)
    for file in (ROOT / "validation" / "data").glob("*.csv"):
        head = file.read_text(encoding="utf-8").splitlines(keepends=True)[:4]
        (data / file.name).write_text("".join(head), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def runs(page: Path, command: str) -> bool:
    """Whether a line is run here."""
    if any(line in command for line in ELSEWHERE):
        return False
    if os.environ.get("MPSIM_EVERY_LINE") == "1":
        return True
    if page.name.startswith("tutorial"):
        return not command.startswith("mpsim search scenarios/serving/")
    return shlex.split(command)[1] not in LONG


KNOWN: dict[tuple[str, ...], Outcome] = {}


def answer(mpsim_cli, words):
    """What a command line does; a run or comparison of scenarios that ship is remembered, as no later line reads its pictures."""
    key = tuple(words)
    once = words[0] in ("run", "compare") and not {"--emit", "--trace"} & set(words)
    if not once or not all(word.startswith("scenarios/") for word in words if ".yaml" in word):
        return mpsim_cli(*words)
    if key not in KNOWN:
        KNOWN[key] = mpsim_cli(*words)
    return KNOWN[key]


@pytest.mark.parametrize("page", SESSIONS, ids=lambda page: page.stem)
def test_a_page_runs_from_its_first_line_to_its_last(page, folder, mpsim_cli):
    """Every line ends as the page says: well, but for the mistake that the tutorial makes on purpose."""
    for name, source in GIVEN.get(page.name, {}).items():
        text = (
            source
            if "{" in source or "\n" in source
            else (folder / source).read_text(encoding="utf-8")
        )
        (folder / name).write_text(text, encoding="utf-8")
    if page.name == "explain.md":
        recordings(folder)
    failed, count, left = [], 0, set()
    for kind, line, shown in steps(page):
        if kind == "write":
            Path(line).write_text("\n".join(shown) + "\n", encoding="utf-8")
            continue
        command, _, target = line.partition(" > ")
        words = shlex.split(command, comments=True)
        if not runs(page, command) or left & {w for word in words for w in word.split("=")}:
            left |= outputs(words, target)
            continue
        done = answer(mpsim_cli, words[1:])
        if target:
            Path(target.split()[0]).write_text(done.out, encoding="utf-8")
        count += 1
        if done.code != (2 if "parallelism.tp=3" in line else 0):
            failed.append(f"{line}: {done.err}")
        printed = {" ".join(line.split()) for line in f"{done.out}\n{done.err}".splitlines()}
        failed += [
            f"{line}: prints no {text!r}"
            for text in shown
            if text != "..." and " ".join(text.split()) not in printed
        ]
    assert failed == []
    lines = [line for kind, line, _ in steps(page) if kind == "run"]
    elsewhere = all(any(part in line for part in ELSEWHERE) for line in lines)
    assert count or elsewhere or os.environ.get("MPSIM_EVERY_LINE") != "1"


def recordings(folder: Path) -> None:
    """What the readers of explain.md recorded: a run with each fault of the trial, 15 % of the step, and a pipeline that ran with other layers."""
    (folder / "run.yaml").write_text(yaml.safe_dump(faults.SCENARIO), encoding="utf-8")
    (folder / "stages.yaml").write_text(yaml.safe_dump(faults.STAGED), encoding="utf-8")
    result, kernels = faults.simulated()
    for fault in faults.FAULTS:
        share = 0.4 if fault == "slow_link" else 0.15
        size = {fault: share * float(result.summary["step_time_s"])}
        faults.write(faults.recorded(kernels, size, 4), folder / fault.replace("_", "-"))
    for how, name in (("second stage has more", "uneven-stages"), ("half as many microbatches", "schedule-bubble")):  # fmt: skip
        faults.staged(faults.RUNS[how][1], folder / name, 1)


def outputs(words: list[str], target: str) -> set[str]:
    """Files that a line which is not run would have written."""
    named = {
        word
        for before, word in itertools.pairwise(words)
        if before in ("-o", "--out", "--csv", "--resume")
    }
    with contextlib.suppress(IndexError):
        named.add(target.split()[0])
    return named


def test_there_are_sessions():
    """The patterns find what a reader would, and every line that is left out is one of a page."""
    lines = [line for page in SESSIONS for kind, line, _ in steps(page) if kind == "run"]
    assert len(SESSIONS) > 15
    assert len(lines) > 60
    everything = [line for page in PAGES for kind, line, _ in steps(page) if kind == "run"]
    for left in ELSEWHERE:
        assert any(left in line for line in everything), left


def test_what_the_memory_page_says_first_is_so(mpsim_cli, scenarios):
    """`run` gives the peak, `check` its moment, `--json` the parts; the constants are those of the data."""
    page = (ROOT / "docs" / "explanation" / "memory.md").read_text(encoding="utf-8")
    constants = memory_constants()
    assert f"constant of {constants['context'] / 1e9:g} GB" in page
    assert f"{constants['communicator'] / 1e9:.2f} GB a communicator" in page
    assert f"constant share ({constants['fragmentation']:.0%}".replace("%", " %") in page
    quickstart = scenarios / "quickstart.yaml"
    assert "of microbatch" in mpsim_cli("check", quickstart).out
    memory = mpsim_cli("run", quickstart, "--json").json()["memory"]
    assert f"{memory['total'] / 1e9:.4g} GB of" in mpsim_cli("run", quickstart).out
    parts = re.findall(r"^\| (\w+) \|", page, re.MULTILINE)[1:]
    named = [part for part in parts if part in memory]
    assert sum(memory[part] for part in named) == pytest.approx(memory["total"], rel=1e-12)
