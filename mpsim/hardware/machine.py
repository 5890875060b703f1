"""Machine files: what `mpsim calibrate` found out about a cluster, as a cluster that scenarios can name.

A file holds an accelerator and links as a catalog does, and beside them ``constants``, ``curves`` and ``framework``, which
`mpsim.hardware.Calibration` carries on. docs/reference/calibration.md lists every key.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mpsim.document import Document, read_document
from mpsim.errors import HardwareError, MpsimError, Problem, ScenarioError, nearest
from mpsim.hardware.calibrated import Calibration, Fitted, MeasuredCurve
from mpsim.hardware.cluster import Cluster
from mpsim.hardware.entries import parse_accelerator, parse_link
from mpsim.hardware.lookup import GENERIC_NIC, build_cluster, link
from mpsim.inputs import check_regular, shown
from mpsim.memo import remembered

__all__ = ["MACHINE_SCHEMA", "is_machine_path", "machine_of", "read_machine"]

MACHINE_SCHEMA = 1
_MOST_RANKS = 10_000_000
_SUFFIXES = (".yaml", ".yml")
_REQUIRED = (
    "schema",
    "machine",
    "source",
    "as_of",
    "accelerator",
    "scale_up",
    "accelerators_per_node",
)
_OPTIONAL = (
    *("nodes", "nics_per_node", "nic", "fabric", "library", "datasheet", "framework", "constants"),
    *("kernel_curves", "collective_curves", "fits", "warnings", "inputs"),
)
_FITTED = frozenset({"value", "low", "high", "unit", "status", "note"})
_CURVE = frozenset({"kind", "phase", "ranks", "domains", "bytes", "seconds"})


def is_machine_path(name: str) -> bool:
    """Whether a name in a scenario is the path of a machine file rather than an entry of a catalog."""
    return name.endswith(_SUFFIXES)


def read_machine(path: str | Path) -> Cluster:
    """The cluster of a machine file.

    Raises
    ------
    HardwareError
        With every mistake found, each with its line.
    """
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


def machine_of(data: Mapping[str, Any], document: Document | None = None) -> Cluster:
    """The cluster that the plain data of a machine file describe.

    Parameters
    ----------
    document : Document, optional
        Where it was read, for the places of mistakes.

    Raises
    ------
    HardwareError
        With every mistake found.
    """
    origin = document or Document(data, {}, "cluster.machine")
    problems = list(origin.problems) or list(_problems(data))
    if problems:
        raise HardwareError(str(ScenarioError(map(origin.locate, problems))))
    try:
        return _cluster(data)
    except HardwareError as error:
        raise HardwareError(f"{origin.file}: {error}") from error


def _cluster(data: Mapping[str, Any]) -> Cluster:
    name = str(data["machine"])
    measured = _calibration(data)
    chip = dataclasses.replace(parse_accelerator(name, data["accelerator"]), calibration=measured)
    joined = parse_link(f"{name}-scale-up", data["scale_up"])
    nic = parse_link(f"{name}-nic", data["nic"]) if "nic" in data else link(GENERIC_NIC)
    cluster = build_cluster(
        accelerator=chip,
        accelerators_per_node=data["accelerators_per_node"],
        nodes=data.get("nodes", 1),
        nics_per_node=data.get("nics_per_node", 0),
        nic=nic,
        scale_up=joined,
        fabric_kind=data.get("fabric", "single-switch"),
        name=name,
    )
    sources = {"*": f"{measured.source} ({measured.as_of})"}
    return dataclasses.replace(cluster, sources=sources, calibration=measured)


def _calibration(data: Mapping[str, Any]) -> Calibration:
    constants = {
        str(name): Fitted(
            float(constant["value"]),
            float(constant.get("low", constant["value"])),
            float(constant.get("high", constant["value"])),
            str(constant["unit"]),
        )
        for name, constant in data.get("constants", {}).items()
    }
    return Calibration(
        name=str(data["machine"]),
        source=str(data["source"]),
        as_of=str(data["as_of"]),
        constants=constants,
        kernels=tuple(map(_curve, data.get("kernel_curves", ()))),
        collectives=tuple(map(_curve, data.get("collective_curves", ()))),
        library=str(data.get("library", "")),
        framework=dict(data.get("framework", {})),
        document=dict(data),
    )


def _curve(curve: Mapping[str, Any]) -> MeasuredCurve:
    return MeasuredCurve(
        kind=str(curve["kind"]),
        phase=str(curve.get("phase", "")),
        ranks=int(curve.get("ranks", 0)),
        domains=int(curve.get("domains", 1)),
        sizes=tuple(map(float, curve["bytes"])),
        times=tuple(map(float, curve["seconds"])),
    )


def _problems(data: Mapping[str, Any]) -> Iterator[Problem]:
    if (
        "machine" not in data and "accelerator" not in data
    ):  # nothing is told of a file that is none
        yield Problem("is no machine file; needed a file of 'mpsim calibrate'")
        return
    for key in data:
        if key not in (*_REQUIRED, *_OPTIONAL):
            yield Problem(f"unknown key; {nearest(str(key), (*_REQUIRED, *_OPTIONAL))}", str(key))
    for key in _REQUIRED:
        if key not in data:
            yield Problem("missing; needed a file of 'mpsim calibrate'", key)
    if data.get("schema", MACHINE_SCHEMA) != MACHINE_SCHEMA:
        yield Problem(
            f"got {shown(data['schema'])}; this version reads schema {MACHINE_SCHEMA}", "schema"
        )
    for key in ("accelerators_per_node", "nodes", "nics_per_node"):
        if key in data and (type(data[key]) is not int or data[key] < 0):
            yield Problem(f"got {shown(data[key])}; needed a whole number", key)
    yield from _measured_problems(data)


def _measured_problems(data: Mapping[str, Any]) -> Iterator[Problem]:
    """Mistakes in what was measured."""
    for key, kind, needed in (
        ("constants", dict, "constants by name"),
        ("framework", dict, "fields of a framework"),
        ("kernel_curves", list, "a list of curves"),
        ("collective_curves", list, "a list of curves"),
    ):
        if not isinstance(data.get(key, kind()), kind):
            yield Problem(f"got {shown(data[key])}; needed {needed}", key)
            return
    for name, entry in data.get("constants", {}).items():
        yield from _constant_problems(f"constants.{name}", entry)
    for key in ("kernel_curves", "collective_curves"):
        for index, entry in enumerate(data.get(key, ())):
            yield from _curve_problems(f"{key}.{index}", entry)


def _constant_problems(key: str, constant: object) -> Iterator[Problem]:
    if not isinstance(constant, Mapping) or not {"value", "unit"} <= set(constant) <= _FITTED:
        yield Problem("needed value and unit, and low and high where they are known", key)
        return
    for figure in ("value", "low", "high"):
        number = constant.get(figure, 1.0)
        if type(number) not in (int, float) or not math.isfinite(number):
            yield Problem(f"{figure} is {shown(number)}; needed a finite number", key)


def _curve_problems(key: str, curve: object) -> Iterator[Problem]:
    if not isinstance(curve, Mapping) or not {"kind", "bytes", "seconds"} <= set(curve) <= _CURVE:
        yield Problem("needed kind, bytes and seconds", key)
        return
    for name in ("ranks", "domains"):
        if type(curve.get(name, 1)) is not int or not 0 <= curve.get(name, 1) <= _MOST_RANKS:
            yield Problem(f"{name} is {shown(curve[name])}; needed a whole number", key)
    sizes, times = curve["bytes"], curve["seconds"]
    plain = all(
        isinstance(values, list)
        and values
        and all(type(x) in (int, float) and math.isfinite(x) and x > 0 for x in values)
        for values in (sizes, times)
    )
    if not plain or len(sizes) != len(times):
        yield Problem("needed as many bytes as seconds, all above 0", key)
    elif any(b <= a for a, b in itertools.pairwise(sizes)):
        yield Problem("bytes have to rise, each one once", key)
