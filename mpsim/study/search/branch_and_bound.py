"""Branch and bound: enumerate, rule out, bound, then simulate the most promising of what is left.

One machine for both jobs. A `Space` says what there is (layouts of a training step, or of a
service), what each cannot beat, and what it takes; here is what they share: the order of looking
and of simulating, the budget of time, the journal, and what may be left out. Nothing is ruled out
by a guess: candidates are simulated in the order of their bounds until no bound is better than the
last of the best, so these are the best of all.

Scores are such that less is better, and no candidate's score is below its own bound.

Families of candidates, such as layouts of the same degrees, are looked at in an order that has seen
the best when a search is cut short: some scattered over the whole space come first; from these a
score is foreseen for every other, as a product of one factor for each part of the family's key.

Shapes: F families that were looked at, E effects.
"""

from __future__ import annotations

import bisect
import heapq
import itertools
import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, Generic, Protocol, TypeVar

import numpy as np

from mpsim import structs
from mpsim.errors import ScenarioError
from mpsim.study.journal import Entry, Journal, name_of
from mpsim.study.search.given import Clock, defaults

Family = tuple[object, ...]
Look = Callable[["Waiting", Sequence[Any]], float]
_MISSES: Final = 2.0  # a family in which nothing fits counts as so many times the slowest that does
_RIDGE: Final = 0.1  # of an effect, against one observation of its family


class Waiting:
    """A frame of what is searched: it waits to be bounded, in parts one after the other.

    `family`: frames of one family are alike: the first of them says how promising all are. `parts`:
    in the order in which they are looked at.
    """

    def __init__(self, family: Family, parts: Sequence[Sequence[Any]]) -> None:
        self.family, self.size = family, sum(map(len, parts))
        self._parts: list[Sequence[Any]] = list(reversed(parts))

    def look(self, look: Look) -> float | None:
        """Look at the next part; the least that `look` said of it, or None where none is left."""
        return look(self, self._parts.pop()) if self._parts else None


class Queue:
    """Frames in the order in which they are looked at."""

    def __init__(self, frames: Sequence[Waiting]) -> None:
        families: dict[Family, list[Waiting]] = {}
        for frame in frames:
            families.setdefault(frame.family, []).append(frame)
        usual = defaults("search")
        first = max(int(usual["scattered_at_least"]), int(usual["scattered_share"] * len(families)))
        self._again = int(usual["foreseen_every"])
        self._scattered = list(_scattered(list(families)))[:first][::-1]
        self._new = families  # families that nobody has looked at
        self._known: list[tuple[float, int, Waiting]] = []  # heap of the others' frames
        self._scores: dict[Family, float] = {}
        self._foreseen: list[tuple[float, Family]] = []  # the most promising last
        self._number = itertools.count()
        self._siblings: list[Waiting] = []  # of the frame that is looked at

    def next(self) -> Waiting | None:
        """The frame to look at next; None when there are none."""
        while self._scattered:
            family = self._scattered.pop()
            if family in self._new:
                return self._open(family)
        if self._new and (not self._foreseen or not len(self._scores) % self._again):
            self._foresee()
        while self._foreseen and self._foreseen[-1][1] not in self._new:
            self._foreseen.pop()
        if self._foreseen and (not self._known or self._foreseen[-1][0] <= self._known[0][0]):
            return self._open(self._foreseen.pop()[1])
        return heapq.heappop(self._known)[2] if self._known else None

    def back(self, frame: Waiting, score: float | None) -> None:
        """Take back a frame and the least of its layouts; it goes again unless that is None."""
        if score is None:
            return
        if frame.family not in self._scores:
            self._scores[frame.family] = score
            for other in self._siblings:  # look where their schedules are better, too
                heapq.heappush(self._known, (score, next(self._number), other))
            self._siblings = []
        heapq.heappush(self._known, (score, next(self._number), frame))

    def _open(self, family: Family) -> Waiting:
        frame, *self._siblings = self._new.pop(family)
        return frame

    def _foresee(self) -> None:
        """Foresee the score of every family that is left, from those that were looked at.

        Notes
        -----
        log(score) is a sum of effects of the values of the family's key, by ridge regression.
        """
        fits = [score for score in self._scores.values() if score < math.inf]
        if not fits:
            self._foreseen = [(math.inf, family) for family in reversed(self._new)]
            return
        most = _MISSES * max(fits)
        values = dict.fromkeys(
            (place, value)
            for family in (*self._scores, *self._new)
            for place, value in enumerate(family)
        )
        effects = {value: column for column, value in enumerate(values)}

        def columns(family: Family) -> list[int]:
            return [effects[value] for value in enumerate(family)]

        seen = np.zeros((len(self._scores), len(effects)))  # [F, E]
        for row, family in enumerate(self._scores):
            seen[row, columns(family)] = 1.0
        logs = np.log([min(score, most) for score in self._scores.values()])
        mean = logs.mean()
        square = seen.T @ seen + _RIDGE * np.eye(len(effects))
        effect = np.linalg.solve(square, seen.T @ (logs - mean))
        foreseen = [
            (math.exp(mean + effect[columns(family)].sum()), place, family)
            for place, family in enumerate(self._new)
        ]
        foreseen.sort(reverse=True, key=lambda entry: entry[:2])
        self._foreseen = [(score, family) for score, _, family in foreseen]


def _scattered(families: Sequence[Family]) -> Iterator[Family]:
    """Families so that any first few lie all over the space: by reversed bits of numbers."""
    width = max(1, (len(families) - 1).bit_length())
    for place in sorted(range(len(families)), key=lambda n: int(f"{n:0{width}b}"[::-1], 2)):
        yield families[place]


Progress = Callable[[str, int, int], None]
"""Called with (what is done, how many are done, how many there are; 0 where that is not known)."""


class Bounded(Protocol):
    """A candidate that fits, before it is simulated."""

    @property
    def least(self) -> float:
        """Bound of its score."""

    @property
    def group(self) -> int:
        """Candidates of one group are simulated together."""

    @property
    def digest(self) -> str:
        """Name of its entry in the journal."""


C = TypeVar("C", bound=Bounded)
Labels = Callable[[C], Iterable[object]]


@structs.dataclass(eq=False, kw_only=True)
class Space(ABC, Generic[C]):
    """A space that is searched."""

    clock: Clock
    # what became of what was looked at, by reason; the machine adds what it simulated and left
    counts: Counter[str] = structs.field(default_factory=Counter, init=False)
    # keys of a scenario that are searched beside the layout
    keys: tuple[str, ...] = structs.field(default=(), init=False)
    # how many are bounded between two turns of simulating the best of them
    a_turn: float = math.inf
    a_batch: int = 1  # how many are simulated between two looks at the clock
    prunes: bool = True  # whether a bound rules candidates out

    @property
    @abstractmethod
    def nothing(self) -> str:
        """Refusal where there is nothing to look at."""

    @abstractmethod
    def frames(self) -> Iterator[Waiting]:
        """Everything there is, in groups that are looked at a part at a time."""

    @abstractmethod
    def bounded(self, frame: Waiting, part: Sequence[Any]) -> Iterable[C]:
        """Candidates of a part of a frame that fit, with their bounds; the others are counted."""

    @abstractmethod
    def entries(self, candidates: Sequence[C], worst: float) -> Iterable[Entry]:
        """Rows that the journal keeps of candidates of one group, simulated.

        Of these the last of the best has a score of `worst`.
        """

    @abstractmethod
    def score(self, candidate: C, entry: Entry, worst: float) -> float | None:
        """Take a simulated candidate: its score, infinite for what cannot be the best.

        None, and counted, for what is no row of the ranking.
        """

    def unsettled(self) -> C | None:
        """The best so far, where its score is a bound that `settle` can confirm or lower."""
        return None

    def settle(self, candidate: C) -> Entry:
        """The row that the journal keeps of a candidate once it is looked at more closely."""
        raise NotImplementedError

    def labellings(self) -> Iterator[Labels[C]]:
        """Further questions: the best of each label is wanted, however far behind."""
        return iter(())

    def may_lead(self, candidate: C) -> bool:
        """Whether a candidate that is none of the best leads in something else that is wanted."""
        return False


class BranchAndBound(Generic[C]):
    """One search for the `top` best; candidates in the `journal` are not simulated again."""

    def __init__(
        self, space: Space[C], *, top: int, journal: Journal, report: Progress | None = None
    ) -> None:
        if top < 1:
            raise ScenarioError(f"top is {top}; needed at least 1")
        self._space, self._top, self._clock = space, top, space.clock
        self._journal, self._report = journal, report or (lambda what, done, total: None)
        self._number = itertools.count()
        self._waiting: list[tuple[float, int, C]] = []  # heap of what fits, by its least score
        self._scores: list[float] = []  # of what was simulated, the best first
        self._simulated: list[tuple[C, float]] = []
        self._total = self._bounded = 0
        self._cut = False
        self.aside: list[C] = []  # ruled out by their bounds
        self.interrupted = False

    def run(self) -> None:
        """Look, bound and simulate by turns; what is left afterwards is counted."""
        with self._journal.writing():
            try:
                self._look()
                self._settle_best()
                self._simulate_others()
            except KeyboardInterrupt:
                self.interrupted = True
        self._space.counts += Counter(
            simulated=len(self._simulated),
            bound=len(self._waiting) - self._late,
            unsimulated=self._late,
            unseen=self._total - self._bounded,
        )

    @property
    def seen(self) -> bool:
        """Whether everything was looked at."""
        return self._total == self._bounded and not self._cut

    @property
    def complete(self) -> bool:
        """Whether everything was simulated or ruled out: nothing else can be among the best."""
        return self.seen and not self._late

    @property
    def exhausted(self) -> bool:
        """Whether the same is true of what leads in something else."""
        return self.complete and not self._waiting

    @property
    def left(self) -> list[C]:
        """Everything that fits and was not simulated."""
        return [*self.aside, *(candidate for _, _, candidate in self._waiting)]

    @property
    def floor(self) -> float | None:
        """Least score of what fits and was not simulated.

        None where nothing is left, or where not everything was looked at: nothing is known of it.
        """
        return min(score for score, _, _ in self._waiting) if self._late and self.seen else None

    @property
    def _worst(self) -> float:
        """Score of the last of the best."""
        return self._scores[self._top - 1] if len(self._scores) >= self._top else math.inf

    @property
    def _threshold(self) -> float:
        """Bound above which nothing is simulated; of equals both are, as further figures decide."""
        return self._worst if self._space.prunes else math.inf

    @property
    def _late(self) -> int:
        """Candidates that may be among the best and were not simulated."""
        return sum(score <= self._threshold for score, _, _ in self._waiting)

    def _look(self) -> None:
        """Bound everything, the most promising first, and simulate the best of it by turns."""
        usual = defaults("search")
        share, least = float(usual["enumerating_share"]), float(usual["enumerated_at_least"])
        frames: list[Waiting] = []
        for frame in self._space.frames():
            frames.append(frame)
            self._total += frame.size
            # words may make millions of layouts, which take longer to list than a budget has
            if self._total > least and self._clock.spent(share):
                self._cut = True
                break
        if not self._total:
            raise ScenarioError(self._space.nothing)
        queue = Queue(frames)
        for key in ("bounding_share", "bounding_share_at_last"):
            self._look_until(queue, float(usual[key]))
            self._simulate_best()

    def _look_until(self, queue: Queue, share: float) -> None:
        """Look until a share of the time budget has gone, and simulate the best of it by turns."""
        begun = self._bounded

        def look(frame: Waiting, part: Sequence[Any]) -> float:
            nonlocal begun
            best = math.inf
            for candidate in self._space.bounded(frame, part):
                # the number keeps equals in the order in which they were met
                entry = (candidate.least, next(self._number), candidate)
                heapq.heappush(self._waiting, entry)
                best = min(best, candidate.least)
            self._bounded += len(part)
            self._report("bounded", self._bounded, self._total)
            # a good score early rules out more, and is there if the search is cut short
            if self._bounded >= begun + self._space.a_turn and not self._clock.spent(share):
                begun = self._bounded
                self._simulate_some()
            return best

        # whatever the budget is, something is looked at
        while (not self._clock.spent(share) or not self._bounded) and (frame := queue.next()):
            queue.back(frame, frame.look(look))

    def _simulate_some(self) -> None:
        """Simulate the most promising candidates so far, as far as one may be the best."""
        size = int(defaults("search")["simulated_a_turn"])
        best = self._scores[0] if self._scores else math.inf
        self._simulate(self._pop(size, math.nextafter(best, -math.inf)))

    def _simulate_best(self) -> None:
        """Simulate in the order of the bounds, as long as a candidate could be among the best."""
        size = self._space.a_batch
        while not self._clock.spent() and (batch := self._pop(size, self._threshold)):
            self._simulate(batch)
            self._report_simulated()

    def _pop(self, size: int, most: float) -> list[C]:
        """The most promising of what waits, at most so many, whose bounds are at most `most`."""
        batch: list[C] = []
        while self._waiting and len(batch) < size and self._waiting[0][0] <= most:
            batch.append(heapq.heappop(self._waiting)[2])
        return batch

    def _settle_best(self) -> None:
        """Settle what leads with a score that is a bound, and what can be better after that."""
        while not self._clock.spent() and (candidate := self._space.unsettled()):
            name = name_of(candidate.digest, "settled", *self._scores[:1])
            if name not in self._journal:
                self._journal.add(name, self._space.settle(candidate))
            score = self._space.score(candidate, self._journal[name], self._worst)
            self._simulated = [
                (other, score if other is candidate and score is not None else old)
                for other, old in self._simulated
            ]
            self._scores = sorted(score for _, score in self._simulated)
            self._journal.flush()
            self._simulate_best()

    def _simulate_others(self) -> None:
        """Simulate what leads in something else; what does not is ruled out for good."""
        for labels in self._space.labellings():
            self._settle(labels)
        while self._waiting and not self._clock.spent():
            batch: list[C] = []
            while self._waiting and len(batch) < self._space.a_batch:
                candidate = heapq.heappop(self._waiting)[2]
                if self._space.may_lead(candidate):
                    batch.append(candidate)
                else:
                    self.aside.append(candidate)
            self._simulate(batch)
            self._report_simulated()
        self._space.counts["bound"] += len(self.aside)
        self._report("simulated", len(self._simulated), len(self._simulated))

    def _settle(self, labels: Labels[C]) -> None:
        """Simulate until the best of each label is known."""
        best: dict[object, float] = {}

        def note(since: int) -> None:
            for candidate, score in self._simulated[since:]:
                for label in labels(candidate):
                    best[label] = min(score, best.get(label, math.inf))

        note(0)
        left = []
        for entry in sorted(self._waiting, key=lambda entry: entry[:2]):
            least, _, candidate = entry
            promising = any(least < best.get(label, math.inf) for label in labels(candidate))
            if not promising or self._clock.spent():
                left.append(entry)
                continue
            known = len(self._simulated)
            self._simulate([candidate])
            note(known)
        self._waiting = left  # sorted, so it is a heap

    def _simulate(self, batch: Sequence[C]) -> None:
        """Simulate a batch, group by group; what is in the journal is not simulated again."""
        groups: dict[int, list[C]] = {}
        for candidate in batch:
            groups.setdefault(candidate.group, []).append(candidate)
        for group in groups.values():
            names = [candidate.digest for candidate in group]
            fresh = [place for place, name in enumerate(names) if name not in self._journal]
            entries = self._space.entries([group[place] for place in fresh], self._worst)
            for place, entry in zip(fresh, entries, strict=True):
                self._journal.add(names[place], entry)
            for candidate, name in zip(group, names, strict=True):
                score = self._space.score(candidate, self._journal[name], self._worst)
                if score is not None:
                    self._simulated.append((candidate, score))
                    bisect.insort(self._scores, score)
            # not before: what is on disk is in the table, too, whenever an interrupt comes
            self._journal.flush()

    def _report_simulated(self) -> None:
        # how many are left hangs on what the next of them take: most are ruled out by these
        self._report("simulated", len(self._simulated), 0)
