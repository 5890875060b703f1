"""The file of `mpsim measure`: what is written comes back, and what is damaged is refused with its line."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from mpsim.errors import CalibrationError
from mpsim.measured.files import (
    RecordWriter,
    parse_line,
    partial_path,
    read_measured,
    to_line,
)
from mpsim.measured.records import Actions, End, Header, Measurement, RankRecord, Skipped

HEADER = Header(
    schema=1,
    mpsim="0.1",
    torch="2.13.0",
    python="3.13.1",
    os="Linux",
    cuda="",
    nccl="",
    driver="",
    created="2026-11-21T08:00:00Z",
    backend="gloo",
    world_size=2,
    ranks=tuple(RankRecord(rank, "node", "cpu", "some CPU", 1, 8e9, 2.5e9) for rank in (0, 1)),
    cores=2,
    seed=0,
)
ACTIONS = Actions((0, 0), (1, 0), ("1F0", "0F0"), (0.2, 0.1), (0.3, 0.2))
ONE = Measurement(
    id="all_reduce/1024",
    family="collectives",
    op="all_reduce",
    shape={"bytes": 1024},
    variant={"transport": "tcp", "inner": True},
    dtype="float32",
    group=(0, 1),
    domains=1,
    synchronous=True,
    phase="burst",
    method="perf_counter",
    seconds=((1e-4, 2e-4), (3e-4, 1e-4)),
    bytes=1024.0,
    actions=ACTIONS,
)
END = End(1, True, 2.5, (0.1, 0.101), (2.5e9, 2.5e9))


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """A whole file of one measurement."""
    path = tmp_path / "measured.jsonl"
    with RecordWriter(path) as writer:
        for line in (HEADER, ONE, Skipped("gemm/huge", "out of memory")):
            writer.write(line)
        writer.finish(END)
    return path


def replaced(path: Path, line: int, **fields: object) -> Path:
    """`path` with fields of one line (from 0) replaced, written by hand."""
    lines = path.read_text().splitlines()
    lines[line] = json.dumps(json.loads(lines[line]) | fields)
    path.write_text("\n".join(lines) + "\n")
    return path


def test_what_is_written_comes_back(written: Path) -> None:
    """Header, measurement with its actions, skipped and end are equal after a round trip."""
    read = read_measured(written)
    assert (read.header, read.measurements, read.end) == (HEADER, (ONE,), END)
    assert read.skipped == (Skipped("gemm/huge", "out of memory"),)
    assert read.warnings == ()


def test_the_slowest_rank_is_the_time_of_a_group() -> None:
    """Samples of ranks that began together are the maximum of each; of lone ranks, all in a row."""
    np.testing.assert_array_equal(ONE.samples, [3e-4, 2e-4])
    alone = dataclasses.replace(ONE, synchronous=False)
    assert sorted(alone.samples) == [1e-4, 1e-4, 2e-4, 3e-4]
    assert ONE.median == pytest.approx(2.5e-4)


def test_orders_are_by_start() -> None:
    """The order of a rank's actions is that of their starts, of the step asked for."""
    two = Actions((0, 0, 1), (0, 0, 0), ("0B0", "0F0", "0F1"), (2.0, 1.0, 0.0), (3.0, 2.0, 1.0))
    assert two.orders(0) == {0: ["0F0", "0B0"]}
    assert two.orders(1) == {0: ["0F1"]}


def test_a_file_gets_its_name_when_it_is_whole(tmp_path: Path) -> None:
    """Until the end line is written the lines are in another file."""
    path = tmp_path / "m.jsonl"
    with RecordWriter(path) as writer:
        writer.write(HEADER)
        writer.write(ONE)
        assert not path.exists()
        writer.finish(END)
    assert not partial_path(path).exists()
    assert read_measured(path).measurements == (ONE,)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"seconds": [[1.0]]}, "a rank is missing"),
        ({"seconds": [[], []]}, "no sample"),
        ({"seconds": [[1.0], [1.0, 2.0]]}, "more samples of one rank"),
        ({"seconds": [[1.0], [0.0]]}, "'seconds.1.0' is 0.0; input should be greater than 0"),
        ({"seconds": [[1.0], [None]]}, "'seconds.1.0' is null; input should be a valid number"),
        ({"seconds": [[1.0], [-1.0]]}, "'seconds.1.0' is -1.0; input should be greater than 0"),
        ({"group": [0, 2], "actions": None}, "rank 2"),
        ({"group": [0, 0]}, "each once"),
        ({"family": "kernel"}, "'kernels'"),
        ({"flop": 1}, "unknown field 'flop'"),
        ({"shape": {"m": 1.5}}, "shape.m"),
        ({"kind": "measured"}, "'kind'"),
        ({"actions": {"step": [0], "rank": [], "token": [], "start": [], "end": []}}, "differ"),
        (
            {"actions": {"step": [0], "rank": [0], "token": ["0X0"], "start": [0.0], "end": [1.0]}},
            "the token '0X0'; known: 3F0",
        ),
        ({"op": "gemm", "shape": {"m": 4, "k": 0}}, "lacks n, k; gemm needs m, n, k"),
        ({"op": "train_step", "family": "steps"}, "lacks layers, hidden"),
        ({"op": "launch", "family": "kernels", "dtype": "int3"}, "'dtype' is 'int3'; known"),
    ],
)
def test_an_impossible_measurement_is_refused(written: Path, fields: dict, words: str) -> None:
    """Each mistake of a measurement names itself, the file and the line."""
    with pytest.raises(CalibrationError, match=words) as refused:
        read_measured(replaced(written, 1, **fields))
    assert f"{written}:2: " in str(refused.value)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"schema": 2}, "schema 2; this mpsim reads schema 1"),
        ({"world_size": 3}, "rank 2 of 3 is missing"),
        ({"ranks": []}, "rank 0 of 2 is missing"),
        ({"torch": None}, "'torch' is null; input should be a valid string"),
    ],
)
def test_a_header_of_another_kind_is_refused(written: Path, fields: dict, words: str) -> None:
    """Another version, a rank that is missing, a field that is not what it should be."""
    with pytest.raises(CalibrationError, match=words):
        read_measured(replaced(written, 0, **fields))


def test_a_byte_order_mark_is_read_over(written: Path) -> None:
    """As some editors put one before the first line."""
    text = written.read_bytes()
    written.write_bytes(b"\xef\xbb\xbf" + text)
    assert read_measured(written).measurements == (ONE,)


def test_nan_is_refused_both_ways(written: Path) -> None:
    """NaN is neither measured nor read."""
    with pytest.raises(ValueError, match="finite number"):
        dataclasses.replace(ONE, seconds=((float("nan"),), (1.0,)))
    written.write_text(written.read_text().replace("0.0003", "NaN"))
    with pytest.raises(CalibrationError, match=":2: NaN is not a measured time"):
        read_measured(written)


@pytest.mark.parametrize("missing", [1, 40, 200, 400])
def test_a_truncated_file_is_refused(written: Path, missing: int) -> None:
    """Whatever is cut off the end, the message says so; reading as far as it goes has to be asked for."""
    text = written.read_text()
    written.write_text(text[: -missing - 1])
    with pytest.raises(CalibrationError, match="truncated"):
        read_measured(written)
    partial = read_measured(written, partial=True)
    assert partial.end is None
    assert "interrupted" in partial.warnings[0]


def test_a_file_that_lost_a_line_is_refused(written: Path) -> None:
    """The end line counts the measurements."""
    lines = written.read_text().splitlines(keepends=True)
    written.write_text("".join(lines[:1] + lines[2:]))
    with pytest.raises(CalibrationError, match="lines are missing"):
        read_measured(written)


def test_joined_files_are_refused(written: Path) -> None:
    """Two files in one are not one measurement."""
    written.write_text(written.read_text() * 2)
    with pytest.raises(CalibrationError, match="two files were joined"):
        read_measured(written)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is empty"),
        ("id,seconds\n1,2\n", "not JSON"),
        ("[1]\n", "got list"),
        ("{}\n", "'kind'"),
    ],
)
def test_another_file_is_refused(tmp_path: Path, text: str, words: str) -> None:
    """An empty file, a table and other JSON are named as what they are."""
    path = tmp_path / "other"
    path.write_text(text)
    with pytest.raises(CalibrationError, match=words):
        read_measured(path)


def test_binary_and_absent_files_are_refused(tmp_path: Path) -> None:
    """Neither is a traceback."""
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    for name, words in (("binary", "UTF-8"), ("absent", "no such file")):
        with pytest.raises(CalibrationError, match=words):
            read_measured(tmp_path / name)


def test_changed_clocks_are_a_warning(written: Path) -> None:
    """A yardstick that slowed down and a clock that fell are each said."""
    replaced(written, 3, yardstick=[0.1, 0.2], clocks_hz=[2.5e9, 1e9])
    first, second = read_measured(written).warnings
    assert "0.1 s at the start and 0.2 s at the end" in first
    assert "rank 1 began at 2500 MHz and ended at 1000 MHz" in second


def test_a_line_reads_itself() -> None:
    """Each kind of line is its own inverse."""
    for line in (HEADER, ONE, Skipped("a", "b"), END):
        assert parse_line(to_line(line)) == line
