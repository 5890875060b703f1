"""From a workload to a stream of requests: arrivals and lengths drawn, or read from a trace."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from mpsim import structs
from mpsim.arrays import Ints
from mpsim.scenario.extent import expected_requests
from mpsim.scenario.fields import LengthChoice
from mpsim.scenario.serving import Workload
from mpsim.serving.requests import Requests
from mpsim.serving.sessions import in_sessions
from mpsim.serving.traces import read_trace

_PAGE = 16_384  # requests of a page at least


class Stream:
    """A stream drawn page by page, as often as asked for; a page is at most a tenth of it."""

    def __init__(self, workload: Workload, seed: int) -> None:
        self._workload, self._seed = workload, seed
        self.unit = workload.shared_prefix
        whole = expected_requests(workload)
        self._page = math.ceil(whole / (10 * math.ceil(whole / (10 * _PAGE))))
        self.count, self.prompts, self.span = 0, 0.0, 0.0
        self.longest = self.longest_prompt = self.longest_output = 0
        for page in self.pages():
            self.count += len(page)
            self.prompts += float(page.prompt.sum())
            self.span = float(page.arrival[-1])
            self.longest = max(self.longest, int((page.prompt + page.output).max()))
            self.longest_prompt = max(self.longest_prompt, int(page.prompt.max()))
            self.longest_output = max(self.longest_output, int(page.output.max()))

    def pages(self) -> Iterator[Requests]:
        """Its requests."""
        load, done, last = self._workload, 0, 0.0
        left = None if load.duration is not None else expected_requests(load)
        for number in itertools.count():
            size = self._page if left is None else min(self._page, left - done)
            if not size:
                return
            free = {"requests": None, "duration": None, "trace": None}
            page = draw_requests(
                load.model_copy(update=free), seed=(self._seed, number), count=size, first=done
            )
            page = structs.replace(page, arrival=page.arrival + last)
            last, done = float(page.arrival[-1]), done + size
            if load.duration is not None and last > load.duration:
                page = page.first(int((page.arrival <= load.duration).sum()))
                if len(page):
                    yield page
                return
            yield page


def draw_requests(
    workload: Workload,
    *,
    seed: int | tuple[int, int],
    folder: str | Path = ".",
    count: int | None = None,
    first: int = 0,
) -> Requests:
    """The requests of a workload; equal seeds give equal requests.

    `folder`: where a trace's file is looked for. `count`: how many, whatever the workload says: a
    closed loop of a certain duration shows only in the run how many it sends. `first`: number of
    the first of them, where they are part of a stream.
    """
    if workload.trace is not None:
        requests = read_trace(Path(folder) / workload.trace)
        if workload.duration is not None:
            return requests.first(int((requests.arrival <= workload.duration).sum()))
        return requests.first(workload.requests) if workload.requests else requests
    lengths, gaps = (np.random.default_rng(s) for s in np.random.SeedSequence(seed).spawn(2))
    count = count or expected_requests(workload.model_copy(update={"duration": None}))
    arrival = np.zeros(count)
    if workload.arrival in ("poisson", "gamma"):
        assert workload.rate is not None, "the schema wants one"
        shape = workload.burstiness if workload.arrival == "gamma" else 1.0
        arrival = np.cumsum(gaps.gamma(shape, 1.0 / (shape * workload.rate), count))
        while workload.duration is not None and arrival[-1] <= workload.duration:
            more = np.cumsum(gaps.gamma(shape, 1.0 / (shape * workload.rate), count))
            arrival = np.concatenate([arrival, arrival[-1] + more])
        if workload.duration is not None:
            arrival = arrival[: max(1, int((arrival <= workload.duration).sum()))]
            count = len(arrival)
    prompt = _draw_lengths(workload.prompt, count, lengths)
    output = _draw_lengths(workload.output, count, lengths)
    if workload.turns > 1 or workload.think_time:
        thinking = lengths.exponential(workload.think_time, count)
        return in_sessions(workload, Requests(arrival, prompt, output, think=thinking))
    if not workload.shared_prefix:  # every request is its own
        return Requests(arrival, prompt, output)
    group = np.arange(first, first + count) % workload.prefix_groups
    long = prompt > workload.shared_prefix
    hashes = tuple((int(number),) if fits else () for number, fits in zip(group, long, strict=True))
    return Requests(arrival, prompt, output, hashes, workload.shared_prefix)


def _draw_lengths(choice: LengthChoice, count: int, random: np.random.Generator) -> Ints:
    """Tokens of `count` prompts or outputs, at least one each."""
    if choice.kind == "uniform" and choice.shortest < 1.0:
        low = max(1, int(choice.shortest * choice.tokens))
        return random.integers(low, choice.tokens + 1, count)
    if choice.kind == "lognormal" and choice.spread > 0:
        sigma = math.sqrt(math.log1p(choice.spread**2))
        drawn = random.lognormal(math.log(choice.tokens) - sigma**2 / 2, sigma, count)
        return np.maximum(1, np.rint(drawn)).astype(np.int64)
    return np.full(count, choice.tokens, dtype=np.int64)
