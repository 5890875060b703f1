"""Host: what keeps offloaded model states, and the links they travel over."""

import math
from collections.abc import Iterable, Mapping

from mpsim import structs
from mpsim.errors import HardwareError
from mpsim.hardware.cluster import Cluster
from mpsim.hardware.components import Sourced
from mpsim.hardware.entries import read_entry, section
from mpsim.memo import remembered
from mpsim.nouns import Bandwidth, Number

_GENERIC = "generic"
_UNLIKELY = 2.0  # times the link of the host from which a NIC is told


@structs.dataclass(frozen=True, slots=True, kw_only=True)
class Host(Sourced):
    """The host of a node."""

    name: str
    title: str
    link: Bandwidth
    """Between one accelerator and its host, per direction [B/s]."""
    memory: Bandwidth
    """Of all the host's memory [B/s]."""
    nvme_read: Bandwidth
    """Of all drives of the host [B/s]."""
    nvme_write: Bandwidth
    accelerators: tuple[str, ...] = ()
    """Accelerators of the catalog that have such a host."""
    link_efficiency: Number = 1.0
    """Share of `link` that is sustained."""
    memory_efficiency: Number = 1.0
    core: Bandwidth = math.inf
    """Memory traffic that one core sustains [B/s]; without limit where nothing is known."""
    call_time: Number = 1.0
    """Time of the same calls of a framework over that on an x86 server."""
    sources: Mapping[str, str] = structs.field(default_factory=dict)
    """Where each figure comes from; see `mpsim.hardware.recalled`."""
    note: str = ""

    def __post_init__(self) -> None:
        for figure in ("link_bandwidth", "memory_bandwidth", "nvme_read", "nvme_write"):
            if getattr(self, figure) <= 0:
                raise HardwareError(f"{self.name}: {figure} is not above 0; needed a bandwidth")

    @property
    def link_bandwidth(self) -> float:
        """Sustained between one accelerator and its host, per direction [B/s]."""
        return self.link * self.link_efficiency

    @property
    def memory_bandwidth(self) -> float:
        """Sustained of all the host's memory [B/s]."""
        return self.memory * self.memory_efficiency


def host_of(cluster: Cluster) -> Host:
    """The host of a cluster's nodes, by its accelerator; a generic one where the catalog has none.

    Examples
    --------
    >>> from mpsim.hardware import system
    >>> host_of(system("dgx-a100-80gb", nodes=1)).name
    'pcie4'
    """
    name, hosts = cluster.accelerator.kind, _hosts()
    return next((host for host in hosts.values() if name in host.accelerators), hosts[_GENERIC])


def unlikely_nics(clusters: Iterable[Cluster]) -> list[str]:
    """A sentence for each NIC far faster than the host's links, as bits taken for bytes are."""
    wide = (c for c in clusters if c.nodes > 1)
    known = {(c.node.nic.bandwidth, host_of(c).link, c.accelerator.name) for c in wide}
    return [
        f"cluster.nic: a port of {nic / 1e9:g} GB/s is {nic * 8e-9:,.0f} Gb/s, and the link of"
        f" {chip} to its host has {link * 8e-9:,.0f} Gb/s: NICs are sold in Gb/s"
        for nic, link, chip in sorted(known)
        if nic > _UNLIKELY * link
    ]


@remembered(1)
def _hosts() -> Mapping[str, Host]:
    return {key: _sustained(read_entry(Host, key, data)) for key, data in section("hosts").items()}


def _sustained(host: Host) -> Host:
    """Give a sustained rate the source of the share that makes it one: it is no surer than that."""
    shares = {"link_bandwidth": "link_efficiency", "memory_bandwidth": "memory_efficiency"}
    known = {rate: host.sources[share] for rate, share in shares.items() if share in host.sources}
    return structs.replace(host, sources={**host.sources, **known})
