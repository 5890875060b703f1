"""Who holds what: the mesh on the cluster, layers on stages, operators on ranks."""

from mpsim.parallel.axes import ACCOUNTED, AXES, AXIS_NAMES, EXPOSED, FOLDED, REPLICATING, Stream
from mpsim.parallel.blocks import Repeat, block_backward, block_forward, fused_blocks, repeated
from mpsim.parallel.crossing import GroupShape, placed, spread
from mpsim.parallel.experts import rank_load
from mpsim.parallel.layout import Layout
from mpsim.parallel.mesh import (
    EXPERT_AXES,
    Mesh,
    Stage,
    best_domain,
    partition_layers,
    placed_stages,
    straddling,
    whole_groups,
)
from mpsim.parallel.shard import (
    Communication,
    Compute,
    Item,
    Routing,
    Sharding,
    Synchronization,
    Waits,
    reshaped,
    shard,
)

__all__ = ["ACCOUNTED", "AXES", "AXIS_NAMES", "EXPERT_AXES", "EXPOSED", "FOLDED", "REPLICATING"]
__all__ += ["Communication", "Compute", "GroupShape", "Item", "Layout", "Mesh", "Repeat", "Routing"]
__all__ += ["Sharding", "Stage", "Stream", "Synchronization", "Waits", "best_domain"]
__all__ += ["block_backward", "block_forward", "fused_blocks", "partition_layers", "placed"]
__all__ += ["placed_stages", "rank_load", "repeated", "reshaped", "shard", "spread", "straddling"]
__all__ += ["whole_groups"]
