"""From files of measurements to a machine file."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import yaml

from mpsim import structs
from mpsim.arrays import Floats
from mpsim.calibrate import machine
from mpsim.calibrate.collectives import collective_points, fit_collectives, link_bandwidth
from mpsim.calibrate.kernels import fit_attention, fit_copy, fit_gemm, fit_memory, fit_optimizer
from mpsim.calibrate.parts import Fit, limit, merged, range_warnings, score, unknown
from mpsim.calibrate.points import Point, hold_out, kernel_points
from mpsim.calibrate.robust import fit_robust
from mpsim.calibrate.serving import fit_serving
from mpsim.cost import KernelModel
from mpsim.errors import CalibrationError, HardwareError
from mpsim.formats.words import gpu
from mpsim.framework import Framework, framework
from mpsim.hardware import Accelerator, Cluster, Link, accelerator, link
from mpsim.hardware.components import Calibration
from mpsim.hardware.machine import machine_of
from mpsim.inputs import hash_file
from mpsim.measured.records import BUSY_ABOVE, NOISY_ABOVE, Header, Measurement
from mpsim.measured.sources import Source, quietest, read_source
from mpsim.output import write_whole
from mpsim.serving.result import ServedPoint
from mpsim.shipped import say
from mpsim.table import Section
from mpsim.units import Dimension, format_quantity
from mpsim.workload import Expansion, OperatorKind, Transformer, expand_layer

_MAIN = ("bf16", "fp16", "fp32", "tf32")


@structs.dataclass(frozen=True, slots=True)
class Calibrated:
    """A machine file with the fit behind it."""

    document: Mapping[str, object]
    fit: Fit
    warnings: tuple[str, ...]
    runs: Section | None = None  # measured training steps that it was found from, with predictions
    steps: tuple[machine.Entry, ...] = ()  # the same as figures

    @property
    def cluster(self) -> Cluster:
        """The machine as scenarios see it."""
        return machine_of(self.document)

    def write(self, path: str | Path) -> None:
        """Write the machine file, whole or not at all."""
        head = (
            "# Written by 'mpsim calibrate'. A scenario names it: cluster: {preset:"
            " ./this-file.yaml, nodes: 1}\n"
        )
        text = yaml.safe_dump(dict(self.document), sort_keys=False, width=120, allow_unicode=True)
        write_whole(path, head + text)


def calibrate(files: Sequence[str | Path | Source], *, name: str = "", on: str = "") -> Calibrated:
    """Fit every constant that the measurements say something about.

    Parameters
    ----------
    files : sequence of str, Path or Source
        Of one machine, read where they are paths; steps among them are never looked at.
    name : str
        What to call the machine; after its device when left out.
    on : str
        The accelerator of the catalog that it has; recognised by name when left out.

    Raises
    ------
    CalibrationError
        If the files are of different machines, or hold nothing that can be fitted.
    """
    sources = [file if isinstance(file, Source) else read_source(file) for file in files]
    _check_one_machine(sources)
    measurements = quietest(each for source in sources for each in source.measurements)
    header = next((source.header for source in sources if source.header), None)
    device = next((source.device_name for source in sources if source.device_name), "")
    points = kernel_points(measurements)
    sheet = _datasheet(on, device, header)
    as_of = dated(header)
    if sheet is None:
        assert header is not None, "without a header there is a datasheet"
        entry = machine.cpu_entry(header, points, as_of)
    else:
        entry = machine.sheet_entry(sheet)
    collectives = collective_points(measurements)
    library = next((source.library for source in sources if source.library), "")
    frame = machine.Frame(
        name=name or _slug(device or on or "machine"),
        source=_source_text(sources, header),
        as_of=as_of,
        datasheet=sheet.name if sheet else "",
        accelerator=entry,
        scale_up=machine.link_entry(_usual_link(sheet), None, as_of),
        nic=machine.nic_entry(as_of) if any(curve.domains > 1 for curve in collectives) else None,
        per_node=_per_node(header, collectives),
        nodes=max([1, *(curve.domains for curve in collectives)]),
        library=library,
        inputs=[machine.input_of(source, _hashed(source.file)) for source in sources],
    )
    fit, frame = fit_machine(frame, points, collectives, measurements, header)
    if not fit.constants and not fit.collectives:
        raise CalibrationError("nothing could be fitted: the files hold too few measurements")
    warnings = (
        *(text for source in sources for text in source.warnings),
        *fit.warnings,
        *_busy_warnings(sources),
        *range_warnings(fit.constants),
        *_noise_warnings(fit),
    )
    return Calibrated(machine.document_of(frame, fit, warnings), fit, warnings)


def calibrate_serving(
    points: Sequence[ServedPoint], *, files: Sequence[str | Path], name: str = ""
) -> Calibrated:
    """Fit the constants of serving that measured services say something about.

    `points`: of one accelerator. `name`: what to call the machine; after its accelerator when left
    out. CalibrationError if they are of several accelerators, none can be served, or nothing could
    be fitted.
    """
    fit = fit_serving(points)
    if not fit.constants:
        raise CalibrationError("nothing could be fitted: too few services were measured")
    cluster = points[0].plan.cluster
    chip = cluster.accelerator
    frame, base = machine.known_machine(cluster, name or f"{chip.name}-serving")
    frame = structs.replace(
        frame,
        source=f"{len(points)} measured services on {chip.title}",
        as_of=dated(),
        inputs=[
            {"file": Path(f).name, "tool": "table of measured services", "sha256": _hashed(f)}
            for f in files
        ],
    )
    warnings = (*fit.warnings, *range_warnings(fit.constants))
    document = machine.document_of(frame, merged([base, fit]), warnings)
    return Calibrated(document, fit, warnings)


def fit_machine(
    frame: machine.Frame,
    points: Sequence[Point],
    collectives: Sequence[Point],
    measurements: Sequence[Measurement],
    header: Header | None,
    base: Fit | None = None,
) -> tuple[Fit, machine.Frame]:
    """Kernels on the datasheet's chip, a layer's own on top, then collectives on the link."""
    bare = machine_of(machine.document_of(frame, base or Fit(), ()))
    chip = bare.accelerator
    main = _main_precision(points, measurements, chip)
    kernels = merged(
        [
            fit_gemm(points, chip, main),
            fit_attention(points, chip, main),
            fit_memory(points, chip, main),
            fit_optimizer(points, chip, main),
            fit_copy(points, chip) if chip.family == "cpu" else Fit(),
        ]
    )
    measured = structs.replace(chip, calibration=_trial(kernels))
    parts = [kernels]
    if chip.family == "cpu" and base is None:
        parts += [fit_host(layer_works(measurements, measured)), _cpu_habits(header)]
    if base is None:
        usual = _usual_link(accelerator(frame.datasheet)) if frame.datasheet else None
        rate = link_bandwidth(collectives, bare)
        frame = structs.replace(frame, scale_up=machine.link_entry(usual, rate, frame.as_of))
    joined = machine_of(machine.document_of(frame, base or Fit(), ()))
    parts.append(fit_collectives(collectives, joined, frame.library))
    return merged(parts), frame


def _trial(fit: Fit) -> Calibration:
    return Calibration("fit", "", "", fit.constants, fit.kernels, (), "", {})


def _main_precision(
    points: Sequence[Point], measurements: Sequence[Measurement], chip: Accelerator
) -> str:
    """The precision of whole layers, else the first usual one that was measured."""
    layers = [m.precision for m in measurements if m.family in ("blocks", "steps")]
    measured = {p.precision for p in points}
    for precision in (*layers, *_MAIN):
        if precision in chip.peak_flops and (precision in measured or precision in layers):
            return precision
    return next(iter(chip.peak_flops))


def _cpu_habits(header: Header | None) -> Fit:
    """Fields of a framework on a CPU: calls add up, communication takes cores of compute."""
    fields: dict[str, object] = {"launch_blocking": True, "step_overhead": "0 s"}
    ranks = 1 if header is None else sum(rank.host == header.ranks[0].host for rank in header.ranks)
    cores = 0 if header is None else header.cores
    if ranks > 1 and cores < limit("overlap_cores") * ranks:
        fields["gradient_overlap"] = "never"
    return Fit(framework=fields)


def _datasheet(on: str, device: str, header: Header | None) -> Accelerator | None:
    """The accelerator of the catalog; None for a CPU."""
    if on:
        try:
            return accelerator(on)
        except HardwareError as error:
            raise CalibrationError(str(error)) from error
    if header is not None and header.ranks[0].device == "cpu":
        return None
    try:
        return gpu(device.removeprefix("NVIDIA ").strip())
    except CalibrationError:
        raise CalibrationError(
            say("calibrate.which_accelerator", device=device or "this")
        ) from None


def _usual_link(sheet: Accelerator | None) -> Link | None:
    return link(sheet.scale_up) if sheet is not None and sheet.scale_up else None


def _per_node(header: Header | None, collectives: Sequence[Point]) -> int:
    if header is not None:
        return max(1, header.world_size // header.domains(range(header.world_size)))
    return max([1, *(curve.ranks // curve.domains for curve in collectives)])


def _check_one_machine(sources: Sequence[Source]) -> None:
    """Refuse files of different machines or software."""
    if not sources:
        raise CalibrationError("no file was given")
    first, *others = [s for s in sources if s.header] or [sources[0]]
    for other in others:
        for field in ("device_name", "torch", "nccl", "driver"):
            a, b = getattr(first.header, field), getattr(other.header, field)
            if a != b:
                raise CalibrationError(
                    f"{other.file}: {field} is {b!r}, but {a!r} in {first.file}; calibrate each on"
                    " its own"
                )
    named = [source for source in sources if source.device_name]
    for other in named[1:]:
        if _slug(other.device_name) != _slug(named[0].device_name):
            raise CalibrationError(
                f"{other.file}: was measured on {other.device_name!r}, but {named[0].file} on "
                f"{named[0].device_name!r}; calibrate each on its own"
            )


def _busy_warnings(sources: Sequence[Source]) -> Iterator[str]:
    for source in sources:
        if (others := machine.others_of(source)) > BUSY_ABOVE:
            yield say("calibrate.busy_host", name=Path(source.file).name, others=others)


def _noise_warnings(fit: Fit) -> Iterator[str]:
    loud = [score for score in fit.scores if score.noise > NOISY_ABOVE]
    if loud:
        worst = max(loud, key=lambda score: score.noise)
        yield (
            f"{len(loud)} of {len(fit.scores)} series of measurements spread by more than"
            f" {NOISY_ABOVE:.0%} at one size ({worst.what}: {worst.noise:.0%}): the machine was"
            " busy, and smaller errors cannot be told from noise"
        )


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:60] or "machine"


def _source_text(sources: Sequence[Source], header: Header | None) -> str:
    tools = ", ".join(dict.fromkeys(source.tool for source in sources))
    device = next((source.device_name for source in sources if source.device_name), "a machine")
    software = f", torch {header.torch}, {header.backend}" if header else ""
    return f"measured with {tools} on {device}{software}"


def dated(header: Header | None = None) -> str:
    """Day of the measurement, as far as a header says; else today."""
    if header is not None:
        return header.created[:10]
    return dt.datetime.now(dt.UTC).date().isoformat()


def _hashed(file: str | Path) -> str:
    return hash_file(file, needed="measurements", error=CalibrationError)


_EAGER = (OperatorKind.NORM, OperatorKind.SOFTMAX, OperatorKind.ELEMENTWISE)
_PRESET = "torch-ddp"  # eager PyTorch: counts of launches of a layer
_FEWEST = 4
_MEMORY = "kernels.gemm.memory_fraction"
# times the largest share of the memory rate: what is left of the memory's time is nothing
_CACHE = 10.0


@structs.dataclass(frozen=True, slots=True)
class LayerWork:
    """One measured pass of a layer, and what its kernels take by the fitted constants."""

    point: Point
    # streams, others: time of norm, softmax and elementwise kernels, and of all the rest [s]
    streams: float
    others: float
    launches: int  # kernels that the pass launches


def layer_works(measurements: Iterable[Measurement], chip: Accelerator) -> list[LayerWork]:
    """Every measured pass of a whole layer on one rank.

    A layer that is run again and again alone finds its weights in a cache, which in a training step
    hold other layers by then: its products are timed without the memory. One that is measured
    within a stack of layers is timed as in a step.
    """
    works = []
    cached = _cached(chip)
    for measurement in measurements:
        if measurement.op != "transformer_layer" or measurement.phase != "burst":
            continue
        precision, way = measurement.precision, measurement.variant.get("pass")
        if precision not in chip.peak_flops:
            continue
        software = framework(_PRESET).in_precision(precision)
        layer, host = _expanded(measurement, software), software.host
        operators, launches = layer.backward, host.layer_launches_backward
        if way == "forward":
            operators, launches = layer.forward, host.layer_launches_forward
        where = chip if measurement.shape.get("layers", 1) > 1 else cached
        times = KernelModel(where, precision, clocks="sustained").seconds(operators)
        eager = np.array([o.kind in _EAGER for o in operators])
        point = Point.of(measurement, f"layer/{way}", measurement.flops)
        streams, others = float(times[eager].sum()), float(times[~eager].sum())
        works.append(LayerWork(point, streams, others, launches))
    points = hold_out([work.point for work in works])
    return [structs.replace(work, point=p) for work, p in zip(works, points, strict=True)]


def _cached(chip: Accelerator) -> Accelerator:
    """The chip as if the operands of its products came from a cache."""
    known = chip.calibration
    if known is None or _MEMORY not in known.constants:
        return chip
    most = unknown("memory_fraction").high * _CACHE
    fast = structs.replace(known.constants[_MEMORY], value=most)
    changed = structs.replace(known, constants={**known.constants, _MEMORY: fast})
    return structs.replace(chip, calibration=changed)


def _expanded(measurement: Measurement, software: Framework) -> Expansion:
    hidden, heads = measurement.shape["hidden"], measurement.shape["heads"]
    model = Transformer(
        name="layer",
        layers=1,
        hidden=hidden,
        heads=heads,
        kv_heads=heads,
        head_dim=hidden // heads,
        ffn_hidden=measurement.shape["ffn_hidden"],
        vocab=1,
    )
    return expand_layer(
        model,
        software.lowering,
        sequences=measurement.shape["micro_batch"],
        sequence_length=measurement.shape["sequence"],
    )


def fit_host(works: Sequence[LayerWork]) -> Fit:
    """Time of a call, and of memory-bound kernels over those measured alone, on a CPU.

    A layer's pass takes ``factor * streams + others + calls * cost``: kernels in a layer find their
    data in caches, or do not, and autograd and the interpreter add to each call.
    """
    if len(works) < _FEWEST:
        few = "too few layers were measured: what the host adds to kernels is taken as nothing"
        return Fit(warnings=(few,))
    train = [work for work in works if not work.point.held_out]
    call, factor = fit_robust(
        lambda x: _times(train, x),
        [unknown("host_call"), unknown("memory_kernel_factor")],
        np.array([work.point.seconds for work in train]),
    )
    predicted = _times(works, np.array([call.value, factor.value]))
    fields = {
        "launch_cost": format_quantity(call.value, Dimension.TIME, digits=4),
        "memory_kernel_factor": float(f"{factor.value:.4g}"),
    }
    named = {"the cost of a call": call, "the factor of memory-bound kernels": factor}
    warnings = tuple(
        say("calibrate.bound_of_fit", name=name, value=estimate.value)
        for name, estimate in named.items()
        if estimate.at_bound and estimate.value > 1.0
    )
    scored = score("layers", "constants", [work.point for work in works], predicted)
    return Fit(framework=fields, scores=(scored,), warnings=warnings)


def _times(works: Sequence[LayerWork], values: Floats) -> Floats:
    call, factor = (float(x) for x in values)
    return np.array([factor * work.streams + work.others + call * work.launches for work in works])
