"""The table of speed stays below its bars: ``pytest tests/benchmarks/test_table.py --benchmark-only``; `table.py` prints it beside its goals."""

from __future__ import annotations

import pytest

from tests.benchmarks.table import TABLE, Row

pytestmark = pytest.mark.benchmark(group="table")


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.work)
def test_a_row_of_the_table(clear, row: Row):
    """The least of three rounds, in the unit of the row."""
    clear(min(row.measure() for _ in range(3)), at_most=row.bar)
