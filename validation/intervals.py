"""Intervals: residuals of every measured figure with names hidden and families left out, the 80 % intervals that follow, and how many figures they hold.

Covers: every table of validation/data. Question: how wide must an interval be to hold four of five figures of a table that nobody here has seen?

Run from the repository's root after a change that moves predictions (two to three minutes):

    python validation/intervals.py

It rewrites mpsim/result/data/*.yaml (what results read), validation/residuals.csv (every residual of a training run with its left-out interval) and the section "Intervals" of
validation/accuracy.md. `python validation/accuracy.py` does the same beside its own work, and refits constants with families left out.

Shapes: N figures, U settings, C groups of measured runs, T levels of attributes.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import hashlib
import io
import itertools
import math
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

import plans
from bench import files, training
from mpsim import memo
from mpsim.cost.constants import Status, choose_group
from mpsim.errors import MpsimError
from mpsim.formats.tables import Cells
from mpsim.hardware.lookup import accelerator
from mpsim.result.residuals import (
    FASTEST_BY,
    FIGURES,
    LEVEL,
    MOST_GUESSED,
    MeasuredRuns,
    Setting,
)
from mpsim.serving.confidence import of_request
from mpsim.validate import Record

Floats = NDArray[np.float64]
ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / "validation" / "data"
SHIPPED = ROOT / "mpsim" / "result" / "data"
TABLE = ROOT / "validation" / "residuals.csv"
PAGE = ROOT / "validation" / "accuracy.md"
HEADING, NEXT = "## Intervals", "\n## "
TABLES = (
    "published-runs",
    "single-node-runs",
    "memory-runs",
    "kernels",
    "collectives",
    "inference-runs",
)
REST = {
    "full": 0.1,
    "single": 0.06,
    "guess": 0.06,
    "doubling": 0.01,
}  # to start from; see Residuals
FOLDS = 8  # in which families of fewer than `LARGE` figures are left out together
# a family of n figures weighs n^(1 - SPREAD): between one vote a figure and one a family
SPREAD = 0.4
LEAST = 0.003  # no sigma is smaller
FREEDOM = 4.0  # degrees of freedom of Student's t: large residuals count less
HOLD = 3.0  # weight of the starting values, in figures
MOST_DOUBLINGS = 6.0  # beyond them nothing is known of the slope
DRAWS = 50  # of the errors of a class from its widths
LARGE = 20  # figures from which a family is judged by itself
POOLED, EACH = (
    (0.75, 0.85),
    0.65,
)  # coverage that is asked of all figures together, and of each large family
BLANK = ("family", "source")
ACCOUNT = {"compute": 0.06, "compiled": 0.06, "exchange": 0.2, "rest": 0.2}
# Sigma of parts and that each level of an attribute adds, to start from: a guess that figures move as far as they can tell it.
START = {
    "step": {
        "noise": ACCOUNT,
        "framework": (0.03, 0.05),
        "accelerator": (0.03, 0.08),
        "format": (0.01, 0.03),
        "length": (0.03,),
        "doubling": 0.01,
    },
    "step-experts": {
        "noise": ACCOUNT,
        "framework": (0.05, 0.1),
        "accelerator": (0.04, 0.1),
        "format": (0.01, 0.03),
        "length": (0.03,),
        "doubling": 0.01,
    },
    "memory": {
        "noise": 0.06,
        "framework": (0.05, 0.1),
        "accelerator": (0.01, 0.02),
        "format": (0.01, 0.03),
        "model": (0.03,),
        "single": 0.01,  # the level of a chip is one of time
        "doubling": 0.01,
    },
    "collective": {
        "noise": 0.06,
        "accelerator": (0.05, 0.1),
        "collective": (0.03,),
        "reach": (0.05,),
        "doubling": 0.01,
    },
    "kernel": {
        "noise": 0.06,
        "accelerator": (0.05, 0.1),
        "operation": (0.05,),
        "format": (0.01, 0.05),
        "doubling": 0.01,
    },
    **{
        name: {
            "noise": noise,
            "engine": (0.05, 0.1),
            "accelerator": (0.05, 0.1),
            "format": (0.01, 0.05),
            "model": (0.05,),
            "arrival": (0.05,),
            "doubling": 0.02,
        }
        for name, noise in (("ttft", 0.2), ("tpot", 0.1), ("throughput", 0.1))
    },
}
TRAINING = ("step", "step-experts", "memory")
MOST = 300  # rows of a family of services, each of which is a simulation of many requests
DIFFERENCES = SHIPPED / "differences.yaml"
FASTEST = SHIPPED / "fastest.yaml"
ON_NODE = ("vtrain", "simumax")  # labels of single-node-runs.csv
PARTS = ("lora", "korthikanti22-layer")  # families of which no row is a whole training
FEWEST = 5  # pairs that a half-width rests on at least
KINDS = {
    **{axis: axis for axis in ("tp", "pp", "cp", "ep")},
    "micro_batch_seqs": "micro batch",
    "recompute": "recompute",
    "sequence_parallel": "recompute",
    "zero_stage": "sharding",
    "schedule": "schedule",
    "vp_chunks_per_rank": "schedule",
    "precision": "format",
    "framework": "release",
}


@dataclasses.dataclass(frozen=True, slots=True)
class Residual:
    """One measured figure, predicted with its names hidden.

    Parameters
    ----------
    id, family, figure : str
    setting : Setting
    log : float
        ln(predicted / measured).
    time : float
        ln of the predicted time a sequence; NaN where there is none.
    group : str
        Runs of one group differ in layout; "" where nothing is chosen.
    cells : Cells
    shift : float
        What of `log` comes from fitting constants without the family.
    """

    id: str
    family: str
    figure: str
    setting: Setting
    log: float
    time: float
    group: str
    cells: Cells
    shift: float = 0.0


def refitted(rows: Sequence[Residual], shift: Mapping[str, float]) -> list[Residual]:
    """The residuals of predictions with constants that were fitted without their family: log times change by `shift`, by id."""
    return [
        dataclasses.replace(row, log=row.log + shift[row.id], shift=shift[row.id])
        if row.id in shift and row.figure != "memory"
        else row
        for row in rows
    ]


def last_shift() -> dict[str, float]:
    """The changes that `python validation/accuracy.py` found last, from the committed table: a refit takes longer than all else here and moves times by half a percent."""
    with TABLE.open(encoding="utf-8", newline="") as file:
        return {row["id"]: float(row["refit"]) for row in csv.DictReader(file) if row["refit"]}


def predicted(names: Sequence[str] = TABLES) -> list[Residual]:
    """Every figure that has both a measurement and a prediction."""
    found: list[Residual] = []
    for name in names:
        path = DATA / f"{name}.csv"
        if not path.exists():
            continue
        kind, rows = files.opened(path)
        for row in _some(rows):
            hidden = {
                key: "" if key in BLANK else cell for key, cell in row.configuration.values.items()
            }
            shown = {record.id: record.family for record in _blank(kind, row)}
            blind = (
                dataclasses.replace(row, configuration=Cells(hidden))
                if name in ("published-runs", "memory-runs")
                else row
            )
            records = files.predict_row(kind, blind)
            found += [
                _residual(
                    record,
                    _group(row.configuration, shown.get(record.id, record.family)),
                    row.configuration,
                )
                for record in [*records, *_whole_requests(records, row.configuration)]
                if record.figure and record.setting and record.error is not None
            ]
    return found


def _whole_requests(records: Sequence[Record], cells: Cells) -> Iterator[Record]:
    """E2E of a row that says TTFT and TPOT instead, as measured and as predicted."""
    named = {record.id.rpartition("#")[2]: record for record in records}
    first, token, count = named.get("ttft"), named.get("tpot"), cells.whole("output_tokens")
    if "e2e" in named or not (first and token and count and first.setting):
        return
    sums = {
        name: getattr(first, name) + (count - 1) * getattr(token, name)
        for name in ("measured", "predicted")
        if getattr(first, name) and getattr(token, name)
    }
    if len(sums) == 2:
        setting = of_request(first.setting, first.predicted or 0.0, sums["predicted"])
        name = f"{first.id.rpartition('#')[0]}#e2e"
        yield dataclasses.replace(first, id=name, figure="e2e", setting=setting, **sums)


def _group(cells: Cells, family: str) -> str:
    """What is left out at once: a family; of services, which few sources measured on many machines, one engine with one model on one chip."""
    if not cells.text("regime"):
        return family
    return " ".join([family, *(cells.text(name) for name in ("engine", "model", "accelerator"))])


def _some(rows: Sequence[files.Row]) -> list[files.Row]:
    """Rows of a table, evenly picked where a family of services has more than `MOST`: its weight hardly grows with more."""
    chosen: list[files.Row] = []
    families: dict[str, list[files.Row]] = {}
    for row in rows:
        families.setdefault(row.configuration.text("family"), []).append(row)
    for mine in families.values():
        step = math.ceil(len(mine) / MOST) if "regime" in mine[0].configuration.values else 1
        chosen += mine[::step]
    return chosen


def _blank(kind: files.FileKind, row: files.Row) -> list[Record]:
    return kind.blank(row)


def _residual(record: Record, family: str, cells: Cells) -> Residual:
    assert record.setting is not None
    assert record.predicted is not None
    sequences = record.sequences
    return Residual(
        id=record.id,
        family=family,
        figure=record.figure,
        setting=record.setting,
        log=math.log1p(record.error or 0.0),
        time=math.log(record.predicted / sequences)
        if sequences and record.kind == "training"
        else math.nan,
        group=f"{family}: {record.group}" if record.kind == "training" and sequences else "",
        cells=training.as_published(cells),
    )


class Fit:
    """Residuals of one figure, and the spread that fits them.

    Parameters
    ----------
    figure : str
    rows : sequence of Residual

    Notes
    -----
    Sigmas are in this order: noise of each kind, levels of attributes, those of `REST`.
    """

    def __init__(self, figure: str, rows: Sequence[Residual]) -> None:
        self.figure, self.rows, self.timed = figure, rows, figure.startswith("step")
        start = START[figure]
        self.attributes = {name: value for name, value in start.items() if isinstance(value, tuple)}
        parts = [row.setting.parts(figure) for row in rows]
        self.kinds = sorted({kind for each in parts for kind in each})
        self.shares = np.array([[each.get(kind, 0.0) for kind in self.kinds] for each in parts])
        self.start = np.array(
            [
                *(_noise(start["noise"], kind) for kind in self.kinds),
                *itertools.chain(*self.attributes.values()),
                *(start.get(name, sigma) for name, sigma in REST.items()),
            ]
        )
        self.guessed = np.array([min(row.setting.guessed, MOST_GUESSED) for row in rows])
        # retries of an allocator take time, no memory
        self.full = np.array([row.setting.full * self.timed for row in rows])
        self.log = np.array([row.log for row in rows])
        self.family = np.array([row.family for row in rows])
        self.runs = self._runs()
        self._measure()
        self._chips()

    def _labels(self, setting: Setting) -> tuple[tuple[str, ...], ...]:
        return tuple(setting.labels[name] for name in self.attributes)

    def _runs(self) -> list[MeasuredRuns]:
        groups: dict[tuple[object, ...], list[Residual]] = {}
        for row in self.rows:
            groups.setdefault((row.family, self._labels(row.setting)), []).append(row)
        runs = []
        for group in groups.values():
            errors, sizes = (
                np.expm1([row.log for row in group]),
                [row.setting.size for row in group],
            )
            runs.append(
                MeasuredRuns(
                    family=group[0].family,
                    labels={name: group[0].setting.labels[name] for name in self.attributes},
                    smallest=min(sizes),
                    largest=max(sizes),
                    rows=len(group),
                    mean_abs_error=float(np.abs(errors).mean()),
                    bias=float(errors.mean()),
                )
            )
        return runs

    def _measure(self) -> None:
        """Levels [U, C, T] and squared doublings [U, C] between settings and runs, and which are of one family [U, C]."""
        settings: dict[object, int] = {}
        self.place = np.array(
            [
                settings.setdefault(
                    (row.family, self._labels(row.setting), row.setting.size), len(settings)
                )
                for row in self.rows
            ]
        )
        levels = [len(value) for value in self.attributes.values()]
        self.levels = np.zeros((len(settings), len(self.runs), sum(levels)))
        self.doublings = np.zeros(self.levels.shape[:2])
        self.own = np.zeros(self.levels.shape[:2], bool)
        for (family, labels, size), u in settings.items():
            setting = Setting(dict(zip(self.attributes, labels, strict=True)), size)
            for c, run in enumerate(self.runs):
                flags = [
                    place < setting.level(name, run.labels[name])
                    for name, count in zip(self.attributes, levels, strict=True)
                    for place in range(count)
                ]
                self.levels[u, c] = flags
                self.doublings[u, c] = (
                    min(abs(math.log2(run.scale(size))), MOST_DOUBLINGS) ** 2 if size else 0.0
                )
                self.own[u, c] = run.family == family

    def _chips(self) -> None:
        """Families that measured a chip [A, F], and where each row is among them."""
        chip = [row.setting.labels.get("accelerator", ("",))[0] for row in self.rows]
        self.chips, self.chip = np.unique(chip, return_inverse=True)
        self.families, self.mine = np.unique(self.family, return_inverse=True)
        self.assumed = np.array([_assumed_level(name) for name in self.chips])
        self.measured = np.zeros((len(self.chips), len(self.families)), bool)
        self.measured[self.chip, self.mine] = True

    def single(self, out: Sequence[str]) -> NDArray[np.bool_]:
        """Whether the level of each row's chip is assumed, or fewer than two other families measured it [N]."""
        used = self.measured & ~np.isin(self.families, out)
        known = used.sum(axis=1)[self.chip]
        return (known - used[self.chip, self.mine] < 2) | self.assumed[self.chip]

    def variances(self, sigmas: Floats, out: Sequence[str] = ()) -> Floats:
        """Of every row by its nearest runs of another family, where it was measured faster than predicted and slower [2, N]."""
        square, first = sigmas**2, len(self.kinds)
        each = self.levels @ square[first : -len(REST)] + square[-1] * self.doublings
        gone = np.array([run.family in out for run in self.runs])
        nearest = np.where(self.own | gone, np.inf, each).min(axis=1)
        widest = square[first : -len(REST)].sum() + square[-1] * MOST_DOUBLINGS**2
        apart = np.where(np.isfinite(nearest), nearest, widest)[self.place]
        full, single, guess = square[-len(REST) : -1]
        noise = self.shares**2 @ square[:first]
        faster = noise + apart + single * self.single(out) + guess * self.guessed
        return np.stack([faster, faster + full * self.full])

    def own_side(self, sides: Floats) -> Floats:
        """Of both sides that on which each row was measured [N]."""
        return np.where(self.log > 0, *sides)

    def weights(self, out: Sequence[str] = ()) -> Floats:
        """Of every row: a family's share by its number of rows [N]."""
        count = Counter(self.family.tolist())
        return np.array(
            [0.0 if name in out else count[name] ** -SPREAD for name in self.family.tolist()]
        )

    def sigmas(self, out: Sequence[str] = (), logs: Floats | None = None) -> Floats:
        """Noise, levels and the rest that fit best: Student's t about 0, by coordinates, from a fit of more rows where there is one."""
        weights = self.weights(out)

        def cost(logs: Floats) -> float:
            total = HOLD * ((logs - np.log(self.start)) ** 2).sum()
            sides = self.variances(np.exp(logs), out)
            tails = np.log1p(self.log**2 / self.own_side(sides) / FREEDOM)
            whole = np.log(np.sqrt(sides).mean(axis=0))  # of a density with two sides
            return float(total + weights @ (whole + (FREEDOM + 1) / 2 * tails))

        step = 0.5 if logs is None else 0.12
        logs = np.log(self.start) if logs is None else logs.copy()
        best = cost(logs)
        while step > 0.05:
            before = best
            for place, sign in itertools.product(range(len(logs)), (1.0, -1.0)):
                trial = logs.copy()
                trial[place] = max(trial[place] + sign * step, math.log(LEAST))
                if (now := cost(trial)) < best:
                    logs, best = trial, now
            if best == before:
                step /= 2
        return np.exp(logs)

    def quantiles(self, sigmas: Floats, out: Sequence[str] = ()) -> Floats:
        """Of residual over sigma, between which `LEVEL` lies; the prediction is always between them [2]."""
        spread = np.sqrt(self.own_side(self.variances(sigmas, out)))
        scores, weights = self.log / spread, self.weights(out)
        low, high = _quantiles(scores, weights, ((1 - LEVEL) / 2, (1 + LEVEL) / 2))
        return np.array([min(low, -0.1), max(high, 0.1)])

    def wider(self, out: Sequence[str] = ()) -> Floats:
        """Factors of each kind by how many families have it: the noise of few may be these families' own [K]."""
        used = ~np.isin(self.family, out)
        return np.array([few(len({*self.family[used & (has > 0)]})) for has in self.shares.T])

    def spread(self, sigmas: Floats, out: Sequence[str] = ()) -> Floats:
        """Sigma of every row where another family measured it, faster than predicted and slower [2, N]."""
        return np.sqrt(self.variances(sigmas, out)) * (self.shares @ self.wider(out))

    def left_out(self, sigmas: Floats) -> Floats:
        """Interval of every row from other families alone: factors of the prediction [N, 2]; small families are left out several at once."""
        ends = np.zeros((len(self.rows), 2))
        count = Counter(self.family.tolist())
        folds: dict[object, list[str]] = {}
        for place, name in enumerate(sorted(count)):
            folds.setdefault(name if count[name] >= LARGE else place % FOLDS, []).append(name)
        for out in folds.values():
            mine = np.isin(self.family, out)
            if mine.all():  # nobody else: the widest interval that the starting values give
                spread = np.sqrt(self.variances(self.start, out)[:, mine])
                ends[mine] = np.exp(spread.T * [-1.28, 1.28])
                continue
            fitted = self.sigmas(out, np.log(sigmas))
            spread = self.spread(fitted, out)[:, mine]
            ends[mine] = np.exp(-spread.T * self.quantiles(fitted, out)[::-1])
        return ends


def _noise(start: float | Mapping[str, float], kind: str) -> float:
    """Sigma that a part starts from."""
    return start[kind] if isinstance(start, Mapping) else start


def _assumed_level(chip: str) -> bool:
    """Whether the rate of a chip's products was carried over or recalled, not fitted to measured ones."""
    try:
        family = accelerator(chip).family
    except MpsimError:
        return True  # a label of benchmarks alone
    level = choose_group("kernels", "gemm", chip, family)["burst_fraction"]
    return level.status is not Status.CALIBRATED


def few(families: int) -> float:
    """Factor by which quantiles seen in few families are too narrow for another one: Student's t over the normal distribution, and the error of a mean.

    Examples
    --------
    >>> round(few(4), 2), round(few(40), 2)
    (1.42, 1.03)
    """
    if families < 2:
        return 3.0
    free = families - 1
    z = 1.2816
    # expansion of the quantile of t in 1 / degrees of freedom (Abramowitz and Stegun 26.7.5); too low by 3 % for 2, by a third for 1
    t = z + (z**3 + z) / (4 * free) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * free**2)
    return t / z * math.sqrt(1 + 1 / families)


def _quantiles(values: Floats, weights: Floats, shares: Sequence[float]) -> list[float]:
    order = np.argsort(values)
    reach = np.cumsum(weights[order]) - 0.5 * weights[order]
    return np.interp(shares, reach / weights.sum(), values[order]).tolist()


class Pair(NamedTuple):
    """Two runs of one group: what is left of their residuals, and the kinds of decision that they differ in."""

    apart: float
    family: str
    kinds: frozenset[str]
    ahead: float  # ln of predicted times
    measured: float


def pairs(rows: Sequence[Residual]) -> list[Pair]:
    """Pairs of runs of one model on as many accelerators of one kind; what their notes tell apart is left out."""
    groups: dict[str, list[Residual]] = {}
    for row in rows:
        if row.group:
            groups.setdefault(row.group, []).append(row)
    return [
        Pair(
            abs(a.log - b.log),
            a.family,
            _kinds(a.cells, b.cells),
            b.time - a.time,
            (b.time - b.log) - (a.time - a.log),
        )
        for group in groups.values()
        for a, b in itertools.combinations(group, 2)
        if all(
            a.cells.text(name) == b.cells.text(name) for name in ("accelerator", "overlap_notes")
        )
    ]


def _kinds(a: Cells, b: Cells) -> frozenset[str]:
    return frozenset(kind for column, kind in KINDS.items() if a.text(column) != b.text(column))


def halves(
    found: Sequence[Pair], dense: Mapping[str, float], without: str = ""
) -> dict[str, float]:
    """Half-widths at `LEVEL` by kind of decision, of pairs that differ in this alone, a family left out; those with too few pairs as in `dense`.

    Experts were never measured with ep alone: its share is what the other kinds of a pair leave.
    """
    mine = [pair for pair in found if pair.family != without]
    single = {kind: [pair for pair in mine if pair.kinds == {kind}] for kind in KINDS.values()}
    single["same"] = [pair for pair in mine if not pair.kinds]
    known = {kind: _half(chosen) for kind, chosen in single.items() if len(chosen) >= FEWEST}
    known = {**dense, **known}
    if "ep" not in known and len(mixed := [pair for pair in mine if "ep" in pair.kinds]) >= FEWEST:
        rest = [
            pair.apart**2 - sum(known.get(kind, 0.0) ** 2 for kind in pair.kinds) for pair in mixed
        ]
        left = [
            pair._replace(apart=math.sqrt(max(0.0, each)))
            for pair, each in zip(mixed, rest, strict=True)
        ]
        known["ep"] = _half(left)
    return known


def _half(found: Sequence[Pair]) -> float:
    """Half-width that `LEVEL` of pairs keep, families weighing as in the fits."""
    count = Counter(pair.family for pair in found)
    # so many pairs have sqrt(2 x pairs) runs, whose weight they share
    share = {family: (2 * pairs) ** ((1 - SPREAD) / 2) / pairs for family, pairs in count.items()}
    weights = np.array([share[pair.family] for pair in found])
    return _quantiles(np.array([pair.apart for pair in found]), weights, [LEVEL])[0]


def half_of(known: Mapping[str, float], kinds: frozenset[str]) -> float:
    """As `mpsim.result.residuals.Residuals.difference` has it for one stack."""
    worst = max(known.values())
    square = sum(known.get(kind, worst) ** 2 for kind in kinds)
    return math.sqrt(max(known.get("same", 0.0) ** 2, square))


class Differences(NamedTuple):
    """Half-widths of a figure, and by kinds how many pairs and families there are and the share that families left out hold."""

    known: dict[str, float]
    found: list[Pair]
    held: list[bool]

    @classmethod
    def of(cls, rows: Sequence[Residual], dense: Mapping[str, float]) -> Differences:
        found = pairs(rows)
        out = {family: halves(found, dense, family) for family in {pair.family for pair in found}}
        held = [
            pair.apart <= half_of(out[pair.family] or {"": math.inf}, pair.kinds) for pair in found
        ]
        return cls(halves(found, dense), found, held)

    def rows(self) -> Iterator[tuple[str, float, int, int, float]]:
        """Kind, half-width, pairs that differ in this alone, their families, and the share of them held."""
        for kind, half in self.known.items():
            only = frozenset({kind} - {"same"})
            mine = [
                (pair, held)
                for pair, held in zip(self.found, self.held, strict=True)
                if pair.kinds == only
            ]
            share = sum(held for _, held in mine) / len(mine) if mine else math.nan
            yield kind, half, len(mine), len({pair.family for pair, _ in mine}), share


def whole_requests(rows: Sequence[Residual], fitted: Mapping[str, Fitted]) -> Fitted:
    """E2E beside the fits of its parts, whose intervals without its family, by share, add in squares: as `mpsim.serving.confidence.request_interval` has it."""
    squares = np.zeros((len(rows), 2))
    for figure in ("ttft", "tpot"):
        one = fitted[figure]
        mine = [dataclasses.replace(row, figure=figure) for row in rows]
        fit = Fit(figure, [*one.fit.rows, *mine])
        alone = {row.family for row in rows} - {*one.fit.family.tolist()}
        spread = fit.spread(one.sigmas, sorted(alone))[:, -len(rows) :]
        logs = -spread.T * one.quantiles[::-1]
        known = {row.id: place for place, row in enumerate(one.fit.rows)}
        for place, row in enumerate(rows):  # the part of the same row, where it was measured
            if (other := known.get(row.id.replace("#e2e", f"#{figure}"))) is not None:
                logs[place] = np.log(one.ends[other])
        squares += (np.array([row.setting.shares[figure] for row in rows])[:, None] * logs) ** 2
    ends = np.exp(np.sqrt(squares) * [-1.0, 1.0])
    return Fitted(Fit("tpot", rows), one.sigmas, one.quantiles, ends)


def differences(rows: Sequence[Residual]) -> dict[str, Differences]:
    """Those of dense models, and of experts, which borrow the kinds that nobody measured on them."""
    dense = Differences.of([row for row in rows if row.figure == "step"], {})
    mine = [row for row in rows if row.figure == "step-experts"]
    return {"step": dense, "step-experts": Differences.of(mine, dense.known)}


def differences_yaml(known: Mapping[str, Differences]) -> str:
    """The file that `mpsim.result.residuals` reads."""
    lines = [
        "# Half-widths, at 80 %, of ln of the ratio of two step times by what two runs differ in; of several kinds they add in squares. Written by validation/intervals.py.",
        "# Figure, kind, half-width, pairs that differ in this alone, their families, share of these pairs held with their family left out. Without pairs: as of dense models, or what other kinds leave (ep).",
        "source: measured pairs of one family, model and number of accelerators in validation/data/published-runs.csv and single-node-runs.csv",
        "rows:",
    ]
    for figure, each in known.items():
        lines += [
            f"  - [{figure}, {kind}, {half:.4f}, {count}, {families}, {'null' if math.isnan(held) else f'{held:.2f}'}]"
            for kind, half, count, families, held in each.rows()
        ]
    return "\n".join([*lines, ""])


@dataclasses.dataclass(frozen=True, slots=True)
class Fitted:
    """A figure with its fit: what is shipped, and what each family left out gets."""

    fit: Fit
    sigmas: Floats
    quantiles: Floats
    ends: Floats

    @classmethod
    def of(cls, figure: str, rows: Sequence[Residual]) -> Fitted:
        fit = Fit(figure, rows)
        sigmas = fit.sigmas()
        return cls(fit, sigmas, fit.quantiles(sigmas), fit.left_out(sigmas))

    @property
    def held(self) -> NDArray[np.bool_]:
        """Which measured figures lie in their left-out interval [N]."""
        measured = np.exp(-self.fit.log)
        return (self.ends[:, 0] <= measured) & (measured <= self.ends[:, 1])

    def to_yaml(self, digest: str) -> str:
        fit = self.fit
        names, place, lines = list(fit.attributes), len(fit.kinds), []
        noise, usual, wider = (
            f"{{{', '.join(f'{_text(kind)}: {each:.4f}' for kind, each in zip(fit.kinds, row, strict=False))}}}"
            for row in (self.sigmas, fit.shares.mean(axis=0), fit.wider())
        )
        for name, levels in fit.attributes.items():
            lines.append(
                f"  {name}: [{', '.join(f'{each:.4f}' for each in self.sigmas[place : place + len(levels)])}]"
            )
            place += len(levels)
        runs = sorted(fit.runs, key=lambda run: (run.family, str(run.labels)))
        rows = [
            f"  - [{', '.join([_text(run.family), *(_text(' < '.join(run.labels[name])) for name in names), f'{run.smallest:.6g}', f'{run.largest:.6g}', str(run.rows), f'{run.mean_abs_error:.4f}', f'{run.bias:.4f}'])}]"
            for run in runs
        ]
        head = [
            "# Residuals of predictions with names hidden and families left out. Written by validation/intervals.py; see mpsim/result/residuals.py for what the numbers mean.",
            f"# Runs: family, {', '.join(names)}, smallest and largest size, rows, mean absolute error, bias.",
            f"digest: {digest}",
            f"rows: {len(fit.rows)}",
            f"families: {len(set(fit.family.tolist()))}",
            f"noise: {noise}",
            f"wider: {wider}",
            *([f"usual: {usual}"] if fit.timed else []),
            *(
                f"{name}: {sigma:.4f}"
                for name, sigma in zip(REST, self.sigmas[-len(REST) :], strict=True)
                if name != "full" or fit.timed
            ),
            f"most_doublings: {MOST_DOUBLINGS:g}",
            f"quantiles: {np.round(self.quantiles, 3).tolist()}",
            f"several: [{', '.join(_text(name) for name in fit.chips[(fit.measured.sum(axis=1) > 1) & ~fit.assumed])}]",
            "attributes:",
        ]
        return "\n".join([*head, *lines, "runs:", *rows, ""])


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def table(fitted: Mapping[str, Fitted]) -> str:
    """Residuals of training runs with their left-out intervals, as CSV."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    columns = ("framework", "accelerator", "format", "length", "model")
    writer.writerow(
        ["id", "family", "figure", *columns, "size", "log_error", "refit", "low", "high"]
    )
    for figure in TRAINING:
        if figure not in fitted:
            continue
        for row, (low, high) in zip(fitted[figure].fit.rows, fitted[figure].ends, strict=True):
            labels = [row.setting.labels[name][0] for name in columns]
            writer.writerow(
                [
                    row.id,
                    row.family,
                    figure,
                    *labels,
                    f"{row.setting.size:g}",
                    f"{row.log:.5f}",
                    f"{row.shift:.5f}" if row.shift else "",
                    f"{low:.4f}",
                    f"{high:.4f}",
                ]
            )
    return buffer.getvalue()


def section(fitted: Mapping[str, Fitted], apart: Mapping[str, Differences]) -> list[str]:
    """Coverage and width of left-out intervals, for accuracy.md."""
    lines = [
        f"{HEADING}\n",
        (
            "Every figure gets an 80 % interval. Here each family is predicted with its names hidden and its interval comes from the other families alone: their residuals by parts of the account and by distance in "
            "framework, accelerator, number format, sequence length and scale (`mpsim/result/residuals.py`). Coverage: measured figures inside. Width: high over low less 1, the median. "
            "Asked for: 75 to 87 % of all step times, 65 % of each family of 20 or more. Written by `python validation/intervals.py`; every residual is in [residuals.csv](residuals.csv).\n"
        ),
        "| figure | family | figures | covered | width |",
        "| --- | --- | ---: | ---: | ---: |",
    ]
    for figure in (*FIGURES, "e2e"):
        if figure not in fitted:
            continue
        one = fitted[figure]
        width = one.ends[:, 1] / one.ends[:, 0] - 1
        count = Counter(one.fit.family.tolist())
        lines.append(
            f"| {figure} | all {len(count)} | {len(width)} | {one.held.mean():.0%} | {np.median(width):.0%} |"
        )
        for name, number in count.most_common():
            if number >= LARGE:
                mine = one.fit.family == name
                lines.append(
                    f"| | {name} | {number} | {one.held[mine].mean():.0%} | {np.median(width[mine]):.0%} |"
                )
        small = np.array([count[name] < LARGE for name in one.fit.family.tolist()])
        if small.any():
            lines.append(
                f"| | {sum(number < LARGE for number in count.values())} smaller ones | {small.sum()} | {one.held[small].mean():.0%} | {np.median(width[small]):.0%} |"
            )
    return [*lines, "", *classes(fitted), *choices(apart)]


class Judged(NamedTuple):
    """Intervals of one class: factors of the predictions [N, 2], and ln(predicted / measured) [N]."""

    title: str
    ends: Floats
    log: Floats

    @property
    def sides(self) -> tuple[float, float]:
        """Shares that were measured under the lower end, and over the upper one."""
        measured = np.exp(-self.log)
        return (
            float((measured < self.ends[:, 0]).mean()),
            float((measured > self.ends[:, 1]).mean()),
        )

    @property
    def inside(self) -> float:
        """Share between the ends."""
        return 1 - sum(self.sides)

    @property
    def width(self) -> Floats:
        """Upper over lower end [N]."""
        ratio: Floats = self.ends[:, 1] / self.ends[:, 0]
        return ratio

    @property
    def ranks(self) -> float:
        """Rank correlation of width and error."""
        return rank_correlation(self.width, np.abs(self.log))

    @property
    def ranks_if_true(self) -> float:
        """The same of errors drawn from a normal distribution as wide as each interval: as much as these widths can have."""
        spread, random = np.log(self.width), np.random.default_rng(0)
        draws = (np.abs(spread * random.standard_normal(len(spread))) for _ in range(DRAWS))
        return float(np.mean([rank_correlation(self.width, errors) for errors in draws]))

    def __str__(self) -> str:
        under, over = self.sides
        return (
            f"| {self.title} | {len(self.log)} | {self.inside:.0%} | {under:.0%} | {over:.0%} | {np.median(self.width) - 1:.0%} | "
            f"{self.ranks:.2f} | {self.ranks_if_true:.2f} |"
        )


def rank_correlation(a: Floats, b: Floats) -> float:
    """Spearman's: the correlation of ranks, equal values sharing theirs."""
    ranks = []
    for values in (a, b):
        _, place, count = np.unique(np.round(values, 9), return_inverse=True, return_counts=True)
        ranks.append((np.cumsum(count) - (count - 1) / 2)[place])
    return float(np.corrcoef(*ranks)[0, 1]) if all(np.ptp(each) for each in ranks) else math.nan


def classes(fitted: Mapping[str, Fitted]) -> list[str]:
    """Coverage of both sides, width, and whether wider intervals are of larger errors, by what is known of a run."""
    step = fitted["step"]
    known = np.array([bool(row.setting.labels["framework"][0]) for row in step.fit.rows])
    node = np.isin(step.fit.family, ON_NODE)
    parts = {"known stacks": known & ~node, "unknown stacks": ~known, "sweeps on one node": node}
    judged = [
        Judged(f"dense, {name}", step.ends[chosen], step.fit.log[chosen])
        for name, chosen in parts.items()
    ]
    judged += [
        Judged(title, fitted[figure].ends, fitted[figure].fit.log)
        for title, figure in (("experts", "step-experts"), ("peak memory", "memory"))
    ]
    memo.forget()  # plans read the files that were just written
    hours = [plan for plan in plans.planned(plans.PLANS)[0] if plan.scored]
    ends = [plan.record.interval for plan in hours]
    judged.append(
        Judged(
            "GPU-hours",
            np.array(
                [
                    [
                        end.low / (plan.record.predicted or 1.0),
                        end.high / (plan.record.predicted or 1.0),
                    ]
                    for plan, end in zip(hours, ends, strict=True)
                    if end
                ]
            ),
            np.log1p([plan.error for plan in hours]),
        )
    )
    return [
        (
            "A stack is unknown where no rule knows it and another stands in for it. Asked for: 75 to 87 % of each class inside, and a rank correlation (Spearman) of width and error of 0.4; the last column is what errors drawn from these widths have.\n"
        ),
        "| class | figures | inside | faster than the lower end | slower than the upper end | width | width against error | if widths were true |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
        *map(str, judged),
        "",
    ]


def choices(apart: Mapping[str, Differences]) -> list[str]:
    """How far differences of two runs are known by what these differ in, and how often those told apart were measured in that order."""
    lines = [
        (
            "Differences of two runs of one family, model and number of accelerators: half-widths by what they differ in, and the share of pairs that lie within with their family left out "
            "(what two runs differ in adds in squares; `mpsim/result/data/differences.yaml`). No pair differs in cp alone, which takes the widest.\n"
        ),
        "| figure | differ in | half-width | pairs | families | held, family left out |",
        "| --- | --- | ---: | ---: | ---: | ---: |",
    ]
    for figure, each in apart.items():
        for kind, half, count, families, share in each.rows():
            text = f"{share:.0%}" if count else "-"
            lines.append(f"| {figure} | {kind} | {half:.1%} | {count} | {families} | {text} |")
        whole, text = len(each.found), f"{np.mean(each.held):.0%}"
        lines.append(
            f"| {figure} | anything | | {whole} | {len({pair.family for pair in each.found})} | {text} |"
        )
    lines += [
        "",
        "Two runs *tie* where the interval of their difference holds zero. Of all such pairs:\n",
        "| figure | pairs | told apart | of them in the measured order | ties | of them in the measured order |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for figure, each in apart.items():
        right: dict[bool, list[bool]] = {False: [], True: []}
        for pair in each.found:
            if pair.ahead:
                tied = abs(pair.ahead) <= half_of(each.known, pair.kinds)
                right[tied].append(pair.ahead * pair.measured > 0)
        told, level = right[False], right[True]
        if told and level:
            count = len(told) + len(level)
            lines.append(
                f"| {figure} | {count} | {len(told) / count:.0%} | {np.mean(told):.1%} | {len(level) / count:.0%} | {np.mean(level):.1%} |"
            )
    return [*lines, ""]


def fastest_yaml() -> str:
    """The most model FLOP/s that was measured on each accelerator in each format, of dense models and of experts."""
    best: dict[tuple[str, ...], tuple[float, str]] = {}
    with (DATA / "published-runs.csv").open(encoding="utf-8", newline="") as file:
        rates = {run["id"]: run["check_model_tflops_per_accel"] for run in csv.DictReader(file)}
    with TABLE.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            if (
                row["figure"] in ("step", "step-experts")
                and row["family"] not in PARTS
                and rates.get(row["id"])
            ):
                kind = tuple(row[name] for name in FASTEST_BY)
                best[kind] = max(best.get(kind, (0.0, "")), (float(rates[row["id"]]), row["id"]))
    lines = [
        "# The fastest measured training of each kind. Written by validation/intervals.py.",
        f"# {', '.join(FASTEST_BY)}, model TFLOP/s of an accelerator, row of validation/data/published-runs.csv.",
        "source: validation/data/published-runs.csv, column check_model_tflops_per_accel",
        "rows:",
        *(
            f"  - [{', '.join(map(_text, kind))}, {rate:g}, {_text(run)}]"
            for kind, (rate, run) in sorted(best.items())
        ),
    ]
    return "\n".join([*lines, ""])


def rewrite(rows: Sequence[Residual]) -> list[str]:
    """Fit, write every file, and return the section of accuracy.md."""
    fitted = {
        figure: Fitted.of(figure, mine)
        for figure in FIGURES
        if (mine := [row for row in rows if row.figure == figure])
    }
    text = table(fitted)
    TABLE.write_text(text, encoding="utf-8")
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    for figure, one in fitted.items():
        (SHIPPED / f"{figure}.yaml").write_text(one.to_yaml(digest), encoding="utf-8")
    apart = differences(rows)
    DIFFERENCES.write_text(differences_yaml(apart), encoding="utf-8")
    FASTEST.write_text(fastest_yaml(), encoding="utf-8")
    if whole := [row for row in rows if row.figure == "e2e"]:
        fitted["e2e"] = whole_requests(whole, fitted)
    return section(fitted, apart)


def main() -> None:
    """Predict, fit, write."""
    lines = rewrite(refitted(predicted(), last_shift()))
    page = PAGE.read_text(encoding="utf-8")
    before, _, rest = page.partition(HEADING)
    after = rest.partition(NEXT)[2] if rest else ""
    if rest:
        page = before + "\n".join(lines) + "\n## " + after
    else:
        first, _, later = page.partition("## Families")
        page = first + "\n".join(lines) + "\n## Families" + later
    PAGE.write_text(page, encoding="utf-8")
    sys.stdout.write("\n".join(lines))


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    main()
