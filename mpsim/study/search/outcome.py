"""The outcome of a search: the layouts that were simulated, ranked, and what became of the others."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path

from mpsim.frame import Tabular
from mpsim.sheet import Sheet, Shown
from mpsim.study.rows import write_csv
from mpsim.study.search.decisions import Decision
from mpsim.study.search.found import Found, Line, folded, tie
from mpsim.study.search.words import search_sheet

__all__ = ["OBJECTIVES", "REASONS", "Search"]

OBJECTIVES = ("time", "cost")
"""What the best layout has least of: seconds, or US dollars, a token."""

REASONS: Mapping[str, str] = {
    "simulated": "simulated",
    "bound": "cannot be among the best: a lower bound of the step time is too long",
    "memory": "does not fit into memory",
    "price": "costs more per hour than allowed",
    "power": "takes more power than allowed",
    "schedule": "the schedule cannot run so many microbatches",
    "refused": "cannot be laid on the cluster",
    "deadlock": "operations would wait for each other, as the framework runs this schedule",
    "unsimulated": "fits and was not simulated: the search ended before",
    "unseen": "not looked at: the search ended before",
}
"""What can become of a legal layout, in words."""


@dataclasses.dataclass(frozen=True, slots=True, repr=False)
class Search(Shown, Tabular):
    """Outcome of a search.

    Parameters
    ----------
    scenario : str
        Name of the scenario.
    objective : str
        One of `OBJECTIVES`.
    top : int
        How many layouts were asked for.
    rows : tuple of Found
        Every simulated layout, the best first; the first `top` are the best of all legal layouts if `complete`.
    counts : mapping of str to int
        Legal layouts by what became of them (`REASONS`).
    complete : bool
        Whether every legal layout was simulated or ruled out, so that no other can be among the best.
    front_complete : bool
        Whether the same is true of those that no other beats in time and memory at once.
    floor : float or None
        Least objective that a layout which fits and was not simulated may have; None where there is none, or where layouts were not
        looked at, of which nothing is known.
    undivided : int
        Layouts that are not legal for one reason alone: their layers do not divide among the stages, and the framework runs no split
        that holds them.
    unbatched : int
        Layouts that fell away since the batch does not divide among their replicas.
    decisions : tuple of Decision
        Choices of the best layout with the best layout without each, those that nothing fits without first, then the dearest; empty
        unless asked for.
    remarks : tuple of str
        Layouts of a resumed file that were simulated again, and why.
    interrupted : bool
        Whether somebody interrupted it.
    keys : tuple of str
        Keys of a scenario that were searched beside the layout, such as ``cluster.nodes``.
    own_step_time_s : float or None
        Step of the layout that the scenario itself has [s]; None where it cannot run, or nobody asked before an interrupt.
    own_reason : str
        Why that layout cannot be used; empty where it can.
    """

    scenario: str
    objective: str
    top: int
    rows: tuple[Found, ...]
    counts: Mapping[str, int]
    complete: bool
    front_complete: bool = True
    floor: float | None = None
    undivided: int = 0
    unbatched: int = 0
    decisions: tuple[Decision, ...] = ()
    remarks: tuple[str, ...] = ()
    interrupted: bool = False
    keys: tuple[str, ...] = ()
    own_step_time_s: float | None = None
    own_reason: str = ""

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Found]:
        return iter(self.rows)

    def sheet(self, *, front: bool = False) -> Sheet:
        """Ranking, `front` and what became of all others, as ``mpsim search`` prints them."""
        return search_sheet(self, REASONS, front=front)

    @property
    def legal(self) -> int:
        """Legal layouts."""
        return sum(self.counts.values())

    @property
    def gap(self) -> float | None:
        """Share by which a layout that was not simulated may at most be better than the best; None where nobody can say.

        0 once the search is complete.
        """
        if self.complete:
            return 0.0
        if self.floor is None or self.best is None:
            return None
        return max(0.0, 1.0 - self.floor / self.best.objective(self.objective))

    @property
    def best(self) -> Found | None:
        """The best layout; None if none was simulated."""
        return self.rows[0] if self.rows else None

    @property
    def leaders(self) -> tuple[Found, ...]:
        """The best `top`."""
        return self.rows[: self.top]

    @property
    def front(self) -> tuple[Found, ...]:
        """Layouts that no other beats in step time, memory and price at once, the shortest step first."""
        ordered = sorted(self.rows, key=lambda row: (row.step_time_s, row.memory_bytes))
        front: list[Found] = []
        for row in ordered:
            if not any(_covers(better, row) for better in front):
                front.append(row)
        return tuple(front)

    @property
    def ties(self) -> int:
        """How many of the leaders cannot be told from the best: the interval of the difference holds zero."""
        return sum(self.best is not None and tie(self.best, row) for row in self.leaders[1:])

    @property
    def lines(self) -> tuple[Line, ...]:
        """The leaders, twins folded into the line of the first: the same degrees, and times that cannot be told apart."""
        return folded(self.leaders)

    @property
    def best_by_value(self) -> dict[str, dict[str, Found]]:
        """The best layout for each value of each of `keys`, in the order of the ranking."""
        best: dict[str, dict[str, Found]] = {key: {} for key in self.keys}
        for key, chosen in best.items():
            for row in self.rows:
                chosen.setdefault(str(row.values[key]), row)
        return best

    @property
    def runner_up(self) -> dict[str, float]:
        """Parts of the step by what the second layout takes longer than the best [s], the most first; empty where there are no two."""
        parts = [(row.summary or {}).get("breakdown_s") for row in self.rows[:2] if self.rows[1:]]
        if len(parts) < _TWO or not all(isinstance(part, Mapping) for part in parts):
            return {}
        best, second = (dict(part) for part in parts if isinstance(part, Mapping))
        longer = {name: float(second.get(name, 0.0)) - float(best[name]) for name in best}
        return dict(sorted(longer.items(), key=lambda item: -abs(item[1])))

    def table(self) -> list[dict[str, object]]:
        """One flat mapping a simulated layout, all with the same keys in the same order."""
        flat = [row.flat() for row in self.rows]
        keys = dict.fromkeys(key for row in flat for key in row)
        return [{key: row.get(key) for key in keys} for row in flat]

    def to_json(self) -> dict[str, object]:
        """Plain data."""
        return {
            "scenario": self.scenario,
            "objective": self.objective,
            "top": self.top,
            "complete": self.complete,
            "gap": self.gap,
            "undivided": self.undivided,
            "unbatched": self.unbatched,
            "lines": [line.to_json() for line in self.lines],
            "decisions": [decision.to_json() for decision in self.decisions],
            "own": {"step_time_s": self.own_step_time_s, "reason": self.own_reason},
            "runner_up": self.runner_up,
            "best_by_value": {
                key: {value: dataclasses.asdict(row) for value, row in chosen.items()}
                for key, chosen in self.best_by_value.items()
            },
            "legal": self.legal,
            "ties": self.ties,
            "counts": dict(self.counts),
            "rows": [row.to_json() for row in self.leaders],
            "front": [row.to_json() for row in self.front],
        }

    def to_csv(self, path: str | Path | None = None) -> str:
        """Write every simulated layout as CSV, units in the column names; return the text."""
        return write_csv(self.table(), path)


def _covers(layout: Found, other: Found) -> bool:
    """Whether `layout` is at least as good in everything."""
    prices = layout.price_per_hour or 0.0, other.price_per_hour or 0.0
    return (
        layout.step_time_s <= other.step_time_s
        and layout.memory_bytes <= other.memory_bytes
        and prices[0] <= prices[1]
    )


_TWO = 2
