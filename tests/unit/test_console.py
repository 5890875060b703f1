"""Tables that the commands print."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpsim.cli import console

CELLS = st.text("abc XYZ09.,%()/\u00e9\u6f22\u5b57\n", max_size=12).map(
    lambda text: re.sub(r"\s*\n\s*", "\n", text.strip()) or "x"
)


@pytest.fixture(autouse=True)
def wide(monkeypatch):
    """Room enough that a terminal folds nothing."""
    monkeypatch.setenv("COLUMNS", "1000")


@settings(max_examples=50, deadline=None)
@given(
    st.integers(1, 4).flatmap(
        lambda n: st.tuples(
            st.lists(st.lists(CELLS, min_size=n, max_size=n), max_size=4),
            st.one_of(st.just([]), st.lists(CELLS, min_size=n, max_size=n)),
            st.sets(st.integers(0, n - 1)),
        )
    )
)
def test_a_table_in_a_file_is_the_one_on_a_terminal(table):
    """Drawn twice, by rich and without it, the text is the same where nothing has to be folded."""
    rows, header, right = table
    plain, rich = (
        [line.rstrip() for line in draw(rows, header, right)]
        for draw in (console._in_file, console._on_terminal)
    )
    assert [line for line in plain if line] == [line for line in rich if line]


def test_short_rows_are_filled_up(capsys):
    """A row may leave out its last cells."""
    console.print_table([["a"], ["b", "c"]], header=("x", "y"), right=[1])
    assert capsys.readouterr().out == "x   y\n\u2500\u2500\u2500\u2500\u2500\na\nb   c\n"


def test_a_table_in_a_pipe_costs_no_library(scenarios):
    """Commands whose output goes elsewhere do not load what draws on terminals."""
    code = (
        f"import sys; from mpsim.cli import main; assert main(['run', {str(scenarios / 'quickstart.yaml')!r}]) == 0;"
        "sys.exit('rich.table' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
