"""Catalogs that are kept parsed: they mean what their text means, and a changed text is read again."""

from __future__ import annotations

import math
import os
import sys
from pathlib import Path
from types import FunctionType

import pytest

import mpsim
from mpsim.shipped import _NAMES, _Kept, _parsed, read_shipped

PACKAGE = Path(mpsim.__file__).parent
FILES = sorted(file.relative_to(PACKAGE) for file in PACKAGE.rglob("*.yaml"))


def read(file: Path) -> object:
    """What a file means, through what is kept of it."""
    return FunctionType(_Kept("catalog", str(file)).get_code("catalog"), dict(_NAMES))()


def test_every_catalog_means_what_its_text_means():
    """Types, order of keys and numbers, to the letter."""
    for file in FILES:
        text = (PACKAGE / file).read_bytes()
        package = ".".join(("mpsim", *file.parent.parts))
        if (PACKAGE / file.parent / "__init__.py").exists():
            assert repr(read_shipped.__wrapped__(package, file.name)) == repr(_parsed(text)), file


def test_a_changed_catalog_is_read_again(tmp_path, monkeypatch):
    """Python's own rule for modules: time and size."""
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    monkeypatch.setattr(sys, "pycache_prefix", str(tmp_path / "kept"))
    file = tmp_path / "catalog.yaml"
    file.write_text("a: 1e9\nb: [x, null, .inf]\n")
    assert read(file) == {"a": 1e9, "b": ["x", None, math.inf]}
    kept = list((tmp_path / "kept").rglob("*.pyc"))
    assert len(kept) == 1
    file.write_text("a: 2\n")
    os.utime(file, (2e9, 2e9))
    assert read(file) == {"a": 2}


def test_a_broken_copy_is_ignored(tmp_path, monkeypatch):
    """What cannot be read is made again."""
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    monkeypatch.setattr(sys, "pycache_prefix", str(tmp_path / "kept"))
    file = tmp_path / "catalog.yaml"
    file.write_text("a: 1\n")
    assert read(file) == {"a": 1}
    (kept,) = (tmp_path / "kept").rglob("*.pyc")
    kept.write_bytes(b"nothing")
    assert read(file) == {"a": 1}


@pytest.mark.parametrize("file", FILES, ids=str)
def test_no_module_has_the_name_of_a_catalog(file):
    """What is kept of both would have one name."""
    assert not (PACKAGE / file).with_suffix(".py").exists()
