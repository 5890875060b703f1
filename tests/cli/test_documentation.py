"""README and docs: every command line is one (`test_docs_sessions.py` runs them), every snippet of YAML fits, every program runs, every link leads somewhere."""

from __future__ import annotations

import functools
import re
import runpy
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from mpsim.cli.app import application
from mpsim.document import parse_scalar
from mpsim.scenario import Scenario

ROOT = Path(__file__).resolve().parent.parent.parent
MADE = {"site", "_build"}  # what a build of the site leaves under docs/
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *(
        page
        for page in sorted((ROOT / "docs").rglob("*.md"))
        if not MADE & set(page.relative_to(ROOT).parts)
    ),
]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
PLACEHOLDERS = re.compile(r"\.\.\.|…|\[|\b[A-Z]{2,}\b|\b[A-Z]\b|--(runs|csv|plots?|trace)$")
SECTIONS = ("model", "cluster", "parallelism", "schedule", "training", "framework", "simulation")
NO_COMMANDS = ("mpsim torch python os cuda nccl driver",)  # keys of a file
ELSEWHERE = (
    "add-a-schedule.md",
    "calibrate.md",
)  # programs that need what the page has the reader make
BASE = {
    "schema": 1,
    "model": {"preset": "gpt3-175b"},
    "cluster": {"preset": "dgx-h100", "nodes": 16},
    "training": {"global_batch": 128, "sequence_length": 4096},
}


def blocks(page: Path, language: str) -> Iterator[str]:
    """Fenced blocks of one language."""
    for found in FENCE.finditer(page.read_text(encoding="utf-8")):
        if found[1] == language:
            yield found[2]


def indented(page: Path) -> Iterator[str]:
    """Blocks that are indented by four spaces outside fences."""
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    for block in re.findall(r"(?:^    .*\n?|^\n(?=    ))+", text, re.MULTILINE):
        yield re.sub(r"^    ", "", block, flags=re.MULTILINE)


def lines(page: Path) -> Iterator[str]:
    """Command lines in blocks of a page, one `mpsim ...` each, as a shell would see them."""
    text = "\n".join([*blocks(page, "console"), *indented(page)]).replace("\\\n", " ")
    for line in text.splitlines():
        for part in line.removeprefix("$ ").split("&&"):
            if found := re.search(r"(?:^|--no-python |srun .* )(mpsim .*)", part.strip()):
                yield found[1]


def mentions(page: Path) -> Iterator[str]:
    """Commands in the prose of a page, with or without what they need."""
    prose = FENCE.sub("", page.read_text(encoding="utf-8"))
    for span in re.findall(r"`(mpsim [a-z][^`]*)`", prose):
        if not PLACEHOLDERS.search(span) and span not in NO_COMMANDS:
            yield span


def words(line: str) -> list[str]:
    """Arguments after `mpsim`, without comments and redirections."""
    return shlex.split(line.partition(" > ")[0], comments=True)[1:]


LINES = sorted({one for page in PAGES for one in lines(page) if "[OPTIONS]" not in one})
MENTIONS = sorted({one for page in PAGES for one in mentions(page)})
PROGRAMS = [
    (page.name, number, block)
    for page in PAGES
    if page.name not in ELSEWHERE
    for number, block in enumerate(
        [
            *blocks(page, "python"),
            *(one for one in indented(page) if one.startswith("import mpsim")),
        ]
    )
]


@pytest.fixture
def reader(tmp_path, monkeypatch):
    """A folder with what the repository ships, in which a reader tries things."""
    for name in ("scenarios", "README.md"):
        (tmp_path / name).symlink_to(ROOT / name)
    data = tmp_path / "validation" / "data"
    data.mkdir(parents=True)
    for file in (ROOT / "validation" / "data").glob("*.csv"):
        head = file.read_text(encoding="utf-8").splitlines(keepends=True)[:4]
        (data / file.name).write_text("".join(head), encoding="utf-8")
    (tmp_path / "tests").symlink_to(ROOT / "tests")
    (tmp_path / "my-run.yaml").write_text((ROOT / "scenarios" / "quickstart.yaml").read_text())
    (tmp_path / "my-runs.csv").write_text(
        "scenario,training.micro_batch,step_time\nmy-run.yaml,1,950 ms\n"
    )
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_there_is_something_to_check():
    """The patterns find what a reader would."""
    assert len(LINES) > 40
    assert len(MENTIONS) > 15
    assert len(PROGRAMS) > 5


@functools.cache
def commands() -> Any:
    """All commands with their options."""
    return typer.main.get_command(application())


def parsed(line: str) -> None:
    """Let the application read a line without doing anything."""
    group = commands()
    context = group.make_context("mpsim", ["show"], resilient_parsing=True)
    name, command, rest = group.resolve_command(context, words(line))
    assert command is not None, line
    if "--help" not in rest:
        command.make_context(name, list(rest), parent=context)


@pytest.mark.parametrize("line", LINES)
def test_a_command_line_of_the_docs_is_one(reader, line):
    """Command, options and their values are as the application has them."""
    parsed(line)


@pytest.mark.parametrize("line", MENTIONS)
def test_a_command_in_the_prose_of_the_docs_is_one(reader, line):
    """The same, but what it works on may go without saying."""
    try:
        parsed(line)
    except Exception as error:
        if type(error).__name__ != "MissingParameter":
            raise


@pytest.mark.parametrize(("page", "number", "block"), PROGRAMS, ids=lambda one: str(one)[:30])
def test_a_program_of_the_docs_runs(reader, page, number, block):
    """As it stands, beside the scenarios that ship."""
    file = reader / "program.py"
    file.write_text(block)
    runpy.run_path(str(file))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_sections_of_a_scenario_in_the_docs_fit_the_schema(page):
    """Whatever is shown can be written; a few keys are shown without the rest."""
    for block in [*blocks(page, "yaml"), *indented(page)]:
        if not re.match(rf"({'|'.join(SECTIONS)}|schema: 1\nmodel)\b *:", block.strip()):
            continue
        data = yaml.safe_load(block)
        if ".yaml" in block:
            continue  # a machine that the reader would have measured
        whole = {
            key: {**BASE[key], **value} if key in BASE and isinstance(value, dict) else value
            for key, value in data.items()
        }
        Scenario.from_mapping({**BASE, **whole}, checked=False)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_to_a_heading_meets_one(page):
    """Headings are named by their words in small letters with dashes."""
    for target, anchor in re.findall(r"\]\(([^)#]*)#([^)]+)\)", page.read_text(encoding="utf-8")):
        if "://" in target:
            continue
        other = page.parent / target if target else page
        headings = re.findall(r"^#+ +(.+)$", other.read_text(encoding="utf-8"), re.MULTILINE)
        slugs = {re.sub(r"[^\w\- ]", "", one.lower()).strip().replace(" ", "-") for one in headings}
        assert anchor in slugs, f"{page.name}: {target}#{anchor}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_setting_in_the_docs_has_a_key_of_the_schema(page):
    """`--set key=value` and `--over key=a,b` name keys that there are."""
    from mpsim.scenario.schema import known_keys

    keys = set(known_keys(Scenario))
    for key, values in re.findall(
        r"--(?:set|over) ([\w.]+)=(\S+)", page.read_text(encoding="utf-8")
    ):
        if key.isupper() or key.startswith("framework."):
            continue
        assert key in keys, f"{page.name}: {key}"
        parse_scalar(values.partition(",")[0].strip("`'\""))
