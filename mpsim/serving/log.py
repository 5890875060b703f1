"""The log of a run: when its requests were served, and its iterations; whole, or folded.

Of a stream of so many requests that none is kept, a page whose requests have all ended is folded
and dropped; so are iterations.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Any, TypeVar, cast

import numpy as np

from mpsim.arrays import Floats
from mpsim.serving.lane import Lane
from mpsim.serving.plan import ServicePlan
from mpsim.serving.requests import TIMES, Requests, Served
from mpsim.serving.stream import Stream
from mpsim.serving.tally import Folded

Item = TypeVar("Item")

_PAGE = 16_384  # iterations of a stream that are folded at once
_STEPS = (
    *("start", "seconds", "count", "decodes", "context"),
    *("prompt_tokens", "used", "engine", "span", "held"),
)


class Tail(list[Item]):
    """A list whose first items are gone; the others keep their numbers."""

    base = 0

    def __getitem__(self, at: Any) -> Any:
        """The item of a number; a slice counts from the first that is left."""
        return list.__getitem__(self, at if isinstance(at, slice) else at - self.base)

    def __setitem__(self, at: Any, value: Any) -> None:
        """Replace the item of a number."""
        list.__setitem__(self, at - self.base, value)

    def drop(self, count: int) -> list[Item]:
        """Take out the first so many items."""
        found: list[Item] = self[:count]
        del self[:count]
        self.base += count
        return found


class Log:
    """Columns of the requests of a run, and rows of its iterations.

    `requests`: all of them, or a stream of which they are drawn page by page. `folded`: what
    becomes of requests and iterations of a stream.
    """

    def __init__(
        self, requests: Requests | Stream, plan: ServicePlan, folded: Folded | None
    ) -> None:
        # engines share whole blocks alone: units that are shared together, and their tokens
        block = max(pool.engine.block for pool in plan.pools.values())
        self._together = -(-block // max(1, requests.unit))
        self._folded, self.unit = folded, self._together * requests.unit // block * block
        if isinstance(requests, Requests):
            self.count, self._pages = len(requests), iter([requests])
            self.longest_output = int(requests.output.max(initial=0))
        else:
            self.count, self._pages = requests.count, requests.pages()
            self.longest_output = requests.longest_output
        self._comes = plan.workload.concurrency is None  # at times that are known beforehand
        # where all are kept, plain lists are faster: nothing is dropped from them
        column: type[Tail[Any]] = cast("Any", list) if folded is None else Tail
        # when each came, was through the front end, began, gave its first and its last token [s]
        self.arrival, self.queued, self.started, self.first, self.last = (
            column() for _ in range(5)
        )
        self.prompt, self.output, self._hashes = column(), column(), column()
        self.loaded = self._folds = self._size = 0  # requests drawn, folded, of a page
        self._left: deque[int] = deque()  # requests of each page that have not ended
        self._rows: list[tuple[float, ...]] = []
        # for each pool: time in which its batches had requests and could not run, by reason [s]
        self.stalled = [{"cache": 0.0, "transfer": 0.0, "down": 0.0} for _ in plan.pools]
        self.page = self.load()
        # of sessions: the request that follows each, and the time before each [s]
        self.following: list[int] = []
        self.think: list[float] = []
        if (page := self.page) is not None and page.following is not None:
            assert page.think is not None
            self.following, self.think = page.following.tolist(), page.think.tolist()
        # leading units of every prompt; None where they share none
        self.hashes = self._hashes or None

    def load(self) -> Requests | None:
        """Take up the next page of requests, if there is one."""
        if (page := next(self._pages, None)) is None:
            return None
        count = len(page)
        self.arrival += page.arrival.tolist() if self._comes else [math.nan] * count
        for column in (self.started, self.first, self.last):
            column += [math.nan] * count
        self.prompt += page.prompt.tolist()
        self.output += page.output.tolist()
        self._hashes += [own[self._together - 1 :: self._together] for own in page.hashes or ()]
        self.loaded += count
        self._left.append(count)
        self._size = self._size or count  # that of all pages but the last
        return page

    def iterate(
        self, lane: Lane, begin: float, seconds: float, work: tuple[int, ...], span: float
    ) -> None:
        """Write down iterations: their number, sequences, contexts and prompt tokens of each.

        Sequences that decode and have no token of them, as prompts came first, are `held`.
        """
        held = sum(engine.decodes for engine in lane.engines) - work[1]
        self._rows.append((begin, seconds, *work, lane.used, lane.number, span, held))

    def end(self, request: int, now: float) -> None:
        """Write down that a request has its last token; fold pages of which all have."""
        self.last[request] = now
        if self._folded is None:
            return
        self._left[(request - self._folds) // self._size] -= 1
        while self._left and not self._left[0]:
            self._left.popleft()
            count = min(self._size, self.loaded - self._folds)
            arrival, started, first, last = (
                np.array(getattr(self, name).drop(count)) for name in TIMES
            )
            prompt, output = (np.array(each.drop(count)) for each in (self.prompt, self.output))
            for column in (self.queued, self._hashes):
                if column:
                    column.drop(count)
            part = Served(arrival, started, first, last, {})
            self._folded.fold(self._folds, Requests(arrival, prompt, output), part)
            self._folds += count
        if len(self._rows) >= _PAGE:
            self.fold_rows()

    def fold_rows(self) -> None:
        """Fold the iterations of a stream that were written down."""
        if self._folded is not None and self._rows:
            self._folded.fold_rows(self.steps())
            self._rows.clear()

    def times(self) -> dict[str, Floats]:
        """Times of the requests that are left, by their names in `Served`."""
        return {name: np.array(getattr(self, name)) for name in TIMES}

    def steps(self) -> dict[str, Floats]:
        """Iterations that were written down, by column."""
        table = np.array(self._rows, dtype=float).reshape(-1, len(_STEPS))
        return dict(zip(_STEPS, table.T, strict=True))
