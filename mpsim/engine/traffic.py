"""Traffic: what moved over shared links, and how fast, from one change of a rate to the next.

Shapes: C changes, L links, B bins.
"""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import NDArray

from mpsim.program.links import Links

__all__ = ["Traffic", "carried"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Traffic:
    """Rates of flows over time.

    Parameters
    ----------
    links : Links
        Which rows of the program use what.
    row : int64[C]
        Row whose rate changed.
    time : float64[C]
        When [ticks]; for each row in order.
    rate : float64[C]
        From then on [B/tick]; 0 at its end.
    """

    links: Links
    row: Ints
    time: Floats
    rate: Floats

    def carried(self, edges: Floats) -> Floats:
        """Bytes that each link carried until each of `edges` [L, B + 1]."""
        return carried(self.links, self.row, self.time, self.rate, edges)


def carried(links: Links, row: Ints, time: Floats, rate: Floats, edges: Floats) -> Floats:
    """Bytes that each link carried until each of `edges`, by what rows did.

    Parameters
    ----------
    row, time, rate : int64[C], float64[C], float64[C]
        As of `Traffic`.
    edges : float64[B + 1]
        Ascending [ticks].

    Returns
    -------
    float64[L, B + 1]
    """
    order = np.lexsort((time, row))
    row, time, rate = row[order], time[order], rate[order]
    same = np.zeros(len(row), dtype=bool)
    same[1:] = row[1:] == row[:-1]
    step = rate - np.where(same, np.roll(rate, 1), 0.0)
    begin, end = np.searchsorted(links.row, [row, row + 1])
    count = end - begin
    use = np.arange(int(count.sum())) + np.repeat(begin - (np.cumsum(count) - count), count)
    link, slope = links.link[use], np.repeat(step, count) * links.use[use]
    since = np.repeat(time, count)
    result = np.zeros((len(links.capacity), len(edges)))
    by_link = np.lexsort((since, link))
    cuts = np.searchsorted(link[by_link], np.arange(len(result) + 1))
    for link in range(len(result)):
        mine = by_link[cuts[link] : cuts[link + 1]]
        result[link] = _ramps(since[mine], slope[mine], edges)
    return result


def _ramps(since: Floats, slope: Floats, edges: Floats) -> Floats:
    """Sum of ``slope * (t - since)`` over all that began before t; `since` ascends."""
    index = np.searchsorted(since, edges)
    slopes = np.concatenate([[0.0], np.cumsum(slope)])[index]
    moments = np.concatenate([[0.0], np.cumsum(slope * since)])[index]
    return np.asarray(edges * slopes - moments, dtype=np.float64)
