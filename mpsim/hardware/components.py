"""Components of a cluster: Accelerator, Link, Node; and what calibration measured on them, values
that hardware only carries: `mpsim.cost` reads constants and curves in place of its own.

All bandwidths are per direction: a bidirectional (marketing) figure is halved on entry.
"""

import contextlib
import enum
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mpsim import nouns, structs
from mpsim.errors import HardwareError
from mpsim.nouns import Description, describe_fields
from mpsim.shipped import read_shipped, say
from mpsim.units import Dimension, format_quantity


@structs.dataclass(frozen=True, slots=True)
class Fitted:
    """One constant with its uncertainty."""

    value: float
    low: float  # low, high: between which it lies with a probability of 95 %
    high: float
    unit: str  # SI unit; ``1`` for a ratio


@structs.dataclass(frozen=True, slots=True)
class MeasuredCurve:
    """Seconds by bytes of one kind of work."""

    kind: str  # of a kernel (``norm``), or a collective (``all_reduce``)
    phase: str  # of a kernel: ``forward`` or ``input_gradient``; empty for a collective
    ranks: int  # ranks, domains: of a collective's group; 0 for a kernel
    domains: int
    sizes: tuple[float, ...]  # sizes, times: [B], [s]; sizes rise
    times: tuple[float, ...]


@structs.dataclass(frozen=True, slots=True)
class Calibration:
    """Everything `mpsim calibrate` found out about one machine."""

    name: str  # of the machine
    source: str  # source, as_of: what was measured, with what, and when
    as_of: str
    # by dotted name: data file of the cost model, group, leaf
    # (``kernels.gemm.bf16_sustained_fraction``)
    constants: Mapping[str, Fitted]
    # kernels, collectives: where a form with constants does not hold
    kernels: tuple[MeasuredCurve, ...]
    collectives: tuple[MeasuredCurve, ...]
    library: str  # communication library that was measured; empty where none was
    # fields of a framework that belong to this machine; a scenario's own fields win
    framework: Mapping[str, object]
    # labels of the training runs that were measured, as a prediction's setting has them
    runs: tuple[Mapping[str, Any], ...] = ()
    # the file they were read from, as plain data
    document: Mapping[str, Any] = structs.field(default_factory=dict, repr=False)

    def under(self, prefix: str) -> Iterator[tuple[str, Fitted]]:
        """Leaf and constant of every constant called ``prefix.leaf``."""
        head = f"{prefix}."
        for name, fitted in self.constants.items():
            if name.startswith(head) and "." not in name.removeprefix(head):
                yield name.removeprefix(head), fitted

    def value(self, name: str) -> float | None:
        """The constant called `name`; None where it was not fitted."""
        constant = self.constants.get(name)
        return None if constant is None else constant.value

    def runs_like(self, labels: Mapping[str, Sequence[str]]) -> int:
        """How many of the measured runs have these labels, as far as they say."""
        return sum(
            all([*labels.get(key, ())] == words for key, words in run.items()) for run in self.runs
        )

    def kernel_curve(self, kind: str, phase: str) -> MeasuredCurve | None:
        """The curve of a kind of kernel in a phase; the forward's where only that was measured."""
        curves = {(curve.kind, curve.phase): curve for curve in self.kernels}
        return curves.get((kind, phase), curves.get((kind, "forward")))


_SCALED: Mapping[str, Mapping[str, str]] = read_shipped("mpsim.hardware.data", "formats.yaml")
SCALED_FORMATS = {name: facts["elements"] for name, facts in _SCALED.items()}
"""Formats with a scale a row or block, and the precision whose matrix units they run on."""


_MHZ = 1e6


class LinkShape(enum.StrEnum):
    """How the accelerators of one scale-up domain are joined."""

    SWITCH = "switch"  # any pair gets the full rate (NVSwitch)
    MESH = "mesh"  # one direct link per pair; a pair gets rate / (domain - 1)
    TORUS = "torus"  # rings along each axis (ICI)
    HOST = "host"  # through PCIe and the host
    NETWORK = "network"  # a NIC into the fabric


class Sourced:
    """Hardware that says where its figures were read: ``sources`` by figure, ``*`` for the rest."""

    __slots__ = ()
    sources: Mapping[str, str]

    def describe(self) -> Description:
        """Every figure with its unit and source."""
        return describe_fields(self)


def _check_positive(owner: str, **values: float) -> None:
    for key, value in values.items():
        if not (math.isfinite(value) and value > 0):
            raise HardwareError(f"{owner}: {key} is {value:g}, needed a finite number above 0")


def _check_not_negative(owner: str, **values: float) -> None:
    for key, value in values.items():
        if not (math.isfinite(value) and value >= 0):
            raise HardwareError(f"{owner}: {key} is {value:g}, needed 0 or a finite number above")


@structs.dataclass(frozen=True, slots=True, kw_only=True)
class Accelerator(Sourced):
    """One device as software sees it, from its datasheet."""

    name: str
    """Identifier in the catalog."""
    title: str
    """Printed name."""
    vendor: str
    family: str
    """Whose kernel constants apply (`ampere`, `hopper`, ...)."""
    year: nouns.Whole
    """Of launch."""
    peak_flops: Mapping[str, nouns.FlopRate]
    """Dense peak by precision (fp64 fp32 tf32 fp16 bf16 fp8 fp4 int8) [FLOP/s]."""
    memory_bytes: nouns.Bytes
    """Device memory that the driver reports [B]."""
    memory_bandwidth: nouns.Bandwidth
    """Its rate [B/s]."""
    compute_units: nouns.Whole
    """SMs, CUs or cores."""
    tdp_w: nouns.Power
    """Board power limit [W]."""
    idle_w: nouns.Power
    """Idle power [W]."""
    scale_up: str | None = None
    """Name of its usual scale-up link."""
    price_per_hour: nouns.PriceRate | None = None
    """On demand [USD/h]."""
    boost_clock_hz: nouns.Frequency | None = None
    """Highest clock of its processors [Hz]."""
    clock_hz: nouns.Frequency | None = None
    """Clock that it is locked to, at most `boost_clock_hz`; None where nothing holds it [Hz]."""
    sources: Mapping[str, str] = structs.field(default_factory=dict)
    """For each figure (or `*` for the rest): where it was read and when; `recalled` marks a lead,
    not a fact."""
    note: str = ""
    """What a careful reader should know: conflicts between sources, traps."""
    calibration: Calibration | None = None
    """Constants of its kernels, where they were measured on it."""

    def __post_init__(self) -> None:
        _check_positive(
            self.name,
            memory_bytes=self.memory_bytes,
            memory_bandwidth=self.memory_bandwidth,
            compute_units=self.compute_units,
            tdp_w=self.tdp_w,
            **{f"peak_flops.{precision}": peak for precision, peak in self.peak_flops.items()},
        )
        _check_not_negative(
            self.name, idle_w=self.idle_w, price_per_hour=self.price_per_hour or 0.0
        )
        if self.tdp_w < self.idle_w:
            raise HardwareError(say("hardware.idle_power", s=self))
        self._check_clocks()
        if not self.peak_flops:
            raise HardwareError(say("hardware.no_peak", name=self.name))

    @property
    def kind(self) -> str:
        """Its name in the catalog; of a machine file, that of its datasheet."""
        measured = self.calibration
        return str((measured and measured.document.get("datasheet")) or self.name)

    def _check_clocks(self) -> None:
        boost, locked = self.boost_clock_hz, self.clock_hz
        given = {"boost_clock_hz": boost, "clock_hz": locked}
        _check_positive(self.name, **{key: each for key, each in given.items() if each is not None})
        if locked is None:
            return
        if boost is None:
            raise HardwareError(say("hardware.no_clock", name=self.name, locked=locked / _MHZ))
        if locked > boost:
            raise HardwareError(
                f"{self.name}: clock is {locked / _MHZ:g} MHz, needed at most its boost_clock of"
                f" {boost / _MHZ:g} MHz"
            )

    def multiplies(self, precision: str) -> bool:
        """Whether its matrix units have a format."""
        with contextlib.suppress(HardwareError):
            return self.peak(precision) > 0
        return False

    def peak(self, precision: str) -> float:
        """Dense peak [FLOP/s] of matrix products in `precision`; HardwareError without one.

        Notes
        -----
        A scaled format has the peak of its elements, if its scales are applied (`SCALED_FORMATS`).
        """
        scaled = _SCALED.get(precision, {})
        try:
            if scaled.get("vendor", self.vendor) != self.vendor:
                raise KeyError(precision)
            elements = scaled.get("elements", precision)
            self.peak_flops[scaled.get("beside", elements)]
            return self.peak_flops[elements]
        except KeyError:
            has = ", ".join(sorted(self.peak_flops))
            raise HardwareError(
                say("hardware.no_precision", name=self.name, precision=precision, has=has)
            ) from None

    def __hash__(self) -> int:
        # its mappings have none; chips that share a name are told apart by their other fields
        return hash(self.name)

    def __str__(self) -> str:
        precision = next(
            (p for p in ("bf16", "fp16", "fp32") if p in self.peak_flops), min(self.peak_flops)
        )
        return (
            f"{self.title} ({self.vendor}, {self.family}): "
            f"{format_quantity(self.peak_flops[precision], Dimension.FLOP_RATE)} {precision}, "
            f"{format_quantity(self.memory_bytes, Dimension.BYTES)} at "
            f"{format_quantity(self.memory_bandwidth, Dimension.BANDWIDTH)}"
        )


@structs.dataclass(frozen=True, slots=True, kw_only=True)
class Link(Sourced):
    """One kind of link; ``bandwidth`` per direction, for scale-up over an accelerator's links."""

    name: str
    title: str
    shape: LinkShape
    bandwidth: nouns.Bandwidth
    """Per direction and accelerator (scale-up) or per port (NIC, host) [B/s]."""
    latency: nouns.Seconds
    """One hop, as a message pays it [s]."""
    links: nouns.Whole = 1
    """Physical links the bandwidth is the sum of (a torus divides by it)."""
    in_network_reduction: nouns.Flag = False
    """Whether switches can reduce (NVLink SHARP)."""
    efficiency: nouns.Number = 1.0
    """Share of `bandwidth` that large messages reach."""
    switch_latency: nouns.Seconds = 0.0
    """What one switch of this network adds [s]."""
    switch_ports: nouns.Whole = 0
    """Ports of one switch of this network; 0 where it does not matter."""
    max_domain: nouns.Whole | None = None
    """Most accelerators the link can join; None where it is a matter of what one builds."""
    like: str = ""
    """Entry of the catalog whose curves count, where that is not the one of its name."""
    sources: Mapping[str, str] = structs.field(default_factory=dict)
    note: str = ""

    def __post_init__(self) -> None:
        _check_positive(
            self.name, bandwidth=self.bandwidth, links=self.links, efficiency=self.efficiency
        )
        _check_not_negative(self.name, latency=self.latency, switch_latency=self.switch_latency)
        if self.efficiency > 1:
            raise HardwareError(f"{self.name}: efficiency is {self.efficiency:g}, needed at most 1")

    @property
    def hop_latency(self) -> float:
        """One hop inside a scale-up domain, its switch included where there is one [s]."""
        return self.latency + (self.switch_latency if self.shape is LinkShape.SWITCH else 0.0)

    def __str__(self) -> str:
        return (
            f"{self.title}: {format_quantity(self.bandwidth, Dimension.BANDWIDTH)} per direction, "
            f"{format_quantity(self.latency, Dimension.TIME)}, {self.shape}"
        )


@structs.dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """Accelerators that share a host and its NICs."""

    accelerator: Accelerator
    accelerators: int  # in the node
    scale_up: Link
    # accelerators of one scale-up domain: of the node, or more (72 for NVL72)
    domain: int
    # NICs of the node for traffic between nodes; 0 where the scale-up link is the only network
    nics: int
    nic: Link  # what one of them does
    power_w: nouns.Power | None = None  # most power the whole node draws, accelerators included [W]

    def __post_init__(self) -> None:
        _check_positive("node", accelerators=self.accelerators, domain=self.domain)
        _check_not_negative("node", nics=self.nics, power_w=self.power_w or 0.0)
        if self.domain % self.accelerators:
            raise HardwareError(say("hardware.domain_of_nodes", s=self))
        limit = self.scale_up.max_domain
        if limit is not None and self.domain > limit:
            raise HardwareError(say("hardware.wide_domain", s=self, limit=limit))

    @property
    def nic_bandwidth(self) -> float:
        """All NICs of the node [B/s per direction]."""
        return self.nics * self.nic.bandwidth

    @property
    def nic_bandwidth_per_accelerator(self) -> float:
        """An accelerator's share of its node's NICs [B/s per direction]."""
        return self.nic_bandwidth / self.accelerators


def source_of(item: Sourced, figure: str) -> str:
    """Where `figure` of `item` was read and when; the entry's own source unless it has another."""
    return item.sources.get(figure, item.sources.get("*", ""))


def recalled(item: Sourced) -> tuple[str, ...]:
    """Figures of `item` that are leads from memory: label them wherever shown."""
    return tuple(sorted(key for key, text in item.sources.items() if text.startswith("recalled")))
