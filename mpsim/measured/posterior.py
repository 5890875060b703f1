"""Posterior: what measured runs of one user say of the user's other runs.

ln(measured / predicted) of a run is a sum of errors that runs share: a level that all have, one of
each word that some have in common (their software, a sharding, ...), some that grow with a share of
the step or with each doubling of a degree, and what remains. All are normal about 0, with spreads
that ``validation/loop.py`` fits to published runs of many users (``data/shared.yaml``). How far off
users are and how much the rest scatters differs, so several kinds of ``users`` are weighed by how
likely they make what was measured. Shapes: F errors, L runs that are asked about, O observed, D
draws.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from mpsim import structs
from mpsim.arrays import Floats
from mpsim.result.residuals import HALF_WIDTH, Setting, chosen_of
from mpsim.shipped import read_shipped

LEVEL, KERNELS, EXCHANGE = "level", "kernels", "exchange"
_PARTS = {KERNELS: ("compute", "compiled"), EXCHANGE: ("exchange",)}
_DEGREES = ("tp", "pp", "cp", "ep", "micro batch")
_SIZE, _USUAL_SIZE = "size", 64.0  # accelerators, and how many the level is of
_NOISE, _USERS = "noise", "users"  # what remains; kinds of users


class Errors(NamedTuple):
    """Errors that runs share."""

    names: list[str]
    sigma: Floats  # [F], spread of each
    rows: Floats  # [F, L], what each is multiplied by in each run
    noise: float  # usual spread of what remains
    users: Sequence[Sequence[float]]  # odds of each kind, factors of its errors and its noise

    def less(self, places: Sequence[int]) -> Errors:
        """The same of some runs alone."""
        return self._replace(rows=self.rows[:, list(places)])

    @property
    def alike(self) -> Floats:
        """Multipliers that all runs have alike, others 0: no run tells these errors apart [F]."""
        return np.where(np.ptp(self.rows, axis=1) == 0.0, self.rows[:, 0], 0.0)


def spreads(figure: str) -> Mapping[str, Any]:
    """Spreads of errors of the step or of its peak of memory (``memory``), and kinds of users."""
    found: Mapping[str, Any] = read_shipped("mpsim.measured.data", "shared.yaml")[figure]
    return found


def errors_of(
    settings: Sequence[Setting],
    figure: str,
    known: Mapping[str, Any] | None = None,
    *,
    sigma: float = 0.0,
) -> Errors:
    """Errors that runs in these settings share. `known`: spreads in place of the shipped ones.
    `sigma`: as unsure as the first is at least; what others leave of it is the level's.
    """
    known = spreads(figure) if known is None else known
    if sigma:
        first = errors_of(settings[:1], figure, known)
        before, level = Posterior.of(first.less([]), np.array([])), np.eye(len(first.names))[:, :1]
        missing = sigma**2 - float(before.spread(first.rows)[0]) ** 2 - first.noise**2
        more = 1.0 + max(missing, 0.0) / float(before.spread(level)[0]) ** 2
        known = {**known, LEVEL: known[LEVEL] * math.sqrt(more)}
    found = [
        (f"{name} {word}".rstrip(), spread, row)
        for name, spread in known.items()
        if name not in (_NOISE, _USERS)
        for word, row in _multipliers(name, settings)
    ]
    names, each, rows = zip(*found, strict=True)
    return Errors(list(names), np.array(each), np.array(rows), known[_NOISE], known[_USERS])


def _multipliers(name: str, settings: Sequence[Setting]) -> Iterator[tuple[str, list[float]]]:
    """Multiplier of an error in each setting; of words, one error each."""
    chosen = [chosen_of(setting) for setting in settings]
    if name == LEVEL:
        yield "", [1.0] * len(settings)
    elif name in _PARTS:
        yield "", [sum(of.shares.get(part, 0.0) for part in _PARTS[name]) for of in settings]
    elif name in _DEGREES:
        yield "", [math.log2(_count(each.get(name, ""))) for each in chosen]
    elif name == _SIZE:
        yield "", [math.log2(of.size / _USUAL_SIZE) for of in settings]
    else:
        pairs = zip(settings, chosen, strict=True)
        words = [each.get(name, of.labels.get(name, ("",))[0]) for of, each in pairs]
        for word in dict.fromkeys(words):
            yield word, [float(other == word) for other in words]


def _count(text: str) -> float:
    """A degree, or the number that begins ``2 a microbatch``."""
    number = text.partition(" ")[0]
    return max(1.0, float(number)) if number else 1.0


class _Given(NamedTuple):
    """Errors given what was measured, of one kind of user."""

    noise: float
    mean: Floats  # [F]
    covariance: Floats  # [F, F]
    likely: float  # ln of the likelihood of what was measured, but for a constant


@structs.dataclass(frozen=True, slots=True)
class Posterior:
    """Distribution of shared errors once some runs were measured."""

    weights: Floats  # of each of `given`, summing to 1
    given: tuple[_Given, ...]

    @classmethod
    def of(cls, errors: Errors, seen: Floats) -> Posterior:
        """Posterior after `seen`, ln(measured / predicted) of each run of the errors [O]."""
        rows, given = errors.rows, []
        for _, farther, scatter in errors.users:
            prior, noise = (farther * errors.sigma[:, None]) ** 2, scatter * errors.noise
            spread = rows.T @ (prior * rows) + noise**2 * np.eye(len(seen))
            gain = np.linalg.solve(spread, (prior * rows).T).T
            off = np.linalg.solve(spread, seen)
            fit = -(seen @ off + np.linalg.slogdet(spread)[1]) / 2
            covariance = np.diag(prior[:, 0]) - gain @ (prior * rows).T
            given.append(_Given(noise, gain @ seen, covariance, fit))
        odds = [math.log(u[0]) + own.likely for u, own in zip(errors.users, given, strict=True)]
        weights = np.exp(np.array(odds) - max(odds))
        return cls(weights / weights.sum(), tuple(given))

    @property
    def mean(self) -> Floats:
        """Mean of each error [F]."""
        return np.asarray(self.weights @ np.array([each.mean for each in self.given]))

    def spread(self, rows: Floats) -> Floats:
        """Spread of sums of errors, such as ``rows`` of a run, without what remains [L]."""
        return np.sqrt(self._variance(rows))

    def ends(self, rows: Floats) -> tuple[Floats, Floats]:
        """Factors on the prediction of each run, between which 80 % of what is measured lies."""
        rest = float(self.weights @ [each.noise**2 for each in self.given])
        half = HALF_WIDTH * np.sqrt(self._variance(rows) + rest)
        return np.exp(self.mean @ rows - half), np.exp(self.mean @ rows + half)

    def _variance(self, rows: Floats) -> Floats:
        within = [np.einsum("fl,fg,gl->l", rows, each.covariance, rows) for each in self.given]
        means = np.array([each.mean @ rows for each in self.given])
        between = self.weights @ means**2 - (self.weights @ means) ** 2
        return np.asarray(np.maximum(self.weights @ np.array(within) + between, 0.0))

    def draw(self, count: int, random: np.random.Generator) -> tuple[Floats, Floats]:
        """Draws of the errors [D, F], and of the spread of what remains [D]."""
        place = random.choice(len(self.given), count, p=self.weights)
        drawn = np.empty((count, len(self.mean)))
        for n, each in enumerate(self.given):
            mine = place == n
            drawn[mine] = random.multivariate_normal(
                each.mean, each.covariance, int(mine.sum()), check_valid="ignore", method="eigh"
            )
        return drawn, np.array([each.noise for each in self.given])[place]

    def most_telling(self, errors: Errors, among: Sequence[int]) -> int:
        """The run of `among` whose measurement narrows what is known of all runs most.

        Notes
        -----
        Once run j is measured the variance of run i is less by ``C_ij^2 / (C_jj + noise^2)``.
        """
        each = np.array([given.covariance for given in self.given])
        known = np.einsum("k,kfg->fg", self.weights, each)
        covariance = errors.rows.T @ known @ errors.rows
        gain = (covariance**2).sum(axis=0) / (covariance.diagonal() + errors.noise**2)
        return max(among, key=lambda place: float(gain[place]))
