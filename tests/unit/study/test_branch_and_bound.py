"""The machine of a search, on numbers whose best are known."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpsim.errors import ScenarioError
from mpsim.study.journal import Entry, Journal
from mpsim.study.search.branch_and_bound import BranchAndBound, Space
from mpsim.study.search.given import Clock
from mpsim.study.search.queue import Waiting

Number = tuple[int, int]  # its score, and what is known of it before


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A number of the space."""

    value: int
    least: float
    group: int
    digest: str


class Numbers(Space[Candidate]):
    """Numbers, each with a bound below it; those below zero are ruled out."""

    nothing = "no numbers"

    def __init__(self, numbers: Sequence[Number], *, turn: float = 3, prunes: bool = True):
        super().__init__(clock=Clock(None), a_turn=turn, a_batch=2, prunes=prunes)
        self._numbers = numbers
        self.scored: list[int] = []

    def frames(self) -> Iterator[Waiting]:
        for place, number in enumerate(self._numbers):
            yield Waiting((place % 3,), [[(place, number)]])

    def bounded(self, frame: Waiting, part: Sequence[tuple[int, Number]]) -> Iterable[Candidate]:
        for place, (value, slack) in part:
            if value < 0:
                self.counts["memory"] += 1
            else:
                yield Candidate(value, max(1e-9, value - slack), place % 2, str(place))

    def entries(self, candidates: Sequence[Candidate], worst: float) -> Iterable[Entry]:
        return [{"value": candidate.value} for candidate in candidates]

    def score(self, candidate: Candidate, entry: Entry, worst: float) -> float:
        self.scored.append(candidate.value)
        return float(entry["value"])


NUMBERS = st.lists(st.tuples(st.integers(-3, 30), st.integers(0, 10)), min_size=1, max_size=40)


@given(NUMBERS, st.integers(1, 5), st.sampled_from([1, 7, float("inf")]))
def test_the_best_are_those_of_all(numbers: list[Number], top: int, turn: float):
    """Whatever is pruned and in whatever order it is looked at; and everything is accounted for."""
    space = Numbers(numbers, turn=turn)
    run = BranchAndBound(space, top=top, journal=Journal(None))
    run.run()
    legal = sorted(value for value, _ in numbers if value >= 0)
    assert sorted(space.scored)[:top] == legal[:top]
    assert run.complete
    assert run.floor is None
    assert sum(space.counts.values()) == len(numbers)
    assert space.counts["simulated"] == len(space.scored)


@given(NUMBERS)
def test_without_pruning_everything_is_simulated(numbers: list[Number]):
    """A space may say that its bounds are good for the order only."""
    space = Numbers(numbers, prunes=False)
    BranchAndBound(space, top=1, journal=Journal(None)).run()
    assert sorted(space.scored) == sorted(value for value, _ in numbers if value >= 0)


def test_an_empty_space_is_refused():
    """By the words of the space."""
    with pytest.raises(ScenarioError, match="no numbers"):
        BranchAndBound(Numbers([]), top=1, journal=Journal(None)).run()
