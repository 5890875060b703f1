"""Comparison: measured steps, their predictions, and what explains the difference."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np

from mpsim import structs
from mpsim.errors import CalibrationError, MpsimError
from mpsim.formats.perfetto import Event, named_events, slice_event, write_events
from mpsim.formats.words import gpu
from mpsim.hardware import Cluster
from mpsim.measured.files import read_measured
from mpsim.measured.records import BUSY_ABOVE, NOISY_ABOVE, Measured, Measurement
from mpsim.measured.sources import quietest
from mpsim.result import Result
from mpsim.shipped import say
from mpsim.simulate import simulate_step
from mpsim.table import Section, Sheet, Shown
from mpsim.units import Dimension, format_quantity
from mpsim.validate.actions import (
    PARTS,
    Slice,
    compare_orders,
    measured_slices,
    parts_of,
    simulated_slices,
)
from mpsim.validate.records import Family, Record, Validation, signed
from mpsim.validate.step_scenarios import family_of, step_of, title_of

Progress = Callable[[int, int], None]
_STEP_COLUMNS = (
    *("step", "measured", "predicted", "error", "spread", "order"),
    "most of the difference",
)
_ACTION_COLUMNS = ("family", "kind", "steps", "mean", "median", "worst", "bias")
_NS = 1e9
_GAP_S = 1e-3  # between the steps of a trace
_HELD = ("parameters", "gradients", "optimizer", "activations", "logits")


@structs.dataclass(frozen=True, slots=True, kw_only=True)
class StepComparison:
    """One measured step and its prediction."""

    id: str
    family: str
    title: str
    measured: float  # measured, predicted: [s]; the prediction is None where there is none
    predicted: float | None = None
    noise: float  # relative spread of the measured steps
    samples: int
    others: float  # share of the host that other processes used meanwhile
    # measured_parts, predicted_parts: by `PARTS`, mean over ranks [s]; empty without actions
    measured_parts: Mapping[str, float]
    predicted_parts: Mapping[str, float] = structs.field(default_factory=dict)
    # whether torch ran the actions of every rank in our order; None without a pipeline
    same_order: bool | None = None
    first_difference: str = ""
    # measured_memory, predicted_memory: the fullest rank's peak, as torch counts it [B]; or 0
    measured_memory: float
    predicted_memory: float = 0.0
    measured_slices: tuple[Slice, ...]
    predicted_slices: tuple[Slice, ...] = ()
    skipped_because: str | None = None

    @property
    def error(self) -> float | None:
        """``predicted / measured - 1``."""
        return None if self.predicted is None else self.predicted / self.measured - 1.0

    @property
    def memory_error(self) -> float | None:
        """``predicted / measured - 1`` of the peak memory; None where it was not measured."""
        if not (self.measured_memory and self.predicted_memory):
            return None
        return self.predicted_memory / self.measured_memory - 1.0

    @property
    def noisy(self) -> bool:
        """Whether the measured steps spread too much to tell, or were not alone."""
        return self.noise > NOISY_ABOVE or self.others > BUSY_ABOVE

    @property
    def differences(self) -> dict[str, float]:
        """Predicted less measured time of each part, over the measured step."""
        if not (self.measured_parts and self.predicted_parts):
            return {}
        return {
            part: (self.predicted_parts[part] - self.measured_parts[part]) / self.measured
            for part in PARTS
        }

    @property
    def explained_by(self) -> str:
        """The part that differs most; empty where parts are not known."""
        differences = self.differences
        return max(differences, key=lambda part: abs(differences[part]), default="")

    def to_json(self) -> dict[str, object]:
        """Plain data, without the timelines."""
        return {
            **structs.named(self, "id", "family", "title", "measured", "predicted", "error"),
            **structs.named(self, "noise", "noisy", "samples", "others"),
            "measured_parts_s": dict(self.measured_parts),
            "predicted_parts_s": dict(self.predicted_parts),
            **structs.named(self, "explained_by", "same_order", "first_difference"),
            "measured_memory_bytes": self.measured_memory or None,
            "predicted_memory_bytes": self.predicted_memory or None,
            **structs.named(self, "memory_error", "skipped_because"),
        }


@structs.dataclass(frozen=True, slots=True, repr=False)
class Comparison(Shown):
    """Every measured step of some files."""

    machine: str
    steps: tuple[StepComparison, ...]
    warnings: tuple[str, ...]
    # how far the same kernel was apart at the start and the end of the quietest file
    drift: float = 0.0
    # share of the host that other processes used while the machine was calibrated
    others: float = 0.0

    def sheet(self) -> Sheet:
        """Every step, errors by family and action, and the figures in sentences."""
        return _comparison_sheet(self)

    @property
    def scored(self) -> tuple[StepComparison, ...]:
        """Steps that were predicted."""
        return tuple(step for step in self.steps if step.predicted is not None)

    @property
    def median_error(self) -> float | None:
        """Median absolute error of the predicted steps."""
        errors = [abs(step.error) for step in self.scored if step.error is not None]
        return statistics.median(errors) if errors else None

    @property
    def noise(self) -> float:
        """Median spread of the measured steps."""
        return statistics.median([step.noise for step in self.steps]) if self.steps else 0.0

    @property
    def tells(self) -> bool:
        """Whether the machine was quiet while it was calibrated and while steps ran."""
        quiet = self.busy <= BUSY_ABOVE
        return quiet and max(self.noise, self.drift) <= NOISY_ABOVE

    @property
    def busy(self) -> float:
        """Share of the host that other processes used, the larger of both times."""
        return max([self.others, statistics.median(step.others for step in self.steps)])

    @property
    def records(self) -> tuple[Record, ...]:
        """Steps, and their forward and backward actions, as records of `mpsim validate`."""
        records: list[Record] = []
        for step in self.steps:
            records.append(_record(step, "step", step.measured, step.predicted))
            for part in ("forward", "backward", "optimizer"):
                if step.measured_parts.get(part) and step.predicted_parts:
                    pair = step.measured_parts[part], step.predicted_parts[part]
                    records.append(_record(step, part, *pair))
        return tuple(records)

    @property
    def families(self) -> tuple[Family, ...]:
        """Errors by family and kind."""
        return Validation(self.records).families

    @property
    def components(self) -> dict[str, float]:
        """Share of the whole difference by part: mean of absolute differences, summing to 1."""
        rows = [step.differences for step in self.scored if step.differences]
        if not rows:
            return {}
        sizes = {part: statistics.fmean(abs(row[part]) for row in rows) for part in PARTS}
        total = math.fsum(sizes.values())
        return {part: size / total for part, size in sizes.items()} if total else sizes

    def write_trace(self, path: str | Path) -> Path:
        """Write every step, measured above simulated, for Perfetto; gzipped for ``.gz``."""
        file = Path(path)
        write_events(_events(self.scored), file)
        return file

    def to_json(self) -> dict[str, object]:
        """One object: families, steps, what explains differences, whether the machine was quiet."""
        return {
            "machine": self.machine,
            "median_abs_error": self.median_error,
            **structs.named(self, "noise", "drift"),
            "others": self.busy,
            **structs.named(self, "tells", "components"),
            "families": [family.to_json() for family in self.families],
            "steps": [step.to_json() for step in self.steps],
            "warnings": list(self.warnings),
        }


def _events(steps: Iterable[StepComparison]) -> Iterator[Event]:
    """Names of the processes, then the slices of every step."""
    titles = {1: "steps"}
    slices: list[Event] = []
    begin = 0.0
    for step in steps:
        longest = max(step.measured, step.predicted or 0.0)
        slices.append(_bar(1, step.title, "step", begin, begin + longest))
        sides = (("measured", step.measured_slices), ("simulated", step.predicted_slices))
        for first, (what, own) in enumerate(sides, start=2):
            for piece in own:
                process = 2 * piece.rank + first
                titles[process] = f"rank {piece.rank} {what}"
                start, end = begin + piece.start, begin + piece.end
                slices.append(_bar(process, piece.token, piece.part, start, end))
        begin += longest + _GAP_S
    for process, title in titles.items():
        yield from named_events("process", process, 1, title, process)
    yield from slices


def _bar(process: int, name: str, category: str, start: float, end: float) -> Event:
    times = round(start * _NS), round(end * _NS)
    return slice_event({"pid": process, "tid": 1}, name, category, *times, {})


def _record(step: StepComparison, kind: str, measured: float, predicted: float | None) -> Record:
    return Record(
        id=step.id if kind == "step" else f"{step.id}#{kind}",
        family=step.family,
        kind=kind,
        unit="s",
        measured=measured,
        predicted=predicted,
        skipped_because=step.skipped_because,
        size=measured,
    )


def compare_runs(
    machine: Cluster, files: Iterable[str | Path], *, progress: Progress | None = None
) -> Comparison:
    """Predict every measured step of some files on a calibrated machine.

    `files`: written by `mpsim measure`; of a step that is in several the fastest counts.
    `progress`: called with steps done and steps in all. CalibrationError if a file cannot be read,
    holds no step, or was measured on another machine.
    """
    read = [read_measured(path) for path in files]
    for recording in read:
        _check_machine(machine, recording)
    steps = quietest(m for recording in read for m in recording.of("steps"))
    names = ", ".join(recording.file for recording in read)
    if not steps:
        raise CalibrationError(f"{names}: no training step was measured; measure with --only steps")
    compared, launch = [], _launch(read)
    for done, measurement in enumerate(steps, start=1):
        compared.append(_compared(measurement, machine, launch))
        if progress is not None:
            progress(done, len(steps))
    if all(step.predicted is None for step in compared):
        raise CalibrationError(
            f"{names}: none of {len(compared)} steps can be predicted; the first:"
            f" {compared[0].skipped_because}"
        )
    warnings = [text for recording in read for text in recording.warnings]
    warnings += [text for recording in read for text in _other_software(machine, recording)]
    yardsticks = [recording.end.yardstick for recording in read if recording.end]
    drift = min(abs(after / before - 1.0) for before, after in yardsticks)
    return Comparison(machine.name, tuple(compared), tuple(warnings), drift, _others(machine))


def _check_machine(machine: Cluster, measured: Measured) -> None:
    """Refuse steps of another kind of device than the machine was calibrated on."""
    device, chip = measured.header.device_name, machine.accelerator
    if measured.header.ranks[0].device == "cpu":
        same = chip.family == "cpu" and chip.title.startswith(device)
    else:
        sheet = machine.calibration.document.get("datasheet", "") if machine.calibration else ""
        try:
            same = gpu(device.removeprefix("NVIDIA ").strip()).name == sheet
        except CalibrationError:
            same = bool(sheet)  # a name that only --on could tell
    if not same:
        raise CalibrationError(
            f"{measured.file}: was measured on {device}, but {machine.name} is {chip.title};"
            " calibrate that machine"
        )


def _other_software(machine: Cluster, measured: Measured) -> Iterator[str]:
    """A warning where steps ran in another torch than the machine's calibration."""
    document = machine.calibration.document if machine.calibration else {}
    match = re.search(r"torch ([^, ]+)", str(document.get("source", "")))
    if match and match[1] != measured.header.torch:
        yield say("validate.other_torch", measured=measured, name=machine.name, version=match[1])


def _others(machine: Cluster) -> float:
    """Share of the host of other processes while a machine was measured, at its quietest."""
    document = machine.calibration.document if machine.calibration else {}
    return min((float(file.get("others", 0.0)) for file in document.get("inputs", ())), default=0.0)


def _launch(read: Iterable[Measured]) -> float:
    """Host time of one launch, the least of the files; 0 where none has it [s]."""
    times = [
        launch.time
        for file in read
        for launch in file.of("kernels", "launch")
        if launch.variant.get("way") == "host"
    ]
    return min(times, default=0.0)


def _compared(measurement: Measurement, machine: Cluster, launch: float) -> StepComparison:
    sample = _typical(measurement)
    slices = measured_slices(measurement, sample)
    whole = max((piece.end for piece in slices), default=0.0)
    blank = StepComparison(
        id=measurement.id,
        family=family_of(measurement),
        title=title_of(measurement),
        measured=measurement.time,
        noise=measurement.noise,
        samples=len(measurement.seconds[0]),
        others=measurement.others,
        measured_parts=parts_of(slices, whole if measurement.synchronous else None),
        measured_memory=measurement.peak_memory_bytes,
        measured_slices=tuple(slices),
    )
    try:
        result = simulate_step(step_of(measurement, machine, launch=launch).build())
    except MpsimError as error:
        return structs.replace(blank, skipped_because="; ".join(str(error).splitlines()))
    return _filled(blank, measurement, result, sample)


def _filled(
    blank: StepComparison, measurement: Measurement, result: Result, sample: int
) -> StepComparison:
    program = result.timeline.program
    slices = tuple(simulated_slices(result))
    sizes = dict(enumerate(program.class_size.tolist()))
    step_time = result.timeline.step_time_s
    same, first = compare_orders(measurement, result, sample)
    return structs.replace(
        blank,
        predicted=step_time,
        predicted_parts=parts_of(slices, step_time, sizes),
        predicted_slices=slices,
        predicted_memory=allocated_bytes(result, measurement)
        if measurement.peak_memory_bytes
        else 0.0,
        same_order=same,
        first_difference=first,
    )


def _typical(measurement: Measurement) -> int:
    """The sample whose time is closest to what counts, of those with recorded actions."""
    table = np.array(measurement.seconds)
    times = table.max(axis=0) if measurement.synchronous else table.mean(axis=0)
    recorded = max(measurement.actions.step, default=0) + 1 if measurement.actions else len(times)
    return int(np.argmin(np.abs(times[:recorded] - measurement.time)))


def allocated_bytes(result: Result, measurement: Measurement) -> float:
    """Most that tensors of the fullest rank take at a time in the step that was measured [B].

    Notes
    -----
    The allocator counts tensors alone: neither the driver's context nor what is lost between them.
    Without a pipeline there are no gradients before the first backward of a step, because
    ``zero_grad`` drops them: one microbatch is fullest either when its loss is differentiated, with
    every activation and no gradient, or at the end of its backward, with every gradient and no
    activation. DDP has its buckets beside them all the time.
    """
    memory = result.summary["memory"]
    assert isinstance(memory, Mapping)
    parts = {name: float(memory[name]) for name in _HELD}
    states = parts["parameters"] + parts["optimizer"]
    held = parts["activations"] + parts["logits"]
    way = measurement.variant.get("data_parallel", "none")
    if measurement.shape.get("pp", 1) > 1 or way == "fsdp2":
        return float(memory["total"]) - float(memory["overhead"])
    if way != "ddp":
        return states + parts["gradients"] + held
    if measurement.shape.get("microbatches", 1) > 1:
        return states + 2 * parts["gradients"] + held
    return states + parts["gradients"] + max(parts["gradients"], held)


def _comparison_sheet(comparison: Comparison) -> Sheet:
    """One line a measured step, errors by family and action, then the figures in sentences."""
    families = tuple(
        (
            family.family,
            family.kind,
            str(family.predicted),
            *(
                "" if e is None else f"{e:.1%}"
                for e in (family.mean_abs_error, family.median_abs_error)
            ),
            signed(family.worst),
            signed(family.bias),
        )
        for family in comparison.families
    )
    steps = tuple(_step_cells(step) for step in comparison.steps)
    title = f"steps on {comparison.machine}: predicted / measured - 1"
    lines = ("", *_error_lines(comparison), *_noise_lines(comparison))
    return Sheet(
        "",
        (
            Section(steps, _STEP_COLUMNS, tuple(range(1, 5)), title),
            Section(families, _ACTION_COLUMNS, tuple(range(2, 7)), "by family and action", lines),
        ),
    )


def _step_cells(step: StepComparison) -> tuple[str, ...]:
    measured = format_quantity(step.measured, Dimension.TIME)
    if step.predicted is None or step.error is None:
        return (step.title, measured, "", "", "", "", (step.skipped_because or "").strip())
    order = {True: "same", False: step.first_difference, None: ""}[step.same_order]
    part = step.explained_by
    return (
        step.title,
        measured,
        format_quantity(step.predicted, Dimension.TIME),
        signed(step.error),
        f"{step.noise:.0%}" + (" noisy" if step.noisy else ""),
        order,
        f"{part} {step.differences[part]:+.1%} of the step" if part else "",
    )


def _error_lines(comparison: Comparison) -> Iterator[str]:
    if comparison.median_error is not None:
        yield f"median error of {len(comparison.scored)} steps: {comparison.median_error:.1%}"
    parts = comparison.components
    if parts:
        most = max(parts, key=lambda part: parts[part])
        bias = [step.differences[most] for step in comparison.scored if step.differences]
        way = "too long" if math.fsum(bias) > 0 else "too short"
        yield (
            f"{most} explains most of the difference: {parts[most]:.0%} of it; predicted {way} by "
            f"{abs(math.fsum(bias)) / len(bias):.1%} of a step on average"
        )
    memory = [step.memory_error for step in comparison.scored if step.memory_error is not None]
    if memory:
        mean = sum(map(abs, memory)) / len(memory)
        worst = max(memory, key=abs)
        yield f"peak memory of {len(memory)} steps: mean error {mean:.1%}, worst {worst:+.1%}"


def _noise_lines(comparison: Comparison) -> Iterator[str]:
    if not comparison.tells:
        yield say("validate.too_noisy", comparison=comparison)
