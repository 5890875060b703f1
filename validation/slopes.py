"""Slopes of the error against what a run is: does the model drift with width, tensor parallelism, accelerators, pipeline depth, length of sequences or the number format?

Shapes: N rows, G groups.

`validation/accuracy.py` prints the section and draws the picture; names of families and sources are hidden, and rows are dense and complete.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from accuracy_fit import cells_of
from mpsim.formats.tables import Cells
from mpsim.validate import Record

__all__ = ["draw", "section"]

Floats = NDArray[np.float64]

_NARROW = ("fp8", "float8", "fp4", "mx")


def _narrow(cells: Cells) -> float:
    """1 for products in 8 or 4 bits."""
    words = cells.text("precision").lower()
    return float(any(word in words for word in _NARROW))


def _log2(column: str) -> Callable[[Cells], float]:
    return lambda cells: math.log2(cells.number(column) or 1.0)


def _tp(*, inside: bool) -> Callable[[Cells], float]:
    """Doublings of tp up to a node's accelerators, or beyond them."""

    def value(cells: Cells) -> float:
        node, tp = cells.number("accel_per_node") or 8.0, cells.number("tp") or 1.0
        return math.log2(min(tp, node) if inside else max(tp, node))

    return value


@dataclasses.dataclass(frozen=True, slots=True)
class Axis:
    """Something that runs differ in.

    Parameters
    ----------
    title : str
    value : callable
        Of a row.
    free : tuple of str
        Columns that may differ between the rows of a ladder, beside those of no other axis.
    """

    title: str
    value: Callable[[Cells], float]
    free: tuple[str, ...]


_SHAPE = (
    *("model", "accelerator", "framework", "recompute", "zero_stage", "schedule", "cp"),
    *("num_accel", "global_batch_seqs", "micro_batch_seqs", "dp", "tp", "pp", "seq_len"),
    *("precision", "overlap_notes"),
)
_AXES = (
    Axis(
        "doubling of hidden",
        _log2("hidden"),
        (
            "dp",
            "micro_batch_seqs",
            "tp",
            "pp",
            "model",
            "global_batch_seqs",
            "recompute",
            "schedule",
        ),
    ),
    Axis("doubling of tp inside a node", _tp(inside=True), ("tp", "dp")),
    Axis("doubling of tp across nodes", _tp(inside=False), ("tp", "dp")),
    Axis("doubling of accelerators", _log2("num_accel"), ("num_accel", "dp", "global_batch_seqs")),
    Axis("doubling of pp", _log2("pp"), ("pp", "dp", "schedule")),
    Axis(
        "doubling of the sequence",
        _log2("seq_len"),
        ("seq_len", "micro_batch_seqs", "global_batch_seqs"),
    ),
    Axis("8 or 4 bits instead of 16", _narrow, ("precision",)),
)
BAR = 0.015  # of ln(predicted / measured) that a doubling may move
_WORD = 30  # letters of a cell that names a ladder; longer ones are sentences
LEAST = 3  # rows that make a ladder of its own line


@dataclasses.dataclass(frozen=True, slots=True)
class Slope:
    """A regression of log errors on one axis.

    Parameters
    ----------
    value, sigma : float
        Sigma takes rows of a family as one draw (cluster-robust).
    rows : int
        That tell anything: of groups that differ along the axis.
    """

    value: float
    sigma: float
    rows: int

    def __str__(self) -> str:
        mark = "" if abs(self.value) <= self.sigma else " *"
        return f"{100 * self.value:+.2f} ± {100 * self.sigma:.2f}{mark}"


def _slope(x: Floats, error: Floats, group: NDArray[np.int64], family: NDArray[np.int64]) -> Slope:
    """Slope with a mean of its own for every group, and sigma over families."""
    x, error = (values - _means(values, group) for values in (x, error))
    spread = float(x @ x)
    if not spread:
        return Slope(0.0, 0.0, 0)
    value = float(x @ error) / spread
    score = np.bincount(family, weights=x * (error - value * x))
    tell = np.bincount(family, weights=x * x) > 0
    count = int(tell.sum())
    correction = count / max(count - 1, 1)
    sigma = math.sqrt(correction * float(score @ score)) / spread
    return Slope(value, sigma, int((x != 0).sum()))


def _means(values: Floats, group: NDArray[np.int64]) -> Floats:
    """Mean of each value's group [N]."""
    means: Floats = (np.bincount(group, weights=values) / np.bincount(group))[group]
    return means


def _numbered(keys: Sequence[object]) -> NDArray[np.int64]:
    number = {key: place for place, key in enumerate(dict.fromkeys(keys))}
    return np.array([number[key] for key in keys])


def _table(
    records: Sequence[Record], hidden: Mapping[str, float]
) -> list[tuple[Axis, list[Slope]]]:
    """For each axis: slopes over all rows, within families, and within ladders."""
    cells = [cells_of(record).cells for record in records]
    error = np.array([math.log1p(hidden[record.id]) for record in records])
    names = [record.family for record in records]
    family = _numbered(names)
    slopes = []
    for axis in _AXES:
        x = np.array([axis.value(row) for row in cells])
        ladder = np.zeros(len(x), dtype=np.int64)
        for number, rows in enumerate(_ladders(axis, cells, names).values()):
            ladder[rows] = number
        groups = (np.zeros(len(x), dtype=np.int64), family, ladder)
        slopes.append((axis, [_slope(x, error, group, family) for group in groups]))
    return slopes


def _ladders(
    axis: Axis, cells: Sequence[Cells], names: Sequence[str]
) -> dict[tuple[str, ...], list[int]]:
    """Rows of a family that differ along an axis and in what it frees."""
    kept = [column for column in _SHAPE if column not in axis.free]
    found: dict[tuple[str, ...], list[int]] = {}
    for place, (name, row) in enumerate(zip(names, cells, strict=True)):
        found.setdefault((name, *(row.text(column) for column in kept)), []).append(place)
    return found


@dataclasses.dataclass(frozen=True, slots=True)
class Ladder:
    """Rows of a family that differ in nothing but an axis and what goes with it.

    Parameters
    ----------
    axis, title : str
    rows : int
    reach : float
        Range of the axis [doublings].
    slope, sigma : float
        Change of the error a doubling, and what the scatter around it leaves open.
    """

    axis: str
    title: str
    rows: int
    reach: float
    slope: float
    sigma: float

    @property
    def kept(self) -> bool:
        """Whether a doubling moves the error by no more than `BAR`."""
        return abs(self.slope) <= BAR


def ladders(records: Sequence[Record], hidden: Mapping[str, float]) -> list[Ladder]:
    """Every ladder of `LEAST` rows and a doubling or more."""
    cells = [cells_of(record).cells for record in records]
    error = np.array([math.log1p(hidden[record.id]) for record in records])
    names = [record.family for record in records]
    found = []
    for axis in _AXES[:-1]:
        x = np.array([axis.value(row) for row in cells])
        for key, rows in _ladders(axis, cells, names).items():
            along, across = x[rows], error[rows]
            if len(rows) < LEAST or np.ptp(along) < 1:
                continue
            slope, level = np.polyfit(along, across, 1)
            rest = float(np.var(across - slope * along - level)) * len(rows) / (len(rows) - 2)
            sigma = math.sqrt(rest / (float(np.var(along)) * len(rows)))
            title = " ".join(part for part in dict.fromkeys(key) if 0 < len(part) <= _WORD)
            reach = float(np.ptp(along))
            found.append(Ladder(axis.title, title, len(rows), reach, float(slope), sigma))
    return found


def _missed_section(
    records: Sequence[Record], hidden: Mapping[str, float], traps: Collection[str]
) -> list[str]:
    """How many ladders keep the bar, with traps and without, and those that do not, the steepest first."""
    found = ladders(records, hidden)
    clean = ladders([record for record in records if record.id not in traps], hidden)
    lines = [
        f"\nLadders of {LEAST} rows and a doubling or more, and how many keep within {BAR:.1%} a doubling, with traps and without:\n",
        "| a | ladders | keep the bar | median slope | without traps |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for title, group in itertools.groupby(found, key=lambda each: each.axis):
        own, rest = [*group], [each for each in clean if each.axis == title]
        middle = np.median([each.slope for each in own])
        apart = f"{sum(each.kept for each in rest)} of {len(rest)}"
        kept = sum(each.kept for each in own)
        lines.append(f"| {title} | {len(own)} | {kept} | {middle:+.2%} | {apart} |")
    lines += [
        "\nThose that miss, each with what its own scatter leaves open:\n",
        "| a | ladder | rows | doublings | slope |",
        "| --- | --- | ---: | ---: | ---: |",
    ]
    lines += [
        f"| {each.axis} | {each.title} | {each.rows} | {each.reach:.1f} | {each.slope:+.1%} ± {each.sigma:.1%} |"
        for each in sorted(found, key=lambda each: -abs(each.slope))
        if not each.kept
    ]
    return lines


def section(
    records: Sequence[Record], hidden: Mapping[str, float], traps: Collection[str] = ()
) -> list[str]:
    """The slopes as Markdown.

    Parameters
    ----------
    records : sequence of Record
        Dense and complete runs.
    hidden : mapping
        Their errors by id, names hidden.
    traps : collection of str
        Ids of rows that contradict their neighbours.
    """
    lines = [
        "\n## Slopes\n",
        (
            "Change of the error (log, percent) along these axes, over dense complete runs with names hidden: over all rows alike, with a mean of its own for every family, and for every ladder (rows of "
            "a family that differ in nothing else). Sigma takes the rows of a family as one draw. A star marks what is further from 0 than one sigma.\n"
        ),
        "| a | all rows | within families | within ladders (rows) |",
        "| --- | ---: | ---: | ---: |",
    ]
    for axis, (plain, inside, ladders) in _table(records, hidden):
        lines.append(f"| {axis.title} | {plain} | {inside} | {ladders} ({ladders.rows}) |")
    return [
        *lines,
        *_missed_section(records, hidden, traps),
        "\n![Errors along each axis](accuracy-slopes.png)\n",
    ]


def draw(records: Sequence[Record], hidden: Mapping[str, float], path: Path) -> None:
    """Draw every error along each axis, with the mean at each value and the slope over all rows."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    cells = [cells_of(record).cells for record in records]
    error = 100 * np.array([math.log1p(hidden[record.id]) for record in records])
    figure, axes = plt.subplots(2, 4, figsize=(14, 6), sharey=True, layout="constrained")
    random = np.random.default_rng(0)
    for ax, (axis, (slope, *_)) in zip(axes.flat, _table(records, hidden), strict=False):
        x = np.array([axis.value(row) for row in cells])
        beside = random.uniform(-0.15, 0.15, len(x)) * min(1.0, float(np.ptp(x)) / 3)
        ax.plot(x + beside, np.clip(error, -30, 30), ".", color="#4477AA", alpha=0.35, ms=4)
        values = np.unique(x)
        means = [error[x == value].mean() for value in values]
        ax.plot(values, np.clip(means, -30, 30), "o", color="#222222", ms=4)
        line = error.mean() + 100 * slope.value * (values - x.mean())
        ax.plot(values, line, "-", color="#CC3311")
        ax.axhline(0, color="black", linewidth=0.6)
        words = axis.title.removeprefix("doubling of ").removeprefix("the ")
        labelled = words if axis.value is _narrow else f"log2 of {words}"
        ax.set_xlabel(
            f"{labelled}: {100 * slope.value:+.2f} ± {100 * slope.sigma:.2f} %", fontsize=9
        )
    axes.flat[-1].set_axis_off()
    figure.supylabel("error, names hidden (log, %)")
    figure.savefig(path, dpi=120)
    plt.close(figure)
