"""Link use: how much of its bandwidth every link carried over the step.

Shapes: L links, B bins, X rows of the program with what happens inside actions as rows too.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from mpsim import structs
from mpsim.arrays import Floats, Ints
from mpsim.engine import Timeline
from mpsim.engine.kernels import kernel_times
from mpsim.engine.traffic import Traffic
from mpsim.program import TICK, Program
from mpsim.program.expand import expand
from mpsim.program.links import Links
from mpsim.table import Section, Sheet, Shown
from mpsim.units import percent

_SHOWN = 12  # links


@structs.dataclass(frozen=True, slots=True, eq=False, repr=False)
class LinkUse(Shown):
    """Use of links over time."""

    names: tuple[str, ...]  # such as ``pp 3 NIC out`` or ``leaf 0 up``
    # float64[L], one direction [B/s]: one rank's share of ports, whole links of the fabric
    capacity: Floats
    carried: Floats  # float64[L], over the step [B]
    edges_s: Floats  # float64[B + 1], edges of bins [s]
    # float64[L, B], carried over what could have been carried. Above 1 where ``network: analytic``
    # let transfers overlap that share a link
    share: Floats
    # links that come first, as many of each rank class; the others are of the fabric
    ports: int = 0
    tiers: tuple[str, ...] = ()  # of each link: ``scale-up``, ``NIC``, or the tier of the fabric

    @property
    def mean(self) -> Floats:
        """Share of the step's bandwidth that each link carried [L]."""
        return np.asarray(self.carried / (self.capacity * self.edges_s[-1]), dtype=np.float64)

    def busiest(self, count: int) -> Ints:
        """The links with the highest mean, the busiest first, without those that are idle."""
        order = np.argsort(-self.mean, kind="stable")
        return order[self.carried[order] > 0][:count]

    def __getitem__(self, name: str) -> Floats:
        return np.asarray(self.share[self.names.index(name)], dtype=np.float64)

    def sheet(self) -> Sheet:
        """The busiest links and how busy they are."""
        rows = tuple(
            (self.names[link], percent(float(self.mean[link])))
            for link in self.busiest(_SHOWN).tolist()
        )
        return Sheet("", (Section(rows, ("link", "mean use"), (1,)),))


def measure_links(
    timeline: Timeline, links_of: Callable[[Program], Links], *, bins: int = 200
) -> LinkUse:
    """Measure a finished step. `links_of`: gives the links of a program of the same job.

    Notes
    -----
    Rates of transfers that shared links are those they had. What had its links to itself, inside
    actions or under ``network: analytic``, moved at its own rate once its latency was paid.
    """
    program = expand(timeline.program) if timeline.program.templates else timeline.program
    times, links = kernel_times(timeline), links_of(program)
    edges = np.linspace(0.0, timeline.makespan, bins + 1)
    shared = timeline.traffic
    steady = np.flatnonzero(links.cap > 0)
    if shared is not None:
        steady = steady[~np.isin(times.row[steady], shared.row)]
    none = np.zeros(len(steady))
    amount = Traffic(
        links,
        np.concatenate([steady, steady]),
        np.concatenate([times.end[steady] - links.work[steady], times.end[steady]]),
        np.concatenate([links.cap[steady], none]),
    ).carried(edges)
    if shared is not None:
        amount[_places(links, shared.links)] += shared.carried(edges)
    could = np.diff(edges) * links.capacity[:, None]
    return LinkUse(
        names=links.names,
        capacity=links.capacity / TICK,
        carried=amount[:, -1],
        edges_s=edges * TICK,
        share=np.divide(np.diff(amount), could, out=np.zeros(could.shape), where=could > 0),
        ports=links.ports,
        tiers=links.tiers,
    )


def _places(links: Links, others: Links) -> Ints:
    """Places of the links of one program among those of another."""
    number = {name: index for index, name in enumerate(links.names)}
    return np.array([number[name] for name in others.names], dtype=np.int64)
