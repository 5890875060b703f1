"""Decision tables: the algorithm a library runs by collective, ranks and bytes, read from ``mpsim/cost/data/decisions.yaml``."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

from mpsim.memo import remembered
from mpsim.shipped import read_shipped

__all__ = ["Band", "DecisionTable", "Rung", "decision_table"]


@dataclasses.dataclass(frozen=True, slots=True)
class Rung:
    """An algorithm, and the size below which it runs.

    Parameters
    ----------
    below : float
        [B]; infinite for the last one.
    per_rank : bool
        Whether `below` is of S over the ranks.
    """

    below: float
    algorithm: str
    per_rank: bool


@dataclasses.dataclass(frozen=True, slots=True)
class Band:
    """The rungs of a range of group sizes.

    Parameters
    ----------
    powers : bool
        Whether only powers of two fit.
    rungs : tuple of Rung
        Smallest size first.
    """

    ranks_below: float
    powers: bool
    rungs: tuple[Rung, ...]

    def fits(self, ranks: int) -> bool:
        """Whether the band is for a group of `ranks`."""
        return ranks < self.ranks_below and not (self.powers and ranks & (ranks - 1))


@dataclasses.dataclass(frozen=True, slots=True)
class DecisionTable:
    """The rules of one library.

    Parameters
    ----------
    bands : mapping of str to tuple of Band
        By collective; the first band that fits counts.
    """

    version: str
    source: str
    as_of: str
    bands: Mapping[str, tuple[Band, ...]]

    def regimes(self, kind: str, ranks: int) -> tuple[tuple[float, str], ...]:
        """Sizes S below which each algorithm runs, smallest first [B]; the last one is infinite."""
        band = next(band for band in self.bands[kind] if band.fits(ranks))
        return tuple(
            (rung.below * (ranks if rung.per_rank else 1), rung.algorithm) for rung in band.rungs
        )

    def algorithm(self, kind: str, size: float, ranks: int) -> str:
        """Algorithm that runs for S bytes."""
        return next(name for below, name in self.regimes(kind, ranks) if size < below)


@remembered(16)
def decision_table(name: str) -> DecisionTable:
    """The table of a library (``openmpi``, ``mpich``, ``gloo``)."""
    entry = read_shipped("mpsim.cost.data", "decisions.yaml")[name]
    bands = {str(kind): tuple(_bands(rules)) for kind, rules in entry["rules"].items()}
    return DecisionTable(str(entry["version"]), str(entry["source"]), str(entry["as_of"]), bands)


def _bands(rules: Mapping[str, Sequence[Mapping[str, object]]]) -> list[Band]:
    per_rank = bool(rules.get("per_rank", False))
    return [_band(entry, per_rank=per_rank) for entry in rules["bands"]]


def _band(entry: Mapping[str, object], *, per_rank: bool) -> Band:
    sizes, ranks = entry["sizes"], entry.get("ranks_below", math.inf)
    assert isinstance(sizes, list)
    assert isinstance(ranks, int | float)
    rungs = [Rung(float(rung[0]), str(rung[1]), per_rank or len(rung) > 2) for rung in sizes]
    rungs.append(Rung(math.inf, str(entry["beyond"]), per_rank=False))
    return Band(ranks, bool(entry.get("powers", False)), tuple(rungs))
