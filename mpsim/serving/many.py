"""Streams of so many requests that none is kept: sums, and sketches for percentiles.

Requests are drawn, and folded once all of a page have ended, page by page; so are iterations.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any, Final, SupportsIndex, TypeVar

import numpy as np
from numpy.typing import NDArray

from mpsim.serving.confidence import LOOKS, QUANTILES, Course, batch_interval, crowded_from, verdict
from mpsim.serving.plan import ServicePlan
from mpsim.serving.requests import Requests, Served
from mpsim.serving.sketch import BATCHES, GROWTH, LEAST, Sketch
from mpsim.serving.stream import Stream
from mpsim.serving.summary import RowSums, Tally, itl, kept_of, latencies, window_of

Floats = NDArray[np.float64]
Item = TypeVar("Item")

_GRID: Final = 40 * LOOKS  # times at which requests in the service are counted


class Window(list[Item]):
    """A list whose first items are gone; the others keep their numbers."""

    base = 0

    def __getitem__(self, at: Any) -> Any:
        """The item of a number; a slice counts from the first that is left."""
        return list.__getitem__(self, at if isinstance(at, slice) else at - self.base)

    def __setitem__(self, at: SupportsIndex, value: Item) -> None:  # type: ignore[override]
        """Replace the item of a number."""
        list.__setitem__(self, int(at) - self.base, value)

    def drop(self, count: int) -> list[Item]:
        """Take out the first so many items."""
        found: list[Item] = self[:count]
        del self[:count]
        self.base += count
        return found


class Folded:
    """Sums and sketches of a run, of whose `stream` nothing but its extent is known beforehand."""

    error: Final = GROWTH / 2.0

    def __init__(self, plan: ServicePlan, stream: Stream) -> None:
        self.sums = RowSums(plan)
        self._plan, self._stream = plan, stream
        self._since = plan.workload.warmup or 0.0
        self._spreads = {name: Sketch() for name in ("ttft", "tpot", "e2e", "queue")}
        self._gaps, self._service = Sketch(), Sketch()
        self._kept = np.zeros((2, BATCHES))  # requests that count, and those within all limits
        self._missed: Counter[str] = Counter()
        self._finished, self._output, self._prompt = 0, 0.0, 0.0
        self._stay, self._ends = 0.0, (math.inf, 0.0)
        self._edges = np.linspace(0.0, max(stream.span, LEAST), _GRID + 1)
        self._inside = np.zeros(_GRID + 2)

    def add(self, first: int, requests: Requests, served: Served) -> None:
        """Fold a page of requests that have ended."""
        times = latencies(served, requests, self._plan.first_token_time)
        window = window_of(self._plan, requests, served)
        done, batch = window.counted, min(BATCHES - 1, BATCHES * first // self._stream.count)
        for name, sketch in self._spreads.items():
            sketch.add(batch, times[name][done])
        self._service.add(batch, (times["e2e"] - times["queue"])[done])
        kept, missed = kept_of(self._plan, times, done)
        self._missed.update({name: int(each.sum()) for name, each in missed.items()})
        self._kept[:, batch] += done.sum(), kept.sum()
        self._finished += window.finished
        self._output, self._prompt = self._output + window.output, self._prompt + window.prompt
        self._stay += float(times["e2e"].sum())
        for at, sign in ((served.arrival, 1.0), (served.arrival + times["e2e"], -1.0)):
            bins = np.searchsorted(self._edges, at)
            self._inside += sign * np.bincount(bins, minlength=_GRID + 2)
        if done.any():
            arrived = served.arrival[done]
            low, high = self._ends
            self._ends = min(low, float(arrived[0])), max(high, float(arrived[-1]))

    def add_rows(self, steps: Mapping[str, Floats]) -> None:
        """Fold a page of iterations."""
        self.sums.add(steps)
        self._gaps.add(0, *itl(steps, since=self._since))

    def tally(self, end: float) -> Tally:
        """The tally of the run, which ended then [s]."""
        load = self._plan.workload
        counts, kept = self._kept
        total = max(1, int(counts.sum()))
        shares = kept[counts > 0] / counts[counts > 0]
        enough = len(shares) > 1
        interval = batch_interval(float(kept.sum() / total), shares) if enough else (0.0, 1.0)
        gaps = None
        if self._gaps.count:
            tails = {name: self._gaps.quantile(share) for name, share in QUANTILES.items()}
            gaps = {"mean": self._gaps.mean, **tails}
        return Tally(
            end - min(self._since, end),
            int(counts.sum()),
            self._finished,
            self._output,
            self._prompt,
            self._stream.prompts,
            self._spreads,
            gaps,
            int(kept.sum()),
            self._missed,
            interval,
            verdict(self._course(), kind=load.arrival, users=load.concurrency),
        )

    def _course(self) -> Course:
        """The stream as it went."""
        stay = self._stay / self._stream.count
        begin, third = crowded_from(0.0, self._stream.span, stay, self._since)
        looks = np.searchsorted(self._edges, np.linspace(begin, self._stream.span, LOOKS))
        inside = np.cumsum(self._inside)[np.minimum(looks, _GRID)]
        waits, span = self._spreads["queue"].means, self._ends[1] - self._ends[0]
        count = int(self._kept[0].sum())
        return Course(count, self._service.mean, waits, inside, third, span, stay)
