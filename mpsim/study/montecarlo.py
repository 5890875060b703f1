"""Monte Carlo: the distribution of the step time when operations do not take the same time on every rank and every time.

Shapes: K samples, N rows of the folded program, A replicas (copies of each rank class), P percentiles.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from mpsim.engine import Structure
from mpsim.errors import ScenarioError
from mpsim.program import TICK
from mpsim.program.unfold import Unfolding
from mpsim.result import Result
from mpsim.sheet import Sheet, Shown
from mpsim.simulate import Prepared
from mpsim.study.draws import (
    COMPUTE,
    QUANTILES,
    VALUES,
    Steps,
    factors,
    folded_actions,
    peers_of,
    sigma_of,
)
from mpsim.study.words import jitter_sheet
from mpsim.training.job import plan_of

__all__ = ["Jitter", "Percentile", "simulate_jitter"]

Floats = NDArray[np.float64]

_PERCENTILES = (5, 25, 50, 75, 95, 99)
_CONFIDENCE = 0.95


@dataclasses.dataclass(frozen=True, slots=True)
class Percentile:
    """A percentile of the step time with its confidence interval.

    Parameters
    ----------
    percent : float
    seconds : float
        Of the sample [s].
    low_s, high_s : float or None
        Between these the percentile of all steps lies with 95 % confidence [s]; None where the sample is too small to say.
    """

    percent: float
    seconds: float
    low_s: float | None
    high_s: float | None


@dataclasses.dataclass(frozen=True, slots=True, eq=False, repr=False)
class Jitter(Shown):
    """Step times of many steps.

    Parameters
    ----------
    scenario : str
    compute, network : float
        Coefficients of variation that were drawn from.
    seed : int
    undisturbed_s : float
        Step time without jitter [s].
    step_times_s : float64[K]
        One a sample, in the order drawn [s].
    """

    scenario: str
    compute: float
    network: float
    seed: int
    undisturbed_s: float
    step_times_s: Floats

    @property
    def mean_s(self) -> float:
        """Mean step time [s]."""
        return float(self.step_times_s.mean())

    @property
    def slowdown(self) -> float:
        """Mean step time over the undisturbed one."""
        return self.mean_s / self.undisturbed_s

    def percentile(self, percent: float) -> Percentile:
        """One percentile, with the order statistics that enclose it.

        Notes
        -----
        Of K samples the number below the true percentile is binomial, so two order statistics enclose it with known probability,
        whatever the distribution.
        """
        ordered = np.sort(self.step_times_s)
        low, high = _enclosing(len(ordered), percent / 100)
        return Percentile(
            percent,
            float(np.quantile(ordered, percent / 100)),
            None if low is None else float(ordered[low]),
            None if high is None else float(ordered[high]),
        )

    def percentiles(self, percents: Sequence[float] = _PERCENTILES) -> tuple[Percentile, ...]:
        """Several percentiles."""
        return tuple(self.percentile(percent) for percent in percents)

    def to_json(self) -> dict[str, object]:
        """Plain data."""
        return {
            "scenario": self.scenario,
            "compute": self.compute,
            "network": self.network,
            "seed": self.seed,
            "samples": len(self.step_times_s),
            "undisturbed_s": self.undisturbed_s,
            "mean_s": self.mean_s,
            "slowdown": self.slowdown,
            "percentiles": [dataclasses.asdict(percentile) for percentile in self.percentiles()],
        }

    def sheet(self) -> Sheet:
        """Percentiles of the step time, as ``mpsim run --jitter`` prints them."""
        return jitter_sheet(self.to_json())


def simulate_jitter(
    result: Result,
    compute: float,
    *,
    network: float | None = None,
    samples: int = 100,
    seed: int | None = None,
) -> Jitter:
    """Draw the time of every operation anew, many times.

    Parameters
    ----------
    result : Result
        Where rates change while a step runs (``network: flow``, ``interference``), each step is simulated on its own.
    compute : float
        Coefficient of variation of an action on one rank [1].
    network : float, optional
        The same for messages and collectives between actions; that of `compute` by default.
    samples : int
        Steps drawn.
    seed : int, optional
        That of the scenario by default; equal seeds give equal step times.

    Returns
    -------
    Jitter

    Raises
    ------
    ScenarioError
        If a coefficient is negative, or there is no sample.

    Notes
    -----
    Every action takes its time times a lognormal factor of mean 1, on every rank by itself. Ranks that meet inside the action, in the
    collectives of its layers, all take the time of the slowest: with n of them the factor is the largest of n, drawn from its own distribution.
    Replicas that meet only between actions, as data-parallel ones do in the reduction of gradients, are unfolded, each with its
    own times. A transfer that shares links holds them as long as it would take alone.
    """
    plan = plan_of(result)
    network = compute if network is None else network
    if not (compute >= 0 and network >= 0):
        raise ScenarioError(f"got variations of {compute:g} and {network:g}; needed 0 or more")
    if samples < 1:
        raise ScenarioError(f"got {samples} samples; needed 1 or more")
    seed = plan.seed if seed is None else seed
    draws = _Draws(Prepared.of(result).with_replicas_apart(), compute, network)
    generator = np.random.default_rng(np.random.SeedSequence(seed))
    spans = np.concatenate([draws.makespans(generator, size) for size in draws.sizes(samples)])
    return Jitter(plan.name, compute, network, seed, result.timeline.step_time_s, spans * TICK)


class _Draws:
    """The unfolded step, and how its durations vary."""

    def __init__(self, prepared: Prepared, compute: float, network: float) -> None:
        program = prepared.program
        peers = peers_of(program, prepared.plan.layout.mesh)
        replicas = max(1, int(program.class_size.max(initial=1)) // peers)
        folded = folded_actions(program)
        unfolding = Unfolding(folded, {"dp": replicas})
        self._duration = np.repeat(program.duration, unfolding.count)
        self._least = program.least
        if prepared.replays:
            self._structure = Structure.unfolded(folded, unfolding)
            self._steps = None
        else:
            self._steps = Steps(prepared, replicas)
        computes = np.repeat(np.isin(program.kind, COMPUTE), unfolding.count)
        tables = [factors(sigma_of(network), 1), factors(sigma_of(compute), peers)]
        self._factors = np.concatenate(tables)
        self._base = np.where(computes, QUANTILES, 0).astype(np.int32)[:, None]

    def sizes(self, samples: int) -> Iterator[int]:
        """Samples drawn at a time."""
        most = max(1, VALUES // max(len(self._duration), 1))
        for begin in range(0, samples, most):
            yield min(most, samples - begin)

    def makespans(self, generator: np.random.Generator, size: int) -> Floats:
        """Makespans of so many steps [ticks]."""
        shape = (len(self._duration), size)
        drawn = generator.integers(0, QUANTILES, shape, dtype=np.uint16)
        factor = self._factors.take(self._base + drawn)
        if self._steps is not None:
            steps = self._steps
            return np.array([steps.timeline(step[steps.coarse]).makespan for step in factor.T])
        factor *= self._duration[:, None]
        spans = self._structure.makespans(np.rint(factor, out=factor).T)
        return np.maximum(spans, self._least)


def _enclosing(count: int, share: float) -> tuple[int | None, int | None]:
    """Places of the order statistics of `count` samples between which the quantile at `share` lies with 95 % confidence.

    Notes
    -----
    The number of samples below the quantile is binomial. The largest place that is too high with at most half of 5 %, and the smallest
    that is too low with at most the same; None where even the first or last sample is not safe.
    """
    number = np.arange(count + 1)
    logs = np.array([math.lgamma(n + 1) for n in range(count + 1)])
    chance = np.exp(
        logs[count]
        - logs
        - logs[::-1]
        + number * math.log(share)
        + (count - number) * math.log1p(-share)
    )
    below = np.cumsum(chance)  # P(at most i samples below the quantile)
    doubt = (1 - _CONFIDENCE) / 2
    low = int(np.searchsorted(below, doubt, side="right")) - 1
    high = int(np.searchsorted(below, 1 - doubt))
    return (low if low >= 0 else None), (high if high < count else None)
