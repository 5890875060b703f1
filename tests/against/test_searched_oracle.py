"""Searched schedules against orders that the zero-bubble authors' own search produced.

data/searched-oracle.csv holds every such row (source sail-sg-run): orders of sail-sg/zero-bubble-pipeline-parallelism at commit
39f2c186, simulated with integer times and no transfers. No row is left out.
"""

from __future__ import annotations

import ast
import csv
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from mpsim.engine import run
from mpsim.schedule import Orders
from mpsim.schedule.search.v_block import v_half, v_min
from mpsim.schedule.search.v_search import zb_v_search
from mpsim.schedule.search.zb_auto import zb_1p, zb_2p
from mpsim.training import from_orders

_FILE = Path(__file__).parent / "data" / "searched-oracle.csv"
_COUNTS = {
    "ZB-1p (search, memory p)": 14,
    "ZB-2p (search, memory 2p)": 10,
    "ZB-V (search)": 12,
    "V-Half": 14,
    "V-Min": 10,
}
_TIMED = {
    "ZB-1p (search, memory p)": zb_1p,
    "ZB-2p (search, memory 2p)": zb_2p,
    "ZB-V (search)": zb_v_search,
}
_UNTIMED = {"V-Half": v_half, "V-Min": v_min}


def _rows() -> list[dict[str, str]]:
    with _FILE.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def _times(row: dict[str, str]) -> tuple[float, float, float]:
    return float(row["tF"]), float(row["tB"]), float(row["tW"])


def _orders(row: dict[str, str]) -> Orders:
    name, pp, microbatches = row["schedule"], int(row["pp"]), int(row["microbatches"])
    virtual = int(row["virtual_stages"])
    if name in _UNTIMED:
        authors = {"delay": 0} if name == "V-Min" else {}
        return _UNTIMED[name](pp=pp, microbatches=microbatches, virtual_stages=virtual, **authors)
    return _TIMED[name](pp=pp, microbatches=microbatches, virtual_stages=virtual, times=_times(row))


@pytest.mark.parametrize(
    "row", _rows(), ids=lambda row: f"{row['schedule']}-{row['pp']}-{row['microbatches']}"
)
def test_the_row_is_reproduced_exactly(row: dict[str, str]) -> None:
    """Makespan, bubble, rank span, both peaks and the weight gradients put off equal the oracle."""
    orders, times = _orders(row), _times(row)
    timeline = run(from_orders(orders, forward=times[0], backward=times[1], weight=times[2]))
    rank = timeline.program.rank
    spans = [
        timeline.end[rank == r].max() - timeline.start[rank == r].min() for r in range(orders.pp)
    ]
    ideal = sum(times) * orders.microbatches * orders.virtual_stages
    assert timeline.makespan == float(row["makespan"])
    assert max(spans) == float(row["max_rank_span"])
    assert round(1 - ideal / timeline.makespan, 6) == float(row["bubble_fraction"])
    assert round(1 - ideal / max(spans), 6) == float(row["span_bubble_fraction"])
    assert orders.peak_inflight() == ast.literal_eval(row["peak_inflight_activations"])
    assert orders.peak_until_input_grad() == ast.literal_eval(row["peak_until_input_grad"])
    assert _peak_pending(orders) == ast.literal_eval(row["peak_pending_wgrad"])


def _peak_pending(orders: Orders) -> list[int]:
    """Most weight gradients waiting at once, by rank."""
    change = np.where(orders.kind == 2, 1, np.where(orders.kind == 3, -1, 0))
    return [
        int(np.cumsum(change[orders.rank_ptr[r] : orders.rank_ptr[r + 1]]).max())
        for r in range(orders.pp)
    ]


def test_no_row_of_the_authors_search_is_left_out() -> None:
    """All 60 rows are here."""
    assert Counter(row["schedule"] for row in _rows()) == _COUNTS
