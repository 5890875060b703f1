"""A machine from what one has: recordings of training steps and logs, laid beside the simulated
step as `mpsim explain` lays them.

Operators of known shape and collectives without the wait for the last rank go the way of any
measurement. What was known of the machine counts where they say nothing, and is named. A log has
the length of steps alone: beside recordings it checks them, alone it gives one level of the
accelerator.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from mpsim import structs
from mpsim.arrays import Floats
from mpsim.calibrate.calibrate import Calibrated, fit_machine
from mpsim.calibrate.collectives import by_series, collective_points, group_of, kind_of
from mpsim.calibrate.machine import Entry, Frame, document_of, known_machine
from mpsim.calibrate.parts import Fit, Score, best_curve, is_wide, limit, outside_range, score
from mpsim.calibrate.points import Point, kernel_points
from mpsim.cost import CollectiveModel, Constant, KernelModel
from mpsim.cost.curves import Curve, kernel_class
from mpsim.cost.network import COLLECTIVES
from mpsim.errors import CalibrationError
from mpsim.explain import Account, Expected, account, is_log, log_step, read_ranks
from mpsim.formats.imported import collective_point, kernel_point
from mpsim.formats.spans import Spans
from mpsim.hardware import Cluster, Fitted, MeasuredCurve
from mpsim.hardware.machine import machine_of
from mpsim.measured.records import ELEMENT_BYTES, PRECISIONS, Measurement
from mpsim.measured.sources import Source, measurement_of, read_source
from mpsim.program import TICK
from mpsim.result import Result
from mpsim.scenario import Scenario
from mpsim.shipped import say
from mpsim.simulate import simulate_step
from mpsim.units import Dimension, format_quantity, parse_quantity
from mpsim.workload import OperatorKind

_FEWEST_SIZES = 4  # of a collective: fewer move its level alone
_OPTIMIZER = "kernels.optimizer.fraction"
_LEVELS = 6  # rounds until a level settles
_TOLD = 5  # mistakes in one message
_MOST = 10.0  # by which the cost of a call falls at most
_ELEMENTS = (2, 4, 1, 8)
_RATE = re.compile(r"sustained_fraction$|\.rate_\w+$")  # of products, of attention
_CURVE = tuple(float(1 << n) for n in range(10, 31, 2))


def calibrate_recorded(result: Result, files: Sequence[Path], *, name: str = "") -> Calibrated:
    """Fit the constants of a machine that recordings identify; of all others its own stay.

    `result`: of the scenario that was recorded, on the machine as it is known. `files`: traces of
    torch.profiler, a file a rank or folders of them, and logs. CalibrationError if nothing can be
    fitted; FormatError if a file is damaged, or holds nothing with a time.
    """
    logs = [file for file in files if is_log(file)]
    traces = [file for file in files if file not in logs]
    frame, base = known_machine(result.scenario.hardware, name)
    steps, unseen = {}, list[str]()
    if logs:
        steps["steps of the log"], unseen = log_step(result, logs)
    if not traces:
        return _level(result, frame, base, steps["steps of the log"], unseen)
    ranks = read_ranks(traces)
    taken = account(ranks)
    steps["steps of the recording"] = float(taken.steps.mean())
    files_of = [
        file for path in traces for file in (sorted(path.iterdir()) if path.is_dir() else [path])
    ]
    sources = [read_source(file) for file in files_of]
    frame, found, warnings = _fitted(result, frame, base, ranks, taken, sources)
    waits = float(taken.of("wait").mean())
    idle = sum(float(taken.of(part).mean()) for part in ("loader", "sync", "begin", "near", "long"))
    beside = f"{_time(waits)} for the last rank and {_time(idle)} idle otherwise"
    steps["the same without those"] = steps["steps of the recording"] - waits - idle
    warnings += [
        f"the recorded step waits {beside}: no constant of a machine has that, see 'mpsim explain'"
    ]
    fit = _over(base, found)
    now = simulated_on(result.scenario, document_of(frame, fit, ()))
    fit = structs.replace(fit, framework=_habits(now, taken, base))
    return _checked(result, frame, fit, steps, [*warnings, *unseen])


def _fitted(
    result: Result,
    frame: Frame,
    base: Fit,
    ranks: Sequence[Spans],
    taken: Account,
    sources: Sequence[Source],
) -> tuple[Frame, Fit, list[str]]:
    """Fit what the recording identifies: constants, levels and curves; name what it does not."""
    measurements = list(_kernels(sources, _optimizer(result, ranks, base)))
    points = kernel_points(measurements)
    _check_possible(points, result.scenario.hardware, float(taken.steps.max()))
    lines = list(_kernel_levels(base, points))
    curved = {(line.kind, line.phase) for line, _ in lines}
    free = [
        point
        for point in points
        if not point.operator
        or (kernel_class(point.operator), point.operator.phase.value) not in curved
    ]
    precision = result.scenario.training_step.precision
    sent, waiting = _collectives(
        ranks, taken, sources, result.scenario.hardware, ELEMENT_BYTES[precision]
    )
    collectives = collective_points(sent)
    sizes = Counter(series for series, _ in {(point.series, point.size) for point in collectives})
    many = [point for point in collectives if sizes[point.series] >= _FEWEST_SIZES]
    few = [point for point in collectives if sizes[point.series] < _FEWEST_SIZES]
    fit, frame = fit_machine(frame, free, many, measurements, None, base)
    levels = list(_levels(result.scenario.hardware, base, few))
    kept = {
        key: constant
        for key, constant in fit.constants.items()
        if not is_wide(constant) and not outside_range(key, constant)
    }
    asked = [point for point in free if point.precision == precision]
    frame, moved, classes = _class_levels(frame, base, asked, kept)
    # of constants that were fitted together none stands without the rate
    stems = tuple(key[: key.rindex(".") + 1] for key in moved)
    kept = {key: fitted for key, fitted in kept.items() if not key.startswith(stems)} | moved
    if not kept and not levels and not lines:
        raise CalibrationError(say("calibrate.no_shapes"))
    if any(key.startswith("libraries.") and key not in kept for key in fit.constants):
        # several of its constants make one line: the line itself is known
        kept = {key: constant for key, constant in kept.items() if not key.startswith("libraries.")}
        fit = structs.replace(fit, collectives=tuple(_lines(many)))
    found = Fit(
        kept,
        fit.kernels + tuple(line for line, _ in lines),
        fit.collectives + tuple(line for line, _ in levels),
        scores=(*fit.scores, *classes, *(of for _, of in (*lines, *levels))),
    )
    # a device hides launches: its idle time does not say what one costs
    launch = ["framework.launch_cost"] if taken.device else []
    refused = sorted({*fit.constants, *base.constants} - set(kept)) + launch
    warnings = [f"not identified, left as known: {', '.join(refused)}"] if refused else []
    return frame, found, warnings + waiting


def _over(base: Fit, found: Fit) -> Fit:
    """The known constants and curves, with the found ones in their place."""
    kernels = {(line.kind, line.phase): line for line in (*base.kernels, *found.kernels)}
    collectives = {
        (line.kind, line.ranks, line.domains): line
        for line in (*base.collectives, *found.collectives)
    }
    return Fit(
        {**base.constants, **found.constants},
        tuple(kernels.values()),
        tuple(collectives.values()),
        base.framework,
        found.scores,
    )


def _kernels(sources: Sequence[Source], more: Iterable[Measurement]) -> Iterator[Measurement]:
    """Kernels of all ranks by what they are, with their mean: a step is their sum."""
    alike: dict[str, list[Measurement]] = {}
    for row in itertools.chain(*(source.measurements for source in sources), more):
        if row.family == "kernels":
            alike.setdefault(row.id.rpartition("/")[0], []).append(row)
    for rows in alike.values():
        samples = np.concatenate([row.samples for row in rows])
        yield structs.replace(rows[0], seconds=((float(samples.mean()),) * len(samples),))


def _habits(result: Result, taken: Account, base: Fit) -> Mapping[str, object]:
    """The cost of a call on a host that computes: what steps take beside the fitted kernels."""
    habits, expected, program = dict(base.framework), Expected.of(result), result.timeline.program
    if taken.device or "launch_cost" not in habits:
        return habits
    launches = 0.0
    for template in program.template[program.template >= 0].tolist():
        kernels = program.templates[template]
        calls = np.array(kernels.names)[kernels.name_index] == "host launch"
        launches += float(kernels.duration[calls].sum()) * TICK / program.ranks
    more = taken.of("busy").mean() + taken.of("small").mean() - expected.compute.mean()
    factor = max(1 / _MOST, 1 + float(more) / launches) if launches else 1.0
    return {**habits, "launch_cost": scaled(habits["launch_cost"], Dimension.TIME, 1 / factor)}


def _optimizer(result: Result, ranks: Sequence[Spans], base: Fit) -> Iterator[Measurement]:
    """Steps of the optimizer, by the bytes that the simulated one moves."""
    chip, seconds = result.scenario.hardware.accelerator, result.breakdown.get("optimizer", 0.0)
    known = base.constants.get(_OPTIMIZER)
    times = [s.end - s.start for spans in ranks for s in spans.spans if s.kind == "optimizer"]
    if known is None or not times or not seconds:
        return
    moved = seconds * chip.memory_bandwidth * known.value
    dtype = {ours: theirs for theirs, ours in PRECISIONS.items()}[
        result.scenario.training_step.precision
    ]
    parameters = max(1, round(moved / limit("adam_bytes")))
    point = kernel_point("adam", {"parameters": parameters}, times, dtype=dtype, place="steps")
    yield structs.replace(measurement_of(point), bytes=moved)


def _collectives(
    ranks: Sequence[Spans], taken: Account, sources: Sequence[Source], cluster: Cluster, wide: float
) -> tuple[list[Measurement], list[str]]:
    """Collectives from their last member's start on, by bytes; why some say nothing."""
    told = [row for source in sources for row in source.measurements if row.family == "collectives"]
    stated = {(row.op, round(row.shape["bytes"])) for row in told}
    wires: dict[tuple[str, int, int, int], list[float]] = {}
    refused: set[str] = set()
    for call in itertools.chain.from_iterable(taken.calls):
        if not call.size:
            continue
        if call.ranks != len(call.waits):
            refused.add(
                f"{call.name}: {len(call.waits)} of {call.ranks} members recorded"
                if call.ranks
                else f"{call.name}: the traces do not say which of several groups it is of"
            )
            continue
        count = call.size * (call.ranks if call.name == "all_gather" else 1)
        element = next((e for e in _ELEMENTS if (call.name, count * e) in stated), wide)
        nodes = len({taken.ranks[place] // cluster.node.accelerators for place in call.waits})
        key = (call.name, round(count * element), call.ranks, nodes)
        wires.setdefault(key, []).append(call.lasts)
    found = []
    for (name, size, members, domains), times in wires.items():
        # a step is the sum of all its calls, of the late and of those that no clock resolves too
        if (mean := float(np.mean(times))) > 0 and members % domains == 0:
            point = collective_point(
                name, size, [mean] * len(times), ranks=members, domains=domains, place="steps"
            )
            found.append(measurement_of(point))
        else:
            refused.add(
                f"{name} of {members} ranks: it ends before its last member starts, by these clocks"
            )
    known = {call.name for call in itertools.chain.from_iterable(taken.calls)}
    every = {
        span.name
        for spans in ranks
        for span in spans.spans
        if span.kind == "collective" and span.size and span.name in COLLECTIVES
    }
    refused |= {
        f"{name}: its time holds the wait for its last member; give the traces of all its ranks"
        for name in every - known
    }
    return found, [f"not identified, left as known: {why}" for why in sorted(refused)]


def _check_possible(points: Iterable[Point], cluster: Cluster, longest: float) -> None:
    """Refuse operators far faster than the accelerator, or longer than their step, by name."""
    chip, most = cluster.accelerator, limit("impossible")
    wrong = []
    for point in points:
        of = point.operator
        ideal = (
            max(of.flops / max(chip.peak_flops.values()), of.bytes / chip.memory_bandwidth)
            if of
            else 0.0
        )
        if ideal > most * point.seconds:
            wrong.append(
                f"{point.id}: {_time(point.seconds)} is {ideal / point.seconds:.3g} times faster"
                " than the accelerator can be"
            )
        elif point.seconds > longest:
            wrong.append(
                f"{point.id}: {_time(point.seconds)} is longer than its step of {_time(longest)}"
            )
    if wrong:
        raise CalibrationError("; ".join(wrong[:_TOLD]) + say("calibrate.record_again"))


def _levels(
    cluster: Cluster, base: Fit, points: Sequence[Point]
) -> Iterator[tuple[MeasuredCurve, Score]]:
    """Collectives of few sizes: their curve as it is known, by the level that was recorded."""
    model = CollectiveModel(cluster, loaded=False)
    curves = {(line.kind, line.ranks, line.domains): line for line in base.collectives}
    for mine in by_series(points):
        kind, ranks, domains = kind_of(mine[0]), mine[0].ranks, mine[0].domains
        line = curves.get((kind, ranks, domains))
        if line is None:
            times = np.asarray(model.seconds(kind, np.array(_CURVE), group_of(mine[0])))
            line = MeasuredCurve(kind, "", ranks, domains, _CURVE, tuple(times.tolist()))
        yield _level_of(f"{kind}, {ranks} ranks", line, mine, [point.size for point in mine])


def _lines(points: Sequence[Point]) -> Iterator[MeasuredCurve]:
    """Curves through what was measured of each collective."""
    for mine in by_series(points):
        if (curve := best_curve(mine, np.array([point.size for point in mine]))) is not None:
            yield MeasuredCurve(kind_of(mine[0]), "", mine[0].ranks, mine[0].domains, *curve)


def _level_of(
    what: str, line: MeasuredCurve, points: Sequence[Point], sizes: Sequence[float]
) -> tuple[MeasuredCurve, Score]:
    """A curve moved to what its calls took in sum; of several sizes every second one checks it."""
    held = [len(points) >= _FEWEST_SIZES and bool(n % 2) for n in range(len(points))]
    marked = [structs.replace(p, held_out=out) for p, out in zip(points, held, strict=True)]
    read = np.asarray(Curve(line.sizes, line.times).seconds(np.array(sizes)))
    level = _in_sum(marked, read)
    moved = structs.replace(line, times=tuple(float(f"{level * time:.6g}") for time in line.times))
    return moved, score(what, "level", marked, level * read)


def _in_sum(points: Sequence[Point], predicted: Floats) -> float:
    """Ratio of what all calls took in sum to what is predicted, without those that check it."""
    weights = np.array([0 if point.held_out else point.samples for point in points])
    return float(weights @ [point.seconds for point in points] / (weights @ predicted))


def _class_levels(
    frame: Frame, base: Fit, points: Sequence[Point], kept: Mapping[str, Fitted]
) -> tuple[Frame, dict[str, Fitted], list[Score]]:
    """Products and attention of too few shapes for constants: the level of their calls in sum."""
    moved: dict[str, Fitted] = {}
    scores = []
    for kind, stem in (
        (OperatorKind.GEMM, "kernels.gemm."),
        (OperatorKind.ATTENTION, "kernels.attention_"),
    ):
        mine = [point for point in points if point.operator and point.operator.kind is kind]
        if not mine or any(key.startswith(stem) and _RATE.search(key) for key in kept):
            continue
        level, machine, constants = 1.0, frame, dict(moved)
        for _ in range(_LEVELS):
            chip = machine_of(document_of(machine, _over(base, Fit(constants)), ())).accelerator
            kernel = "cudnn" if mine[0].backend == "cudnn" else "flash2"
            model = KernelModel(chip, mine[0].precision, attention_kernel=kernel)
            predicted = model.seconds([point.operator for point in mine if point.operator])
            factor = _in_sum(mine, predicted)
            level *= factor
            # a host's peak moves, of a device its share does
            moves = kind is OperatorKind.GEMM and chip.family == "cpu"
            if moves:
                slower = _slow_host(machine.accelerator, factor)
                machine = structs.replace(machine, accelerator=slower)
            own = [constant for constant in model.provenance() if constant.name.startswith(stem)]
            constants |= _slowed_shares(own, factor, moves=moves)
        if all(outside_range(key, constant) is None for key, constant in constants.items()):
            frame, moved = machine, constants
            what = f"{kind.value.replace('_', ' ')}, {mine[0].precision}: x{level:.2f} in time"
            scores.append(score(what, "level", mine, predicted))
    return frame, moved, scores


def _slow_host(chip: Entry, factor: float) -> Entry:
    """A host whose peaks are lower by a factor."""
    rates = chip["peak_flops"]
    assert isinstance(rates, Mapping), "an accelerator's entry"
    peaks = {name: scaled(rate, Dimension.FLOP_RATE, factor) for name, rate in rates.items()}
    return {**chip, "peak_flops": peaks}


def _slowed_shares(
    constants: Iterable[Constant], factor: float, *, moves: bool = False
) -> Iterator[tuple[str, Fitted]]:
    """Constants with which kernels take longer by a factor; `moves`: whether peaks are lower."""
    for constant in constants:
        _, group, *_, leaf = constant.name.split(".")
        by = {"launch": factor, "slowdown": factor, "chart_share": 1 / factor}.get(leaf)
        if leaf.endswith(("burst_fraction", "sustained_fraction")) or group == "scan":
            by = 1.0 if moves else 1 / factor
        if by is not None and constant.name.startswith("kernels."):
            value = constant.value * by
            yield f"kernels.{group}.{leaf}", Fitted(value, value, value, constant.unit)


def _kernel_levels(base: Fit, points: Sequence[Point]) -> Iterator[tuple[MeasuredCurve, Score]]:
    """Memory-bound kernels that have a curve already."""
    for line in base.kernels:
        mine = [
            point
            for point in points
            if point.operator
            and (kernel_class(point.operator), point.operator.phase.value)
            == (line.kind, line.phase)
        ]
        if mine:
            sizes = [point.operator.bytes for point in mine if point.operator]
            yield _level_of(f"{line.kind}, {line.phase}", line, mine, sizes)


def _checked(
    result: Result, frame: Frame, fit: Fit, steps: Mapping[str, float], warnings: Sequence[str]
) -> Calibrated:
    """The machine, with the steps that it was not fitted to beside those it predicts."""
    document = document_of(frame, fit, warnings)
    after = simulated_on(result.scenario, document).timeline.step_time_s
    before = float(result.timeline.step_time_s)
    told = [
        f"{what}: {_time(seconds)}; predicted {_time(before)} before ({before / seconds - 1:+.1%}),"
        f" {_time(after)} now ({after / seconds - 1:+.1%})"
        for what, seconds in steps.items()
    ]
    return Calibrated(document, fit, (*warnings, *told))


def simulated_on(scenario: Scenario, document: Entry) -> Result:
    """Step of the scenario on a machine."""
    cluster = scenario.hardware
    size = {"nodes": cluster.nodes, "accelerators_per_node": cluster.node.accelerators}
    machine = {"machine": document, **size}
    moved = Scenario.from_mapping({**scenario.ground.data, "cluster": machine})
    return simulate_step(moved)


def _level(
    result: Result, frame: Frame, base: Fit, seconds: float, unseen: list[str]
) -> Calibrated:
    """The machine with all kernels by one factor, so that the step takes what the log says."""
    frame, fit = slowed(result, frame, base, seconds, lambda now: now.timeline.step_time_s)
    left = say("calibrate.one_level")
    return _checked(result, frame, fit, {"steps of the log": seconds}, [left, *unseen])


def slowed(
    result: Result, frame: Frame, base: Fit, seconds: float, part: Callable[[Result], float]
) -> tuple[Frame, Fit]:
    """All kernels of the accelerator by one factor, so that a `part` of the step takes `seconds`:
    the peak and memory of a host are slower, those of a device stay what its datasheet says.
    """
    factor, known = 1.0, frame.accelerator
    chip = result.scenario.hardware.accelerator
    models = [KernelModel(chip, precision) for precision in chip.peak_flops]
    used = itertools.chain(result.constants, *(model.provenance() for model in models))
    constants = {constant.name: constant for constant in used}.values()
    for _ in range(_LEVELS):
        moved = dict(base.constants)
        if chip.family == "cpu":
            memory = scaled(known["memory_bandwidth"], Dimension.BANDWIDTH, factor)
            slower = {**_slow_host(known, factor), "memory_bandwidth": memory}
            frame = structs.replace(frame, accelerator=slower)
            for key, rate in base.constants.items():
                if rate.unit == "FLOP/s":
                    ends = {end: getattr(rate, end) / factor for end in ("value", "low", "high")}
                    moved[key] = structs.replace(rate, **ends)
        else:
            moved |= _slowed_shares(constants, factor)
        fit = structs.replace(base, constants=moved, kernels=longer(base.kernels, factor))
        factor *= seconds / part(simulated_on(result.scenario, document_of(frame, fit, ())))
    if any(outside_range(*item) for item in moved.items()):
        text = f"no level of the accelerator explains steps of {_time(seconds)}"
        raise CalibrationError(f"{text}; check the scenario's batch, sequence length and nodes")
    return frame, fit


def longer(curves: Iterable[MeasuredCurve], factor: float) -> tuple[MeasuredCurve, ...]:
    """Curves that take so many times as long."""
    return tuple(
        structs.replace(line, times=tuple(factor * time for time in line.times)) for line in curves
    )


def scaled(text: object, dimension: Dimension, factor: float) -> str:
    """A quantity over a factor."""
    return format_quantity(parse_quantity(str(text), dimension) / factor, dimension, digits=6)


def _time(seconds: float) -> str:
    return format_quantity(seconds, Dimension.TIME, digits=4)
