"""From a workload to a stream of requests: arrivals and lengths drawn, or read from a trace."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mpsim.scenario.serving import LengthChoice, Workload
from mpsim.serving.requests import Requests
from mpsim.serving.traces import read_trace

__all__ = ["draw_requests"]

_USUAL = 1000  # requests where nobody says how many


def draw_requests(
    workload: Workload, *, seed: int, folder: str | Path = ".", count: int | None = None
) -> Requests:
    """The requests of a workload; equal seeds give equal requests.

    Parameters
    ----------
    folder : path
        Where a trace's file is looked for.
    count : int, optional
        How many, whatever the workload says: a closed loop of a certain duration shows only in the run how many it sends.
    """
    if workload.trace is not None:
        requests = read_trace(Path(folder) / workload.trace)
        if workload.duration is not None:
            return requests.first(int((requests.arrival <= workload.duration).sum()))
        return requests.first(workload.requests) if workload.requests else requests
    lengths, gaps = (np.random.default_rng(s) for s in np.random.SeedSequence(seed).spawn(2))
    count = count or workload.requests or _count(workload)
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
    if not workload.shared_prefix:  # every request is its own
        return Requests(arrival, prompt, output)
    group = np.arange(count) % workload.prefix_groups
    long = prompt > workload.shared_prefix
    hashes = tuple((int(number),) if fits else () for number, fits in zip(group, long, strict=True))
    return Requests(arrival, prompt, output, hashes, workload.shared_prefix)


def _count(workload: Workload) -> int:
    """Requests where nobody says: ten for each user of a closed loop, as load generators send."""
    return 10 * workload.concurrency if workload.concurrency else _USUAL


def _draw_lengths(
    choice: LengthChoice, count: int, random: np.random.Generator
) -> NDArray[np.int64]:
    """Tokens of `count` prompts or outputs, at least one each."""
    if choice.kind == "uniform" and choice.shortest < 1.0:
        low = max(1, int(choice.shortest * choice.tokens))
        return random.integers(low, choice.tokens + 1, count)
    if choice.kind == "lognormal" and choice.spread > 0:
        sigma = math.sqrt(math.log1p(choice.spread**2))
        drawn = random.lognormal(math.log(choice.tokens) - sigma**2 / 2, sigma, count)
        return np.maximum(1, np.rint(drawn)).astype(np.int64)
    return np.full(count, choice.tokens, dtype=np.int64)
