"""Communication libraries: what each one runs on a cluster, and how long that takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from mpsim.cost.constants import Ledger
from mpsim.cost.libraries.fitted import FittedLibrary, NcclLibrary, TorusLibrary
from mpsim.cost.libraries.library import Library, check_runs_on, default_library, library_names
from mpsim.hardware.cluster import Cluster

__all__ = ["FittedLibrary", "default_library", "library_names", "make_library"]

_FITTED: Mapping[str, Callable[..., Library]] = {
    "nccl": NcclLibrary,
    "rccl": FittedLibrary,
    "hccl": FittedLibrary,
    "torus": TorusLibrary,
}


def make_library(name: str | None, cluster: Cluster, ledger: Ledger, *, loaded: bool) -> Library:
    """The library called `name` on `cluster`; the cluster's own when None.

    `name`: one of `library_names`. `ledger`: where constants are accounted for. `loaded`: whether
    other traffic of the job shares the network. HardwareError if the library does not exist or does
    not run there.
    """
    library = name or cluster.library or default_library(cluster)
    check_runs_on(library, cluster, key="" if name else "cluster.library: ")
    if library in _FITTED:
        return _FITTED[library](library, cluster, ledger, loaded=loaded)
    # the algorithms of MPI and gloo, which most clusters of accelerators do without
    from mpsim.cost.libraries.host import HostLibrary

    return HostLibrary(library, cluster, ledger)
