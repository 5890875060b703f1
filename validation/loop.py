"""Loop: five runs of one's own, told to mpsim, and how far off its predictions of the user's other runs are before and after.

Covers: published-runs.csv and memory-runs.csv of validation/data. Question: how much do five measured runs tell of others of the same accelerator and software, and is the interval that is left honest?

Run from any folder, with mpsim installed (three minutes): python validation/loop.py [--check]. It fits the spreads of errors that runs share (mpsim/measured/data/shared.yaml) and writes validation/loop.md.
"""

from __future__ import annotations

import argparse
import csv
import functools
import math
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import minimize

import intervals
from intervals import Floats, Residual
from mpsim.measured.posterior import Errors, Posterior, errors_of, spreads
from mpsim.validate.records import kendall_tau

HERE = Path(__file__).resolve().parent
PAGE = HERE / "loop.md"
SHARED = HERE.parent / "mpsim" / "measured" / "data" / "shared.yaml"
TABLES = ("published-runs", "memory-runs")
FIGURES = {"step": ("step", "step-experts"), "memory": ("memory",)}
FIVE, LEAST = 5, 8  # runs that are told, and rows from which a user counts
DRAWS = 10  # random fives of each user
FOLDS = 5  # in which families are left out of the fit of spreads
USUAL, HOLD = 0.02, 1.5  # spread to start from, and by how many logarithms it is pulled back
# kinds of users that are weighed: by how much their shared errors, and their noise, exceed those of others
KINDS = ((1.0, 0.6), (1.0, 1.0), (1.0, 1.6), (3.0, 1.0), (3.0, 1.6))
ROUNDS = 200  # of the fit of their odds
FARTHEST = (
    0.3  # residuals beyond count as this in the fit: five outliers are no spread of everyone's
)
SPREAD = intervals.SPREAD
HEAD = """# Five runs of one's own

A user here is one family's runs on one accelerator with one software. Five of them are told to mpsim, the others are predicted, names hidden and the family left out of every fit: at random (the mean of ten draws), the first
five of the table, and the five that mpsim itself asks for, one after the other. *Before* and *after* the five: mean absolute error; *inside*: measured values in the 80 % interval (before, that which [every result has](accuracy.md)); *width*: upper over lower end.
Users weigh alike. Written by `python validation/loop.py`.
"""


class User(NamedTuple):
    """Runs of one family on one accelerator with one software, or whatever else is fitted or scored together."""

    family: str
    rows: list[Residual]

    @property
    def seen(self) -> Floats:
        """ln(measured / predicted) of each."""
        return -np.array([row.log for row in self.rows])

    def errors(self, figure: str, known: Mapping[str, Any]) -> Errors:
        """Errors that the runs share."""
        return errors_of([row.setting for row in self.rows], figure, known)


def users(rows: Sequence[Residual], figure: str, *labels: str, least: int) -> list[User]:
    """Rows of a figure by family and labels."""
    found: dict[tuple[str, ...], list[Residual]] = {}
    for row in rows:
        if row.figure in FIGURES[figure]:
            key = (row.family, *(row.setting.labels[name][0] for name in labels))
            found.setdefault(key, []).append(row)
    return [User(key[0], mine) for key, mine in sorted(found.items()) if len(mine) >= least]


def fit(mine: Sequence[User], figure: str) -> dict[str, Any]:
    """Spreads, and odds of kinds of users, that make the residuals of users likeliest, each user weighing by its rows as a family of `intervals.py` does."""
    names = [name for name in spreads(figure) if name != "users"]
    kernels = []
    for user in mine:
        errors = user.errors(figure, {**dict.fromkeys(names, 1.0), "users": ()})
        of = [
            next(n for n in names if word == n or word.startswith(f"{n} ")) for word in errors.names
        ]
        parts = [errors.rows[[name == own for own in of]] for name in names]
        kernels.append([part.T @ part for part in parts])
        kernels[-1][names.index("noise")] = np.eye(len(user.rows))
    seen = [np.clip(user.seen, -FARTHEST, FARTHEST) for user in mine]
    scale = np.ones(len(mine))
    logs = np.full(len(names), math.log(USUAL))

    def cost(logs: Floats) -> tuple[float, Floats]:
        """-ln of the likelihood and of the prior, and their slope."""
        squares = np.exp(2 * logs)
        pull = (logs - math.log(USUAL)) / HOLD
        total, slope = float(pull @ pull) / 2, pull / HOLD
        for own, values, by in zip(kernels, seen, scale, strict=True):
            weight, scaled = len(values) ** -SPREAD, values / by
            inverse = np.linalg.inv(sum(s * k for s, k in zip(squares, own, strict=True)))
            off = inverse @ scaled
            total += weight * (scaled @ off - np.linalg.slogdet(inverse)[1]) / 2
            traces = [float((inverse * k).sum() - off @ k @ off) for k in own]
            slope = slope + weight * squares * traces
        return total, slope

    for _ in range(3):  # a user who scatters more than others says no more of their spreads
        logs = minimize(
            cost, logs, jac=True, method="L-BFGS-B", bounds=[(-7.0, -0.7)] * len(names)
        ).x
        for n, (own, values) in enumerate(zip(kernels, seen, strict=True)):
            whole = sum(s * k for s, k in zip(np.exp(2 * logs), own, strict=True))
            likely = values @ np.linalg.solve(whole, values)
            scale[n] = math.sqrt((likely + 3) / (len(values) + 3))
    known = {name: round(float(math.exp(each)), 4) for name, each in zip(names, logs, strict=True)}
    return {"users": weighed(mine, figure, known), **known}


def weighed(mine: Sequence[User], figure: str, known: Mapping[str, float]) -> list[list[float]]:
    """Kinds of users with the odds of each that make users likeliest (expectation-maximisation); one user of each kind is taken as seen."""
    odds = np.full(len(KINDS), 1 / len(KINDS))
    of = {**known, "users": [(1.0, *kind) for kind in KINDS]}
    given = [Posterior.of(user.errors(figure, of), user.seen).given for user in mine]
    fits = np.array([[each.likely for each in own] for own in given])
    for _ in range(ROUNDS):
        shares = odds * np.exp(fits - fits.max(axis=1, keepdims=True))
        count = (shares / shares.sum(axis=1, keepdims=True)).sum(axis=0) + 1
        odds = count / count.sum()
    return [[round(float(each), 2), *kind] for each, kind in zip(odds, KINDS, strict=True)]


class Told(NamedTuple):
    """Figures of a user's other runs, before and after five were told."""

    before: float
    after: float
    bias: float
    bias_after: float
    held: float
    held_after: float
    width: float
    width_after: float
    tau: float
    tau_after: float


def told(user: User, figure: str, known: Mapping[str, Any], places: Sequence[int]) -> Told:
    """Figures of the others once five runs are told."""
    errors, seen = user.errors(figure, known), user.seen
    others = [n for n in range(len(seen)) if n not in set(places)]
    asked = errors.less(others)
    rest = seen[others]
    mine = [user.rows[n] for n in others]
    groups, times = [row.group for row in mine], np.array([row.time for row in mine])
    shipped = np.array([left_out()[row.id, row.figure] for row in mine]).T
    found: list[tuple[float, ...]] = []
    for given, ends in (([], shipped), (list(places), None)):
        posterior = Posterior.of(errors.less(given), seen[given])
        low, high = posterior.ends(asked.rows) if ends is None else ends
        shift = posterior.mean @ asked.rows
        error, inside = np.expm1(shift - rest), (np.exp(rest) >= low) & (np.exp(rest) <= high)
        found.append(
            (
                float(np.abs(error).mean()),
                float(error.mean()),
                float(inside.mean()),
                float(np.median(high / low)) - 1,
                _tau(times + shift, times + rest, groups),
            )
        )
    return Told(*(value for pair in zip(*found, strict=True) for value in pair))


@functools.cache
def left_out() -> dict[tuple[str, str], tuple[float, float]]:
    """Ends of the 80 % interval of each figure over its prediction, its family left out."""
    with intervals.TABLE.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    return {(row["id"], row["figure"]): (float(row["low"]), float(row["high"])) for row in rows}


def _tau(predicted: Floats, measured: Floats, groups: Sequence[str]) -> float:
    """Mean rank correlation in groups of three runs and more; NaN without any."""
    taus = []
    for group in dict.fromkeys(groups):
        mine = [n for n, own in enumerate(groups) if own == group and not math.isnan(predicted[n])]
        if group and len(mine) > 2:
            taus.append(kendall_tau(predicted[mine], measured[mine]))
    return statistics.fmean(taus) if taus else math.nan


def asked_for(user: User, figure: str, known: Mapping[str, Any]) -> list[int]:
    """The five that mpsim asks for, each with what is known by then."""
    errors, places = user.errors(figure, known), list[int]()
    for _ in range(FIVE):
        posterior = Posterior.of(errors.less(places), user.seen[places])
        among = [n for n in range(len(user.rows)) if n not in places]
        places.append(posterior.most_telling(errors, among))
    return places


def section(figure: str, rows: Sequence[Residual]) -> tuple[list[str], dict[str, Any]]:
    """A table of one figure, and its spreads."""
    machines = users(rows, figure, "accelerator", least=2)
    mine = users(rows, figure, "accelerator", "framework", least=LEAST)
    families = sorted({user.family for user in machines})
    fits = [
        fit([u for u in machines if u.family not in families[n::FOLDS]], figure)
        for n in range(FOLDS)
    ]
    known = {family: fits[n % FOLDS] for n, family in enumerate(families)}
    random = np.random.default_rng(0)
    ways: dict[str, Callable[[User], list[list[int]]]] = {
        "at random": lambda user: [
            random.permutation(len(user.rows))[:FIVE].tolist() for _ in range(DRAWS)
        ],
        "the first five": lambda _: [list(range(FIVE))],
        "those asked for": lambda user: [asked_for(user, figure, known[user.family])],
    }
    lines = [
        f"\n## {'Steps' if figure == 'step' else 'Peaks of memory'}: {len(mine)} users, {sum(len(u.rows) for u in mine)} runs\n",
        "| five runs | error before | after | bias before | after | inside before | after | width before | after | tau before | after | users worse off |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for title, choose in ways.items():
        found = [
            np.mean([told(user, figure, known[user.family], p) for p in choose(user)], axis=0)
            for user in mine
        ]
        columns = [
            [each for each in column if not math.isnan(each)] for column in zip(*found, strict=True)
        ]
        mean = Told(*(statistics.fmean(column) if column else math.nan for column in columns))
        worse = sum(each[1] > each[0] + 0.001 for each in found)
        taus = "| | " if math.isnan(mean.tau) else f"| {mean.tau:.2f} | {mean.tau_after:.2f} "
        lines.append(
            f"| {title} | {mean.before:.1%} | {mean.after:.1%} | {mean.bias:+.1%} | {mean.bias_after:+.1%} | {mean.held:.0%} | {mean.held_after:.0%} "
            f"| {mean.width:.0%} | {mean.width_after:.0%} {taus}| {worse} |"
        )
    return lines, fit(machines, figure)


def shared_yaml(fitted: Mapping[str, Mapping[str, Any]]) -> str:
    """The file of spreads."""
    lines = [
        "# Spreads (sigma of ln(measured / predicted)) of errors that runs of one user share; see mpsim/measured/posterior.py. Written by validation/loop.py.",
        "# `kernels`, `exchange`: of a step that is all of it; `tp` to `size`: a doubling; the others: of each level or word; `noise`: what remains.",
        "# `users`: kinds of users, [how likely, by how much shared errors exceed those of others, by how much the noise does]; the kinds are chosen, their odds fitted.",
        "source: residuals of validation/data/published-runs.csv and memory-runs.csv with names hidden, by family and accelerator",
    ]
    for figure, known in fitted.items():
        lines += [f"{figure}:", *(f"  {name}: {value}" for name, value in known.items())]
    return "\n".join([*lines, ""])


def main() -> int:
    """Write page and spreads, or say whether they are as they would be written."""
    parser = argparse.ArgumentParser(prog="loop.py", description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; 1 if it is stale")
    options = parser.parse_args()
    rows = intervals.refitted(intervals.predicted(TABLES), intervals.last_shift())
    lines, fitted = [HEAD], {}
    for figure in FIGURES:
        more, fitted[figure] = section(figure, rows)
        lines += more
    texts = {PAGE: "\n".join([*lines, ""]), SHARED: shared_yaml(fitted)}
    if options.check:
        return int(any(file.read_text(encoding="utf-8") != text for file, text in texts.items()))
    for file, text in texts.items():
        file.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
