"""Tally of a run: latencies of its requests, the window that counts, time by part; whole, or
folded.

Of a stream of so many requests that none is kept, requests and iterations are folded page by page.

Shapes: N requests, S iterations or jumps over equal ones.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import ClassVar, Final

import numpy as np

from mpsim.arrays import Flags, Floats
from mpsim.serving.batching import Batch
from mpsim.serving.confidence import (
    LOOKS,
    QUANTILES,
    Course,
    SteadyState,
    crowded_from,
    share_interval,
    steady_state,
    verdict,
)
from mpsim.serving.plan import ServicePlan
from mpsim.serving.requests import Requests, Served
from mpsim.serving.spread import BATCHES, GROWTH, LEAST, Sketch, Values
from mpsim.serving.stream import Stream

ACCOUNT = (
    *("decode", "prefill", "exposed_tp", "exposed_ep", "exposed_pp", "exposed_kv"),
    *("host", "bubble", "down", "idle_cache", "idle"),
)
"""Parts of the time of accelerators; they sum to the duration."""

_BESIDE = ("exposed_tp", "exposed_ep", "exposed_pp", "host")  # within an iteration
_GRID: Final = 40 * LOOKS  # times at which requests in the service are counted


def latencies(served: Served, requests: Requests, first_token_time: float) -> dict[str, Floats]:
    """TTFT, TPOT, E2E and queue time of every request that was served [s].

    TPOT is (E2E - TTFT) / (output - 1) of a request, NaN where it gave one token. Server, tokenizer
    and network (`first_token_time`) count to TTFT and E2E.
    """
    ttft = served.first - served.arrival + first_token_time
    e2e = served.last - served.arrival + first_token_time
    further = requests.output - 1
    with np.errstate(divide="ignore", invalid="ignore"):
        tpot = np.where(further > 0, (served.last - served.first) / further, np.nan)
    return {"ttft": ttft, "tpot": tpot, "e2e": e2e, "queue": served.started - served.arrival}


def itl(
    steps: Mapping[str, Floats], *, since: float = 0.0, until: float = math.inf
) -> tuple[Floats, Floats]:
    """Gaps between tokens, and how many sequences had each.

    A gap is a decoding iteration, and for sequences that were held all iterations since: of a run
    of iterations that hold h_1 <= h_2 <= ... of them, h_i - h_{i-1} wait from the i-th on.
    """
    order = np.lexsort((steps["start"], steps["engine"]))
    start, took, count, decodes, engine, held = (
        steps[name][order] for name in ("start", "seconds", "count", "decodes", "engine", "held")
    )
    before = np.zeros(len(order))  # held by the iteration before
    before[1:] = np.where(engine[1:] == engine[:-1], held[:-1], 0.0)
    free = np.append(np.flatnonzero(held == 0.0), len(order))
    after = free[np.searchsorted(free, np.arange(len(order)), "right")]  # that holds no more
    ends, last = np.append(0.0, np.cumsum(took)), np.minimum(after, len(order) - 1)
    counts, each = (start >= since) & (start < until), took / count
    late = counts & (held > 0.0) & (after < len(order)) & (engine[last] == engine)
    late &= decodes[last] > 0.0
    waited = ends[after] - ends[:-1] + each[last]
    decoding = counts & (decodes > 0.0)
    in_time = decodes * count - np.minimum(before, decodes)
    return (
        np.concatenate([each[decoding], waited[late]]),
        np.concatenate([in_time[decoding], np.maximum(held - before, 0.0)[late]]),
    )


class Tally:
    """Sums over the requests and iterations of a run, from which its figures come."""

    spread: ClassVar[type[Values | Sketch]] = Values
    error: ClassVar[float] = 0.0  # of percentiles, as a share
    seconds: float  # the part of the run that counts [s]
    prompts: float  # tokens of all prompts
    state: SteadyState
    gaps: dict[str, float] | None = None  # mean and percentiles of the gaps between tokens [s]

    def __init__(self, plan: ServicePlan) -> None:
        self._plan, self.since = plan, plan.workload.warmup or 0.0
        self.spreads = {name: self.spread() for name in ("ttft", "tpot", "e2e", "queue")}  # [s]
        self.sums = {name: RowSums(pool) for name, pool in plan.pools.items()}
        self.within = self.spread()  # of each request that counts: 1 if it kept every limit, or 0
        # requests that count and missed a limit, by limit; empty without limits
        self.missed: Counter[str] = Counter()
        # requests that kept every limit, and those whose last token was given in time
        self.kept, self.finished = 0, 0
        # tokens generated in that time, and of prompts that ended in it
        self.output, self.prompt = 0.0, 0.0
        self.longest = 0  # tokens of a request, with its answer

    def add(
        self, requests: Requests, served: Served, *, until: float | None = None, batch: int = 0
    ) -> tuple[Mapping[str, Floats], Flags]:
        """Add requests of a batch; their times, and which came after warm-up and before `until`."""
        slo, begin = self._plan.slo, min(self.since, served.end)
        end = served.end if until is None else until
        done = np.isfinite(served.last)
        counted = done & (served.arrival >= begin) & (served.arrival <= end)
        times = latencies(served, requests, self._plan.first_token_time)
        for name, spread in self.spreads.items():
            spread.add(batch, times[name][counted])
        kept = counted
        for name, limit in (("ttft", slo.ttft), ("tpot", slo.tpot)):
            if limit is not None:
                missed = times[name] > limit
                self.missed[name] += int((counted & missed).sum())
                kept = kept & ~missed
        self.within.add(batch, kept[counted].astype(float))
        self.kept += int(kept.sum())
        inside = done & (served.last >= begin) & (served.first <= end)
        begun = (served.first >= begin) & (served.first <= end)
        cut = bool(begin) or until is not None
        tokens = _tokens_within(requests, served, begin, end) if cut else requests.output
        self.seconds = end - begin
        self.finished += int((inside & (served.last <= end)).sum())
        self.output += float(tokens[inside].astype(float).sum())
        self.prompt += float(requests.prompt[done & begun].sum())
        self.longest = max(self.longest, int((requests.prompt + requests.output).max(initial=0)))
        return times, counted

    @property
    def count(self) -> int:
        """Requests that count."""
        return self.within.count

    @property
    def share(self) -> float:
        """Share of the requests that count which kept every limit."""
        return self.kept / max(1, self.count)

    @property
    def interval(self) -> tuple[float, float]:
        """The 80 % interval of that share."""
        return share_interval(self.within)

    @property
    def binding(self) -> str | None:
        """The limit that most missed; None where none did."""
        most = max(self.missed, key=self.missed.__getitem__, default=None)
        return most if most and self.missed[most] else None


def _tokens_within(requests: Requests, served: Served, begin: float, end: float) -> Floats:
    """Tokens of each request between two times, as if they came evenly from first to last."""
    begun = (served.first >= begin) & (served.first <= end)
    last, first = np.minimum(served.last, end), np.maximum(served.first, begin)
    whole, further = begun & (served.last <= end), requests.output - 1.0
    with np.errstate(divide="ignore", invalid="ignore"):  # of answers of one token
        share = np.where(whole, 1.0, (last - first) / (served.last - served.first))
        tokens: Floats = np.where(further > 0, share * further, 0.0) + begun
    return tokens


def tally_of(
    plan: ServicePlan, requests: Requests, served: Served, until: float | None = None
) -> Tally:
    """The tally of a run whose requests are all kept."""
    tally = Tally(plan)
    begin = min(tally.since, served.end)
    times, _ = tally.add(requests, served, until=until)
    for place, sums in enumerate(tally.sums.values()):
        sums.add(_of_pool(served, place))
    ended, service = np.isfinite(served.last), times["e2e"] - times["queue"]
    tally.state = steady_state(
        *(values[ended] for values in (served.arrival, times["queue"], service)),
        kind=plan.workload.arrival,
        users=plan.workload.concurrency,
        since=begin,
    )
    tally.gaps = _weighted(*itl(served.steps, since=begin, until=until or math.inf))
    tally.prompts = float(requests.prompt.sum())
    return tally


class Folded(Tally):
    """The tally of a run, of whose `stream` nothing but its extent is known beforehand."""

    spread = Sketch
    error = GROWTH / 2.0

    def __init__(self, plan: ServicePlan, stream: Stream) -> None:
        super().__init__(plan)
        self._stream = stream
        self._gaps, self._service = Sketch(), Sketch()
        self._held: Mapping[str, Floats] = {}  # iterations at the end of a page that hold some
        self._stay, self._ends = 0.0, (math.inf, 0.0)
        self._edges = np.linspace(0.0, max(stream.span, LEAST), _GRID + 1)
        self._inside = np.zeros(_GRID + 2)

    def fold(self, first: int, requests: Requests, served: Served) -> None:
        """Fold a page of requests that have ended."""
        batch = min(BATCHES - 1, BATCHES * first // self._stream.count)
        times, done = self.add(requests, served, batch=batch)
        self._service.add(batch, (times["e2e"] - times["queue"])[done])
        self._stay += float(times["e2e"].sum())
        for at, sign in ((served.arrival, 1.0), (served.arrival + times["e2e"], -1.0)):
            bins = np.searchsorted(self._edges, at)
            self._inside += sign * np.bincount(bins, minlength=_GRID + 2)
        if done.any():
            arrived = served.arrival[done]
            low, high = self._ends
            self._ends = min(low, float(arrived[0])), max(high, float(arrived[-1]))

    def fold_rows(self, steps: Mapping[str, Floats]) -> None:
        """Fold a page of iterations."""
        for sums in self.sums.values():
            sums.add(steps)
        steps = {name: np.append(self._held.get(name, []), each) for name, each in steps.items()}
        # what is held at the end of a page goes on in the next
        order = np.lexsort((steps["start"], steps["engine"]))
        engine, free = steps["engine"][order], np.flatnonzero(steps["held"][order] == 0.0)
        after = np.searchsorted(free, np.arange(len(order)))
        whole = after < len(free)
        whole[whole] = engine[free[after[whole]]] == engine[whole]
        self._held = {name: each[order][~whole] for name, each in steps.items()}
        self._gaps.add(0, *itl({k: v[order][whole] for k, v in steps.items()}, since=self.since))

    def finish(self, end: float) -> None:
        """Close the tally of a run that ended then [s]."""
        load = self._plan.workload
        self.seconds, self.prompts = end - min(self.since, end), self._stream.prompts
        if self._held:
            self._gaps.add(0, *itl(self._held, since=self.since))
        self.state = verdict(self._course(), kind=load.arrival, users=load.concurrency)
        if self._gaps.count:
            tails = {name: self._gaps.quantile(share) for name, share in QUANTILES.items()}
            self.gaps = {"mean": self._gaps.mean, **tails}

    def _course(self) -> Course:
        """The stream as it went."""
        stay = self._stay / self._stream.count
        begin, third = crowded_from(0.0, self._stream.span, stay, self.since)
        looks = np.searchsorted(self._edges, np.linspace(begin, self._stream.span, LOOKS))
        inside = np.cumsum(self._inside)[np.minimum(looks, _GRID)]
        waits, span = self.spreads["queue"].means, self._ends[1] - self._ends[0]
        return Course(self.count, self._service.mean, waits, inside, third, span, stay)


class RowSums:
    """Sums over the iterations of a pool, which come page by page in the order of their ends."""

    def __init__(self, plan: ServicePlan) -> None:
        self._plan = plan
        self._parts = dict.fromkeys(ACCOUNT, 0.0)
        self._seconds, self._active = 0.0, 0.0
        self._over = {"decodes": (0.0, 0.0), "used": (0.0, 0.0)}
        self._reach: dict[float, float] = {}
        self.launched = 0.0  # of decoding batches whose size no graph has, where none pads [s]

    def add(self, steps: Mapping[str, Floats]) -> None:
        """Add iterations."""
        prices, parts, work = self._plan.prices, self._parts, self._plan.work
        left, count = steps["seconds"], steps["count"]
        if not len(left):
            return
        self._seconds += float(left.sum())
        if self._plan.engine.graph_sizes and not self._plan.engine.graph_padding:
            batches = zip(steps["decodes"].tolist(), steps["prompt_tokens"].tolist(), strict=True)
            eager = [not (tokens or prices.graph(Batch(n, 0.0))) for n, tokens in batches]
            self.launched += float(left[eager].sum())
        for column, (total, most) in self._over.items():
            values = steps[column]
            weighted = total + float((values * left).sum())
            self._over[column] = weighted, max(most, float(values.max()))
        for part, each in zip(_BESIDE, _beside(self._plan, steps), strict=True):
            took = np.minimum(each * count, left)
            parts[part] += float(took.sum())
            left = left - took
        prompts = steps["prompt_tokens"] > 0
        share, mixed = prompts.astype(float), np.flatnonzero(prompts & (steps["decodes"] > 0))
        columns = (steps[name][mixed].tolist() for name in ("seconds", "decodes", "context"))
        for at, seconds, decodes, context in zip(mixed.tolist(), *columns, strict=True):
            alone = float(prices.stage_seconds(Batch(int(decodes), context))) * work.pp
            share[at] = max(0.0, 1.0 - alone / seconds)
        parts["prefill"] += float((left * share).sum())
        parts["decode"] += float((left * (1.0 - share)).sum())
        if work.pp > 1:
            self._add_active(steps)

    def _add_active(self, steps: Mapping[str, Floats]) -> None:
        """Add the time in which any batch of an instance runs."""
        instance = steps["engine"] // self._plan.pp
        for number in np.unique(instance).tolist():
            mine = instance == number
            start, span = steps["start"][mine], steps["span"][mine]
            order = np.argsort(start, kind="stable")
            starts = start[order]
            before = self._reach.get(number, float(starts[0]))
            reach = np.maximum.accumulate(np.append(before, starts + span[order]))
            gaps = np.maximum(0.0, starts - reach[:-1]).sum()
            self._active += float(reach[-1] - before - gaps)
            self._reach[number] = float(reach[-1])

    def over_time(self, column: str) -> dict[str, float]:
        """Mean over the time in which engines work, and the most, of a column of the iterations."""
        total, most = self._over[column]
        return {"mean": total / self._seconds if self._seconds else 0.0, "max": most}

    def account(self, served: Served, place: int) -> dict[str, float]:
        """Seconds of each part; they sum to the duration.

        An iteration with prompts and decoding sequences is divided by what it would have taken
        without its prompts. Of several pipeline stages each works on one batch at a time: what an
        accelerator does not work while its stage has a batch elsewhere is bubble. Time without work
        is ``idle``, or ``idle_cache`` where requests waited that had no room in the cache, or
        ``exposed_kv`` where their keys and values were on the way from the pool of prompts.
        """
        # a batch is on one stage of several at a time, and as many batches run as there are stages
        lanes, stages = served.pools[place], self._plan.pp
        parts = {part: value / lanes for part, value in self._parts.items()}
        worked = math.fsum(parts.values())
        idle = max(0.0, served.end - worked)
        if stages > 1:
            active = self._active / (lanes // stages)
            parts["bubble"] = max(0.0, min(idle, active - worked))
            idle -= parts["bubble"]
        stalled = dict(served.stalled[place])
        if served.running:
            stalled["down"] += lanes * served.end - stages * served.running_s
        for part, reason in (("exposed_kv", "transfer"), ("down", "down"), ("idle_cache", "cache")):
            parts[part] = min(idle, stalled[reason] / lanes)
            idle -= parts[part]
        parts["idle"] = idle
        return parts


def _beside(plan: ServicePlan, steps: Mapping[str, Floats]) -> tuple[Floats, ...]:
    """Time of each iteration beside products and attention, as `_BESIDE` names it [s]."""
    prices, engine, work = plan.prices, plan.engine, plan.work
    tokens = prices.tokens_of(steps["decodes"], steps["prompt_tokens"])
    exposed = {
        number: (*prices.exposed_seconds(number), prices.send_seconds(number))
        for number in set(tokens.tolist())
    }
    met = np.array([exposed[number] for number in tokens.tolist()]).reshape(-1, 3).T
    tensor, experts, sent = met * engine.slowdown
    each = engine.step_time + engine.layer_time * work.layers * work.pp
    host = each + engine.request_time * steps["decodes"] / work.attention_dp
    return tensor * work.pp, experts * work.pp, sent, host


def _of_pool(served: Served, place: int) -> Mapping[str, Floats]:
    """Iterations of the batches of one pool."""
    if len(served.pools) == 1:
        return served.steps
    first = sum(served.pools[:place])
    numbers = served.steps["engine"]
    mine = (numbers >= first) & (numbers < first + served.pools[place])
    return {name: column[mine] for name, column in served.steps.items()}


def _weighted(values: Floats, weights: Floats) -> dict[str, float] | None:
    """Mean and percentiles of values that occur so often each."""
    if not len(values):
        return None
    order = np.argsort(values, kind="stable")
    ordered, reach = values[order], np.cumsum(weights[order])
    figures = {"mean": float(np.average(values, weights=weights))}
    for name, share in QUANTILES.items():
        figures[name] = float(ordered[int(np.searchsorted(reach, share * reach[-1]))])
    return figures
