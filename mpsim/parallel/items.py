"""Items of a block on one rank: kernels, collectives between them, and waits of the host."""

from __future__ import annotations

import enum
from collections.abc import Iterable

from mpsim import structs
from mpsim.workload import Module, Operator, Phase, Role


class Waits(enum.Enum):
    """Which of the following compute kernels wait for a collective."""

    ALL = "all"  # it blocks
    NOT_WEIGHTS = (
        "all but weights"  # all but the kernels that follow at once in `Phase.WEIGHT_GRADIENT`
    )
    NEXT_WEIGHT = "next weight"  # only the next kernel in that phase
    TAGGED = "tagged"  # only those that need its tag


@structs.dataclass(frozen=True, slots=True)
class Communication:
    """A collective inside a layer, or one step of a ring."""

    name: str
    axis: str  # name of its communicator in the table of axes (`mpsim.parallel.axes.Communicator`)
    # as the collective cost model names it: ``all_reduce``, ``all_gather``, ``reduce_scatter``,
    # ``all_to_all``; or ``send``, from every member to the next of a ring
    kind: str
    # whole tensor for an all-reduce, gathered size for all-gather and reduce-scatter, what one rank
    # sends otherwise (in an all-to-all with its own part) [B]
    size: float
    waits: Waits
    phase: Phase  # of the computation it belongs to
    repeated: bool = False  # whether it does again what the forward pass has done
    tag: str = ""  # what kernels that wait for it name in `Compute.needs`
    # tags of collectives that must have ended before it starts, beyond those of its own axis
    needs: frozenset[str] = frozenset()
    # of an all-to-all that enters every scale-up domain once and is passed on inside: what one rank
    # sends to its peers in other domains, with its own part; `size` is then what it sends inside. 0
    # for all others [B]
    across: float = 0.0
    copies: Operator | None = None  # kernel on the same stream that puts what travels in order

    def holds(self, kernel: Compute | None) -> bool:
        """Whether the next kernel waits for it; None: one launched once the device is idle."""
        if self.waits is Waits.ALL or (kernel is not None and self.tag in kernel.needs):
            return True
        if self.waits is Waits.TAGGED:
            return False
        weights = kernel is not None and kernel.operator.phase is Phase.WEIGHT_GRADIENT
        return (self.waits is Waits.NEXT_WEIGHT) == weights


@structs.dataclass(frozen=True, slots=True)
class Compute:
    """A sharded operator in a block."""

    operator: Operator
    repeated: bool = False  # whether it does again what the forward pass has done
    # tags of collectives it waits for, besides those that all kernels of its phase wait for
    needs: frozenset[str] = frozenset()


@structs.dataclass(frozen=True, slots=True)
class Synchronization:
    """The host waits for the device, `count` times, and launches nothing until it has."""

    count: int
    launches: int = 0  # kernels shorter than their launch that the host issues before it waits


Item = Communication | Compute | Synchronization


def repeated(items: Iterable[Item]) -> list[Item]:
    """The same items, marked as done again; a wait of the host is one like the first."""
    return [
        item if isinstance(item, Synchronization) else structs.replace(item, repeated=True)
        for item in items
    ]


@structs.dataclass(frozen=True, slots=True)
class Repeat:
    """Forward kernels that run again together in a backward."""

    operators: tuple[Operator, ...]  # of the forward, in order
    # places of forward operators: the first backward kernel in any of them waits for it
    before: frozenset[tuple[Module, Role]]
    # whether they run when what that kernel reads has arrived, not before it is sent
    late: bool = False
