"""Whole sweeps of layouts: their order, the pick, and what ran out of memory."""

from __future__ import annotations

import csv

import pytest

from bench.tables import rule_of
from decisions import SWEEPS, Sweep, Tried
from mpsim.formats.tables import Cells
from mpsim.result.residuals import Setting

RAN_OUT = None


def tried(name: str, predicted: float, filled: float, measured: float | None) -> Tried:
    """A layout of no setting in particular."""
    return Tried(name, predicted, filled, measured, Setting({}, 1), "")


SWEEP = Sweep(
    "by hand",
    [
        # shares of the memory far from full, for the verdict is the odds of a stack that nobody knows
        tried("fast, predicted to fit, ran out", 7.0, 0.4, RAN_OUT),
        tried("picked", 8.0, 0.45, 11.0),
        tried("fastest", 9.0, 0.3, 10.0),
        tried("ran though predicted to run out", 6.0, 1.6, 14.0),
        tried("ran out as predicted", 5.0, 2.0, RAN_OUT),
    ],
)


def test_a_pick_that_ran_out_is_counted_and_the_next_one_taken() -> None:
    """Of 7, 8 and 9 s predicted to fit, 7 ran out and 8 was measured at 11 against 10."""
    assert SWEEP.picks == (1, pytest.approx(0.1))


def test_order_is_that_of_layouts_that_ran() -> None:
    """Predicted 8, 9, 6 against measured 11, 10, 14: no pair in the same order."""
    assert SWEEP.tau == pytest.approx(-1.0)


def test_both_kinds_of_memory_verdict_count_apart() -> None:
    """Two of three that ran, one of two that ran out."""
    assert SWEEP.right(ran=True) == pytest.approx(2 / 3)
    assert SWEEP.right(ran=False) == pytest.approx(1 / 2)


def test_every_layout_of_the_table_ran_or_ran_out() -> None:
    """The last part of the notes says which, and only what ran has a time."""
    with SWEEPS.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 222
    for row in rows:
        ran = {"ok": True, "OOM Error": False}[row["notes"].rpartition("|")[2]]
        assert bool(row["iter_time_s"]) == ran, row["id"]


def test_what_is_like_a_software_is_another_one() -> None:
    """Tensor parallelism "as Megatron has it" brings no rule of Megatron."""
    empty = {"family": "", "measured_date": "2023-09", "tp": "2", "accelerator": "A100-SXM4-80GB"}
    like, other, same = (
        rule_of(Cells({**empty, "framework": words}))["source"]
        for words in ("PyTorch, Megatron-like TP", "PyTorch, TP", "Megatron-LM")
    )
    assert like == other
    assert like != same
