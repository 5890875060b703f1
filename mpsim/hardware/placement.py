"""Placement: on which accelerator each rank runs.

Ranks are numbered as the parallel layout lays them; accelerators node by node. A rack is what sits below one leaf unit of the fabric (all rails of
it), or a scale-up domain where that is larger.
"""

from __future__ import annotations

import enum

import numpy as np
from numpy.typing import NDArray

from mpsim.errors import HardwareError
from mpsim.memo import remembered


class Placement(enum.StrEnum):
    """How ranks are dealt to accelerators."""

    PACKED = "packed"  # node after node
    STRIDED = "strided"  # one rank to every node in turn
    BY_RAIL = "by-rail"  # along one rail of a rack, then the next rail, then the next rack
    BY_RACK = "by-rack"  # nodes are filled, but one of every rack in turn


@remembered(64)
def slots_of(
    placement: Placement | tuple[int, ...], *, nodes: int, per_node: int, nodes_per_rack: int
) -> NDArray[np.int64]:
    """The accelerator of every rank, by a rule or a list: a permutation, not to be written to.
    HardwareError if a given placement does not name every accelerator once.

    Examples
    --------
    >>> slots_of(Placement.STRIDED, nodes=2, per_node=2, nodes_per_rack=1).tolist()
    [0, 2, 1, 3]
    >>> slots_of(Placement.BY_RACK, nodes=4, per_node=1, nodes_per_rack=2).tolist()
    [0, 2, 1, 3]
    """
    slot = np.arange(nodes * per_node)
    if not isinstance(placement, Placement):
        slots = _given(placement, len(slot))
    else:
        node, place = np.divmod(slot, per_node)
        rack, row = np.divmod(node, nodes_per_rack)
        keys = {  # slowest last
            Placement.PACKED: (slot,),
            Placement.STRIDED: (node, place),
            Placement.BY_RAIL: (node, place, rack),
            Placement.BY_RACK: (place, rack, row),
        }
        slots = np.lexsort(keys[placement]).astype(np.int64)
    slots.setflags(write=False)
    return slots


def _given(placement: tuple[int, ...], count: int) -> NDArray[np.int64]:
    slots = np.array(placement, dtype=np.int64)
    if sorted(placement) != list(range(count)):
        raise HardwareError(
            f"placement: got {len(placement)} accelerators, of which {len(set(placement))} differ; "
            f"needed each of 0 to {count - 1} once, in the order of ranks"
        )
    return slots
