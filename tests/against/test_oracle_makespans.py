"""Makespans and rank spans against schedules simulated from PyTorch's and Megatron's own orders."""

from __future__ import annotations

import ast
import csv
from pathlib import Path

import numpy as np
import pytest

from mpsim.engine import run
from mpsim.engine.timeline import Timeline
from mpsim.program import from_orders
from mpsim.schedule import make_orders

_NAMES = {"GPipe": "gpipe", "1F1B": "1f1b", "Interleaved1F1B": "interleaved-1f1b"}
_FILE = Path(__file__).parent / "data" / "schedule-oracle.csv"


def _rows() -> list[dict[str, str]]:
    with _FILE.open(newline="", encoding="utf-8") as file:
        return [row for row in csv.DictReader(file) if row["schedule"] in _NAMES]


def _timeline(row: dict[str, str], engine: str) -> Timeline:
    orders = make_orders(
        _NAMES[row["schedule"]],
        pp=int(row["pp"]),
        microbatches=int(row["microbatches"]),
        virtual_stages=int(row["virtual_stages"]),
    )
    program = from_orders(
        orders, forward=float(row["tF"]), backward=float(row["tB"]), weight=float(row["tW"])
    )
    return run(program, engine)


def _spans(timeline: Timeline) -> float:
    program = timeline.program
    return max(
        timeline.end[program.rank == rank].max() - timeline.start[program.rank == rank].min()
        for rank in range(program.ranks)
    )


def test_every_oracle_row_of_the_three_schedules_is_reproduced_exactly() -> None:
    """Makespan, bubble fraction and longest rank span equal the oracle on every row."""
    rows = _rows()
    assert len(rows) >= 550
    for row in rows:
        timeline = _timeline(row, "replay")
        case = {
            key: row[key] for key in ("schedule", "source", "pp", "microbatches", "virtual_stages")
        }
        assert timeline.makespan == float(row["makespan"]), case
        ideal = sum(float(row[key]) for key in ("tF", "tB", "tW"))
        ideal *= int(row["microbatches"]) * int(row["virtual_stages"])
        assert 1 - ideal / timeline.makespan == pytest.approx(
            float(row["bubble_fraction"]), abs=1e-6
        ), case
        if row["max_rank_span"]:
            assert _spans(timeline) == float(row["max_rank_span"]), case


def test_peaks_and_transfers_agree_with_the_orders() -> None:
    """Sends of each rank number what the oracle counts."""
    for row in _rows()[::5]:
        if not row["crossrank_sends_fwd"]:
            continue
        program = _timeline(row, "replay").program
        sends = program.peer >= 0
        label = np.array(program.labels)[program.label]
        for column, name in (
            ("crossrank_sends_fwd", "send activation"),
            ("crossrank_sends_bwd", "send gradient"),
        ):
            counted = np.bincount(program.rank[sends & (label == name)], minlength=program.ranks)
            assert counted.tolist() == ast.literal_eval(row[column])


def test_both_engines_agree_bit_for_bit_on_a_sample_of_the_oracle() -> None:
    """simpy and replay give the same start and end of every operation."""
    for row in _rows()[::25]:
        slow, fast = _timeline(row, "simpy"), _timeline(row, "replay")
        assert np.array_equal(slow.start, fast.start)
        assert np.array_equal(slow.end, fast.end)


# pipeline-schedules with point-to-point latency c: extra time over c = 0 (unit times, asynchronous sends).
@pytest.mark.parametrize("pp", [2, 4, 8])
def test_gpipe_pays_2_p_minus_1_latencies(pp: int) -> None:
    """GPipe: 2 (p - 1) c."""
    assert _latency("gpipe", pp, 4 * pp, 1, 0.125) == 2 * (pp - 1) * 0.125


@pytest.mark.parametrize("pp", [2, 4, 8])
def test_interleaved_pays_2_vp_minus_1_latencies(pp: int) -> None:
    """Interleaved 1F1B with m a multiple of p and v >= 2: 2 (v p - 1) c."""
    assert _latency("interleaved-1f1b", pp, 4 * pp, 2, 0.125) == 2 * (2 * pp - 1) * 0.125


@pytest.mark.parametrize("pp", [2, 4, 8])
def test_1f1b_pays_latency_for_every_p_microbatches(pp: int) -> None:
    """1F1B with m a multiple of p and small c: c (2 (p - 1) m / p + 2 (p - 2))."""
    m, c = 4 * pp, 0.125
    assert _latency("1f1b", pp, m, 1, c) == c * (2 * (pp - 1) * m / pp + 2 * (pp - 2))


def _latency(name: str, pp: int, microbatches: int, virtual: int, send: float) -> float:
    orders = make_orders(name, pp=pp, microbatches=microbatches, virtual_stages=virtual)
    return (
        run(from_orders(orders, forward=1, backward=1, weight=1, send=send)).makespan
        - run(from_orders(orders, forward=1, backward=1, weight=1)).makespan
    )
