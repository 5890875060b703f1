"""Tables that the commands print."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpsim.cli import console
from mpsim.table import WIDTH, _width, lay_out, plural

CELLS = st.text("abc XYZ09.,%()/\u00e9\u6f22\u5b57", max_size=30).map(
    lambda text: re.sub(r"\s+", " ", text.strip()) or "x"
)
TABLES = st.integers(1, 4).flatmap(
    lambda n: st.tuples(
        st.lists(st.lists(CELLS, min_size=n, max_size=n), min_size=1, max_size=4),
        st.one_of(st.just([]), st.lists(CELLS, min_size=n, max_size=n)),
        st.sets(st.integers(0, n - 1)),
    )
)


@settings(max_examples=100, deadline=None)
@given(TABLES)
def test_where_there_is_room_every_row_is_one_line(table):
    """Nothing is folded that need not be: a header, a rule and a line a row."""
    rows, header, right = table
    lines = lay_out(rows, header=header, right=right, room=1000)
    assert len(lines) == len(rows) + (2 if header else 0)


@settings(max_examples=100, deadline=None)
@given(TABLES, st.integers(40, 80))
def test_no_line_is_wider_than_the_page_and_no_letter_is_lost(table, room):
    """Four columns have room for eight letters each on forty columns, so every table can be folded into that."""
    rows, header, right = table
    lines = lay_out(rows, header=header, right=right, room=room)
    assert max(map(_width, lines)) <= room
    printed = sorted("".join(lines).replace(" ", "").replace("\u2500", ""))
    given = sorted("".join(cell for row in [header, *rows] for cell in row).replace(" ", ""))
    assert printed == given


def test_a_number_keeps_its_unit_when_a_cell_is_folded():
    """Lines break between words, never between 932.9 and ms or 40 and %."""
    lines = lay_out([("step", "932.9 ms a step, 40 % MFU, 16 GPUs")], room=16)
    assert [line.strip() for line in lines] == ["step  932.9 ms a", "step, 40 %", "MFU,", "16 GPUs"]


def test_figures_are_folded_last():
    """A column of words gives way before a column of figures does, and names of columns before both."""
    lines = lay_out(
        [("1.234 s - 5.678 s", "some words that are long " * 5)],
        header=("80 % between these", "note"),
        right=[0],
        room=60,
    )
    assert "1.234 s - 5.678 s" in lines[2]


def test_short_rows_are_filled_up(capsys):
    """A row may leave out its last cells."""
    console.print_table([["a"], ["b", "c"]], header=("x", "y"), right=[1])
    assert capsys.readouterr().out == "x   y\n\u2500\u2500\u2500\u2500\u2500\na\nb   c\n"


@pytest.mark.parametrize("columns", [60, 140])
def test_a_table_takes_the_width_of_the_terminal(monkeypatch, capsys, columns):
    """A file has a hundred columns, a terminal those it says it has."""
    row = ("name", "word " * 100)
    console.print_table([row])
    assert max(map(len, capsys.readouterr().out.splitlines())) in range(WIDTH - 5, WIDTH + 1)
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    console.print_table([row])
    assert max(map(len, capsys.readouterr().out.splitlines())) in range(columns - 5, columns + 1)


def test_one_of_a_thing_is_no_plural():
    """A count and its noun agree."""
    assert plural(1, "virtual stage") == "1 virtual stage"
    assert plural(0, "row") == "0 rows"
    assert plural(2, "microbatch", "microbatches") == "2 microbatches"


def test_a_table_costs_no_library(scenarios):
    """Commands that show no progress do not load what draws on terminals."""
    code = (
        f"import sys; from mpsim.cli import main; assert main(['run', {str(scenarios / 'quickstart.yaml')!r}]) == 0;"
        "sys.exit('rich.table' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
