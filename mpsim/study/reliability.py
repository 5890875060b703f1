"""Reliability: how often components fail, what a checkpoint costs, and the closed forms of both."""

from __future__ import annotations

import math
from collections.abc import Mapping

from mpsim import structs
from mpsim.errors import ScenarioError
from mpsim.hardware import Cluster
from mpsim.memo import remembered
from mpsim.shipped import read_shipped

_HOUR = 3600.0
_HARDWARE = ("accelerator", "nic", "link", "host")


@structs.dataclass(frozen=True, slots=True, kw_only=True)
class Reliability:
    """Rates of failures, and the times it takes to go on."""

    hardware_rate: float  # failures of any component, after which a node is replaced [1/s]
    job_rate: float  # interruptions that need no node [1/s]
    restart: float  # from an interruption to the first new step, with a node at hand [s]
    repair: float  # until a failed node is back among the spares [s]
    spares: int  # nodes that stand by

    def __post_init__(self) -> None:
        _check_finite(self)

    @property
    def mean_time_between(self) -> float:
        """Mean time between interruptions [s]; infinity if nothing fails."""
        rate = self.hardware_rate + self.job_rate
        return 1.0 / rate if rate else math.inf

    def failing(self, times: float) -> Reliability:
        """The same with so many times the failures."""
        return structs.replace(
            self, hardware_rate=times * self.hardware_rate, job_rate=times * self.job_rate
        )

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

        `scale`: multiplier on the published rates of failures, of components and of software (a
        young cluster has several times those of a mature one); 0 for none. `restart`, `repair` and
        `spares` as of the class; assumed when left out.
        """
        known = constants()
        nics = cluster.nodes * cluster.node.nics
        counts = {
            "accelerator": cluster.accelerators,
            "nic": nics,
            "link": nics,
            "host": cluster.nodes,
        }
        rate = math.fsum(counts[name] * known[name] for name in _HARDWARE) * scale / _HOUR
        return cls(
            hardware_rate=rate,
            job_rate=known["job"] * scale / _HOUR,
            restart=known["restart"] if restart is None else restart,
            repair=known["repair"] if repair is None else repair,
            spares=math.ceil(known["spare_share"] * cluster.nodes) if spares is None else spares,
        )


@structs.dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """Checkpoints: their size, and the time they take."""

    size: float  # of one of the whole job [B]
    blocking: float  # time that training stands still for one [s]
    # from then until it is safely stored, beside training [s]; 0 when it blocks until it is
    lag: float = 0.0

    def __post_init__(self) -> None:
        _check_finite(self, "checkpoint: ")

    @classmethod
    def of(
        cls, size: float, accelerators: int, *, storage: float | None = None, in_background: bool
    ) -> Checkpoint:
        """Times of a checkpoint from its size and where it goes.

        `storage`: bandwidth for the job [B/s]; left out, what a published system gave.
        `in_background`: copied to host memory while training stands still, and written from there
        beside it.
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


def _check_finite(given: Reliability | Checkpoint, lead: str = "") -> None:
    for name, value in structs.asdict(given).items():
        if not (math.isfinite(value) and value >= 0):
            raise ScenarioError(f"{lead}{name} is {value!r}; needed a finite number of at least 0")


@remembered(1)
def constants() -> Mapping[str, float]:
    """Published rates and stated assumptions, by name; see the data file for their sources."""
    data = read_shipped("mpsim.study.data", "reliability.yaml")
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
    Daly, A higher order estimate of the optimum checkpoint interval, FGCS 22 (2006), equation 37.
    """
    if not math.isfinite(mean_time_between):
        return math.inf
    if blocking >= 2.0 * mean_time_between:
        return mean_time_between
    ratio = blocking / (2.0 * mean_time_between)
    first = young_interval(blocking, mean_time_between)
    return first * (1.0 + math.sqrt(ratio) / 3.0 + ratio / 9.0) - blocking


def usual_interval(checkpoint: Checkpoint, mean_time_between: float) -> float:
    """Work between checkpoints as teams choose: Daly's within practice; time to store one [s]."""
    known, best = constants(), daly_interval(checkpoint.blocking, mean_time_between)
    usual = min(max(best, known["checkpoint_least"]), known["checkpoint_most"])
    return max(usual, checkpoint.lag)


def expected_share(reliability: Reliability, checkpoint: Checkpoint, interval: float) -> float:
    """Share of time that is progress, in the long run and with a node always at hand. `interval`:
    work between checkpoints [s].

    Notes
    -----
    A segment of work T and checkpoint C takes ``e^(R/M) M (e^((T+C)/M) - 1)`` on average when
    interruptions are exponential with mean M and a restart R can be interrupted too. A checkpoint
    stored a lag L later adds L to what an interruption loses: ``L / M`` of the time to first order.

    References
    ----------
    Daly (2006), equation 20.
    """
    mean = reliability.mean_time_between
    if not math.isfinite(mean):
        return interval / (interval + checkpoint.blocking)
    segment = interval + checkpoint.blocking
    if segment + reliability.restart > 500.0 * mean:
        return 0.0
    takes = mean * math.exp(reliability.restart / mean) * math.expm1(segment / mean)
    return max(0.0, interval / takes * (1.0 - min(1.0, checkpoint.lag / mean)))
