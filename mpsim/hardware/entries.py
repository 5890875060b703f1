"""Catalog entries (plain YAML data) turned into Accelerator and Link; every mistake names the entry and the key.

An entry carries ``source`` and ``as_of`` for its figures, ``figures`` for those read elsewhere, and
``recalled`` for those nobody has read: from memory, or an estimate.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType
from typing import TypeVar

from mpsim.errors import HardwareError, UnitError, nearest
from mpsim.hardware.components import Accelerator, Link, LinkShape
from mpsim.units import Dimension, parse_quantity

__all__ = ["Entry", "parse_accelerator", "parse_link", "sources_of"]

PROVENANCE = ("source", "as_of", "figures", "recalled", "note")
FIELD_OF: Mapping[str, str] = MappingProxyType(
    {
        "memory": "memory_bytes",
        "tdp": "tdp_w",
        "idle": "idle_w",
        "boost_clock": "boost_clock_hz",
        "node_power": "power_w",
    }
)
T = TypeVar("T")


@dataclasses.dataclass(frozen=True, slots=True)
class Entry:
    """One mapping of a catalog file, read key by key with complaints that say where."""

    name: str
    data: Mapping[str, object]

    @classmethod
    def of(cls, name: str, data: object, keys: frozenset[str]) -> Entry:
        """Take `data` as the entry `name`; HardwareError if it is no mapping or has other keys than `keys`."""
        if not isinstance(data, Mapping):
            raise HardwareError(f"{name}: got {data!r}, needed a mapping of figures")
        for key in data:
            if key not in keys:
                raise HardwareError(f"{name}: unknown key {key!r}; {nearest(str(key), keys)}")
        return cls(name, data)

    def has(self, key: str) -> bool:
        """Whether `key` is given."""
        return self.data.get(key) is not None

    def quantity(self, key: str, dimension: Dimension, default: float | None = None) -> float:
        """The quantity under `key` in SI units, or `default` when it is left out."""
        if not self.has(key) and default is not None:
            return default
        return _quantity(self.name, key, self._given(key), dimension)

    def text(self, key: str, default: str | None = None) -> str:
        """The text under `key`."""
        if not self.has(key) and default is not None:
            return default
        return self._typed(key, str, "text")

    def integer(self, key: str, default: int | None = None) -> int:
        """The whole number under `key`."""
        if not self.has(key) and default is not None:
            return default
        return self._typed(key, int, "a whole number")

    def number(self, key: str, default: float) -> float:
        """The plain number under `key`."""
        value = self.data.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise HardwareError(f"{self.name}: {key} is {value!r}, needed a number")
        return float(value)

    def flag(self, key: str) -> bool:
        """Whether `key` is true; false when left out."""
        return self.has(key) and self._typed(key, bool, "true or false")

    def mapping(self, key: str) -> Mapping[str, object]:
        """The mapping under `key`; empty when left out."""
        value = self.data.get(key) or {}
        if not isinstance(value, Mapping):
            raise HardwareError(f"{self.name}: {key} is {value!r}, needed a mapping")
        return value

    def quantities(self, key: str, dimension: Dimension) -> Mapping[str, float]:
        """A mapping of quantities of one dimension."""
        return MappingProxyType(
            {
                str(name): _quantity(self.name, f"{key}.{name}", value, dimension)
                for name, value in self.mapping(key).items()
            }
        )

    def _given(self, key: str) -> object:
        if not self.has(key):
            raise HardwareError(f"{self.name}: {key} is missing")
        return self.data[key]

    def _typed(self, key: str, kind: type[T], wanted: str) -> T:
        value = self._given(key)
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise HardwareError(f"{self.name}: {key} is {value!r}, needed {wanted}")
        return value


def _quantity(name: str, key: str, value: object, dimension: Dimension) -> float:
    try:
        return parse_quantity(value, dimension)
    except UnitError as error:
        raise HardwareError(f"{name}: {key}: {error}") from error


def sources_of(entry: Entry) -> Mapping[str, str]:
    """Where each figure of `entry` comes from, by the name of the field that holds it.

    Parameters
    ----------
    entry : Entry
        With ``source`` and ``as_of``; optionally ``figures`` and ``recalled``.

    Returns
    -------
    mapping of str to str
        ``*`` for the whole entry; figures from elsewhere and recalled ones under their own name.
    """
    default = f"{entry.text('source')} ({entry.data.get('as_of') or _undated(entry.name)})"
    sources = {"*": default}
    for key, given in entry.mapping("figures").items():
        own = Entry.of(f"{entry.name}: figures.{key}", given, frozenset({"source", "as_of"}))
        sources[_field(key)] = (
            f"{own.text('source')} ({own.data.get('as_of') or _undated(own.name)})"
        )
    listed = entry.data.get("recalled") or []
    if not isinstance(listed, list):
        raise HardwareError(f"{entry.name}: recalled is {listed!r}, needed a list of keys")
    for key in listed:
        sources[_field(str(key))] = f"recalled, unverified ({entry.data['as_of']})"
    return MappingProxyType(sources)


def _undated(name: str) -> str:
    raise HardwareError(f"{name}: as_of is missing: say on which day the source was read")


def _field(key: str) -> str:
    return FIELD_OF.get(key, key)


ACCELERATOR_KEYS = frozenset(
    (
        *PROVENANCE,
        *("title", "vendor", "family", "year", "compute_units", "peak_flops", "memory"),
        *("memory_bandwidth", "tdp", "idle", "scale_up", "price_per_hour", "boost_clock"),
    )
)


def parse_accelerator(name: str, data: object) -> Accelerator:
    """Read one accelerator entry.

    Parameters
    ----------
    name : str
        Its identifier.
    data : object
        The mapping written in YAML; quantities are strings with units.

    Raises
    ------
    HardwareError
        If a key is unknown or missing, or a figure is not a quantity.
    """
    entry = Entry.of(name, data, ACCELERATOR_KEYS)
    return Accelerator(
        name=name,
        title=entry.text("title"),
        vendor=entry.text("vendor"),
        family=entry.text("family"),
        year=entry.integer("year"),
        peak_flops=entry.quantities("peak_flops", Dimension.FLOP_RATE),
        memory_bytes=entry.quantity("memory", Dimension.BYTES),
        memory_bandwidth=entry.quantity("memory_bandwidth", Dimension.BANDWIDTH),
        compute_units=entry.integer("compute_units"),
        tdp_w=entry.quantity("tdp", Dimension.POWER),
        idle_w=entry.quantity("idle", Dimension.POWER),
        scale_up=entry.text("scale_up") if entry.has("scale_up") else None,
        price_per_hour=_price(entry),
        boost_clock_hz=entry.quantity("boost_clock", Dimension.FREQUENCY)
        if entry.has("boost_clock")
        else None,
        sources=sources_of(entry),
        note=entry.text("note", ""),
    )


def _price(entry: Entry) -> float | None:
    has = entry.has("price_per_hour")
    return entry.quantity("price_per_hour", Dimension.PRICE_RATE) if has else None


LINK_KEYS = frozenset(
    (
        *PROVENANCE,
        *("title", "shape", "bandwidth", "latency", "links", "in_network_reduction", "efficiency"),
        *("switch_latency", "switch_ports", "max_domain"),
    )
)


def parse_link(name: str, data: object) -> Link:
    """Read one link entry; raises like `parse_accelerator`."""
    entry = Entry.of(name, data, LINK_KEYS)
    shape = entry.text("shape")
    if shape not in set(LinkShape):
        raise HardwareError(
            f"{name}: shape is {shape!r}; {nearest(shape, [known.value for known in LinkShape])}"
        )
    return Link(
        name=name,
        title=entry.text("title"),
        shape=LinkShape(shape),
        bandwidth=entry.quantity("bandwidth", Dimension.BANDWIDTH),
        latency=entry.quantity("latency", Dimension.TIME),
        links=entry.integer("links", 1),
        in_network_reduction=entry.flag("in_network_reduction"),
        efficiency=entry.number("efficiency", 1.0),
        switch_latency=entry.quantity("switch_latency", Dimension.TIME, 0.0),
        switch_ports=entry.integer("switch_ports", 0),
        max_domain=entry.integer("max_domain") if entry.has("max_domain") else None,
        sources=sources_of(entry),
        note=entry.text("note", ""),
    )
