"""Measured sweeps of NCCL and RCCL, predicted.

Covers: the 2,998 rows of validation/data/collectives.csv (sources in its first column), scored by machine, collective and group.
Question: how far is the collective cost model from what was measured, and how much of that is fit?

Run from the repository's root: python validation/collectives.py. It rewrites validation/collectives.md.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mpsim.cost import CollectiveModel

sys.path.insert(0, str(Path(__file__).resolve().parent))

from collectives_data import Sweep, load_sweeps
from collectives_fit import fitted, key_of

Floats = NDArray[np.float64]
SMALL, LARGE = 2.0**16, 512e6
BARS = {
    False: (8.0, 25.0, 4.0, 15.0),
    True: (15.0, None, 6.0, 15.0),
}  # crosses: median, p90, large, small
Model = Callable[[Sweep], Floats]


def predicted(sweep: Sweep) -> Floats:
    """Times of the shipped model on a quiet network [s]."""
    return harnessed(CollectiveModel(sweep.cluster, loaded=False), sweep)


def harnessed(model: CollectiveModel, sweep: Sweep) -> Floats:
    """Times as the sweep's way of timing shows them [s]."""
    return model.seconds(sweep.kind, sweep.sizes, sweep.group)


def refitted(sweeps: Sequence[Sweep]) -> dict[int, Floats]:
    """Times of each one-node sweep with the curve fitted on the others; by other group sizes where it was the only one."""
    result = {}
    for i, sweep in enumerate(sweeps):
        if sweep.group.crosses or sweep.apart or sweep.harness:
            continue
        rest = [other for j, other in enumerate(sweeps) if j != i]
        found = fitted(other for other in rest if alike(other, sweep))
        model = CollectiveModel(sweep.cluster, loaded=False)
        ranks = sorted(k[2] for k in found)
        if not ranks:
            continue
        inside = model._inside
        constants = dict(inside.constants)
        for (_, kind, n), leaves in found.items():
            for leaf, value in leaves.items():
                name = f"{leaf}_{kind}_{n}"
                some = inside[f"{leaf}_{kind}_{inside.words['ranks'][0]}"]
                constants[name] = dataclasses.replace(some, value=value)
        words = {**inside.words, "ranks": tuple(map(str, ranks))}
        model._inside = dataclasses.replace(inside, constants=constants, words=words)
        result[i] = harnessed(model, sweep)
    return result


def alike(other: Sweep, sweep: Sweep) -> bool:
    """Whether both are on the same curve but for the group size."""
    (link, kind, _), (at, of, _) = key_of(other), key_of(sweep)
    return link == at and kind == of and not other.group.crosses


@dataclasses.dataclass(frozen=True, slots=True)
class Score:
    """Absolute errors [%] of one sweep: median and 90th percentile from 64 KiB, median from 512 MB, median below 64 KiB."""

    points: int
    median: float
    p90: float
    large: float
    small: float

    @classmethod
    def of(cls, sizes: Floats, times: Floats, predictions: Floats) -> Score:
        error = 100 * np.abs(predictions / times - 1)
        rest = error[sizes >= SMALL]
        return cls(
            len(sizes),
            _median(rest),
            float(np.percentile(rest, 90)) if rest.size else np.nan,
            _median(error[sizes >= LARGE]),
            _median(error[sizes < SMALL]),
        )

    def cells(self) -> list[str]:
        return [_cell(x) for x in (self.median, self.p90, self.large, self.small)]

    def misses(self, *, crosses: bool) -> bool:
        mine = (self.median, self.p90, self.large, self.small)
        return any(bar is not None and x > bar for x, bar in zip(mine, BARS[crosses], strict=True))


def _median(errors: Floats) -> float:
    return float(np.median(errors)) if errors.size else np.nan


def _cell(x: float) -> str:
    return "" if np.isnan(x) else f"{x:.1f}"


def table(
    sweeps: Sequence[Sweep], keep: Callable[[Sweep], bool], others: dict[int, Floats]
) -> list[str]:
    """One row a sweep."""
    lines = [
        "| machine | collective | GPUs | nodes | points | median | p90 | >= 512 MB | < 64 KiB | left out: median | bar |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | --- |",
    ]
    for i, sweep in enumerate(sweeps):
        if not keep(sweep):
            continue
        score = Score.of(sweep.sizes, sweep.times, predicted(sweep))
        out = Score.of(sweep.sizes, sweep.times, others[i]).median if i in others else np.nan
        missed = "missed" if score.misses(crosses=sweep.group.crosses) else "ok"
        note = sweep.apart or sweep.harness
        title = sweep.title + (f" ({note})" if note else "")
        cells = [
            title,
            sweep.kind,
            str(sweep.group.ranks),
            str(sweep.group.domains),
            str(score.points),
        ]
        lines.append("| " + " | ".join([*cells, *score.cells(), _cell(out), missed]) + " |")
    return lines


if __name__ == "__main__":
    every = load_sweeps()
    others = refitted(every)
    print("\n".join(table(every, lambda s: not s.group.crosses and not s.apart, others)))
    print("\n".join(table(every, lambda s: s.group.crosses and not s.apart, others)))
    print("\n".join(table(every, lambda s: bool(s.apart), others)))
