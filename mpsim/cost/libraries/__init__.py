"""Communication libraries: what each one runs on a cluster, where it runs, how long it takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from mpsim.arrays import Floats
from mpsim.cost.constants import Ledger
from mpsim.cost.libraries.fitted import FittedLibrary, NcclLibrary, TorusLibrary
from mpsim.errors import HardwareError, nearest
from mpsim.hardware.cluster import Cluster
from mpsim.hardware.components import LinkShape
from mpsim.parallel.crossing import GroupShape
from mpsim.shipped import read_shipped

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


_FILE = "mpsim.cost.data", "libraries.yaml"


class Library(Protocol):
    """A library on one cluster: what it runs, how long that takes, and what it puts on the links.

    Sizes are as `mpsim.cost.collectives` defines them; groups have 2 ranks or more.
    """

    @property
    def name(self) -> str:
        """Name of the library, one of `library_names`."""

    def seconds(self, kind: str, size: Floats, group: GroupShape) -> Floats:
        """Time of one collective other than send_recv [s]."""

    def send(
        self, size: Floats, *, crosses: bool, share: int, slowdown: float | None = None
    ) -> Floats:
        """Time of a message while `share` of them use the link, `slowdown` times longer [s]."""

    def priced(self, kind: str, size: float, group: GroupShape) -> tuple[str, str]:
        """Algorithm and protocol that `seconds` times."""

    def sent_bytes(self, kind: str, size: Floats, group: GroupShape) -> tuple[Floats, Floats]:
        """Bytes that a rank sends on average over its scale-up link and its NIC share [B]."""


def library_names() -> tuple[str, ...]:
    """Every library there is."""
    return tuple(sorted(read_shipped(*_FILE)["libraries"]))


def default_library(cluster: Cluster) -> str:
    """The library of the accelerators' vendor, by the first rule of libraries.yaml that fits."""
    facts = _facts(cluster)
    if cluster.calibration is not None and cluster.calibration.library in library_names():
        return cluster.calibration.library
    for rule in read_shipped(*_FILE)["defaults"]:
        if all(facts[key] == value for key, value in rule.items() if key != "library"):
            return str(rule["library"])
    raise AssertionError("the last rule fits everything")


def check_runs_on(name: str, cluster: Cluster, *, key: str = "") -> None:
    """Refuse a library that does not exist, or that does not run on these accelerators; `key` says
    where it was asked for. HardwareError naming the libraries that do.
    """
    names = library_names()
    if name not in names:
        raise HardwareError(f"{key}got library {name!r}; {nearest(name, names)}")
    if name != default_library(cluster) and not _fits(name, cluster):
        able = [each for each in names if each == default_library(cluster) or _fits(each, cluster)]
        raise HardwareError(
            f"{key}{name} does not run on {cluster.accelerator.name} over"
            f" {cluster.node.scale_up.name}; these do: {', '.join(able)}"
        )


def _fits(name: str, cluster: Cluster) -> bool:
    facts = _facts(cluster)
    return all(facts[key] == fact for key, fact in read_shipped(*_FILE)["libraries"][name].items())


def _facts(cluster: Cluster) -> Mapping[str, object]:
    chip = cluster.accelerator
    shape = cluster.node.scale_up.shape.value
    is_torus = cluster.node.scale_up.shape is LinkShape.TORUS
    return {"vendor": chip.vendor, "family": chip.family, "shape": shape, "is_torus": is_torus}
