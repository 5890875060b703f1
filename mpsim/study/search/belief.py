"""Belief: how fast each layout will be and whether it fits, before anything ran and after each run.

ln(measured / predicted) of the time and of the peak of memory of each layout is a sum of errors
that layouts share (`mpsim.measured.posterior`), whose level is as unsure as residuals of published
runs make the setting. A measured run conditions the draws of all; one that ran out of memory, or
ran, weights them by how likely that was. Shapes: D draws, L layouts.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from mpsim import structs
from mpsim.arrays import Flags, Floats
from mpsim.measured.posterior import Errors, Posterior, errors_of
from mpsim.result.residuals import Interval, Setting, chosen_of, residuals
from mpsim.training.intervals import residuals_of

_SLOPES = {"tp": "tensor parallel", "pp": "pipeline", "micro batch": "micro batch"}
_DRAWS = 4000
_FIRST, _NEXT = 2.0, 1.25  # times the shortest step that a launch which dies counts as
_FEWEST = 50.0  # effective draws: fewer say that the prior had no room for what was measured


@structs.dataclass(frozen=True, slots=True)
class Ran:
    """A layout that was launched, and what became of it."""

    place: int  # of the layout
    seconds: float | None  # measured step; None where it ran out of memory [s]
    memory: float | None = None  # measured peak; None where nobody told [B]


class Learnt(NamedTuple):
    """A factor on times or on memory, in logarithms."""

    mean: float
    spread: float
    before: float  # its spread before anything ran


class _Draws(NamedTuple):
    """Draws of what layouts will do, after what ran."""

    times: Floats  # times, memory: [D, L], logarithms, of memory over its prediction
    memory: Floats
    errors: Floats  # [D, F], of memory
    weights: Floats  # [D], summing to 1


@structs.dataclass(frozen=True, eq=False)  # no slots: draws are kept
class Belief:
    """Joint distribution of the times and the fits of layouts."""

    settings: Sequence[Setting]  # of the layouts, which share model, machine and software
    seconds: Floats  # seconds, memory: float64[L], predicted step and peak that logs show [s] [B]
    memory: Floats
    filled: Floats  # float64[L], share of an accelerator's memory that is needed, as predicted
    ran: tuple[Ran, ...] = ()  # what was launched

    def after(self, *ran: Ran) -> Belief:
        """The belief once these ran too."""
        return structs.replace(self, ran=(*self.ran, *ran))

    @functools.cached_property
    def _errors(self) -> tuple[Errors, Errors]:
        """Errors of times, and of memory."""
        step = residuals_of(self.settings[0]).interval(1.0, self.settings[0]).sigma
        return (
            errors_of(self.settings, "step", sigma=step),
            errors_of(self.settings, "memory", sigma=self._memory.sigma),
        )

    @functools.cached_property
    def _memory(self) -> Interval:
        """Interval of the peak over its prediction."""
        return residuals("memory").interval(1.0, self.settings[0])

    @functools.cached_property
    def _middle(self) -> float:
        """Median of ln(published peak / prediction)."""
        return math.log(self._memory.limit(0.5))

    @functools.cached_property
    def _posteriors(self) -> tuple[Posterior, Posterior]:
        """Errors of times and of memory, given what ran."""
        step, memory = self._errors
        timed = [each for each in self.ran if each.seconds]
        told = [each for each in self.ran if each.memory]
        slower = [math.log((each.seconds or 1.0) / self.seconds[each.place]) for each in timed]
        fuller = [math.log((each.memory or 1.0) / self.memory[each.place]) for each in told]
        return (
            Posterior.of(step.less([each.place for each in timed]), np.array(slower)),
            Posterior.of(
                memory.less([each.place for each in told]), np.array(fuller) - self._middle
            ),
        )

    @functools.cached_property
    def _drawn(self) -> _Draws:
        """Draws of times and memory, conditioned on what ran."""
        random, many = np.random.default_rng(0), len(self.settings)
        (step, memory), (times, peaks) = self._errors, self._posteriors
        drawn, noise = times.draw(_DRAWS, random)
        slower = drawn @ step.rows + noise[:, None] * random.standard_normal((_DRAWS, many))
        errors, noise = peaks.draw(_DRAWS, random)
        level = self._middle + errors @ memory.rows
        weights = np.zeros(_DRAWS)
        for each in self.ran:
            if not each.memory:
                margin = -math.log(self.filled[each.place]) - level[:, each.place]
                odds = _normal(margin / noise)
                weights += np.log(np.maximum(odds if each.seconds else 1 - odds, 1e-12))
        weights = np.exp(weights - weights.max())
        held = level + noise[:, None] * random.standard_normal((_DRAWS, many))
        return _Draws(np.log(self.seconds) + slower, held, errors, weights / weights.sum())

    @functools.cached_property
    def runs(self) -> Flags:
        """Whether a layout fits, in each draw [D, L]; of those launched what was seen."""
        fits: Flags = self._drawn.memory <= -np.log(self.filled)
        for each in self.ran:
            fits[:, each.place] = each.seconds is not None
        return fits

    @functools.cached_property
    def times(self) -> Floats:
        """Seconds in each draw, of those launched what was measured [D, L]."""
        times = np.exp(self._drawn.times)
        for each in self.ran:
            times[:, each.place] = each.seconds or np.inf
        return times

    @property
    def weights(self) -> Floats:
        """Weights of the draws, summing to 1 [D]."""
        return self._drawn.weights

    @property
    def surprised(self) -> bool:
        """Whether hardly a draw agrees with who ran and who ran out."""
        return 1.0 / float((self.weights**2).sum()) < _FEWEST

    @property
    def fits(self) -> Floats:
        """Odds that each layout fits [L]."""
        return np.asarray(self.weights @ self.runs)

    @property
    def best(self) -> Floats:
        """Odds that each layout is the fastest of those that fit [L]; all 0 where none does."""
        times = np.where(self.runs, self.times, np.inf)
        fastest = times.argmin(axis=1)
        some = np.isfinite(times.min(axis=1))
        return np.asarray(np.bincount(fastest, self.weights * some, len(self.settings)), float)

    @property
    def expected(self) -> Floats:
        """Median step of each layout [s]."""
        return np.asarray(
            np.exp(self.weights @ np.log(np.where(np.isfinite(self.times), self.times, 1e30)))
        )

    def choose(self, count: int, taken: Sequence[int] = ()) -> list[int]:
        """Layouts that together promise most, of different tp x pp: each is the one that most
        shortens the best step of all chosen.

        Notes
        -----
        Greedy minimisation of E[min over chosen of (time if it fits, else the penalty)], which is
        submodular, so that greedy is within 1 - 1/e of the best set (Nemhauser et al., 1978). The
        first has to run, or nothing is learnt of the level: its penalty is `_FIRST` times the
        shortest prediction; of the others a death costs no more than a slow run (`_NEXT`).
        """
        shortest = float(self.expected.min())
        chosen: list[int] = []
        degrees = [chosen_of(setting) for setting in self.settings]
        families = [(each.get("tp"), each.get("pp")) for each in degrees]
        least = np.full(len(self.weights), np.inf)
        for place in taken:
            least = np.minimum(least, np.where(self.runs[:, place], self.times[:, place], np.inf))
        while len(chosen) < min(count, len(self.settings) - len(taken)):
            first = not chosen and not any(each.seconds for each in self.ran)
            penalty = shortest * (_FIRST if first else _NEXT)
            times = np.where(self.runs, np.minimum(self.times, penalty), penalty)
            value = self.weights @ np.minimum(times, least[:, None])
            value[[*taken, *chosen]] = np.inf
            # a second launch of a family says less of the others, unless no family is left
            same = [families[n] in {families[c] for c in chosen} for n in range(len(value))]
            value = np.where(same, value + penalty, value)
            chosen.append(int(value.argmin()))
            least = np.minimum(least, np.where(self.runs, self.times, np.inf)[:, chosen[-1]])
        return chosen

    def gain(self, place: int) -> float:
        """Share by which one more launch is expected to shorten the best measured step."""
        known = min((each.seconds for each in self.ran if each.seconds), default=math.inf)
        if math.isinf(known):
            return 1.0
        times = np.where(self.runs[:, place], self.times[:, place], known)
        return 1.0 - float(self.weights @ np.minimum(times, known)) / known

    def learnt(self) -> dict[str, Learnt]:
        """Factors on the time by name; ``memory`` is that on the memory."""
        (step, memory), (times, _), drawn = self._errors, self._posteriors, self._drawn
        before = [Posterior.of(each.less([]), np.array([])) for each in self._errors]
        # what all layouts share is one level, whatever it is of
        sums = {"level": step.alike}
        sums |= {told: np.array(step.names) == name for name, told in _SLOPES.items()}
        found = {}
        for name, those in sums.items():
            of = those[:, None].astype(float)
            now, then = (float(each.spread(of)[0]) for each in (times, before[0]))
            found[name] = Learnt(float((times.mean @ of)[0]), now, then)
        level = drawn.errors @ memory.alike
        mean = float(drawn.weights @ level)
        spread = math.sqrt(float(drawn.weights @ (level - mean) ** 2))
        then = float(before[1].spread(memory.alike[:, None])[0])
        return {**found, "memory": Learnt(self._middle + mean, spread, then)}


def _normal(sigmas: Floats) -> Floats:
    """Normal distribution function by math.erfc per element: fast enough for the draws."""
    return np.array([0.5 * math.erfc(-each / math.sqrt(2.0)) for each in sigmas])
