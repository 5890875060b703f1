"""Words of the checks: each mistake that a check finds has a row, and each row a check."""

import re
from pathlib import Path

from mpsim.scenario import checks
from mpsim.shipped import read_shipped


def test_every_row_of_words_is_of_a_check_and_every_mistake_has_one() -> None:
    """A check that names no row would fail only once somebody makes the mistake."""
    folder = Path(checks.__file__).parent
    sources = "".join(file.read_text("utf-8") for file in sorted(folder.glob("*.py")))
    named = set(re.findall(r'mistake\(\s*"(\w+)"', sources))
    rows = read_shipped("mpsim.scenario.data", "mistakes.yaml")
    within = {name for name, row in rows.items() if row.keys() == {"says"}}
    assert rows.keys() - within == named
    assert all(rows[name].keys() == {"key", "says"} for name in named)
    sections = "".join(file.read_text("utf-8") for file in sorted(folder.parent.glob("*.py")))
    assert within <= set(re.findall(r'"(\w+)"', sections))
    assert set(re.findall(r'contradiction\(\s*"(\w+)"', sections)) <= within
