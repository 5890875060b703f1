"""Goodput: which share of days of training makes progress, when components fail and checkpoints cost time.

A run is a sequence of *stretches* between interruptions. In a stretch, work and checkpoints alternate; an interruption loses what was
done since the last checkpoint that is safely stored, then the job restarts, after waiting for a node if no spare is left.

Shapes: K trials.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import statistics
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from mpsim.document import load_catalog
from mpsim.errors import ScenarioError
from mpsim.hardware import Cluster

if TYPE_CHECKING:
    from mpsim.plot.goodput import GoodputDisplay

__all__ = [
    "PARTS",
    "Checkpoint",
    "Goodput",
    "Reliability",
    "daly_interval",
    "expected_share",
    "simulate_goodput",
    "young_interval",
]

PARTS = ("progress", "checkpoints", "lost work", "restarts", "waiting for nodes")
_PROGRESS, _CHECKPOINTS, _LOST, _RESTARTS, _WAITING = range(len(PARTS))
_HOUR = 3600.0
_DAY = 86400.0
_CONFIDENCE = 0.95
_POINTS = 200
_HARDWARE = ("accelerator", "nic", "link", "host")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Reliability:
    """How often things fail and how long it takes to go on.

    Parameters
    ----------
    hardware_rate : float
        Failures of any component, after which a node is replaced [1/s].
    job_rate : float
        Interruptions that need no node [1/s].
    restart : float
        From an interruption to the first new step, with a node at hand [s].
    repair : float
        Until a failed node is back among the spares [s].
    spares : int
        Nodes that stand by.
    """

    hardware_rate: float
    job_rate: float
    restart: float
    repair: float
    spares: int

    def __post_init__(self) -> None:
        for name in ("hardware_rate", "job_rate", "restart", "repair", "spares"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise ScenarioError(f"{name} is {value!r}; needed a finite number of at least 0")

    @property
    def mean_time_between(self) -> float:
        """Mean time between interruptions [s]; infinity if nothing fails."""
        rate = self.hardware_rate + self.job_rate
        return 1.0 / rate if rate else math.inf

    @classmethod
    def of(
        cls,
        cluster: Cluster,
        *,
        scale: float = 1.0,
        restart: float | None = None,
        repair: float | None = None,
        spares: int | None = None,
    ) -> Reliability:
        """Rates of a cluster from those of its components.

        Parameters
        ----------
        cluster : Cluster
        scale : float
            Times the published rates of components (a young cluster has several times those of a mature one).
        restart, repair : float, optional
            As of the class [s]; assumed when left out.
        spares : int, optional
            Nodes that stand by; a share of the cluster when left out.
        """
        known = constants()
        nics = cluster.nodes * cluster.node.nics
        counts = {
            "accelerator": cluster.accelerators,
            "nic": nics,
            "link": nics,
            "host": cluster.nodes,
        }
        rate = sum(counts[name] * known[name] for name in _HARDWARE) * scale / _HOUR
        return cls(
            hardware_rate=rate,
            job_rate=known["job"] / _HOUR,
            restart=known["restart"] if restart is None else restart,
            repair=known["repair"] if repair is None else repair,
            spares=math.ceil(known["spare_share"] * cluster.nodes) if spares is None else spares,
        )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """How state is saved.

    Parameters
    ----------
    size : float
        Of one checkpoint of the whole job [B].
    blocking : float
        Time that training stands still for one [s].
    lag : float
        From then until it is safely stored, beside training [s]; 0 when it blocks until it is.
    """

    size: float
    blocking: float
    lag: float = 0.0

    def __post_init__(self) -> None:
        for name in ("size", "blocking", "lag"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise ScenarioError(
                    f"checkpoint: {name} is {value!r}; needed a finite number of at least 0"
                )

    @classmethod
    def of(
        cls, size: float, accelerators: int, *, storage: float | None = None, in_background: bool
    ) -> Checkpoint:
        """Times of a checkpoint from its size and where it goes.

        Parameters
        ----------
        size : float
            Of the whole job [B].
        accelerators : int
        storage : float, optional
            Bandwidth of the storage for the whole job [B/s]; what a published system gave each accelerator when left out.
        in_background : bool
            Copied to host memory while training stands still, and written from there beside it.
        """
        known = constants()
        bandwidth = known["storage_per_accelerator"] * accelerators if storage is None else storage
        if not bandwidth > 0:
            raise ScenarioError(f"storage is {bandwidth!r} B/s; needed more than 0")
        write = size / bandwidth
        if not in_background:
            return cls(size=size, blocking=write)
        snapshot = size / (known["snapshot_per_accelerator"] * accelerators)
        return cls(size=size, blocking=min(snapshot, write), lag=write)


@functools.cache
def constants() -> Mapping[str, float]:
    """Published rates and stated assumptions, by name; see the data file for their sources."""
    data = dict(load_catalog("mpsim.study.data"))["reliability"]
    return {name: float(entry["value"]) for name, entry in data["constants"].items()}


def young_interval(blocking: float, mean_time_between: float) -> float:
    """Work between checkpoints that is best to first order, ``sqrt(2 C M)`` [s].

    References
    ----------
    Young, A first order approximation to the optimum checkpoint interval, CACM 17 (1974).

    Examples
    --------
    >>> young_interval(50.0, 10_000.0)
    1000.0
    """
    return math.sqrt(2.0 * blocking * mean_time_between)


def daly_interval(blocking: float, mean_time_between: float) -> float:
    """Work between checkpoints that is best to higher order [s].

    References
    ----------
    Daly, A higher order estimate of the optimum checkpoint interval for restart dumps, FGCS 22 (2006), equation 37.
    """
    if not math.isfinite(mean_time_between):
        return math.inf
    if blocking >= 2.0 * mean_time_between:
        return mean_time_between
    ratio = blocking / (2.0 * mean_time_between)
    first = young_interval(blocking, mean_time_between)
    return first * (1.0 + math.sqrt(ratio) / 3.0 + ratio / 9.0) - blocking


def expected_share(reliability: Reliability, checkpoint: Checkpoint, interval: float) -> float:
    """Share of time that is progress, in the long run and with a node always at hand.

    Parameters
    ----------
    reliability : Reliability
    checkpoint : Checkpoint
    interval : float
        Work between checkpoints [s].

    Notes
    -----
    A segment of work T and checkpoint C takes ``e^(R/M) M (e^((T+C)/M) - 1)`` on average when interruptions are exponential with
    mean M and a restart R can be interrupted too. A checkpoint that is stored a lag L later adds L to what an interruption loses;
    to first order that costs ``L / M`` of the time.

    References
    ----------
    Daly (2006), equation 20.
    """
    mean = reliability.mean_time_between
    if not math.isfinite(mean):
        return interval / (interval + checkpoint.blocking)
    segment = interval + checkpoint.blocking
    if segment > 500.0 * mean:
        return 0.0
    takes = mean * math.exp(reliability.restart / mean) * math.expm1(segment / mean)
    return max(0.0, interval / takes * (1.0 - min(1.0, checkpoint.lag / mean)))


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Goodput:
    """What became of the time.

    Parameters
    ----------
    days : float
        Simulated in each trial.
    interval : float
        Work between checkpoints [s].
    reliability : Reliability
    checkpoint : Checkpoint
    shares : float64[K, len(PARTS)]
        Of each trial's time; every row sums to 1.
    interruptions : int64[K]
    """

    days: float
    interval: float
    reliability: Reliability
    checkpoint: Checkpoint
    shares: NDArray[np.float64]
    interruptions: NDArray[np.int64]

    @property
    def mean(self) -> Mapping[str, float]:
        """Mean share of each of `PARTS` over trials."""
        return dict(zip(PARTS, self.shares.mean(axis=0).tolist(), strict=True))

    @property
    def effective(self) -> float:
        """Mean share of time that is progress."""
        return float(self.shares[:, _PROGRESS].mean())

    @property
    def confidence(self) -> tuple[float, float]:
        """Interval that holds the true mean of `effective` with 95 % confidence."""
        values = self.shares[:, _PROGRESS]
        if len(values) == 1:
            return float(values[0]), float(values[0])
        quantile = statistics.NormalDist().inv_cdf(0.5 + _CONFIDENCE / 2)
        half = quantile * float(values.std(ddof=1)) / math.sqrt(len(values))
        return self.effective - half, self.effective + half

    def percentile(self, percent: float) -> float:
        """Percentile of the effective share over trials."""
        return float(np.percentile(self.shares[:, _PROGRESS], percent))

    def display(self) -> GoodputDisplay:
        """What is expected over intervals, and this simulation on it."""
        from mpsim.plot.goodput import GoodputDisplay

        mean, blocking = self.reliability.mean_time_between, self.checkpoint.blocking
        intervals = np.geomspace(self.interval / 30, self.interval * 30, _POINTS)
        expected = [expected_share(self.reliability, self.checkpoint, one) for one in intervals]
        best = {"Young": young_interval(blocking, mean), "Daly": daly_interval(blocking, mean)}
        marks = {name: at for name, at in best.items() if 0 < at < math.inf}
        return GoodputDisplay(
            intervals, np.array(expected), marks, (self.interval, self.effective, *self.confidence)
        )

    def to_json(self) -> dict[str, object]:
        """Plain data, SI units."""
        low, high = self.confidence
        mean = self.reliability.mean_time_between
        finite = math.isfinite(mean)
        return {
            "days": self.days,
            "trials": len(self.shares),
            "effective": self.effective,
            "effective_low": low,
            "effective_high": high,
            "effective_p5": self.percentile(5),
            "effective_p95": self.percentile(95),
            "shares": dict(self.mean),
            "interruptions": float(self.interruptions.mean()),
            "mean_time_between_interruptions_s": mean if finite else None,
            "checkpoint_bytes": self.checkpoint.size,
            "checkpoint_blocking_s": self.checkpoint.blocking,
            "checkpoint_lag_s": self.checkpoint.lag,
            "interval_s": self.interval,
            "young_interval_s": young_interval(self.checkpoint.blocking, mean) if finite else None,
            "daly_interval_s": daly_interval(self.checkpoint.blocking, mean) if finite else None,
            "expected": expected_share(self.reliability, self.checkpoint, self.interval),
        }


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
    reliability : Reliability
    checkpoint : Checkpoint
    interval : float, optional
        Work between checkpoints [s]; Daly's best when left out.
    days : float
    trials : int
    seed : int
        Equal seeds give equal results.

    Returns
    -------
    Goodput

    Raises
    ------
    ScenarioError
        If a number is out of range.
    """
    if interval is None:
        best = daly_interval(checkpoint.blocking, reliability.mean_time_between)
        interval = max(min(best, days * _DAY), checkpoint.lag, 1.0)
    for name, value in (("interval", interval), ("days", days), ("trials", trials)):
        if not (math.isfinite(value) and value > 0):
            raise ScenarioError(f"{name} is {value!r}; needed a finite number above 0")
    if checkpoint.lag > interval + checkpoint.blocking:
        raise ScenarioError(
            f"a checkpoint takes {checkpoint.lag:.4g} s to store but the next follows after {interval:.4g} s; "
            "needed a longer interval or faster storage"
        )
    shares = np.zeros((trials, len(PARTS)))
    counts = np.zeros(trials, dtype=np.int64)
    streams = np.random.SeedSequence(seed).spawn(trials)
    for trial, stream in enumerate(streams):
        run = _Trial(reliability, checkpoint, interval, days * _DAY, np.random.default_rng(stream))
        shares[trial], counts[trial] = run.spent() / (days * _DAY), run.interruptions
    return Goodput(days, interval, reliability, checkpoint, shares, counts)


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

    def spent(self) -> NDArray[np.float64]:
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
        while True:
            if self._fails_hardware():
                self._replace()
            strike = self._next()
            if strike >= self._reliability.restart:
                self._spend(_RESTARTS, self._reliability.restart)
                return
            self._spend(_RESTARTS, strike)
            if self._now >= self._horizon:
                return
            self.interruptions += 1

    def _fails_hardware(self) -> bool:
        rate = self._reliability.hardware_rate + self._reliability.job_rate
        return bool(self._draw.random() * rate < self._reliability.hardware_rate)

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
