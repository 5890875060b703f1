"""Fitted constants with their sources: read from ``mpsim/cost/data``, named, accounted for.

A file is a list of groups. A group is a few numbers that share one source, date and status, and
says which hardware it is for; ``units`` at the head of the file gives the unit of every leaf once.
"""

from __future__ import annotations

import contextlib
import enum
import fnmatch
import re
from collections.abc import Iterator, Mapping
from typing import Any, Generic, NamedTuple, TypeVar

from mpsim import structs
from mpsim.errors import HardwareError
from mpsim.hardware.cluster import Cluster
from mpsim.hardware.components import Accelerator, Calibration, Link, source_of
from mpsim.hardware.host import Host, host_of
from mpsim.memo import remembered
from mpsim.shipped import read_shipped

A = TypeVar("A")

_PACKAGE = "mpsim.cost.data"
_RATE = "rate_full_"
_DATED = re.compile(r"(?P<source>.*) \((?P<as_of>\d{4}-\d{2}(?:-\d{2})?)\)", re.DOTALL)


class Status(enum.StrEnum):
    """Degree to which a constant can be trusted."""

    CALIBRATED = "calibrated"  # fitted on, or read from, measurements of this hardware
    FAMILY_DEFAULT = "family default"  # carried over from the nearest relative, or an assumption
    DATASHEET = "datasheet"  # printed by the maker


@structs.dataclass(frozen=True, slots=True)
class Constant:
    """One number a cost model used, with where it came from."""

    name: str  # dotted: file, group, leaf (``kernels.gemm.h100-sxm.knee``)
    value: float  # in `unit`
    unit: str  # SI unit; ``1`` for a ratio
    source: str  # where it was read, or on what it was fitted
    as_of: str  # date of the source (year-month)
    status: Status


class Constants(tuple[Constant, ...]):
    """Constants of one simulation, each with its source."""

    __slots__ = ()

    def __repr__(self) -> str:
        counts = (
            f"{sum(constant.status is status for constant in self)} {status}" for status in Status
        )
        return f"Constants({len(self)}: {', '.join(counts)})"


@structs.dataclass(frozen=True, slots=True)
class ConstantGroup(Mapping[str, Constant]):
    """Constants that belong together, by leaf name."""

    name: str  # within its file (``gemm.h100-sxm``)
    members: tuple[str, ...]  # patterns (``h100*``) of the hardware names it is for
    # families it stands in for when no group names the hardware itself; ``*`` for all the rest
    families: tuple[str, ...]
    constants: Mapping[str, Constant]
    words: Mapping[str, tuple[str, ...]]  # settings that are names rather than numbers

    def __getitem__(self, leaf: str) -> Constant:
        return self.constants[leaf]

    def __iter__(self) -> Iterator[str]:
        return iter(self.constants)

    def __len__(self) -> int:
        return len(self.constants)

    def value(self, leaf: str) -> float:
        """The number called `leaf`, in its SI unit."""
        return self.constants[leaf].value

    def matches(self, name: str) -> bool:
        """Whether one of the group's patterns names this hardware."""
        return any(fnmatch.fnmatchcase(name, pattern) for pattern in self.members)

    def demoted(self, why: str) -> ConstantGroup:
        """The same numbers beyond what they were measured on: a family default, with the reason."""
        relabelled = {
            leaf: structs.replace(
                constant, source=f"{why}: {constant.source}", status=Status.FAMILY_DEFAULT
            )
            for leaf, constant in self.constants.items()
        }
        return structs.replace(self, constants=relabelled)


@remembered(16)
def constant_groups(stem: str) -> Mapping[str, ConstantGroup]:
    """Every group of the data file `stem` (``kernels``, ``collectives``), by name."""
    document = read_shipped(_PACKAGE, f"{stem}.yaml")
    return {
        name: ConstantGroup(
            name,
            tuple(body.get("members", ())),
            tuple(body.get("families", ())),
            _Written(f"{stem}.{name}", body, document["units"]),
            {leaf: tuple(map(str, words)) for leaf, words in body.get("words", {}).items()},
        )
        for name, body in document["groups"].items()
    }


class _Written(Mapping[str, Constant]):
    """Constants of one group of a file, each made when it is asked for: a step needs a tenth."""

    def __init__(self, name: str, body: Mapping[str, Any], units: Mapping[str, str]) -> None:
        self._name, self._body, self._units = name, body, units
        self._values: Mapping[str, float] = body.get("values", {})
        self._made: dict[str, Constant] = {}

    def __getitem__(self, leaf: str) -> Constant:
        if leaf not in self._made:
            value, unit = float(self._values[leaf]), _unit(leaf, self._units)
            source, as_of, status = (str(self._body[key]) for key in ("source", "as_of", "status"))
            name = f"{self._name}.{leaf}"
            self._made[leaf] = Constant(name, value, unit, source, as_of, Status(status))
        return self._made[leaf]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


def _unit(leaf: str, units: Mapping[str, str]) -> str:
    """Unit of `leaf`, or of the longest stem it starts with (``latency_all_reduce_8``)."""
    stem = leaf
    while stem and stem not in units:
        stem = stem.rpartition("_")[0]
    return units[stem]


def calibrated_groups(stem: str, calibration: Calibration | None) -> Mapping[str, ConstantGroup]:
    """Every group of the data file `stem`, with what a machine measured in place of what ships."""
    groups = constant_groups(stem)
    if calibration is None:
        return groups
    return {name: _calibrated(group, stem, name, calibration) for name, group in groups.items()}


def _calibrated(
    group: ConstantGroup, stem: str, name: str, calibration: Calibration
) -> ConstantGroup:
    """`group` with the constants that the calibration has under `name`."""
    measured = {
        leaf: Constant(
            f"{stem}.{name}.{leaf}",
            fitted.value,
            fitted.unit,
            calibration.source,
            calibration.as_of,
            Status.CALIBRATED,
        )
        for leaf, fitted in calibration.under(f"{stem}.{name}")
    }
    if not measured:
        return group
    words = dict(group.words)
    widths = sorted(int(leaf.rpartition("_")[2]) for leaf in measured if leaf.startswith(_RATE))
    if widths:
        words["head_dims"] = tuple(map(str, widths))
    return structs.replace(group, constants={**group.constants, **measured}, words=words)


def choose_group(
    stem: str, prefix: str, name: str, family: str, calibration: Calibration | None = None
) -> ConstantGroup:
    """The group under `prefix` for this hardware: by name, then by family, then the one for all the
    rest.

    `stem` and `prefix`: data file, and the first part of the group's name. `name` and `family`: of
    the hardware. `calibration`: its constants called ``stem.prefix.leaf`` take the place of those
    of the group.

    Returns ConstantGroup: labelled `Status.FAMILY_DEFAULT` unless a pattern names the hardware
    itself.
    """
    group = _chosen_group(stem, prefix, name, family)
    return group if calibration is None else _calibrated(group, stem, prefix, calibration)


@remembered(256)
def _chosen_group(stem: str, prefix: str, name: str, family: str) -> ConstantGroup:
    groups = [g for key, g in constant_groups(stem).items() if key.startswith(prefix + ".")]
    for group in groups:
        if group.matches(name):
            return group
    for wanted in (family, "*"):
        for group in groups:
            if wanted in group.families:
                return group.demoted(f"carried over to {name} from {group.name}")
    raise HardwareError(f"no constants for {name} ({family}) under {stem}.{prefix}")


def host_constants(cluster: Cluster) -> tuple[Constant, ...]:
    """Figures of a cluster's hosts that offloaded model states use."""
    host = host_of(cluster)
    return tuple(
        hardware_constant(host, figure, getattr(host, figure), "B/s")
        for figure in ("link_bandwidth", "memory_bandwidth", "nvme_read", "nvme_write")
    )


def hardware_constant(
    item: Accelerator | Link | Host, figure: str, value: float, unit: str
) -> Constant:
    """A figure of the catalog: datasheet, a family default if recalled, calibrated if measured."""
    source = source_of(item, figure)
    dated = _DATED.fullmatch(source)
    recalled = source.startswith("recalled") or not source
    status = Status.FAMILY_DEFAULT if recalled and source else Status.DATASHEET
    if source.startswith("measured"):
        status = Status.CALIBRATED
    return Constant(
        f"hardware.{item.name}.{figure}",
        value,
        unit,
        dated["source"] if dated else source or "given by the scenario",
        dated["as_of"] if dated else "",
        status,
    )


class Answer(NamedTuple, Generic[A]):
    """Answer of a cost model, shared by equal ones, with the constants it rests on by name."""

    value: A
    used: Mapping[str, Constant]


class Ledger:
    """Constants in the order of their names, each noted when it is first used."""

    def __init__(self) -> None:
        self._used: dict[str, Constant] = {}

    def note(self, constant: Constant) -> None:
        """Account for one constant."""
        self._used[constant.name] = constant

    def use(self, group: ConstantGroup, leaf: str) -> float:
        """The number called `leaf`, accounted for."""
        constant = group[leaf]
        self._used[constant.name] = constant
        return constant.value

    def note_all(self, constants: Mapping[str, Constant]) -> None:
        """Account for constants, by name."""
        self._used.update(constants)

    @contextlib.contextmanager
    def apart(self) -> Iterator[Mapping[str, Constant]]:
        """Note constants by name for a while: what an answer that is remembered rests on."""
        before, self._used = self._used, {}
        try:
            yield self._used
        finally:
            self._used = before

    def note_link(self, link: Link) -> None:
        """Account for the catalog's figures of a link."""
        for figure, value, unit in (
            ("bandwidth", link.bandwidth, "B/s"),
            ("latency", link.latency, "s"),
            ("efficiency", link.efficiency, "1"),
        ):
            self.note(hardware_constant(link, figure, value, unit))

    def constants(self) -> tuple[Constant, ...]:
        """Every constant noted, by name."""
        return tuple(self._used[name] for name in sorted(self._used))
