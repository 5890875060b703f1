"""Journals: what a kill may do to a file, and what it may not."""

from __future__ import annotations

import pytest

from mpsim.errors import ScenarioError
from mpsim.study import journal as journals
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


def test_a_damaged_line_is_dropped_and_said(tmp_path):
    """A digit that flipped is not believed: its entry is missing, the others count."""
    path = tmp_path / "a.jsonl"
    journal = Journal(path)
    for name in ("one", "two", "three"):
        journal.add(name, {"value": 1.25})
    journal.flush()
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + lines[1].replace(b"1.25", b"1.75") + b"\x00\xff\n" + lines[2])
    again = Journal(path)
    assert ("one" in again, "two" in again, "three" in again) == (True, False, True)
    assert again.damaged == 2
    assert "2 damaged lines" in again.remarks[0]


def test_rows_of_another_mpsim_are_computed_again_and_that_is_said(tmp_path, monkeypatch):
    """Names change with the stamp of code and constants."""
    path = tmp_path / "a.jsonl"
    journal = Journal(path)
    journal.add(name_of("point"), {"value": 1})
    journal.flush()
    monkeypatch.setattr(journals, "stamp", lambda: "0.1.0+another")
    again = Journal(path)
    assert name_of("point") not in again
    assert again.stale == 1
    assert "another mpsim" in again.remarks[0]


def test_two_writers_do_not_share_a_file(tmp_path):
    """The second is refused while the first writes, and not after."""
    path = tmp_path / "a.jsonl"
    first, second = Journal(path), Journal(path)
    with (
        first.writing(),
        pytest.raises(ScenarioError, match="another mpsim writes"),
        second.writing(),
    ):
        pass
    with second.writing():
        second.add("one", {})
    assert "one" in Journal(path)


def test_who_read_before_another_wrote_does_not_write_the_same_again(tmp_path):
    """Run again, it reads what is there."""
    path = tmp_path / "a.jsonl"
    late, first = Journal(path), Journal(path)
    with first.writing():
        first.add("one", {})
    with pytest.raises(ScenarioError, match=r"since it was read; run it again"), late.writing():
        pass
    with Journal(path).writing() as again:
        assert again is None


def test_a_disk_that_is_full_is_told_with_the_name_of_the_file(tmp_path, monkeypatch):
    """Nothing is lost of what was written before."""
    path = tmp_path / "a.jsonl"
    journal = Journal(path)
    journal.add("one", {})
    journal.flush()

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    journal.add("two", {})
    with pytest.raises(OSError, match=r"No space left on device: '.*a\.jsonl'"):
        journal.flush()
    assert "one" in Journal(path)


def test_names_change_with_what_they_name():
    """And with nothing else."""
    assert name_of("a", 1) == name_of("a", 1)
    assert len({name_of("a", 1), name_of("a", 2), name_of("a"), name_of(1, "a")}) == 4
