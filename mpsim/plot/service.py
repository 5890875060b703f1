"""Charts of services: spread of latencies, batches and cache over time, lives of requests.

Shapes: N requests, S iterations or jumps over equal ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from mpsim.arrays import Floats
from mpsim.plot.chart import Axis, Limit, Lines, Series, fullest, readable
from mpsim.plot.palette import SERIES, SERVING
from mpsim.plot.timeline import Actions, Timeline
from mpsim.serving import ServiceResult
from mpsim.serving.tally import itl, latencies

_BINS = 360  # spans of time of a line with more iterations
_LIVES = 32  # requests whose lives are drawn
_AFTER = 3.0  # times the span of their prompts that is drawn of their lives
_PARTS = {"idle": "queue", "prefill": "prefill", "kv": "transfer", "decode": "decode"}
_WIDE = 20.0  # times the least: a spread needs one


def latency_chart(result: ServiceResult, name: str) -> Lines:
    """How ``ttft``, ``tpot`` or ``e2e`` spreads over requests, and the limit it was promised."""
    result.require_requests("pictures show")
    times = latencies(result.served, result.requests, result.plan.first_token_time)
    slo = result.plan.slo
    return spread_chart(name.upper(), times[name], getattr(slo, name, None), share=slo.share)


def itl_chart(result: ServiceResult) -> Lines:
    """How gaps between tokens spread over tokens."""
    result.require_requests("pictures show")
    gaps, weights = itl(result.served.steps)
    return spread_chart("ITL", gaps, weights=weights, what="tokens")


def spread_chart(
    name: str,
    seconds: Floats,
    limit: float | None = None,
    *,
    share: float | None = None,
    weights: Floats | None = None,
    what: str = "requests",
) -> Lines:
    """Share of the requests that had a latency within so much.

    `name`: such as TTFT. `seconds` (float64[N]): latency of each request [s]; NaN for those without
    one. `limit`: what was promised [s]. `share`: of the requests that has to keep it. `weights`
    (float64[N], optional): how often each counts; once by default. `what`: things that had it.
    """
    known = ~np.isnan(seconds)
    order = np.argsort(seconds[known], kind="stable")
    seconds = seconds[known][order]
    reach = np.cumsum(np.ones(len(order)) if weights is None else weights[known][order])
    within = reach / (reach[-1] if len(reach) else 1.0)
    wide = bool(len(seconds)) and float(seconds[-1]) > _WIDE * max(float(seconds[0]), 1e-9)
    middle = float(seconds[int(np.searchsorted(within, 0.5))]) if len(within) else 0.0
    promised = f"; the limit is {limit:.4g} s" if limit is not None else ""
    shown = fullest(within)
    count = round(float(reach[-1])) if len(reach) else 0
    return Lines(
        title=f"{name} over {what}",
        alt=f"Half of the {what} have a {name} of {1e3 * middle:.4g} ms or less{promised}.",
        series=[Series(f"{count:,} {what}", seconds[shown], within[shown], width=1.5, step=True)],
        x=Axis(name, "s", log=10 if wide else 0),
        y=Axis(f"{what} within", "share", limits=(0.0, 1.01)),
        limits=[] if limit is None else _promises(limit, share),
        size=(6.0, 3.6),
    )


def _promises(limit: float, share: float | None) -> list[Limit]:
    """A latency that was promised, and the share of the requests that has to keep it."""
    needed = [] if share is None else [Limit(share, f"{100 * share:.4g} % needed")]
    return [Limit(limit, f"limit {1e3 * limit:.4g} ms", along=True), *needed]


def batch_chart(result: ServiceResult) -> Lines:
    """How many sequences decode over time, a line for each engine."""
    scales = [float(name != "prefill") for name in result.plan.pools]
    columns = _column(result, "decodes", scales)
    return occupancy_chart("Sequences that decode together", Axis("sequences that decode"), columns)


def cache_chart(result: ServiceResult) -> Lines:
    """How full the cache is over time, a line for each engine."""
    scales = [1.0 / max(1, pool.blocks // pool.pp) for pool in result.plan.pools.values()]
    columns = _column(result, "used", scales)
    return occupancy_chart("Cache in use", Axis("cache in use", "share"), columns)


def _column(
    result: ServiceResult, column: str, scales: Sequence[float]
) -> dict[str, tuple[Floats, Floats]]:
    """A column of iterations by engine, times the pool's scale; a scale of 0 leaves it out."""
    result.require_requests("pictures show")
    steps, served = result.served.steps, result.served
    each = [scale for scale, count in zip(scales, served.pools, strict=True) for _ in range(count)]
    columns = {}
    for number, (name, scale) in enumerate(zip(served.engine_names, each, strict=True)):
        mine = steps["engine"] == number
        if mine.any() and scale:
            columns[name] = steps["start"][mine], steps[column][mine] * scale
    return columns


def occupancy_chart(title: str, y: Axis, columns: Mapping[str, tuple[Floats, Floats]]) -> Lines:
    """Values that stay until the next iteration, a line for each engine; of many iterations the
    mean of each span of time, and the highest of all.

    `columns` (mapping of str to (float64[S], float64[S])): engine to start of its iterations [s]
    and value from then on.
    """
    most = max((float(values.max(initial=0.0)) for _, values in columns.values()), default=0.0)
    several = 1 < len(columns) <= len(SERIES)  # of more nobody tells the colours apart
    shown = f"{100 * most:.4g} %" if y.unit == "share" else f"{most:.4g}"
    series = [
        Series(name if several else "", start, values, width=0.8, step=True)
        for name, (start, values) in columns.items()
    ]
    if max((len(start) for start, _ in columns.values()), default=0) > _BINS:
        series = _binned(columns, apart=several)
    return Lines(
        title=title,
        alt=f"At most {shown} on {len(columns)} engine{'s' if len(columns) != 1 else ''}.",
        series=series,
        x=Axis("time", "s"),
        y=Axis(y.name, y.unit, limits=(0.0, None)),
        size=(10.0, 3.2),
    )


def _binned(columns: Mapping[str, tuple[Floats, Floats]], *, apart: bool) -> list[Series]:
    """Means over spans of time, by engine or together, and the highest value in each."""
    begin = min(float(start[0]) for start, _ in columns.values())
    edges = np.linspace(begin, max(float(start[-1]) for start, _ in columns.values()), _BINS + 1)
    means, highest = {}, np.zeros(_BINS)
    for name, (start, values) in columns.items():
        times = np.append(start, max(edges[-1], start[-1]))
        reach = np.concatenate([[0.0], np.cumsum(values * np.diff(times))])
        means[name] = np.diff(np.interp(edges, times, reach)) / np.diff(edges)
        place = np.clip(np.searchsorted(edges, start, side="right") - 1, 0, _BINS - 1)
        np.maximum.at(highest, place, values)
        highest = np.maximum(highest, means[name])  # of a span in which nothing begins
    span = f"{(edges[1] - edges[0]):.3g} s"
    lines = {f"mean of {span}" if len(means) == 1 else name: mean for name, mean in means.items()}
    if len(means) > 1 and not apart:
        lines = {f"mean of {len(means)} engines and {span}": np.mean([*means.values()], axis=0)}
    top = Series("highest", edges[:-1], highest, "other", width=0.5, step=True)
    return [*(Series(n, edges[:-1], y, width=1.4, step=True) for n, y in lines.items()), top]


def lives_chart(result: ServiceResult, count: int = _LIVES, *, unit: str = "") -> Timeline:
    """Lives of requests around the one that waited longest: queue, prompt, transfer, tokens.
    `unit`: of times, such as "s"; what reads well if it is left out.
    """
    result.require_requests("pictures show")
    served = result.served
    known = np.flatnonzero(np.isfinite(served.last))
    worst = int(np.argmax((served.first - served.arrival)[known]))
    first = max(0, min(worst - count // 2, len(known) - count))
    rows = known[first : first + count]
    moves = {int(r): at for at, r in enumerate(served.transfers.get("request", np.zeros(0)))}
    bars: list[tuple[int, float, float, str]] = []
    for row, request in enumerate(rows.tolist()):
        arrival, started = float(served.arrival[request]), float(served.started[request])
        computed, last = float(served.first[request]), float(served.last[request])
        begins = computed
        parts = [(arrival, started, "idle")]
        if (at := moves.get(request)) is not None:
            sent, begins = (float(served.transfers[name][at]) for name in ("start", "end"))
            computed = min(computed, sent)
            parts += [(computed, sent, "idle"), (sent, begins, "kv")]
        parts += [(started, computed, "prefill"), (begins, last, "decode")]
        bars += [(row, low, high, SERVING[part]) for low, high, part in parts if high > low]
    bars.sort()
    begin, prompts = bars[0][1], max(bar[1] for bar in bars if bar[3] == SERVING["decode"])
    end = min(max(bar[2] for bar in bars), begin + _AFTER * (prompts - begin))
    unit, size = (unit, 1.0) if unit else readable("s", end)
    return Timeline(
        title="Lives of requests",
        alt=f"{len(rows)} requests around the one that waited longest for its first token.",
        names=[str(request) for request in rows.tolist()],
        actions=Actions.plain([(row, low / size, high / size, e) for row, low, high, e in bars]),
        unit=unit,
        across="request",
        window=(begin / size, end / size),
        labels={SERVING[part]: word for part, word in _PARTS.items()},
        size=(10.0, 1.4 + 0.18 * len(rows)),
    )
