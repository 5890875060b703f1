"""Decisions: whether the layout that is predicted fastest is the one that was measured fastest."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mpsim.validate.records import Record

__all__ = ["Decision", "Decisions", "decisions_of", "kendall_tau", "summarise_decisions"]

SMALLEST = 3  # rows from which a group is a choice


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """One group of runs of the same model on as many accelerators.

    Parameters
    ----------
    family, group : str
    rows : int
    tau : float
        Kendall's rank correlation of predicted and measured times a sequence, from -1 to 1.
    regret : float
        How much slower the run predicted fastest was measured than the fastest: 0 where they are one.
    random : float
        The same for a run picked at random, in the mean.
    chosen, best : str
        Ids of both.
    """

    family: str
    group: str
    rows: int
    tau: float
    regret: float
    random: float
    chosen: str
    best: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Decisions:
    """All groups of a family, in the mean.

    Parameters
    ----------
    groups, rows : int
    tau, mean_regret, worst_regret, random_regret : float
    worst_group : str
    """

    family: str
    groups: int
    rows: int
    tau: float
    mean_regret: float
    worst_regret: float
    random_regret: float
    worst_group: str

    def to_json(self) -> dict[str, object]:
        """By name."""
        return dataclasses.asdict(self)


def decisions_of(records: Iterable[Record]) -> list[Decision]:
    """One for each group of training runs with `SMALLEST` scored rows or more.

    Parameters
    ----------
    records : iterable of Record
        Those without a ``group`` and a number of sequences are left out.
    """
    groups: dict[tuple[str, str], list[Record]] = {}
    for one in records:
        if one.kind == "training" and one.group and one.sequences and one.error is not None:
            groups.setdefault((one.family, one.group), []).append(one)
    return [_decision(rows) for rows in groups.values() if len(rows) >= SMALLEST]


def summarise_decisions(decisions: Sequence[Decision]) -> tuple[Decisions, ...]:
    """One for each family, in the order they come."""
    families = dict.fromkeys(one.family for one in decisions)
    return tuple(_summary([one for one in decisions if one.family == name]) for name in families)


def kendall_tau(first: Sequence[float], second: Sequence[float]) -> float:
    """Kendall's rank correlation (tau a): pairs in the same order less pairs in the opposite one, over all pairs.

    Examples
    --------
    >>> kendall_tau([1.0, 2.0, 3.0], [10.0, 20.0, 15.0])
    0.3333333333333333
    """
    count = len(first)
    agreed = sum(
        _sign(first[i] - first[j]) * _sign(second[i] - second[j])
        for i in range(count)
        for j in range(i)
    )
    return agreed / (count * (count - 1) / 2)


def _sign(value: float) -> int:
    return (value > 0) - (value < 0)


def _decision(rows: Sequence[Record]) -> Decision:
    measured = [(one.measured or 0.0) / one.sequences for one in rows]
    predicted = [(one.predicted or 0.0) / one.sequences for one in rows]
    best, chosen = measured.index(min(measured)), predicted.index(min(predicted))
    return Decision(
        family=rows[0].family,
        group=rows[0].group,
        rows=len(rows),
        tau=kendall_tau(predicted, measured),
        regret=measured[chosen] / measured[best] - 1,
        random=statistics.fmean(measured) / measured[best] - 1,
        chosen=rows[chosen].id,
        best=rows[best].id,
    )


def _summary(decisions: Sequence[Decision]) -> Decisions:
    worst = max(decisions, key=lambda one: one.regret)
    return Decisions(
        family=worst.family,
        groups=len(decisions),
        rows=sum(one.rows for one in decisions),
        tau=statistics.fmean(one.tau for one in decisions),
        mean_regret=statistics.fmean(one.regret for one in decisions),
        worst_regret=worst.regret,
        random_regret=statistics.fmean(one.random for one in decisions),
        worst_group=worst.group,
    )
