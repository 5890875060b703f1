"""Libraries that talk through the host: Open MPI, MPICH, and gloo as torch uses it.

A decision table says which algorithm runs (`decision_table`), a formula how long it takes
(`algorithms`), and a handful of constants what a message costs
(``mpsim/cost/data/libraries.yaml``). Tensors are taken to lie in host memory.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from mpsim import structs
from mpsim.arrays import Floats
from mpsim.cost.constants import Constant, Ledger, Status, calibrated_groups
from mpsim.cost.libraries.algorithms import ALGORITHMS, Wires, wires_of
from mpsim.cost.network import sent_bytes
from mpsim.hardware.cluster import Cluster
from mpsim.memo import remembered
from mpsim.parallel.crossing import GroupShape
from mpsim.shipped import read_shipped

_PAIR = GroupShape(2, 2, 1)
_RINGS = ({"all_reduce", "ring"}, {"reduce_scatter", "all_reduce_slice"})


@structs.dataclass(frozen=True, slots=True)
class Rung:
    """An algorithm, and the size below which it runs."""

    below: float  # [B]; infinite for the last one
    algorithm: str
    per_rank: bool  # whether `below` is of S over the ranks


@structs.dataclass(frozen=True, slots=True)
class Band:
    """The rungs of a range of group sizes."""

    ranks_below: float
    powers: bool  # whether only powers of two fit
    rungs: tuple[Rung, ...]  # smallest size first

    def fits(self, ranks: int) -> bool:
        """Whether the band is for a group of `ranks`."""
        return ranks < self.ranks_below and not (self.powers and ranks & (ranks - 1))


@structs.dataclass(frozen=True, slots=True)
class DecisionTable:
    """The rules of one library."""

    version: str
    source: str
    as_of: str
    bands: Mapping[str, tuple[Band, ...]]  # by collective; the first band that fits counts

    def regimes(self, kind: str, ranks: int) -> tuple[tuple[float, str], ...]:
        """Sizes S below which each algorithm runs, smallest first [B]; the last one is infinite."""
        band = next(band for band in self.bands[kind] if band.fits(ranks))
        return tuple((r.below * (ranks if r.per_rank else 1), r.algorithm) for r in band.rungs)

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


class HostLibrary:
    """Open MPI, MPICH or gloo on one cluster. `name`: ``openmpi``, ``mpich`` or ``gloo``. `ledger`:
    where constants are accounted for.

    Notes
    -----
    At a size where the table changes to an algorithm that is faster there, a larger collective
    would be faster than a smaller one. Such a step down is not followed: the time stays until the
    new algorithm has caught up. Steps up are.
    """

    def __init__(self, name: str, cluster: Cluster, ledger: Ledger) -> None:
        self.name = name
        self._cluster = cluster
        self._ledger = ledger
        self._constants = calibrated_groups("libraries", cluster.calibration)[f"host.{name}"]
        self._table = decision_table(name)

    def seconds(self, kind: str, size: Floats, group: GroupShape) -> Floats:
        """Time of a collective [s] by each size's algorithm, never below that of a smaller size."""
        wires = self._wires(_of_kind(kind, group))
        regimes = self._table.regimes(kind, group.ranks)
        self._note_table(kind, len(regimes))
        result, reached, low = np.zeros_like(size), np.zeros(()), 0.0
        for below, name in regimes:
            run = ALGORITHMS[kind][name]
            here = (size >= low) & (size < below)
            if np.any(here):
                result = np.where(here, np.maximum(run(size, wires), reached), result)
            if math.isfinite(below):
                reached = np.maximum(reached, run(np.asarray(below), wires))
            low = below
        return result + self._ledger.use(self._constants, "dispatch")

    def send(
        self, size: Floats, *, crosses: bool, share: int, slowdown: float | None = None
    ) -> Floats:
        """Time of one message [s]."""
        nodes = self._cluster.domains
        group = GroupShape(2, 1, 2) if crosses else _PAIR
        wide = group
        if crosses and nodes > 1:
            wide = GroupShape(nodes, 1, nodes, ring_slowdown=slowdown)
        wires = self._wires(wide)
        hop = wires.far if crosses else wires.near
        beta = hop.beta if crosses else wires.alone
        return self._ledger.use(self._constants, "dispatch") + hop.alpha + size * share * beta

    def priced(self, kind: str, size: float, group: GroupShape) -> tuple[str, str]:
        """Algorithm by the library's table; protocols are not told apart."""
        if kind == "send_recv":
            return "send", "none"
        return self._table.algorithm(kind, size, group.ranks), "none"

    def sent_bytes(self, kind: str, size: Floats, group: GroupShape) -> tuple[Floats, Floats]:
        """Bytes a rank sends; twice a reduce-scatter's where an all-reduce is a ring."""
        if {kind, *self._algorithms(kind)} in _RINGS:
            inside, outside = sent_bytes("reduce_scatter", size, group)
            return 2 * inside, 2 * outside
        return sent_bytes(kind, size, group)

    def _algorithms(self, kind: str) -> set[str]:
        bands = self._table.bands.get(kind, ())
        return {rung.algorithm for band in bands for rung in band.rungs}

    def _wires(self, group: GroupShape) -> Wires:
        return wires_of(self._cluster, group, self._constants, self._ledger)

    def _note_table(self, kind: str, regimes: int) -> None:
        table = self._table
        source = f"{table.source}; version {table.version}"
        name = f"decisions.{self.name}.{kind}.regimes"
        self._ledger.note(Constant(name, regimes, "1", source, table.as_of, Status.DATASHEET))


def _of_kind(kind: str, group: GroupShape) -> GroupShape:
    """`group` with what the fabric does to this collective where the wires look for it."""
    if kind != "all_to_all":
        return group
    return group._replace(ring_slowdown=group.exchange_slowdown)
