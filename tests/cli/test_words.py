"""Words of ours that no user knows stand neither in help nor in messages, nor in what README and docs say."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
import yaml

from mpsim.cli.app import COMMANDS, GROUPS, application

ROOT = Path(__file__).resolve().parents[2]
OURS = (
    "tie: between",
    "of five",
    "like a stranger",
    "half as a stranger",
    "rank with most",
    "nothing hides",
    "names hidden with a mean",
    "cannot be among the best",
    "hangs on what is foreseen",
    "looked at before it works",
    "Facility over computers",
    "Times the published",
    "framework needs that",
    "in the mean",
)
FIGURE = re.compile(r"\b[Ff]igures?\b")
NAMED = {"figure", "figures", "Figure", "Figures"}  # keys, names and tags
DRAWN = re.compile(
    r'</?figure|class="figures"|`figures`|figures:|, figure \d|figure of its own'
)  # no quantity is meant
OPENINGS = re.compile(r"(Of|Whether|Times|Until|Only) ")
SUBJECTLESS = re.compile(r"(Of|The same|Per|More of|What) ")
GROUP = typer.main.get_command(application())


def printed(file: Path) -> Iterator[str]:
    """Texts of a module that are no docstrings."""
    text = file.read_text(encoding="utf-8")
    joined = re.sub(r'"\s*\n\s*f?"', "", text)
    if not any(word in joined for word in OURS) and not FIGURE.search(joined):
        return  # need not be parsed
    tree = ast.parse(text)
    statements = (node.value for node in ast.walk(tree) if isinstance(node, ast.Expr))
    silent = {id(value) for value in statements if isinstance(value, ast.Constant)}
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and id(node) not in silent
        ):
            yield node.value


def said(value: object) -> Iterator[str]:
    """Texts of a file of words, without the figures in braces."""
    if isinstance(value, dict):
        for part in value.values():
            yield from said(part)
    else:
        yield re.sub(r"\{[^{}]*\}", "", str(value))


def test_no_message_uses_a_word_of_ours():
    """Every text of the package that can be printed."""
    sources = [(file, printed(file)) for file in (ROOT / "mpsim").rglob("*.py")]
    words = (ROOT / "mpsim").glob("*/data/said.yaml")
    sources += [(file, said(yaml.safe_load(file.read_text("utf-8")))) for file in words]
    texts = [
        (file.name, text)
        for file, printable in sources
        for text in printable
        if any(word in text for word in OURS)
        or (FIGURE.search(DRAWN.sub("", text)) and text not in NAMED)
    ]
    assert texts == []


@pytest.mark.parametrize("page", [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))], ids=lambda page: page.name)  # fmt: skip
def test_no_page_uses_a_word_of_ours(page):
    """The same for what a reader reads first."""
    text = " ".join(page.read_text(encoding="utf-8").split())
    assert [word for word in OURS if word in text] == []
    assert FIGURE.findall(DRAWN.sub("", text)) == []


@pytest.mark.parametrize("page", ["scenario.md", "frameworks.md"])
def test_the_text_of_a_key_names_its_subject(page):
    """It is "Price of one switch", not "Of one switch"."""
    text = (ROOT / "docs" / "reference" / page).read_text(encoding="utf-8")
    meanings = re.findall(r"^\| `\w+` \|.*\| ([^|]+) \|$", text, re.MULTILINE)
    assert len(meanings) > 80
    assert [meaning for meaning in meanings if SUBJECTLESS.match(meaning)] == []


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_an_option_names_its_subject(name):
    """It is "Memory limit per GPU", not "Of a rank"."""
    helps = [parameter.help for parameter in GROUP.commands[name].params]
    assert [text for text in helps if OPENINGS.match(text)] == []


@pytest.mark.parametrize("example", [line for group in GROUPS.values() for line in group.values()])
def test_the_example_of_a_command_is_one(example, monkeypatch, tmp_path):
    """Command, options and their values are as the application has them."""
    monkeypatch.chdir(tmp_path)
    _, name, *rest = shlex.split(example)
    context = GROUP.make_context("mpsim", [name], resilient_parsing=True)
    GROUP.commands[name].make_context(name, rest, parent=context)


def test_help_names_groups_and_no_type_beside_a_flag(mpsim_cli):
    """Commands stand by what a user wants; a flag takes nothing."""
    words = mpsim_cli("--help").out
    assert all(group in words for group in GROUPS)
    assert "<bool>" not in words + mpsim_cli("search", "--help").out


@pytest.mark.parametrize(("tried", "instead"), [("serve", "mpsim run"), ("train", "mpsim run"), ("sweeps", "sweep")])  # fmt: skip
def test_a_command_that_people_try_leads_to_the_one_there_is(mpsim_cli, tried, instead):
    """A service is run, not served."""
    outcome = mpsim_cli(tried, "my-run.yaml")
    assert (outcome.code, outcome.out) == (2, "")
    assert instead in outcome.err
