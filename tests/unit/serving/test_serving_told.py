"""Words of services: each warning or refusal has a row, and each row somebody who tells it."""

import re
from pathlib import Path

import mpsim.serving
from mpsim.shipped import read_shipped


def test_every_row_of_words_is_told_by_somebody() -> None:
    """A row that nobody names would say nothing; a name without one would fail only once it is told."""
    folder = Path(mpsim.serving.__file__).parent
    sources = "".join(file.read_text("utf-8") for file in sorted(folder.rglob("*.py")))
    rows = read_shipped("mpsim.serving.data", "told.yaml")
    assert {name for name in rows if f'"{name}"' not in sources} == set()
    named = set(re.findall(r'\btold\(\s*"(\w+)"', sources))
    assert named <= rows.keys()
