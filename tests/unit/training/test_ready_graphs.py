"""Graphs of steps that stay ready for others of their shape."""

from __future__ import annotations

import pytest

from mpsim import memo
from mpsim.training import build
from tests.plans import small_plan


def test_graphs_stay_ready_by_their_rows_not_by_their_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A first step is not laid out again after 17 small ones, and is where no two of them fit."""
    made = []
    lay_out = build._lay_out

    def counted(shape: build._Shape) -> build._StepGraph:
        made.append(shape)
        return lay_out(shape)

    monkeypatch.setattr(build, "_lay_out", counted)
    plans = [small_plan(pp=1, dp=1, microbatches=count) for count in range(1, 19)]
    memo.forget()
    for plan in [*plans, plans[0]]:
        build.build_program(plan)
    assert len(made) == len(plans)
    monkeypatch.setattr(build, "_ROWS", build._EACH)
    memo.forget()
    for plan in plans[:2] * 2:
        build.build_program(plan)
    assert len(made) == len(plans) + 4
