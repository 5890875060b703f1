"""Entries of a catalog made nouns of hardware; every mistake names the entry and key.

An entry carries ``source`` and ``as_of`` for its figures, ``figures`` for those read elsewhere, and
``recalled`` for those nobody has read: from memory, or an estimate.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar, TypeVar

from mpsim import structs
from mpsim.errors import HardwareError, nearest
from mpsim.hardware.components import Accelerator, Link
from mpsim.inputs import shown
from mpsim.nouns import Mistake, MistakenError, read
from mpsim.shipped import read_shipped

T = TypeVar("T")

_WRITTEN: Mapping[str, str] = MappingProxyType(
    {
        "memory_bytes": "memory",
        "tdp_w": "tdp",
        "idle_w": "idle",
        "boost_clock_hz": "boost_clock",
        "power_w": "node_power",
    }
)
"""Keys of fields that an entry calls otherwise."""
_NOT_WRITTEN = frozenset({"name", "sources", "calibration", "clock_hz", "like"})


@structs.dataclass(frozen=True, slots=True, kw_only=True)
class _Origin:
    """Where a figure was read, and when."""

    source: str
    as_of: object

    extra_keys: ClassVar = "forbid"

    def __str__(self) -> str:
        return f"{self.source} ({self.as_of})"


@structs.dataclass(frozen=True, slots=True, kw_only=True)
class _Provenance:
    """Where the figures of an entry come from."""

    source: str
    as_of: object
    # figures that were read elsewhere
    figures: Mapping[str, _Origin] = structs.field(default_factory=dict)
    recalled: tuple[str, ...] = ()  # figures that nobody has read

    def by_field(self, fields: Mapping[str, str]) -> Mapping[str, str]:
        """Sources by the field that holds a figure; ``*`` for the whole entry."""
        own = {key: str(origin) for key, origin in self.figures.items()}
        own |= dict.fromkeys(self.recalled, f"recalled, unverified ({self.as_of})")
        named = {fields.get(key, key): source for key, source in own.items()}
        return MappingProxyType({"*": f"{self.source} ({self.as_of})"} | named)


_PROVENANCE = tuple(field.name for field in structs.fields(_Provenance))


def read_entry(noun: type[T], name: str, data: object) -> T:
    """Make a noun of one entry.

    `noun`: a dataclass with ``name`` and ``sources``. `name`: identifier of the entry. `data`: the
    mapping written in YAML; quantities are strings with units. HardwareError if a key is unknown or
    missing, or a figure is not a quantity.
    """
    if not isinstance(data, Mapping):
        raise HardwareError(f"{name}: got {shown(data)}, needed a mapping of values")
    fields = {
        _WRITTEN.get(field.name, field.name): field.name
        for field in structs.fields(noun)  # type: ignore[arg-type] # nouns are dataclasses
        if field.name not in _NOT_WRITTEN
    }
    known = (*_PROVENANCE, *fields)
    for key in data:
        if key not in known:
            raise HardwareError(f"{name}: unknown key {shown(key)}; {nearest(str(key), known)}")
    given = {key: value for key, value in data.items() if value is not None}
    try:
        origin = read(_Provenance, {key: given[key] for key in _PROVENANCE if key in given})
        figures = {fields[key]: value for key, value in given.items() if key in fields}
        return read(noun, {**figures, "name": name, "sources": origin.by_field(fields)})
    except MistakenError as error:
        raise HardwareError(_complaint(name, error.mistakes[0])) from error


def _complaint(name: str, mistake: Mistake) -> str:
    head, dot, rest = mistake.key.partition(".")
    key = f"{_WRITTEN.get(head, head)}{dot}{rest}"
    if not key:  # what the noun says of all its figures
        return mistake.needed
    if mistake.whole:
        return f"{name}: {key}: {mistake.needed}"
    if mistake.needed:
        comma = "," if mistake.needed.startswith("needed") else ";"
        return f"{name}: {key} is {shown(mistake.got)}{comma} {mistake.needed}"
    place, _, last = f"{name}: {key}".rpartition(".") if rest else (f"{name}", "", key)
    mend = ": say on which day the source was read" if last == "as_of" else ""
    return f"{place}: {last} is missing{mend}"


def parse_accelerator(name: str, data: object) -> Accelerator:
    """Read one accelerator entry; raises like `read_entry`."""
    return read_entry(Accelerator, name, data)


def parse_link(name: str, data: object) -> Link:
    """Read one link entry; raises like `read_entry`."""
    return read_entry(Link, name, data)


def section(kind: str) -> Mapping[str, object]:
    """The entries of one catalog file: ``accelerators``, ``hosts``, ``links`` or ``systems``."""
    entries: Mapping[str, object] = read_shipped("mpsim.hardware.catalog", f"{kind}.yaml")
    return entries


def catalog_entry(kind: str, name: str) -> object:
    """The entry `name` of one catalog file. HardwareError names the nearest if there is none."""
    known = section(kind)
    if name not in known:
        raise HardwareError(f"no {kind.removesuffix('s')} named {name!r}; {nearest(name, known)}")
    return known[name]
