"""Host: what keeps offloaded model states, and the links they travel over."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType

from mpsim.errors import HardwareError
from mpsim.hardware.cluster import Cluster
from mpsim.hardware.entries import PROVENANCE, Entry, sources_of
from mpsim.memo import remembered
from mpsim.shipped import load_catalog
from mpsim.units import Dimension

__all__ = ["Host", "host_names", "host_of"]

_CATALOG = "mpsim.hardware.catalog"
_GENERIC = "generic"
_KEYS = frozenset(
    (
        *PROVENANCE,
        *("title", "accelerators", "link", "link_efficiency", "memory", "memory_efficiency"),
        *("nvme_read", "nvme_write"),
    )
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """The host of a node.

    Parameters
    ----------
    name, title : str
    link_bandwidth : float
        Sustained between one accelerator and its host, per direction [B/s].
    memory_bandwidth : float
        Sustained of all the host's memory [B/s].
    nvme_read, nvme_write : float
        Of all drives of the host [B/s].
    sources : mapping of str to str
        Where each figure comes from; see `mpsim.hardware.recalled`.
    """

    name: str
    title: str
    link_bandwidth: float
    memory_bandwidth: float
    nvme_read: float
    nvme_write: float
    sources: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        for figure in ("link_bandwidth", "memory_bandwidth", "nvme_read", "nvme_write"):
            if getattr(self, figure) <= 0:
                raise HardwareError(f"{self.name}: {figure} is not above 0; needed a bandwidth")


def host_of(cluster: Cluster) -> Host:
    """The host of a cluster's nodes, by its accelerator; a generic one where the catalog has none.

    Examples
    --------
    >>> from mpsim.hardware import system
    >>> host_of(system("dgx-a100-80gb", nodes=1)).name
    'pcie4'
    """
    name = cluster.accelerator.name
    hosts = _hosts()
    return next((host for host, served in hosts.values() if name in served), hosts[_GENERIC][0])


def host_names() -> tuple[str, ...]:
    """Hosts of the catalog."""
    return tuple(_hosts())


@remembered(1)
def _hosts() -> Mapping[str, tuple[Host, frozenset[str]]]:
    entries = dict(load_catalog(_CATALOG))["hosts"]
    return MappingProxyType({name: _host(name, data) for name, data in entries.items()})


def _sources(read: Mapping[str, str]) -> Mapping[str, str]:
    """Where each figure comes from; a sustained rate is as sure as the share that makes it one."""
    given = {
        "link_bandwidth": read.get("link_efficiency"),
        "memory_bandwidth": read.get("memory_efficiency"),
        "nvme_read": read.get("nvme_read"),
        "nvme_write": read.get("nvme_write"),
    }
    return MappingProxyType({"*": read["*"]} | {k: v for k, v in given.items() if v})


def _host(name: str, data: object) -> tuple[Host, frozenset[str]]:
    entry = Entry.of(name, data, _KEYS)
    served = entry.data.get("accelerators")
    if not isinstance(served, list):
        raise HardwareError(f"{name}: accelerators is {served!r}, needed a list of names")
    link = entry.quantity("link", Dimension.BANDWIDTH) * entry.number("link_efficiency", 1.0)
    memory = entry.quantity("memory", Dimension.BANDWIDTH) * entry.number("memory_efficiency", 1.0)
    host = Host(
        name=name,
        title=entry.text("title"),
        link_bandwidth=link,
        memory_bandwidth=memory,
        nvme_read=entry.quantity("nvme_read", Dimension.BANDWIDTH),
        nvme_write=entry.quantity("nvme_write", Dimension.BANDWIDTH),
        sources=_sources(sources_of(entry)),
    )
    return host, frozenset(map(str, served))
