"""Who holds what: the mesh on the cluster, layers on stages, operators on ranks."""

from mpsim.parallel.group import GroupShape
from mpsim.parallel.mesh import AXES, Mesh, spread
from mpsim.parallel.partition import Stage, partition_layers
from mpsim.parallel.shard import (
    Communication,
    Compute,
    Item,
    Sharding,
    Waits,
    block_backward,
    block_forward,
    shard,
)

__all__ = [
    "AXES",
    "Communication",
    "Compute",
    "GroupShape",
    "Item",
    "Mesh",
    "Sharding",
    "Stage",
    "Waits",
    "block_backward",
    "block_forward",
    "partition_layers",
    "shard",
    "spread",
]
