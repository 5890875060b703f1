"""Templates: files to start from, which run as they are."""

from __future__ import annotations

import re
import shlex

import pytest
import typer

import mpsim
from mpsim.cli.app import application
from mpsim.scenario.examples import template_names, template_text, template_title

WIDTH = 100


@pytest.fixture
def written(tmp_path):
    """Write a template as `mpsim new` does."""

    def write(name):
        file = tmp_path / f"{name}.yaml"
        file.write_text(template_text(name, file.name), encoding="utf-8")
        return file

    return write


@pytest.mark.parametrize("name", template_names())
def test_a_template_runs_and_fits(written, name):
    """At first try: no mistake, no layout that memory does not hold, and a name to be told apart by."""
    summary = mpsim.simulate(mpsim.load(written(name))).summary
    assert summary["scenario"] == name
    assert summary.get("fits_memory", True)


@pytest.mark.parametrize("name", template_names())
def test_every_override_of_a_template_is_one(written, name):
    """Each named change gives another scenario."""
    file = written(name)
    base = mpsim.load(file)
    for override in base.overrides:
        assert mpsim.load(file, overrides=[override]).digest != base.digest


def _variants(lines: list[str]) -> list[tuple[int, int]]:
    """First and last line, not included, of every block of comments that is a key of YAML."""
    variants, block = [], re.compile(r" *# +(?=[a-z_]+:(?: |$))")
    begins = next(i for i, line in enumerate(lines) if line.startswith("schema:"))
    for first in range(begins, len(lines)):  # above it stands what the file is for
        head = block.match(lines[first])
        if head and not any(first < last for _, last in variants):
            deeper = " *" + re.escape(head[0].lstrip()) + " "
            after = range(first + 1, len(lines))
            last = next((i for i in after if not re.match(deeper, lines[i])), len(lines))
            variants.append((first, last))
    return variants


def _without_comment(lines: list[str], first: int, last: int) -> str:
    """The text with a commented block in place of what the file says under the same key of the same section."""
    head = re.match(r"( *)# +", lines[first])
    indent, mark = len(head[1]), len(head[0])
    own = [" " * indent + line[mark:] for line in lines[first:last]]
    key = own[0].split(":")[0]
    text = "\n".join([*lines[:first], *(["#"] * (last - first)), *lines[last:]])
    text = re.sub(rf"(?m)^{re.escape(key)}:.*(?:\n {' ' * indent}.*)*", "", text)
    kept = text.split("\n")
    return "\n".join([*kept[:first], *own, *kept[first:]])


VARIANTS = [
    (name, *span)
    for name in template_names()
    for span in _variants(template_text(name).splitlines())
]


def test_templates_propose_variants():
    """The test below is about something."""
    assert len(VARIANTS) >= 10


@pytest.mark.parametrize(("name", "first", "last"), VARIANTS)
def test_every_commented_variant_is_right(written, name, first, last):
    """Without the mark of the comment it is a scenario, and another one."""
    file = written(name)
    base = mpsim.load(file)
    text = _without_comment(file.read_text(encoding="utf-8").splitlines(), first, last)
    file.write_text(text, encoding="utf-8")
    assert mpsim.load(file).resolved() != base.resolved() or "dp: 4" in text


@pytest.mark.parametrize("name", template_names())
def test_every_command_in_a_template_is_one(written, name):
    """Lines that a comment proposes parse, with the file's own name in them."""
    text = written(name).read_text(encoding="utf-8")
    assert not re.search(r"\bFILE\b", text)
    group = typer.main.get_command(application())
    context = group.make_context("mpsim", ["show"], resilient_parsing=True)
    lines = re.findall(r"#.*?(mpsim [a-z]+(?: (?:--?)?[^\s']+)*)", text)
    for line in lines:
        command, parser, _ = group.resolve_command(context, shlex.split(line)[1:])
        assert parser is not None, line
        assert command in line


@pytest.mark.parametrize("name", template_names())
def test_a_template_reads_well(name):
    """A title of one line, and after it why one would start there; no tabs, no line that runs far."""
    assert 20 < len(template_title(name)) < WIDTH - 16  # beside its name in the list
    lines = template_text(name).splitlines()
    assert "\t" not in "".join(lines)
    assert max(map(len, lines)) < 1.4 * WIDTH


def test_the_list_says_whom_each_is_for(mpsim_cli):
    """One line a template, its title beside its name."""
    lines = mpsim_cli("new", "--list").out.splitlines()
    assert [line.split()[0] for line in lines] == list(template_names())
    assert all(
        template_title(name) in line for name, line in zip(template_names(), lines, strict=True)
    )


def test_commands_name_the_file_that_was_written(mpsim_cli, tmp_path, monkeypatch):
    """A name that a shell would take apart is quoted."""
    monkeypatch.chdir(tmp_path)
    assert mpsim_cli("new", "my run.yaml", "-t", "moe").code == 0
    assert "mpsim search 'my run.yaml'" in (tmp_path / "my run.yaml").read_text()
