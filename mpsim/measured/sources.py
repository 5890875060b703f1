"""Measurements of one machine, whatever tool wrote the file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from mpsim import structs
from mpsim.errors import CalibrationError
from mpsim.formats import MeasuredPoint, Points, registry
from mpsim.measured.files import read_measured
from mpsim.measured.records import Header, Measurement

_LIBRARIES = {"gloo": "gloo", "nccl": "nccl", "mpi": "openmpi"}


@structs.dataclass(frozen=True, slots=True)
class Source:
    """Measurements of one file."""

    file: str
    tool: str  # name of the tool that wrote the file, in words
    measurements: tuple[Measurement, ...]
    device_name: str = ""  # as the file names the accelerator; empty where it does not
    library: str = ""  # communication library; empty where there is none
    header: Header | None = None  # of a file of `mpsim measure`
    warnings: tuple[str, ...] = ()


def read_source(path: str | Path, *, only: Mapping[str, str] | None = None) -> Source:
    """Read a file of `mpsim measure`, nccl-tests, torch.profiler, or CSV.

    `only`: value that a column of a CSV table must have. CalibrationError if nothing known wrote
    it, it holds no measurement, or it is truncated, mixed or impossible; it says which.
    """
    if registry.recognise(path) is registry.RECORDING:
        return _recording(Path(path))
    points = registry.read(path, only=only, kernels=True)
    if not isinstance(points, Points):
        raise CalibrationError(f"{path}: describes a run and measures nothing; needed measurements")
    return Source(
        points.file,
        points.tool,
        tuple(map(measurement_of, points.points)),
        device_name=points.device_name,
        library=points.library,
        warnings=points.warnings,
    )


def _recording(path: Path) -> Source:
    measured = read_measured(path)
    if not measured.measurements:
        raise CalibrationError(f"{path}: holds no measurement; measure with a larger --budget")
    header = measured.header
    return Source(
        str(path),
        "mpsim measure",
        measured.measurements,
        device_name=header.device_name,
        library=_LIBRARIES.get(header.backend, ""),
        header=header,
        warnings=measured.warnings,
    )


def measurement_of(point: MeasuredPoint) -> Measurement:
    """A point of another tool, whose ranks all took as long as its slowest."""
    return Measurement(
        id=point.id,
        family=point.family,
        op=point.op,
        shape=dict(point.shape),
        variant=dict(point.variant),
        dtype=point.dtype,
        group=tuple(range(point.ranks)),
        domains=point.domains,
        synchronous=point.family == "collectives",
        phase=point.phase,
        method="",
        seconds=(point.seconds,) * point.ranks,
        flops=point.flops,
        bytes=point.bytes,
    )


def quietest(measurements: Iterable[Measurement]) -> list[Measurement]:
    """The fastest of measurements with the same id, from files that repeat each other."""
    fastest: dict[str, Measurement] = {}
    for measurement in measurements:
        known = fastest.get(measurement.id)
        if known is None or measurement.time < known.time:
            fastest[measurement.id] = measurement
    return list(fastest.values())
