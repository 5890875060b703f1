"""Journals: what a kill may do to a file, and what it may not."""

from __future__ import annotations

import pytest

from mpsim.errors import ScenarioError
from mpsim.study.journal import Journal, name_of


def test_entries_are_on_disk_after_flush(tmp_path):
    """And read again by the next one who opens it."""
    journal = Journal(tmp_path / "a.jsonl")
    journal.add("one", {"value": 1.5})
    journal.flush()
    assert Journal(tmp_path / "a.jsonl")["one"] == {"value": 1.5}


def test_a_full_chunk_is_on_disk_without_flush(tmp_path):
    """A kill costs less than one chunk."""
    journal = Journal(tmp_path / "a.jsonl", chunk=2)
    for name in "abc":
        journal.add(name, {})
    again = Journal(tmp_path / "a.jsonl")
    assert ("a" in again, "b" in again, len(again)) == (True, True, 2)


@pytest.mark.parametrize("kept", range(1, 60, 7))
def test_wherever_a_line_is_cut_off_it_is_dropped(tmp_path, kept):
    """Also in the middle of the first one; the file then holds whole lines only."""
    path = tmp_path / "a.jsonl"
    journal = Journal(path)
    journal.add("one", {"value": 1})
    journal.add("two", {"value": "é"})
    journal.flush()
    whole = path.read_bytes()
    path.write_bytes(whole[:kept])
    again = Journal(path)
    assert path.read_bytes() == b"".join(whole[:kept].splitlines(keepends=True)[: len(again)])
    for name, value in (("one", 1), ("two", "é")):
        if name not in again:
            again.add(name, {"value": value})
    again.flush()
    assert path.read_bytes() == whole


def test_a_file_of_something_else_is_refused_and_left_alone(tmp_path):
    """Even if it has no newline at all."""
    for text in ("dear diary", "dear diary\n", '{"name": 1}\n'):
        path = tmp_path / "notes.txt"
        path.write_text(text)
        with pytest.raises(ScenarioError, match=r"notes\.txt:1"):
            Journal(path)
        assert path.read_text() == text


def test_names_change_with_what_they_name():
    """And with nothing else."""
    assert name_of("a", 1) == name_of("a", 1)
    assert len({name_of("a", 1), name_of("a", 2), name_of("a"), name_of(1, "a")}) == 4
