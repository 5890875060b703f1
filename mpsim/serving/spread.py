"""Values of requests in their order: all of them, or a sketch of how many lie in each of many bins.

The ends of a sketch's bins grow by one per cent: a percentile is within half a per cent of that of
all values; counts and means are exact.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from mpsim.arrays import Floats

BATCHES: Final = 10  # batches of neighbours whose means are nearly independent
GROWTH: Final = 0.01  # of the ends of a sketch's bins
LEAST: Final = 1e-7  # s: what is below counts as that
MANY: Final = 2 * BATCHES  # values that are worth cutting into batches
_BINS: Final = 3200  # up to some 200 days


def batches(values: Floats) -> list[Floats]:
    """Batches of values in their order."""
    return np.array_split(values, BATCHES)


class Values:
    """All values that are finite; figures of none are NaN."""

    def __init__(self) -> None:
        self._finite = self._ordered = np.zeros(0)

    def add(self, batch: int, values: Floats) -> None:
        """Add values; they are cut into batches once all are known."""
        del batch
        self._finite = np.append(self._finite, values[np.isfinite(values)])
        self._ordered = np.sort(self._finite)

    @property
    def count(self) -> int:
        """How many values."""
        return len(self._finite)

    @property
    def mean(self) -> float:
        """Mean of all values."""
        return float(self._finite.mean()) if self.count else math.nan

    @property
    def least(self) -> float:
        """The least value."""
        return float(self._ordered[0])

    @property
    def means(self) -> Floats:
        """Mean of each batch, of few of each value."""
        parts = batches(self._finite) if self.count >= MANY else np.split(self._finite, self.count)
        return np.array([part.mean() for part in parts])

    def at(self, place: int) -> float:
        """The value at a place, ascending."""
        return float(self._ordered[place])

    def quantile(self, share: float) -> float:
        """The value below which such a share lies."""
        return float(np.quantile(self._ordered, share)) if self.count else math.nan

    def batch_quantiles(self, share: float) -> list[float]:
        """The same of each batch."""
        return [float(np.quantile(part, share)) for part in batches(self._finite)]


class Sketch:
    """Values of requests in their order, cut into ten batches."""

    def __init__(self) -> None:
        self._bins = np.zeros((BATCHES, _BINS))
        self._sums = np.zeros(BATCHES)
        self.least = math.inf

    def add(self, batch: int, values: Floats, weights: Floats | None = None) -> None:
        """Count values of a batch, each so often."""
        known = np.isfinite(values)
        values = values[known]
        weights = np.ones(len(values)) if weights is None else weights[known]
        if len(values):
            place = np.log(np.maximum(values, LEAST) / LEAST) / math.log1p(GROWTH)
            bins = np.minimum(place.astype(np.int64), _BINS - 1)
            self._bins[batch] += np.bincount(bins, weights, _BINS)
            self._sums[batch] += float((values * weights).sum())
            self.least = min(self.least, float(values.min()))

    @property
    def count(self) -> int:
        """How many values."""
        return int(self._bins.sum())

    @property
    def mean(self) -> float:
        """Mean of all values, exact."""
        return float(self._sums.sum() / max(1.0, self._bins.sum()))

    @property
    def means(self) -> Floats:
        """Mean of each batch that has values."""
        counts = self._bins.sum(axis=1)
        means: Floats = self._sums[counts > 0] / counts[counts > 0]
        return means

    def at(self, place: float) -> float:
        """The value at a place, ascending."""
        return _value(self._bins.sum(axis=0), place)

    def quantile(self, share: float) -> float:
        """The value below which such a share lies."""
        return _quantile(self._bins.sum(axis=0), share)

    def batch_quantiles(self, share: float) -> list[float]:
        """The same of each batch that has values."""
        return [_quantile(bins, share) for bins in self._bins if bins.any()]


def _quantile(bins: Floats, share: float) -> float:
    """The value below which such a share lies, between its neighbours."""
    place = share * (float(bins.sum()) - 1.0)
    low, high = _value(bins, math.floor(place)), _value(bins, math.ceil(place))
    return low + (place % 1.0) * (high - low)


def _value(bins: Floats, place: float) -> float:
    """Middle of the bin in which a place lies; what is below the least is nothing."""
    found = int(np.searchsorted(np.cumsum(bins), place, side="right"))
    return LEAST * (1.0 + GROWTH) ** (found + 0.5) if found else 0.0
