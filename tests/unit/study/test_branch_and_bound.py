"""The machine of a search, on numbers whose best are known."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mpsim.errors import ScenarioError
from mpsim.study.journal import Entry, Journal
from mpsim.study.search.branch_and_bound import BranchAndBound, Labels, Space, Waiting
from mpsim.study.search.given import Clock

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


@example([(9, 9), (3, 0), (5, 1)], 2, float("inf"))  # the better of two is simulated last
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


def test_what_equals_the_best_is_simulated_too():
    """Further figures decide between them."""
    space = Numbers([(5, 0), (5, 2), (7, 0), (5, 0), (9, 1)], turn=float("inf"))
    BranchAndBound(space, top=1, journal=Journal(None)).run()
    assert sorted(space.scored) == [5, 5, 5]


class Sudden(Clock):
    """Time that is over once so many were simulated."""

    def __init__(self, space: Numbers, most: int) -> None:
        super().__init__(None)
        self._space, self._most = space, most

    def spent(self, share: float = 1.0) -> bool:
        return share == 1.0 and len(self._space.scored) >= self._most


def test_a_search_that_is_cut_short_says_so():
    """What was not simulated and may be better: its number, and the least that it can score."""
    space = Numbers([(9, 8), (8, 6), (7, 3), (30, 0)], turn=float("inf"))
    space.clock = Sudden(space, 2)
    run = BranchAndBound(space, top=1, journal=Journal(None))
    run.run()
    assert space.scored == [9, 8]
    assert run.seen
    assert not run.complete
    assert not run.exhausted
    assert run.floor == 4.0
    assert space.counts["unsimulated"] == 1
    assert sorted(candidate.value for candidate in run.left) == [7, 30]


def test_what_is_in_the_journal_is_not_simulated_again():
    """The second search has the scores of the first."""
    journal, asked = Journal(None), []

    class Watched(Numbers):
        def entries(self, candidates: Sequence[Candidate], worst: float) -> Iterable[Entry]:
            asked.extend(candidate.value for candidate in candidates)
            return super().entries(candidates, worst)

    numbers = [(4, 4), (3, 1), (8, 7), (20, 2)]
    first, second = Watched(numbers), Watched(numbers)
    for space in (first, second):
        BranchAndBound(space, top=2, journal=journal).run()
    assert second.scored == first.scored
    assert sorted(asked) == sorted(first.scored)


class Labelled(Numbers):
    """Numbers of which the best of each parity and of each third are wanted as well."""

    def labellings(self) -> Iterator[Labels[Candidate]]:
        yield lambda candidate: (f"half {candidate.value % 2}", f"third {candidate.value % 3}")


@given(NUMBERS)
def test_the_best_of_each_label_is_simulated(numbers: list[Number]):
    """However far it is behind the best of all, and where it leads under one of its labels only."""
    space = Labelled(numbers)
    BranchAndBound(space, top=1, journal=Journal(None)).run()
    legal = [value for value, _ in numbers if value >= 0]
    for divisor in (2, 3):
        for rest in range(divisor):
            of_label = [value for value in legal if value % divisor == rest]
            assert not of_label or min(of_label) in space.scored


def test_an_empty_space_is_refused():
    """By the words of the space."""
    with pytest.raises(ScenarioError, match="no numbers"):
        BranchAndBound(Numbers([]), top=1, journal=Journal(None)).run()
