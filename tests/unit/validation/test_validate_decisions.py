"""Ranks and regret of the layouts that predictions would pick."""

from __future__ import annotations

import pytest

from mpsim.result.residuals import Setting
from mpsim.validate.records import (
    Record,
    Validation,
    decisions_of,
    kendall_tau,
    summarise_decisions,
    told_apart,
)


def _run(name: str, measured: float, predicted: float | None, **more: object) -> Record:
    plain = Record(id=name, family="f", kind="training", unit="s", measured=measured)
    changed = {"predicted": predicted, "group": "g", "sequences": 1.0, **more}
    return Record(**{**{n: getattr(plain, n) for n in plain.__slots__}, **changed})


def test_regret_is_what_the_choice_was_measured_slower() -> None:
    """Measured 10, 11, 12; predicted fastest is the second: 10 % regret, 10 % by chance ((0 + .1 + .2)/3), pairs +1 +1 -1 of 3."""
    runs = [_run("a", 10, 9.0), _run("b", 11, 8.0), _run("c", 12, 12.0)]
    (one,) = decisions_of(runs)
    assert (one.chosen, one.best) == ("b", "a")
    assert one.regret == pytest.approx(0.1)
    assert one.random == pytest.approx(0.1)
    assert one.tau == pytest.approx(1 / 3)


def test_batches_are_compared_by_the_sequence() -> None:
    """Twice the batch in 1.8 times the time is the faster run."""
    runs = [_run("a", 10, 10.0), _run("b", 18, 18.0, sequences=2.0), _run("c", 30, 30.0)]
    (one,) = decisions_of(runs)
    assert (one.chosen, one.best, one.regret) == ("b", "b", 0.0)


def test_groups_too_small_or_not_scored_are_no_choice() -> None:
    """Two rows, or three of which one has no prediction, are left out."""
    assert decisions_of([_run("a", 1, 1.0), _run("b", 2, 2.0), _run("c", 3, None)]) == []


def test_json_of_a_validation_holds_its_decisions() -> None:
    """One entry a family, with the worst group's name."""
    runs = tuple(_run(name, n, n) for name, n in (("a", 1.0), ("b", 2.0), ("c", 3.0)))
    (entry,) = Validation(runs).to_json()["decisions"]  # type: ignore[misc]
    assert entry["tau"] == 1.0
    assert entry["worst_group"] == "g"
    assert summarise_decisions([]) == ()


def test_tau_counts_ties_for_nothing() -> None:
    """Equal predictions agree with no order: (1 - 0)/... of three pairs, two agree and one ties."""
    assert kendall_tau([1.0, 1.0, 2.0], [1.0, 2.0, 3.0]) == pytest.approx(2 / 3)


def test_pairs_are_told_apart_by_the_kind_of_decision_that_they_differ_in() -> None:
    """Half the time of a layout with other tp is told, and was measured so; 1 % of another pp is not told; both together are several kinds."""

    def setting(layout: str) -> Setting:
        return Setting(
            {"layout": (layout,), "rest": ("1 a microbatch, zero 0, 1f1b, recompute none",)}, 16
        )

    runs = [
        _run(name, time, time, figure="step", setting=setting(layout))
        for name, time, layout in (
            ("a", 1.0, "tp 1, pp 2, cp 1, ep 1, dp 8"),
            ("b", 2.0, "tp 2, pp 2, cp 1, ep 1, dp 4"),
            ("c", 2.02, "tp 2, pp 4, cp 1, ep 1, dp 2"),
        )
    ]
    assert {told.kind: told[1:] for told in told_apart(runs)} == {
        "tp": (1, 1, 1, 1),
        "pp": (1, 0, 0, 1),
        "several": (1, 1, 1, 1),
    }
    row = Validation(tuple(runs)).to_json()["rows"][0]  # type: ignore[index]
    assert row["setting"]["layout"] == ["tp 1, pp 2, cp 1, ep 1, dp 8"]
