"""Formats of other tools: which one a file has, and what reading it gives."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from mpsim.errors import CalibrationError, FormatError
from mpsim.formats import FORMATS, Assumed, Points, read, recognise, source

RECORDED = Path(__file__).resolve().parents[3] / "validation" / "measured" / "cpu-2-ranks.jsonl"
COLLECTIVES = (
    "system,gpu,collective,bytes,time_us,gpus,nodes\nx,H100 SXM,all_reduce,4096,20.5,8,1\n"
)


def test_names_of_formats_are_distinct() -> None:
    """A command can name each."""
    assert len({known.name for known in FORMATS}) == len(FORMATS)


def test_a_file_is_recognised_by_what_it_holds(tmp_path: Path) -> None:
    """Its name says nothing: a recording, a trace, a table and a packed table."""
    contents = {
        "kineto": json.dumps({"schemaVersion": 1, "traceEvents": []}),
        "nccl-tests": "# nThread 1 nGpus 8\n",
        "nccl-tests-json": json.dumps({"config": {}, "nccl_version": "2.20"}),
        "table": COLLECTIVES,
    }
    path = tmp_path / "anything"
    for name, text in contents.items():
        path.write_text(text)
        assert recognise(path).name == name
        path.write_bytes(gzip.compress(text.encode()))
        assert recognise(path).name == name
    assert recognise(RECORDED).name == "mpsim-measure"


def test_points_keep_what_the_file_says(tmp_path: Path) -> None:
    """A row of a table is one point in SI units."""
    path = tmp_path / "rows"
    path.write_text(COLLECTIVES)
    points = read(path)
    assert isinstance(points, Points)
    (point,) = points.points
    assert (point.op, point.shape, point.ranks, point.domains) == (
        "all_reduce",
        {"bytes": 4096},
        8,
        1,
    )
    assert point.seconds == (pytest.approx(20.5e-6),)


def test_a_recording_is_read_elsewhere() -> None:
    """Files of mpsim measure are recognised, and read by the package of their format."""
    with pytest.raises(CalibrationError, match=r"mpsim\.measured"):
        read(RECORDED)


def test_a_configuration_of_accelerate_is_pointed_elsewhere(tmp_path: Path) -> None:
    """Its sharding is two keys of another format."""
    path = tmp_path / "fsdp.yaml"
    path.write_text("distributed_type: FSDP\nfsdp_config: {fsdp_version: 2}\n")
    with pytest.raises(FormatError, match="as torchtitan"):
        read(path)


def test_a_file_that_unpacks_to_too_much_is_refused(tmp_path: Path) -> None:
    """A bound counts characters after unpacking, so that a bomb is not read whole."""
    path = tmp_path / "bomb.json.gz"
    path.write_bytes(gzip.compress(b'{"a": "' + b"0" * (1 << 22) + b'"}'))
    with pytest.raises(CalibrationError, match="is over 1 MiB, unpacked"):
        source.read_text(path, needed="a report", largest=1 << 20)


def test_an_assumption_is_one_sentence() -> None:
    """Key, value and reason; the reason alone where there is no value; its own words where it has some."""
    assert str(Assumed("pp", "1", "the least")) == "pp = 1 (the least)"
    assert str(Assumed("attention", "", "causal")) == "attention: causal"
    assert str(Assumed("zero", "1", "shards no more", "zero 3 counts as 1")) == "zero 3 counts as 1"
