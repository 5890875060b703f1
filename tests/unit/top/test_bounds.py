"""Readers of lines: one bound on the length of a line, on lines and on cells, in the same words wherever it is."""

from __future__ import annotations

import gzip
import subprocess
import sys
import zipfile

import pytest

from mpsim import inputs
from mpsim.archive import Archive, save
from mpsim.cli import main
from mpsim.errors import MpsimError, ScenarioError, TooLargeError
from mpsim.formats.tables import read_rows
from mpsim.measured.files import read_measured
from mpsim.schedule.csv_file import read_csv
from mpsim.serving.traces import read_trace
from mpsim.study.journal import Journal

PLAIN = "arrival_s,input_tokens,output_tokens\n"
MOONCAKE = '{"timestamp": 0, "input_length": 1, "output_length": 1, "hash_ids": [1, 2]}\n'
READERS = {
    "table": (read_rows, "id,parallelism.tp\n", "1,2\n"),
    "plain trace": (read_trace, PLAIN, "1,2,3\n"),
    "mooncake trace": (read_trace, "", MOONCAKE),
    "schedule": (read_csv, "", "0F0,0B0\n"),
    "journal": (Journal, "", '{"digest": "a"}\n'),
}
MOST = 90_000  # KB that reading takes besides what Python and numpy take


@pytest.mark.parametrize("name", READERS)
def test_a_line_of_no_end_is_refused_with_its_number(name, tmp_path, monkeypatch):
    """The second line of a table, trace, schedule or journal is longer than a line may be."""
    read, head, line = READERS[name]
    monkeypatch.setattr(inputs, "LINE", 100)
    path = tmp_path / "long.csv"
    path.write_text((head or line) + "1" * 101 + "\n")
    with pytest.raises(MpsimError, match=r"long.csv:2: .*a line of over 100 characters; needed"):
        read(path)


def test_a_recording_in_one_line_is_refused(tmp_path, monkeypatch):
    """A trace of gigabytes, which is one object, is not read whole to see that it is none of ours."""
    monkeypatch.setattr(inputs, "LINE", 1000)
    path = tmp_path / "trace.json"
    path.write_text("[" + "1," * 2000)
    with pytest.raises(MpsimError, match=r"trace.json:1: a line of over 1,000 characters"):
        read_measured(path)


@pytest.mark.parametrize("name", READERS)
def test_a_line_too_many_is_refused_with_the_mend(name, tmp_path, monkeypatch):
    """Eight lines are one more than seven."""
    read, head, line = READERS[name]
    monkeypatch.setattr(inputs, "LINES", 7)
    path = tmp_path / "many.csv"
    path.write_text(head + line * 8)
    with pytest.raises(MpsimError, match=r"many.csv:8: .*over 7 lines; needed .* split it"):
        read(path)


@pytest.mark.parametrize("name", ["table", "mooncake trace", "schedule"])
def test_values_that_are_held_are_counted(name, tmp_path, monkeypatch):
    """Cells of a table and of a schedule, and blocks of a trace's prompts, stay in memory."""
    read, head, line = READERS[name]
    monkeypatch.setattr(inputs, "CELLS", 6)
    path = tmp_path / "wide.csv"
    path.write_text(head + line * 4)
    with pytest.raises(MpsimError, match=r"wide.csv:4: .*over 6 .* so far; needed .* split it"):
        read(path)


def test_cells_of_a_trace_are_not_held(tmp_path, monkeypatch):
    """A trace in CSV is three numbers a request, however many columns it has."""
    monkeypatch.setattr(inputs, "CELLS", 6)
    path = tmp_path / "trace.csv"
    path.write_text(PLAIN + "1,2,3\n" * 8)
    assert len(read_trace(path)) == 8


def test_a_bound_is_exit_code_2_and_one_line(tmp_path, monkeypatch, capsys):
    """`mpsim validate` of a table that is too long prints where, and nothing on stdout."""
    monkeypatch.setattr(inputs, "LINES", 2)
    path = tmp_path / "rows.csv"
    path.write_text("id,step_time\n1,1\n2,1\n")
    assert main(["validate", str(path), "--json"]) == 2
    said = capsys.readouterr()
    assert not said.out
    assert f"{path}:3: over 2 lines; needed a CSV file of fewer: split it" in said.err


def test_an_archive_is_weighed_before_it_is_unpacked(tmp_path):
    """Three gigabytes of zeros in a zip of 3 MB are told, and a document of lists is none of ours."""
    save(tmp_path / "good", "Thing", {"value": 1})
    with zipfile.ZipFile(tmp_path / "good") as good:
        document = good.read("value.json").decode()
    with zipfile.ZipFile(tmp_path / "wide", "w", zipfile.ZIP_DEFLATED) as wide:
        wide.writestr("value.json", document[:-1] + ', "more": [' + "[]," * (inputs.DOCUMENT // 3) + "[]]}")  # fmt: skip
    with pytest.raises(ScenarioError, match="its document is over 32 MiB"):
        Archive(tmp_path / "wide")
    with zipfile.ZipFile(tmp_path / "bomb", "w") as bomb:
        bomb.writestr("value.json", document)
        bomb.writestr("0.npy", b"")
        bomb.filelist[1].file_size = 3_000_000_000
    with pytest.raises(TooLargeError, match=r"bomb unpacked: would take about 3 GB .* --yes"):
        Archive(tmp_path / "bomb")


def test_a_small_packed_table_does_not_fill_the_memory(tmp_path, monkeypatch):
    """A table of 30 KB that unpacks to four million cells takes no more than a tenth of them does."""
    path = tmp_path / "wide.csv.gz"
    row = ",".join(str(10 + number % 90) for number in range(100)) + "\n"
    path.write_bytes(gzip.compress((row * 40_000).encode(), mtime=0))
    script = (
        "import resource, sys, pathlib\n"
        "from mpsim import inputs\n"
        "from mpsim.formats.tables import read_rows\n"
        "from mpsim.errors import CalibrationError\n"
        "inputs.CELLS = 400_000\n"
        "peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "before = peak()\n"
        "try: read_rows(pathlib.Path(sys.argv[1]))\n"
        "except CalibrationError as error: print(peak() - before, error)\n"
    )
    ran = subprocess.run([sys.executable, "-c", script, path], capture_output=True, text=True, check=True)  # fmt: skip
    grown, _, words = ran.stdout.partition(" ")
    assert "over 400,000 cells" in words
    assert int(grown) < MOST
