"""Traffic: what moved over shared links, and how fast, from one change of a rate to the next.

Shapes: C changes, L links, B bins.
"""

from __future__ import annotations

import numpy as np

from mpsim import structs
from mpsim.arrays import Floats, Ints
from mpsim.program.links import Links

_FULL = 1 + 1e-10  # of a link that carries one flow: that of a rate's own link, up to rounding
# of a link on which flows meet: less is far from the rounding of what is left of it
_ROOM = 1 - 1e-6


@structs.dataclass(frozen=True, slots=True, eq=False)
class Traffic:
    """Rates of flows over time."""

    links: Links  # which rows of the program use what
    row: Ints  # int64[C], row whose rate changed
    time: Floats  # float64[C], when [ticks]; for each row in order
    rate: Floats  # float64[C], from then on [B/tick]; 0 at its end

    def carried(self, edges: Floats) -> Floats:
        """Bytes that each link carried until each of `edges` [L, B + 1], which ascend [ticks]."""
        links = self.links
        order = np.lexsort((self.time, self.row))
        row, time, rate = self.row[order], self.time[order], self.rate[order]
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


def undisturbed(links: Links, start: Floats, end: Floats) -> Traffic | None:
    """Traffic of rows that ran as long as they do alone; None if links were too thin for what met
    on them. `start` and `end` (float64[N]): of every row if none slows another down [ticks].

    Notes
    -----
    While every link can carry the sum of the caps of its flows, max-min fairness lets each flow
    move at its cap, so these times are those of the fluid network. A flow that ends as another
    begins has made room for it.
    """
    begun, ended = (end - links.work)[links.row], end[links.row]
    load = links.use * links.cap[links.row]
    link = np.append(links.link, links.link)
    order = np.lexsort((np.repeat([1, 0], len(load)), np.append(begun, ended), link))
    link = link[order]
    loads = np.cumsum(np.append(load, -load)[order])
    flows = np.cumsum(np.repeat([1, -1], len(load))[order])  # every link ends with none
    room = links.capacity[link] * np.where(flows > 1, _ROOM, _FULL)
    if (loads > room).any():
        return None
    row = np.flatnonzero(links.work > 0)
    return Traffic(
        links,
        np.append(row, row),
        np.append((end - links.work)[row], end[row]),
        np.append(links.cap[row], np.zeros(len(row))),
    )


def _ramps(since: Floats, slope: Floats, edges: Floats) -> Floats:
    """Sum of ``slope * (t - since)`` over all that began before t; `since` ascends."""
    index = np.searchsorted(since, edges)
    slopes = np.concatenate([[0.0], np.cumsum(slope)])[index]
    moments = np.concatenate([[0.0], np.cumsum(slope * since)])[index]
    return np.asarray(edges * slopes - moments, dtype=np.float64)
