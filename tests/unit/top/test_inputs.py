"""Files that mpsim reads: what is no regular file, too large, packed to burst or damaged is one error of the reader."""

from __future__ import annotations

import ast
import gzip
import json
import os
import socket
from pathlib import Path

import pytest

import mpsim
from mpsim.errors import CalibrationError, FormatError, ScenarioError
from mpsim.inputs import (
    Record,
    open_input,
    open_regular,
    open_text,
    parse_json,
    read_bytes,
    read_text,
)

ROOT = Path(mpsim.__file__).parent
OPENERS = {
    "open",
    "read_text",
    "read_bytes",
    "fdopen",
    "FileIO",
    "is_zipfile",
    "ZipFile",
    "connect",
}
MODULES = {"gzip", "json", "yaml", "tomllib", "np", "numpy", "zipfile", "bz2", "lzma", "pickle"}
LOADERS = {"load", "open", "safe_load", "loadtxt", "genfromtxt", "fromfile", "memmap"}
OWN = {
    "inputs.py": "the place that opens files",
    "stamp.py": "code and constants of mpsim itself",
    "shipped.py": "data that ships",
    "formats/megatron_settings.py": "data that ships",
    "scenario/examples.py": "data that ships",
    "measure/world.py": "/proc of this machine",
    "measure/runner.py": "/proc of this machine",
    "measure/timer.py": "/proc of this machine",
    "archive.py": "members of a zip that inputs opened, and the writer",
    "formats/nsys.py": "SQLite opens what inputs looked at",
    "cli/about.py": "data that ships",
    "cli/app.py": "the null device",
    "measured/files.py": "writes",
    "report/markup.py": "data that ships",
    "schedule/csv_file.py": "writes",
    "study/journal.py": "appends",
}
"""Modules that open a file, or look as if, and why that is no reader of somebody's."""


def _opens(tree):
    """Calls of a module that open a file or load from one."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        called = node.func
        if isinstance(called, ast.Name) and called.id == "open":
            yield node
        elif isinstance(called, ast.Attribute):
            owner = called.value.id if isinstance(called.value, ast.Name) else ""
            if owner in ("self", "archive", "inputs"):
                continue
            if called.attr in OPENERS or (owner in MODULES and called.attr in LOADERS):
                yield node


def test_no_module_but_one_opens_files_of_others():
    """Every open, read_text, gzip.open, yaml.load and the like of the package stands in a module that says why."""
    texts = {
        path: path.read_text(encoding="utf-8")
        for path in ROOT.rglob("*.py")
        if str(path.relative_to(ROOT)) not in OWN
    }
    stray = {
        f"{path.relative_to(ROOT)}:{call.lineno}"
        for path, text in texts.items()
        if any(f"{word}(" in text for word in ("open", *OPENERS, *LOADERS))
        for call in _opens(ast.parse(text))
    }
    assert stray == set()


def test_every_exception_of_that_rule_is_needed():
    """A module on the list that opens nothing any more has no place there."""
    needed = {
        name for name in OWN if any(_opens(ast.parse((ROOT / name).read_text(encoding="utf-8"))))
    }
    assert needed == set(OWN)


def _read(path, largest=1000):
    return read_bytes(path, needed="words", error=CalibrationError, largest=largest)


def _make_fifo(path):
    os.mkfifo(path)


def _make_socket(path):
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (Path.mkdir, "is a folder"),
        (_make_fifo, "is a pipe"),
        (_make_socket, "is a socket"),
        (lambda path: path.symlink_to("/dev/zero"), "is a device"),
        (lambda path: path.symlink_to(path), "cannot be read"),
        (lambda path: path.symlink_to("nowhere"), "no such file"),
        (lambda path: path.write_bytes(b"x" * 1001), "is over 1,000 bytes"),
        (lambda path: path.write_bytes(gzip.compress(b"x" * 1001)), "is over 1,000 bytes, unpacked"),
        (lambda path: path.write_bytes(gzip.compress(os.urandom(500))[:-20]), "breaks off"),
        (lambda path: path.write_bytes(b"\x1f\x8bnonsense"), "breaks off"),
    ],
)  # fmt: skip
def test_what_no_reader_can_use_is_one_error_with_its_file(tmp_path, make, words):
    """Folders, pipes, sockets, devices, circles, large files and broken packing are refused, and at once."""
    path = tmp_path / "input"
    make(path)
    with pytest.raises(CalibrationError) as caught:
        _read(path)
    assert words in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["a\0b", "x" * 5000])
def test_names_that_no_system_takes_are_refused(name):
    """A null character, and a name longer than a path can be."""
    with pytest.raises(FormatError, match="cannot be read"):
        read_bytes(name, needed="words", error=FormatError)


def test_a_bomb_is_refused_long_before_it_fills_the_memory(tmp_path):
    """64 MiB of one letter in 64 kB: refused after 16 MiB, whatever the reader could hold."""
    path = tmp_path / "bomb.gz"
    path.write_bytes(gzip.compress(b"x" * (1 << 26)))
    seen = []

    def stream():
        with open_input(path, needed="words", error=FormatError, largest=1 << 36) as file:
            seen.extend(len(block) for block in iter(lambda: file.read(1 << 16), b""))

    with pytest.raises(FormatError, match="unpacks to over 300 times its size"):
        stream()
    assert sum(seen) <= 1 << 25


def test_plain_and_packed_bytes_are_the_same(tmp_path):
    """A gzipped file reads as what was packed, also where it was packed in two parts."""
    content = os.urandom(1000)
    (tmp_path / "plain").write_bytes(content)
    (tmp_path / "packed").write_bytes(gzip.compress(content[:400]) + gzip.compress(content[400:]))
    assert _read(tmp_path / "plain") == _read(tmp_path / "packed", 1200) == content


def test_text_that_is_none_is_refused(tmp_path):
    """UTF-16, Latin-1 and bytes of a picture; a mark of byte order is no letter."""
    path = tmp_path / "text"
    for content in ("wörter".encode("utf-16"), "wörter".encode("latin-1"), b"\x89PNG\xff"):
        path.write_bytes(content)
        with pytest.raises(ScenarioError, match="is not text in UTF-8; needed words"):
            read_text(path, needed="words", error=ScenarioError)
    path.write_bytes(b"\xef\xbb\xbfw")
    assert read_text(path, needed="words", error=ScenarioError) == "w"


def test_an_error_of_the_disk_is_one_of_the_reader(tmp_path, monkeypatch):
    """EIO in the middle of a file says so with the file."""
    path = tmp_path / "file"
    path.write_bytes(b"x" * 100)

    class Broken:
        def read(self, count):
            raise OSError(5, "Input/output error")

    def read():
        with open_text(path, needed="words", error=FormatError) as stream:
            monkeypatch.setattr(stream.buffer.raw, "source", Broken())
            stream.read()

    with pytest.raises(FormatError, match="file: cannot be read: Input/output error"):
        read()


def test_a_pipe_that_takes_the_place_of_a_file_is_not_waited_for(tmp_path, monkeypatch):
    """What is opened is looked at again: between the look and the opening a file can become a pipe."""
    path = tmp_path / "file"
    path.write_bytes(b"x")
    status = path.stat()
    path.unlink()
    os.mkfifo(path)
    monkeypatch.setattr(os, "stat", lambda *_, **__: status)
    with (
        pytest.raises(FormatError, match="is a pipe"),
        open_regular(path, needed="words", error=FormatError),
    ):
        pass


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"a": 1, "a": 2}', "key 'a' is repeated"),
        ("[" * 49 + "]" * 49, "nested deeper than 48 levels"),
        ("[" * 100_000 + "]" * 100_000, "nested deeper than 48 levels"),
        ("[" + "9" * 5000 + "]", "a number too long to read"),
        ('{"a":\n [1,', "file.json:2: not whole JSON"),
        ("", "file.json:1: not whole JSON"),
    ],
)
def test_json_that_no_document_is_is_refused(text, words):
    """Repeated keys, nesting without end, numbers without end, and what breaks off."""
    with pytest.raises(FormatError) as caught:
        parse_json(text, "file.json", error=FormatError)
    assert words in str(caught.value)


WRONG = (None, True, -1, 1.5, "8", [8], {"a": 8}, float("nan"), float("inf"), 10**400, [[]])


@pytest.mark.parametrize("method", ["whole", "number", "text", "record", "records", "wholes"])
@pytest.mark.parametrize("value", WRONG, ids=repr)
def test_a_value_of_another_type_is_one_error_with_its_key(method, value):
    """Whatever stands in a record, its reader gets the type it asked for or one error; never a TypeError."""
    record = Record({"key": value}, "file.json: results.3", error=FormatError)
    try:
        got = getattr(record, method)("key")
    except FormatError as error:
        assert "file.json: results.3" in str(error)
        assert "key" in str(error)
    else:
        assert (method, type(got)) in {
            ("whole", int),
            ("number", float),
            ("text", str),
            ("record", Record),
            ("records", list),
            ("wholes", tuple),
        }
        json.dumps(value, allow_nan=False)
