"""Belief: how fast each layout will be and whether it fits, before anything ran and after each run.

ln(measured / predicted) of the time of layout i is the sum of errors that layouts share: a level
that all have, a slope for each doubling of tp, of pp and of the microbatches (the host's share), an
error of each other choice, and what remains. All are normal; the level's spread is that of the
setting's residuals, the others are half-widths h of differences over 1.2816 sqrt 2
(`mpsim.result.residuals.Residuals.pairs`). Of memory there is a level and a remainder. A measured
run conditions the draws of both (Matheron's rule); one that ran out of memory, or ran, weights them
by how likely that was. Shapes: D draws, L layouts, O observed.

References
----------
J. Wilson et al., "Pathwise Conditioning of Gaussian Processes", JMLR 22, 2021, equation 8.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from mpsim import structs
from mpsim.arrays import Flags, Floats
from mpsim.result.residuals import HALF_WIDTH, Setting, chosen_of, residuals
from mpsim.training.intervals import residuals_of

SLOPES: Mapping[str, tuple[str, float]] = {
    "tensor parallel": ("tp", 1.0),
    "pipeline": ("pp", 1.0),
    "host": ("micro batch", -1.0),
}
"""Errors that grow with each doubling of a choice: its kind, and the sign of its logarithm."""
_DRAWS = 4000
_HALF = HALF_WIDTH * math.sqrt(2.0)  # of a difference, over the sigma of one
# share of the spread of memory that a layout has to itself, as those of one stack err alike
_OWN = 0.3
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


class _Errors(NamedTuple):
    """Errors that layouts share."""

    names: list[str]
    sigma: Floats  # [F], spread of each
    rows: Floats  # [F, L], what each is multiplied by in each layout


class _Draws(NamedTuple):
    """Draws of what layouts will do, after what ran."""

    errors: Floats  # [D, F]
    times: Floats  # times, memory: [D, L], logarithms, of memory over its prediction
    memory: Floats
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
    def _errors(self) -> _Errors:
        """Level, slopes and errors of single choices."""
        known = residuals_of(self.settings[0])
        chosen = [chosen_of(setting) for setting in self.settings]
        widest = max(known.pairs.values(), default=0.1)
        names, sigma = ["level"], [known.interval(1.0, self.settings[0]).sigma]
        rows = [np.ones(len(chosen))]
        for name, (kind, sign) in SLOPES.items():
            names.append(name)
            sigma.append(known.pairs.get(kind, widest) / _HALF)
            rows.append(
                np.array([sign * math.log2(_count(each.get(kind, "1"))) for each in chosen])
            )
        ordered = {kind for kind, _ in SLOPES.values()} | {"dp"}
        for kind in sorted({kind for each in chosen for kind in each} - ordered):
            values = [each.get(kind) for each in chosen]
            for value in list(dict.fromkeys(values))[1:]:
                names.append(f"{kind} {value}")
                sigma.append(known.pairs.get(kind, widest) / _HALF * math.sqrt(2.0))
                rows.append(np.array([float(other == value) for other in values]))
        return _Errors(names, np.array(sigma), np.array(rows))

    @functools.cached_property
    def _drawn(self) -> _Draws:
        """Draws of times and memory, conditioned on what ran."""
        _, sigma, rows = self._errors
        draw, own = np.random.default_rng(0), self._noise
        many = len(self.settings)
        drawn = draw.normal(0.0, 1.0, (_DRAWS, len(sigma))) * sigma
        rest = draw.normal(0.0, own, (_DRAWS, many))
        timed = [each for each in self.ran if each.seconds]
        if timed:
            places = np.array([each.place for each in timed])
            seen = np.log([each.seconds or 1.0 for each in timed]) - np.log(self.seconds[places])
            spread = (rows * sigma[:, None] ** 2).T @ rows[:, places]
            spread[places, np.arange(len(places))] += own**2
            gap = seen - (drawn @ rows[:, places] + rest[:, places])
            # np.linalg.pinv: two runs of one layout make the same row
            gain = np.linalg.pinv(spread[places]) @ gap.T
            drawn = drawn + (rows[:, places] * sigma[:, None] ** 2 @ gain).T
            rest[:, places] += (own**2 * gain).T
        held, weights = self._held(draw)
        return _Draws(drawn, np.log(self.seconds) + drawn @ rows + rest, held, weights)

    def _held(self, draw: np.random.Generator) -> tuple[Floats, Floats]:
        """ln of memory over its prediction, and the likelihood of who ran and who ran out."""
        memory = residuals("memory").interval(1.0, self.settings[0])
        middle, sigma = math.log(memory.limit(0.5)), memory.sigma
        own, told = _OWN * sigma, [each for each in self.ran if each.memory]
        level = draw.normal(middle, math.sqrt(1 - _OWN**2) * sigma, _DRAWS)
        weights = np.zeros(_DRAWS)
        for each in self.ran:
            margin = -math.log(self.filled[each.place]) - level
            if each in told:
                off = math.log((each.memory or 1.0) / self.memory[each.place]) - level
                weights -= (off / own) ** 2 / 2
            else:
                odds = _normal(margin / own)
                weights += np.log(np.maximum(odds if each.seconds else 1 - odds, 1e-12))
        held = level[:, None] + draw.normal(0.0, own, (_DRAWS, len(self.settings)))
        weights = np.exp(weights - weights.max())
        return held, weights / weights.sum()

    @property
    def _noise(self) -> float:
        return residuals_of(self.settings[0]).pairs.get("same", 0.05) / _HALF

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
        names, sigma, _ = self._errors
        drawn = self._drawn.errors
        found = {
            name: Learnt(float(drawn[:, n].mean()), float(drawn[:, n].std()), float(sigma[n]))
            for n, name in enumerate(names)
            if name == "level" or name in SLOPES
        }
        level = self._drawn.memory.mean(axis=1)
        mean = float(self.weights @ level)
        spread = math.sqrt(float(self.weights @ (level - mean) ** 2))
        return {**found, "memory": Learnt(mean, spread, float(level.std()))}


def _count(text: str) -> float:
    """A degree, or the number that begins ``2 a microbatch``."""
    return max(1.0, float(text.split(" ", maxsplit=1)[0] or 1))


def _normal(sigmas: Floats) -> Floats:
    """Normal distribution function by math.erfc per element: fast enough for the draws."""
    return np.array([0.5 * math.erfc(-each / math.sqrt(2.0)) for each in sigmas])
