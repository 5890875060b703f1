"""Machine files: what `mpsim calibrate` found of a cluster, for scenarios to name.

A file holds an accelerator and links as a catalog does, and ``constants``, ``curves`` and
``framework``, which `mpsim.hardware.Calibration` carries (docs/reference/calibration.md).
"""

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, ClassVar, TypeAlias

from mpsim import structs
from mpsim.document import Document, read_document
from mpsim.errors import HardwareError, MpsimError, Problem, ScenarioError, nearest
from mpsim.hardware.cluster import Cluster
from mpsim.hardware.components import Calibration, Fitted, MeasuredCurve
from mpsim.hardware.entries import parse_accelerator, parse_link
from mpsim.hardware.fabric import Fabric, FabricKind
from mpsim.hardware.lookup import GENERIC_NIC, build_cluster, link
from mpsim.inputs import check_regular, shown
from mpsim.memo import remembered
from mpsim.nouns import Factor, Finite, Mistake, MistakenError, Plain, Scalar, Whole, read

MACHINE_SCHEMA = 1
_Ranks: TypeAlias = Annotated[int, Plain(bounds={"ge": 0, "le": 10_000_000})]


@structs.dataclass(frozen=True, slots=True, kw_only=True)
class _Constant:
    """A fitted constant as a file holds it."""

    value: Finite
    unit: Scalar
    low: Finite | None = None
    high: Finite | None = None
    status: object = None
    note: object = None

    extra_keys: ClassVar = "forbid"

    def fitted(self) -> Fitted:
        """The constant, as sure as it is itself where its bounds are not known."""
        low, high = (self.value if end is None else end for end in (self.low, self.high))
        return Fitted(self.value, low, high, f"{self.unit}")


@structs.dataclass(frozen=True, slots=True, kw_only=True)
class _Curve:
    """A measured curve as a file holds it."""

    kind: Scalar
    bytes: tuple[Factor, ...]
    seconds: tuple[Factor, ...]
    phase: Scalar = ""
    ranks: _Ranks = 0
    domains: _Ranks = 1

    extra_keys: ClassVar = "forbid"

    def __post_init__(self) -> None:
        if not self.bytes or len(self.bytes) != len(self.seconds):
            raise ValueError("needed as many bytes as seconds, all above 0")
        if any(b <= a for a, b in itertools.pairwise(self.bytes)):
            raise ValueError("bytes have to rise, each one once")

    def measured(self) -> MeasuredCurve:
        """The curve."""
        return MeasuredCurve(
            f"{self.kind}", f"{self.phase}", self.ranks, self.domains, self.bytes, self.seconds
        )


@structs.dataclass(frozen=True, slots=True, kw_only=True)
class _MachineFile:
    """Machine file as `mpsim calibrate` writes it."""

    schema: object
    machine: Scalar
    source: Scalar
    as_of: object
    accelerator: object
    scale_up: object
    accelerators_per_node: Whole
    nodes: Whole = 1
    nics_per_node: Whole = 0
    nic: object = None
    domain: Whole = 0
    fabric: Fabric = Fabric(kind=FabricKind.SINGLE_SWITCH)
    library: Scalar = ""
    framework: Mapping[str, object] = structs.field(default_factory=dict)
    """Fields of a framework that belong to this machine."""
    constants: Mapping[str, _Constant] = structs.field(default_factory=dict)
    kernel_curves: tuple[_Curve, ...] = ()
    collective_curves: tuple[_Curve, ...] = ()
    runs: tuple[Mapping[str, tuple[str, ...]], ...] = ()
    datasheet: object = None
    fits: object = None
    warnings: object = None
    inputs: object = None

    def calibration(self, document: Mapping[str, object]) -> Calibration:
        """Findings about the machine."""
        return Calibration(
            name=f"{self.machine}",
            source=f"{self.source}",
            as_of=f"{self.as_of}",
            constants={name: constant.fitted() for name, constant in self.constants.items()},
            kernels=tuple(curve.measured() for curve in self.kernel_curves),
            collectives=tuple(curve.measured() for curve in self.collective_curves),
            library=f"{self.library}",
            framework=self.framework,
            runs=tuple({key: [*words] for key, words in run.items()} for run in self.runs),
            document=dict(document),
        )


_KEYS = tuple(field.name for field in structs.fields(_MachineFile))


def read_machine(path: str | Path) -> Cluster:
    """The cluster of a machine file. HardwareError with every mistake found, each with its line."""
    file = Path(path)
    stat = check_regular(file, needed="a machine file of 'mpsim calibrate'", error=HardwareError)
    return _read(file, stat.st_mtime_ns, stat.st_size)


@remembered(16)
def _read(file: Path, changed_ns: int, size: int) -> Cluster:
    """A file as it was at one moment."""
    del changed_ns, size
    try:
        document = read_document(file)
    except MpsimError as error:
        raise HardwareError(str(error)) from error
    return machine_of(document.data, document)


def machine_of(data: Mapping[str, object], document: Document | None = None) -> Cluster:
    """The cluster of a machine file's data; HardwareError with every mistake in `document`."""
    origin = document or Document(data, {}, "cluster.machine")
    problems = list(origin.problems)
    if not problems:
        try:
            return _cluster(_read_file(data), data)
        except MistakenError as error:
            problems = _problems(data, error.mistakes)
        except HardwareError as error:
            raise HardwareError(f"{origin.file}: {error}") from error
    raise HardwareError(str(ScenarioError(map(origin.locate, problems))))


def _read_file(data: Mapping[str, object]) -> _MachineFile:
    known = {key: value for key, value in data.items() if key in _KEYS}
    if isinstance(kind := known.get("fabric"), str):
        known["fabric"] = {"kind": kind}
    file = read(_MachineFile, known)
    if len(known) < len(data) or file.schema != MACHINE_SCHEMA:
        raise MistakenError([])
    return file


def _problems(data: Mapping[str, object], mistakes: Sequence[Mistake]) -> list[Problem]:
    """Mistakes of a file; nothing else is told of one that is no machine file."""
    if "machine" not in data and "accelerator" not in data:
        return [Problem("is no machine file; needed a file of 'mpsim calibrate'")]
    problems = [
        Problem(f"unknown key; {nearest(str(key), _KEYS)}", str(key))
        for key in data
        if key not in _KEYS
    ]
    if data.get("schema", MACHINE_SCHEMA) != MACHINE_SCHEMA:
        message = f"got {shown(data['schema'])}; this version reads schema {MACHINE_SCHEMA}"
        problems.append(Problem(message, "schema"))
    return problems + [
        Problem(
            str(mistake) if mistake.needed else "missing; needed a file of 'mpsim calibrate'",
            mistake.key,
        )
        for mistake in mistakes
    ]


def _has(entry: object, key: str) -> bool:
    return isinstance(entry, Mapping) and entry.get(key) is not None


def _cluster(file: _MachineFile, data: Mapping[str, object]) -> Cluster:
    name, measured = f"{file.machine}", file.calibration(data)
    chip = structs.replace(parse_accelerator(name, file.accelerator), calibration=measured)
    nic = link(GENERIC_NIC) if file.nic is None else parse_link(f"{name}-nic", file.nic)
    joined = parse_link(f"{name}-scale-up", file.scale_up)
    cluster = build_cluster(
        accelerator=chip,
        accelerators_per_node=file.accelerators_per_node,
        nodes=file.nodes,
        nics_per_node=file.nics_per_node,
        # one without an efficiency is as fast as it was measured
        nic=structs.replace(nic, like=GENERIC_NIC if _has(file.nic, "efficiency") else ""),
        scale_up=structs.replace(joined, like=chip.scale_up or ""),
        domain=file.domain or None,
        fabric_kind=file.fabric.kind,
        name=name,
    )
    # a kind alone has the switches of the NIC
    fabric = file.fabric if isinstance(data.get("fabric"), Mapping) else cluster.fabric
    sources = {"*": f"{measured.source} ({measured.as_of})"}
    return structs.replace(cluster, fabric=fabric, sources=sources, calibration=measured)
