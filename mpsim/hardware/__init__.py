"""Accelerators, links, nodes, fabrics and clusters, and the catalog of those that exist."""

from mpsim.hardware.cluster import Cluster, Placement
from mpsim.hardware.components import (
    SCALED_FORMATS,
    Accelerator,
    Calibration,
    Fitted,
    Link,
    LinkShape,
    MeasuredCurve,
    Node,
    recalled,
    source_of,
)
from mpsim.hardware.entries import parse_accelerator, parse_link
from mpsim.hardware.fabric import Fabric, FabricKind, Routing, tiers_of, torus_distance, torus_shape
from mpsim.hardware.host import Host, host_of, unlikely_nics
from mpsim.hardware.lookup import (
    GIVEN,
    accelerator,
    accelerator_names,
    board_power,
    borrowed_prices,
    build_cluster,
    is_machine_path,
    link,
    link_names,
    rates_apart,
    shift_of,
    system,
    system_names,
    unverified,
    with_overrides,
)

__all__ = ["GIVEN", "SCALED_FORMATS", "Accelerator", "Calibration", "Cluster", "Fabric"]
__all__ += ["FabricKind", "Fitted", "Host", "Link", "LinkShape", "MeasuredCurve", "Node"]
__all__ += ["Placement", "Routing", "accelerator", "accelerator_names", "board_power"]
__all__ += ["borrowed_prices", "build_cluster", "host_of", "is_machine_path", "link"]
__all__ += ["link_names", "parse_accelerator", "parse_link", "rates_apart", "recalled"]
__all__ += ["shift_of", "source_of", "system", "system_names", "tiers_of", "torus_distance"]
__all__ += ["torus_shape", "unlikely_nics", "unverified", "with_overrides"]
