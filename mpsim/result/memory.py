"""Memory of a job: what each rank holds at its fullest moment, and over time.

Shapes: P ranks, E moments.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping, Sequence

import numpy as np

from mpsim import structs
from mpsim.arrays import Floats
from mpsim.table import Section, Sheet, Shown
from mpsim.units import Dimension, format_quantity


@structs.dataclass(frozen=True, eq=False, repr=False)
class Memory(Shown):
    """Bytes of every pipeline rank (of every class of replicas that differ) when it is fullest."""

    # mapping of str to float64[P], in the order in which they are shown [B]
    components: Mapping[str, Floats]
    capacities: Floats  # float64[P], of an accelerator of each rank [B]
    needed: Floats  # float64[P], without what the allocator gives back before it gives up [B]
    when: tuple[str, ...] = ()  # the moment at which each rank is fullest, in the words of its job

    @functools.cached_property
    def total(self) -> Floats:
        """All components of each rank [B]."""
        total: Floats = np.sum([*self.components.values()], axis=0)
        return total

    @functools.cached_property
    def fullest(self) -> int:
        """The rank that takes most of what it has."""
        return int(np.argmax(self.total / self.capacities))

    @property
    def capacity(self) -> float:
        """Memory of an accelerator of the fullest rank [B]."""
        return float(self.capacities[self.fullest])

    @property
    def filled(self) -> float:
        """Largest share of an accelerator's memory that a rank needs."""
        return float((self.needed / self.capacities).max())

    @property
    def fits(self) -> bool:
        """Whether what every rank needs is within capacity."""
        return self.filled <= 1.0

    def sheet(self) -> Sheet:
        """Every component of each rank, a line a rank."""
        columns = (*self.components.values(), self.total, self.capacities)
        rows = tuple(
            (str(rank), *(format_quantity(float(held), Dimension.BYTES, digits=3) for held in line))
            for rank, line in enumerate(zip(*columns, strict=True))
        )
        header = ("rank", *self.components, "total", "of")
        verdict = "every rank fits" if self.fits else "DOES NOT FIT"
        return Sheet("", (Section(rows, header, tuple(range(len(header))), lines=(verdict,)),))


@structs.dataclass(frozen=True, slots=True, eq=False)
class MemoryCurve:
    """Bytes that one rank holds over time."""

    time_s: Floats  # float64[E], moments in order; what is held changes only there [s]
    held: Floats  # float64[E], from each moment to the next [B]
    # part of `held` that is there all the time: model states, buffers, overhead [B]
    standing: float
    components: Mapping[str, Floats] = structs.field(default_factory=dict)


def join_memory(parts: Sequence[Memory]) -> Memory:
    """The memory of several classes of replicas, one after the other."""
    return Memory(
        components={
            name: np.concatenate([part.components[name] for part in parts])
            for name in parts[0].components
        },
        capacities=np.concatenate([part.capacities for part in parts]),
        needed=np.concatenate([part.needed for part in parts]),
        when=tuple(itertools.chain(*(part.when for part in parts))),
    )
