"""Goodput: the share of days of training that progresses, with failures and checkpoints.

A run is a sequence of *stretches* between interruptions. In a stretch, work and checkpoints
alternate; an interruption loses what was done since the last checkpoint that is safely stored, then
the job restarts, after waiting for a node if no spare is left.

Shapes: K trials.
"""

from __future__ import annotations

import contextlib
import math
import statistics
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from mpsim import structs
from mpsim.accessors import Drawable, chart
from mpsim.arrays import Floats, Ints
from mpsim.errors import ScenarioError
from mpsim.frame import Tabular
from mpsim.shipped import say
from mpsim.study.reliability import (
    Checkpoint,
    Reliability,
    daly_interval,
    expected_share,
    usual_interval,
    young_interval,
)
from mpsim.table import Section, Sheet, Shown, plural
from mpsim.units import Dimension, format_quantity, percent

PARTS = ("progress", "checkpoints", "lost work", "restarts", "waiting for nodes")
_PROGRESS, _CHECKPOINTS, _LOST, _RESTARTS, _WAITING = range(len(PARTS))
_DAY = 86400.0
_MOST_EVENTS = 1e7  # interruptions that take about a minute
_CONFIDENCE = 0.95
_FEWEST = 20  # trials of which one in twenty says something
_POINTS = 200


class GoodputCurve(NamedTuple):
    """Expected shares of progress by checkpoint interval [s], and best intervals by formula [s]."""

    interval_s: Floats
    expected: Floats
    best: Mapping[str, float]


@structs.dataclass(frozen=True, slots=True, eq=False, repr=False)
class Goodput(Shown, Tabular):
    """Shares of the time by what became of it."""

    days: float
    interval: float  # work between checkpoints [s]
    reliability: Reliability
    checkpoint: Checkpoint
    shares: Floats  # float64[K, len(PARTS)] of each trial's time; rows sum to 1
    interruptions: Ints  # int64[K]
    interrupted: bool = False  # the study itself: the trials are those that had ended

    @property
    def mean(self) -> Mapping[str, float]:
        """Mean share of each of `PARTS` over trials."""
        return dict(zip(PARTS, self.shares.mean(axis=0).tolist(), strict=True))

    @property
    def effective(self) -> float:
        """Mean share of time that is progress."""
        return float(self.shares[:, _PROGRESS].mean())

    @property
    def confidence(self) -> tuple[float, float] | None:
        """Interval of the true mean of `effective`, 95 % confidence; None of few trials."""
        values = self.shares[:, _PROGRESS]
        if len(values) < _FEWEST:
            return None
        quantile = statistics.NormalDist().inv_cdf(0.5 + _CONFIDENCE / 2)
        half = quantile * float(values.std(ddof=1)) / math.sqrt(len(values))
        return max(0.0, self.effective - half), min(1.0, self.effective + half)

    def percentile(self, percent: float) -> float | None:
        """Percentile of the effective share over trials; None of fewer than twenty."""
        values = self.shares[:, _PROGRESS]
        return float(np.percentile(values, percent)) if len(values) >= _FEWEST else None

    def table(self) -> list[dict[str, object]]:
        """One mapping a trial: the share of each of `PARTS`, and interruptions."""
        return [
            {**dict(zip(PARTS, shares, strict=True)), "interruptions": count}
            for shares, count in zip(self.shares.tolist(), self.interruptions.tolist(), strict=True)
        ]

    def sheet(self, *, name: str = "", tokens_per_s: float | None = None) -> Sheet:
        """Shares of the time, as ``mpsim goodput`` prints them; of a `name` and rate [tokens/s]."""
        told = self.to_json()
        rows = tuple((part, percent(share, digits=2)) for part, share in told["shares"].items())
        rate = ""
        if tokens_per_s is not None:
            rate = f": {tokens_per_s * told['effective']:,.0f} of {tokens_per_s:,.0f} tokens/s"
        sure = f"of {plural(len(self.shares), 'trial')}, too few for an interval"
        if self.confidence is not None:
            between, spread = (
                " to ".join(percent(told[f"effective_{end}"], digits=2) for end in ends)
                for ends in (("low", "high"), ("p5", "p95"))
            )
            sure = f"95 % confidence {between}; one run in ten is outside {spread}"
        progress = f"{percent(told['effective'], digits=2)} of the time is progress ({sure}){rate}."
        size = format_quantity(told["checkpoint_bytes"], Dimension.BYTES, digits=3)
        saved = (
            f"One interruption every {_span(told['mean_time_between_interruptions_s'])}; a"
            f" checkpoint of {size} every {_span(told['interval_s'])} stops training for"
            f" {_span(told['checkpoint_blocking_s'])} (best interval by Young"
            f" {_span(told['young_interval_s'])}, by Daly {_span(told['daly_interval_s'])})."
        )
        lead = f"{name}: " if name else ""
        title = (
            f"{lead}{told['days']:g} day{'s' * (told['days'] != 1)},"
            f" {plural(told['trials'], 'trial')}"
        )
        repair, spares = _span(told["repair_s"]), plural(told["spares"], "spare node")
        ready = f"{spares} beside the job's, in no price; a failed one is back after {repair}."
        lines = (progress, saved, ready)
        section = Section(rows, ("where the time goes", "share"), (1,), lines=lines)
        return Sheet(title, (section,))

    def display(self) -> Drawable:
        """The expected goodput over checkpoint intervals, and this simulation on it."""
        return chart("goodput", self)

    def curve(self) -> GoodputCurve:
        """The expected goodput over checkpoint intervals around this one."""
        mean, blocking = self.reliability.mean_time_between, self.checkpoint.blocking
        intervals = np.geomspace(self.interval / 30, self.interval * 30, _POINTS)
        expected = [expected_share(self.reliability, self.checkpoint, apart) for apart in intervals]
        best = {"Young": young_interval(blocking, mean), "Daly": daly_interval(blocking, mean)}
        marks = {name: at for name, at in best.items() if 0 < at < math.inf}
        return GoodputCurve(intervals, np.array(expected), marks)

    def to_json(self) -> dict[str, Any]:
        """Plain data, SI units."""
        low, high = self.confidence or (None, None)
        mean = self.reliability.mean_time_between
        finite = math.isfinite(mean)
        return {
            "days": self.days,
            "trials": len(self.shares),
            "interrupted": self.interrupted,
            "effective": self.effective,
            "effective_low": low,
            "effective_high": high,
            "effective_p5": self.percentile(5),
            "effective_p95": self.percentile(95),
            "shares": dict(self.mean),
            "interruptions": float(self.interruptions.mean()),
            "spares": self.reliability.spares,
            "repair_s": self.reliability.repair,
            "mean_time_between_interruptions_s": mean if finite else None,
            "checkpoint_bytes": self.checkpoint.size,
            "checkpoint_blocking_s": self.checkpoint.blocking,
            "checkpoint_lag_s": self.checkpoint.lag,
            "interval_s": self.interval,
            "young_interval_s": young_interval(self.checkpoint.blocking, mean) if finite else None,
            "daly_interval_s": daly_interval(self.checkpoint.blocking, mean) if finite else None,
            "expected": expected_share(self.reliability, self.checkpoint, self.interval),
        }


_LADDER = (("d", 86400.0), ("h", 3600.0), ("min", 60.0))


def _span(seconds: float | None) -> str:
    """A time of any length: 3.09 h, 2.31 s; without end where there is none."""
    if seconds is None or not math.isfinite(seconds):
        return "ever"
    for unit, scale in _LADDER:
        if seconds >= 2 * scale or (unit != "d" and seconds >= scale):
            return f"{seconds / scale:.3g} {unit}"
    return format_quantity(seconds, Dimension.TIME, digits=3)


def simulate_goodput(
    reliability: Reliability,
    checkpoint: Checkpoint,
    *,
    interval: float | None = None,
    days: float = 30.0,
    trials: int = 200,
    seed: int = 0,
) -> Goodput:
    """Simulate days of training, several times.

    Parameters
    ----------
    interval : float, optional
        Work between checkpoints [s]; left out, Daly's best within a quarter and a whole hour.
    seed : int
        Equal seeds give equal results.

    Raises ScenarioError: if a number is out of range; KeyboardInterrupt: before a trial has ended.
    """
    if interval is None:
        usual = usual_interval(checkpoint, reliability.mean_time_between)
        interval = max(min(usual, days * _DAY), checkpoint.lag)
    for name, value in (("interval", interval), ("days", days), ("trials", trials)):
        if not (math.isfinite(value) and value > 0):
            raise ScenarioError(f"{name} is {value!r}; needed a finite number above 0")
    if checkpoint.lag > interval + checkpoint.blocking:
        raise ScenarioError(say("study.slow_storage", lag=checkpoint.lag, interval=interval))
    _check_size(reliability, days, trials)
    runs: list[tuple[Floats, int]] = []
    with contextlib.suppress(KeyboardInterrupt):
        for stream in np.random.SeedSequence(seed).spawn(trials):
            draw = np.random.default_rng(stream)
            run = _Trial(reliability, checkpoint, interval, days * _DAY, draw)
            runs.append((run.spent() / (days * _DAY), run.interruptions))
    if not runs:
        raise KeyboardInterrupt
    shares, counts = (np.array(each) for each in zip(*runs, strict=True))
    cut = len(runs) < trials
    return Goodput(days, interval, reliability, checkpoint, shares, counts, interrupted=cut)


def _check_size(reliability: Reliability, days: float, trials: int) -> None:
    """Refuse more interruptions than anybody waits for."""
    apart = reliability.mean_time_between + reliability.restart
    events = trials * days * _DAY / apart
    if events > _MOST_EVENTS:
        raise ScenarioError(
            f"{trials} trials of {days:g} days with an interruption every {apart:.3g} s have"
            f" {events:.3g} of them; needed at most {_MOST_EVENTS:g}: fewer days or trials, or less"
            " frequent failures"
        )


class _Trial:
    """One sequence of interruptions."""

    def __init__(
        self,
        reliability: Reliability,
        checkpoint: Checkpoint,
        interval: float,
        horizon: float,
        draw: np.random.Generator,
    ) -> None:
        self._reliability, self._checkpoint = reliability, checkpoint
        self._interval, self._horizon, self._draw = interval, horizon, draw
        self._spares = reliability.spares
        self._repairs: list[float] = []  # when failed nodes are back, in order
        self._now = 0.0
        self._spent = np.zeros(len(PARTS))
        self.interruptions = 0

    def spent(self) -> Floats:
        """Time by `PARTS` until the horizon [s]."""
        while self._now < self._horizon:
            self._stretch()
            if self._now < self._horizon:
                self._recover()
        return self._spent

    def _spend(self, part: int, seconds: float) -> None:
        """Let time pass, no further than the horizon."""
        seconds = min(seconds, self._horizon - self._now)
        self._spent[part] += seconds
        self._now += seconds

    def _next(self) -> float:
        mean = self._reliability.mean_time_between
        return float(self._draw.exponential(mean)) if math.isfinite(mean) else math.inf

    def _stretch(self) -> None:
        """Work until the next interruption; what the last safe checkpoint does not hold is lost."""
        length = min(self._next(), self._horizon - self._now)
        cut = self._now + length < self._horizon
        work, cost = self._interval, self._checkpoint.blocking
        segments = math.floor(length / (work + cost))
        rest = length - segments * (work + cost)
        safe = segments
        if cut:
            self.interruptions += 1
            # one whose write has not ended yet is no use
            safe = max(0, math.floor((length - self._checkpoint.lag) / (work + cost)))
        done = min(rest, work)
        lost = (segments - safe) * work + done if cut else 0.0
        total = segments * work + done
        self._spend(_PROGRESS, total - lost)
        self._spend(_LOST, lost)
        self._spend(_CHECKPOINTS, segments * cost + rest - done)

    def _recover(self) -> None:
        """Replace a node if one has failed, and restart until no interruption comes between."""
        rate = self._reliability.hardware_rate + self._reliability.job_rate
        while True:
            if self._draw.random() * rate < self._reliability.hardware_rate:
                self._replace()
            strike = self._next()
            if strike >= self._reliability.restart:
                self._spend(_RESTARTS, self._reliability.restart)
                return
            self._spend(_RESTARTS, strike)
            if self._now >= self._horizon:
                return
            self.interruptions += 1

    def _replace(self) -> None:
        """Take a spare, or wait for the first node that comes back."""
        self._repairs.append(self._now + self._reliability.repair)
        while self._repairs and self._repairs[0] <= self._now:
            self._repairs.pop(0)
            self._spares += 1
        if not self._spares:
            self._spend(_WAITING, self._repairs.pop(0) - self._now)
        else:
            self._spares -= 1
