"""Damaged files: read or refused by every reader, within ten seconds, and nothing else happens.

The short run of `tests.fuzz.damage_run`; docs/explanation/reliability.md has the result of the long one.
"""

from __future__ import annotations

import collections
import gzip
from pathlib import Path

import pytest

from tests.fuzz.damage_readers import READERS
from tests.fuzz.damage_run import attempt, inputs, run

CORPUS = Path(__file__).parents[1] / "corpus" / "damage"
"""Files that once showed a fault, by reader; it only grows."""
BY_FOLDER = {reader.name.replace(" ", "-").lower(): reader for reader in READERS}
KEPT = sorted(path for path in CORPUS.rglob("*") if path.is_file())


def test_every_damaged_file_of_a_short_run_is_read_or_refused():
    """Three hundred files over every reader: no traceback, no hang, nothing written, printed or believed that is no number."""
    outcomes = list(run(list(inputs(300, seed=20))))
    faults = [
        (item.sample, item.seed, outcome)
        for item, outcome in outcomes
        if outcome.kind not in ("read", "refused")
    ]
    assert faults == []
    kinds = collections.Counter(outcome.kind for _, outcome in outcomes)
    assert (
        min(kinds["read"], kinds["refused"]) > 50
    )  # damage that is always seen, or never, tests nothing


@pytest.mark.parametrize("path", KEPT, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_a_file_that_once_showed_a_fault_shows_none(path, monkeypatch):
    """Every reproducer of the corpus; of those that are too long to read, a hundredth is too long here."""
    monkeypatch.setattr("mpsim.inputs.LINES", 100_000)
    content = path.read_bytes()
    if path.suffix == ".packed":
        content = gzip.decompress(content)
    name = path.name.partition(".")[2].removesuffix(".packed")
    outcome = attempt(BY_FOLDER[path.parent.name], name, content)
    assert outcome.kind in ("read", "refused"), outcome


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.name)
def test_every_reader_reads_its_good_samples(reader):
    """What is damaged was good before: a sample is read, or refused for want of an option."""
    outcomes = [attempt(reader, name, content) for name, content in reader.samples.items()]
    kinds = {outcome.kind for outcome in outcomes}
    assert kinds <= {"read", "refused"}, outcomes
    assert "read" in kinds
