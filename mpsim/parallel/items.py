"""What a block of one rank consists of: kernels, collectives between them, and waits of the host."""

from __future__ import annotations

import dataclasses
import enum

from mpsim.workload import Operator, Phase

__all__ = ["Communication", "Compute", "Item", "Synchronization", "Waits"]


class Waits(enum.Enum):
    """Which of the following compute kernels wait for a collective."""

    ALL = "all"  # it blocks
    INPUT_GRADIENT = "input gradient"  # all but the weight gradients that follow at once
    WEIGHT_GRADIENT = "weight gradient"  # only the next weight gradient
    TAGGED = "tagged"  # only those that need its tag


@dataclasses.dataclass(frozen=True, slots=True)
class Communication:
    """A collective inside a layer, or one step of a ring.

    Parameters
    ----------
    name : str
    axis : str
        Name of its communicator in the table of axes (`mpsim.parallel.axes.Communicator`).
    kind : str
        As the collective cost model names it: ``all_reduce``, ``all_gather``, ``reduce_scatter``, ``all_to_all``; or ``send``,
        from every member to the next of a ring.
    size : float
        Whole tensor for an all-reduce, gathered size for all-gather and reduce-scatter, what one rank sends otherwise (in an
        all-to-all with its own part) [B].
    waits : Waits
    phase : Phase
        Of the computation it belongs to.
    recompute : bool
        Whether it repeats one of the forward pass.
    tag : str
        What kernels that wait for it name in `Compute.needs`.
    needs : set of str
        Tags of collectives that must have ended before it starts, beyond those of its own axis.
    across : float
        Of an all-to-all that enters every scale-up domain once and is passed on inside: what one rank sends to its peers in other
        domains, with its own part; `size` is then what it sends inside. 0 for all others [B].
    """

    name: str
    axis: str
    kind: str
    size: float
    waits: Waits
    phase: Phase
    recompute: bool = False
    tag: str = ""
    needs: frozenset[str] = frozenset()
    across: float = 0.0


@dataclasses.dataclass(frozen=True, slots=True)
class Compute:
    """A sharded operator in a block.

    Parameters
    ----------
    operator : Operator
    recompute : bool
        Whether it repeats one of the forward pass.
    needs : set of str
        Tags of collectives it waits for, besides those that all kernels of its phase wait for.
    """

    operator: Operator
    recompute: bool = False
    needs: frozenset[str] = frozenset()


@dataclasses.dataclass(frozen=True, slots=True)
class Synchronization:
    """The host waits for the device, `count` times, and launches nothing until it has.

    Parameters
    ----------
    count : int
    launches : int
        Kernels that the host has launched since the wait before, each shorter than its launch: the device idles for as long.
    """

    count: int
    launches: int = 0


Item = Communication | Compute | Synchronization
