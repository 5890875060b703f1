"""The hardware people name: accelerators, links and systems, and clusters built from them.

Everything is read on first use and kept. An unknown name is a HardwareError with near names.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Final

from mpsim import structs
from mpsim.errors import HardwareError, nearest
from mpsim.hardware.cluster import Cluster
from mpsim.hardware.components import (
    SCALED_FORMATS,
    Accelerator,
    Link,
    LinkShape,
    Node,
    recalled,
    source_of,
)
from mpsim.hardware.entries import catalog_entry, parse_accelerator, parse_link, read_entry, section
from mpsim.hardware.fabric import Fabric, FabricKind
from mpsim.memo import remembered
from mpsim.nouns import Number, Power, PriceRate, Whole
from mpsim.shipped import say
from mpsim.units import Dimension, format_quantity

GENERIC_NIC = "generic-nic"
GIVEN: Final = "given by the user"
"""Source of figures that are no catalog's."""
_APART = 1.25  # times a rate of a chip, from which it is another: boards of one die differ by less


def accelerator_names() -> tuple[str, ...]:
    """Every accelerator of the catalog, in its order."""
    return tuple(section("accelerators"))


def link_names() -> tuple[str, ...]:
    """Every link of the catalog, in its order."""
    return tuple(section("links"))


def system_names() -> tuple[str, ...]:
    """Every system of the catalog, in its order."""
    return tuple(section("systems"))


@remembered(1024)
def accelerator(name: str) -> Accelerator:
    """The accelerator called `name`.

    Examples
    --------
    >>> accelerator("a100-sxm-80").peak("bf16") / 1e12
    312.0
    """
    return parse_accelerator(name, catalog_entry("accelerators", name))


def rates_apart(chip: Accelerator) -> dict[str, float]:
    """Rates that make a chip another one than the catalog's of its name: times over that one's."""
    if chip.kind not in accelerator_names():
        return {}
    known = accelerator(chip.kind)
    times = {"memory_bandwidth": chip.memory_bandwidth / known.memory_bandwidth}
    for name in chip.peak_flops.keys() & known.peak_flops.keys():
        times[f"peak_flops.{name}"] = chip.peak_flops[name] / known.peak_flops[name]
    return {name: each for name, each in sorted(times.items()) if not 1 / _APART < each < _APART}


def unverified(chips: Iterable[Accelerator], precision: str) -> list[str]:
    """A sentence for each chip with figures that are leads from memory, of those that count for
    work in a number format.
    """
    peak = f"peak_flops.{SCALED_FORMATS.get(precision, precision)}"
    used = ("memory_bytes", "memory_bandwidth", "tdp_w", "idle_w", peak)
    known = {chip.name: [value for value in recalled(chip) if value in used] for chip in chips}
    return [
        f"values of {name} that are recalled, not verified: {', '.join(values)}"
        for name, values in known.items()
        if values
    ]


def borrowed_prices(chips: Iterable[Accelerator]) -> list[str]:
    """A sentence for each chip that has the price of the catalog's of its name, but is another."""
    return [
        say(
            "hardware.borrowed_price",
            figure=next(iter(apart)),
            times=next(iter(apart.values())),
            chip=chip.kind,
        )
        for chip in dict.fromkeys(chips)
        if chip.price_per_hour and source_of(chip, "price_per_hour") != GIVEN
        if (apart := rates_apart(chip))
    ]


@remembered(16)  # few, as chips of one name are told apart one by one
def board_power(chip: Accelerator) -> float:
    """Power limit of a board [W]: the catalog's where somebody lowered that of `chip`."""
    if chip.kind not in accelerator_names():
        return chip.tdp_w
    return max(chip.tdp_w, accelerator(chip.kind).tdp_w)


@remembered(1024)
def link(name: str) -> Link:
    """The link called `name`.

    Examples
    --------
    >>> link("nvlink4").bandwidth / 1e9
    450.0
    """
    return parse_link(name, catalog_entry("links", name))


@structs.dataclass(frozen=True, slots=True)
class Shift:
    """Difference of a link from that of its name in the catalog, on which curves were fitted."""

    latency: float  # of one hop, less that of the catalog [s]
    rate: float  # share of the bandwidth that large messages reach, over that of the catalog


def shift_of(given: Link) -> Shift:
    """How `given` differs from the catalog's link that it is like; not at all without one."""
    name = given.like or given.name
    if name not in link_names():
        return Shift(0.0, 1.0)
    usual = link(name)
    return Shift(given.hop_latency - usual.hop_latency, given.efficiency / usual.efficiency)


def system(name: str, *, nodes: int | None = None) -> Cluster:
    """The machine called `name`, of as many nodes as asked for.

    `name`: one of `system_names()`. `nodes`: by default the size it is known by (a DGX is one node,
    an NVL72 rack is 18, Selene is 560).

    Raises HardwareError: if the name is unknown, or it has fewer nodes than asked for.

    Examples
    --------
    >>> system("dgx-a100-80gb", nodes=128).accelerators
    1024
    """
    usual = _system(name)
    return usual if nodes is None else structs.replace(usual, nodes=nodes)


@structs.dataclass(frozen=True, slots=True, kw_only=True)
class _System:
    """A machine as the catalog describes it: the parts of a cluster."""

    name: str
    title: str
    accelerator: str
    accelerators_per_node: Whole
    nics_per_node: Whole
    nic: str
    fabric: str
    sources: Mapping[str, str]
    scale_up: str | None = None
    domain: Whole | None = None  # accelerators of a scale-up domain; left out, those of a node
    oversubscription: Number = 1.0
    nodes: Whole = 1  # by which it is known
    max_nodes: Whole | None = None
    power_w: Power | None = None  # of a node [W]
    price_per_hour: PriceRate | None = None
    note: str = ""


@remembered(1024)
def _system(name: str) -> Cluster:
    entry = read_entry(_System, name, catalog_entry("systems", name))
    cluster = build_cluster(
        accelerator=entry.accelerator,
        accelerators_per_node=entry.accelerators_per_node,
        nodes=entry.nodes,
        nics_per_node=entry.nics_per_node,
        nic=entry.nic,
        scale_up=entry.scale_up,
        domain=entry.accelerators_per_node if entry.domain is None else entry.domain,
        fabric_kind=entry.fabric,
        oversubscription=entry.oversubscription,
        name=name,
    )
    source = entry.sources.get("price_per_hour", entry.sources["*"])
    chip = _priced(cluster.accelerator, entry.price_per_hour, source)
    return structs.replace(
        cluster,
        node=structs.replace(cluster.node, accelerator=chip, power_w=entry.power_w),
        max_nodes=entry.max_nodes,
        sources=entry.sources,
        note=entry.note,
    )


def build_cluster(
    *,
    accelerator: str | Accelerator,
    accelerators_per_node: int,
    nodes: int,
    nics_per_node: int | None = None,
    nic: str | float | Link | None = None,
    scale_up: str | Link | None = None,
    domain: int | None = None,
    fabric_kind: str = FabricKind.RAIL_OPTIMIZED,
    oversubscription: float = 1.0,
    price_per_hour: float | None = None,
    name: str = "custom",
) -> Cluster:
    """Put together a cluster that the catalog does not have.

    `accelerator`: a name of the catalog, or one of your own. `accelerators_per_node`, `nodes`: at
    least 1. `nics_per_node`: by default one per accelerator when `nic` is given, else none. `nic`:
    a link of the catalog, or a bandwidth [B/s per direction], which then has the latency and
    efficiency of the catalog's ``generic-nic``. `scale_up`: by default what the accelerator usually
    has. `domain`: accelerators that reach each other by `scale_up`; by default those of a node, or
    for a torus as many as it can join. `fabric_kind`: a value of `FabricKind`. `oversubscription`:
    at least 1. `price_per_hour`: per accelerator [USD/h]; by default that of the accelerator.

    Raises HardwareError: if a name is unknown, or the parts do not make a cluster.

    Examples
    --------
    >>> node = {"accelerator": "h100-sxm", "accelerators_per_node": 8, "nic": "ib-ndr"}
    >>> build_cluster(**node, nodes=4).accelerators
    32
    """
    _check_counts(name, accelerators_per_node=accelerators_per_node, nodes=nodes)
    chip = _accelerator(accelerator)
    joined = _scale_up(scale_up, chip)
    if domain is None:
        domain = _usual_domain(joined, accelerators_per_node, nodes)
    port = _nic(GENERIC_NIC if nic is None else nic)
    ports = _ports(name, nic=nic, nics_per_node=nics_per_node, per_node=accelerators_per_node)
    return Cluster(
        name=name,
        node=Node(
            accelerator=_priced(chip, price_per_hour, GIVEN),
            accelerators=accelerators_per_node,
            scale_up=joined,
            domain=domain,
            nics=ports,
            nic=port,
        ),
        nodes=nodes,
        fabric=_fabric(fabric_kind, oversubscription, port),
        sources={"*": GIVEN},
    )


def with_overrides(
    cluster: Cluster,
    *,
    nodes: int | None = None,
    accelerator: str | Accelerator | None = None,
    accelerators_per_node: int | None = None,
    nics_per_node: int | None = None,
    nic: str | float | Link | None = None,
    scale_up: str | Link | None = None,
    domain: int | None = None,
    fabric_kind: str | None = None,
    oversubscription: float | None = None,
    price_per_hour: float | None = None,
    name: str | None = None,
) -> Cluster:
    """`cluster` with some parts exchanged; parameters as `build_cluster`.

    Notes
    -----
    Another number of accelerators a node moves the scale-up domain along where the domain was the
    node; fewer of them have their part of its NICs and of its power, unless the NICs are given.
    Other boards, or a cap on them, change the power of a node by as much as their own limits do.
    Collectives that were measured are those of the wires they were measured on: other wires drop
    the calibration of the cluster.

    Examples
    --------
    >>> slower = with_overrides(system("dgx-h100", nodes=4), nic=25e9)
    >>> slower.node.nic_bandwidth_per_accelerator / 1e9
    25.0
    """
    given = {key for key, value in locals().items() if value is not None and key != "cluster"}
    old = cluster.node
    per_node = old.accelerators if accelerators_per_node is None else accelerators_per_node
    _check_counts(cluster.name, accelerators_per_node=per_node)
    port = old.nic if nic is None else _nic(nic)
    part = min(1.0, per_node / old.accelerators)
    ports = math.ceil(part * old.nics) if nics_per_node is None else nics_per_node
    if old.nics == 0:
        ports = _ports(cluster.name, nic=nic, nics_per_node=nics_per_node, per_node=per_node)
    kept_domain = per_node if old.domain == old.accelerators else old.domain
    fabric = cluster.fabric
    chip = old.accelerator if accelerator is None else _accelerator(accelerator)
    if scale_up is None:
        is_usual = old.scale_up.name == old.accelerator.scale_up
        scale_up = chip.scale_up if is_usual and chip.scale_up else old.scale_up
    joined = _scale_up(scale_up, chip)
    usual = min(per_node, old.accelerators) * old.accelerator.tdp_w
    boards = per_node * chip.tdp_w - usual  # that a node draws beyond its part [W]
    rewired = joined != old.scale_up or port != old.nic
    return structs.replace(
        cluster,
        calibration=None if rewired else cluster.calibration,
        name=cluster.name if name is None else name,
        nodes=cluster.nodes if nodes is None else nodes,
        node=structs.replace(
            old,
            accelerator=_priced(chip, price_per_hour, GIVEN),
            accelerators=per_node,
            scale_up=joined,
            domain=kept_domain if domain is None else domain,
            nics=ports,
            nic=port,
            power_w=None if old.power_w is None else part * old.power_w + boards,
        ),
        fabric=_fabric(
            fabric.kind if fabric_kind is None else fabric_kind,
            fabric.oversubscription if oversubscription is None else oversubscription,
            None if port == old.nic else port,
            fabric,
        ),
        sources={**cluster.sources, **dict.fromkeys(given, GIVEN)},
    )


def _check_counts(name: str, **counts: int) -> None:
    for key, count in counts.items():
        if count < 1:
            raise HardwareError(f"{name}: {key} is {count}, needed 1 or more")


def _ports(
    name: str, *, nic: str | float | Link | None, nics_per_node: int | None, per_node: int
) -> int:
    """NICs of a node: as asked for; else one per accelerator where there is a NIC at all."""
    if nics_per_node is None:
        return 0 if nic is None else per_node
    if nics_per_node > 0 and nic is None:
        raise HardwareError(say("hardware.no_nic_kind", name=name, count=nics_per_node))
    return nics_per_node


def _accelerator(given: str | Accelerator) -> Accelerator:
    return accelerator(given) if isinstance(given, str) else given


def _scale_up(given: str | Link | None, chip: Accelerator) -> Link:
    if given is None and chip.scale_up is None:
        raise HardwareError(f"{chip.name} has no usual scale-up link; say which (scale_up)")
    chosen = chip.scale_up if given is None else given
    joined = link(chosen) if isinstance(chosen, str) else chosen
    assert joined is not None
    if joined.shape is LinkShape.NETWORK:
        raise HardwareError(f"{joined.name} is a NIC, not a scale-up link; give it as nic")
    return joined


def _nic(given: str | float | Link) -> Link:
    if isinstance(given, Link):
        nic = given
    elif isinstance(given, str):
        nic = link(given)
    else:
        nic = _nic_of_bandwidth(float(given))
    if nic.shape is not LinkShape.NETWORK:
        raise HardwareError(f"{nic.name} is a {nic.shape} link, not a NIC; give it as scale_up")
    return nic


def _nic_of_bandwidth(bandwidth: float) -> Link:
    if not (math.isfinite(bandwidth) and bandwidth > 0):
        raise HardwareError(f"nic: bandwidth is {bandwidth:g} B/s, needed a finite number above 0")
    title = f"NIC of {format_quantity(bandwidth, Dimension.BANDWIDTH)}"
    generic = link(GENERIC_NIC)
    sources = {**generic.sources, "bandwidth": GIVEN}
    return structs.replace(generic, title=title, bandwidth=bandwidth, sources=sources)


def _usual_domain(joined: Link, per_node: int, nodes: int) -> int:
    if joined.shape is not LinkShape.TORUS:
        return per_node
    most = joined.max_domain or per_node * nodes
    return max(most // per_node, 1) * per_node


def _fabric(
    kind: str, oversubscription: float, nic: Link | None, known: Fabric | None = None
) -> Fabric:
    """A fabric with switches of this NIC's network, if any; the rest as it is `known`."""
    if kind not in set(FabricKind):
        raise HardwareError(
            f"fabric kind is {kind!r}; {nearest(kind, [known.value for known in FabricKind])}"
        )
    links = known.links if known and kind == FabricKind.GRAPH else ()
    fabric = known or Fabric(kind=FabricKind.SINGLE_SWITCH)
    return structs.replace(
        fabric,
        kind=FabricKind(kind),
        links=links,
        oversubscription=oversubscription,
        hop_latency=nic.switch_latency if nic else fabric.hop_latency,
        radix=nic.switch_ports if nic else fabric.radix,
    )


def _priced(chip: Accelerator, price: float | None, source: str) -> Accelerator:
    if price is None:
        return chip
    return structs.replace(
        chip, price_per_hour=price, sources={**chip.sources, "price_per_hour": source}
    )


def is_machine_path(name: str) -> bool:
    """Whether a name in a scenario is the path of a machine file, no entry of a catalog."""
    return name.endswith((".yaml", ".yml"))
