"""Templates: files to start from, which run as they are."""

from __future__ import annotations

import re
import shlex

import pytest
import typer

import mpsim
from mpsim.cli.app import application
from mpsim.scenario import template_names, template_text, template_title

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
