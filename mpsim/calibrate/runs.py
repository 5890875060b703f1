"""A machine from measured training runs: a table of steps, laid beside their predictions.

The length of a step alone tells no kernel from a link, but the lengths of several do, as far as
their shares of both differ. Two levels go into the machine file, of kernels and of collectives;
what the runs say of settings in which they differ, doublings of tp and so on
(`mpsim.measured.posterior`), is no constant of a machine: it moves what is expected of the rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from mpsim import structs
from mpsim.calibrate.calibrate import Calibrated, dated
from mpsim.calibrate.machine import Entry, Frame, document_of, known_machine
from mpsim.calibrate.parts import Fit, limit
from mpsim.calibrate.recorded import longer, scaled, simulated_on, slowed
from mpsim.errors import CalibrationError
from mpsim.measured.posterior import EXCHANGE, KERNELS, Errors, Posterior, errors_of
from mpsim.result import Result
from mpsim.result.residuals import HALF_WIDTH, Setting, residuals
from mpsim.shipped import say
from mpsim.table import Section, plural
from mpsim.training.intervals import residuals_of, shares_of
from mpsim.units import Dimension, format_quantity

_UNITS = {"s": Dimension.TIME, "B": Dimension.BYTES}
_PARTS = {KERNELS: "kernels", EXCHANGE: "collectives"}  # and their words
_ALIKE = ("framework", "format", "length", "model")  # what runs share that are like each other


@structs.dataclass(frozen=True, slots=True)
class Run:
    """A run of a table: what was measured, and what is predicted."""

    name: str
    setting: Setting
    unit: str  # of both figures: s, B, or that of a rate
    predicted: float
    measured: float | None  # None where it is open

    def at(self, factor: float) -> float:
        """The prediction with a step that takes, or a peak that is, so many times as much."""
        return self.predicted * (factor if self.unit in _UNITS else 1 / factor)

    @property
    def factor(self) -> float:
        """The step as measured over its prediction; 1 where it was not."""
        ratio = (self.measured or self.predicted) / self.predicted
        return ratio if self.unit in _UNITS else 1 / ratio

    def told(self, value: float | None) -> str:
        """A figure of the run in words."""
        if value is None:
            return "open"
        dimension = _UNITS.get(self.unit)
        return format_quantity(value, dimension, digits=4) if dimension else f"{value:,.4g}"


def calibrate_runs(
    result: Result,
    runs: Sequence[Run],
    peaks: Sequence[Run] = (),
    *,
    name: str = "",
    wrong: Sequence[str] = (),
) -> Calibrated:
    """Find the level of kernels and of links that measured runs say, each as far as they do.

    `result`: of the scenario that the runs change, on the machine as it is known. `runs`: those
    that were not measured are told what to expect. `peaks`: of memory, where those were measured.
    `wrong`: of other rows of their tables. CalibrationError with all that is wrong.
    """
    cluster = result.scenario.hardware
    measured = [place for place, run in enumerate(runs) if run.measured]
    known = cluster.calibration
    if known and known.runs:
        wrong = [say("calibrate.again", runs=plural(len(known.runs), "run")), *wrong]
    _check(runs, cluster.accelerator.kind, wrong)
    errors, posterior = _posterior("step", runs)
    before = Posterior.of(errors.less([]), np.array([]))
    # what all measured runs share is a level, whatever it is of
    names, level = np.array(errors.names), errors.less(measured).alike
    lines, factors = [], {}
    for part, what in _PARTS.items():
        own = np.where(np.isin(names, [*_PARTS]), names == part, level)[:, None]
        factors[part] = float(np.exp(posterior.mean @ own)[0])
        now, then = (HALF_WIDTH * float(each.spread(own)[0]) for each in (posterior, before))
        words = {"what": what, "time": factors[part], "now": now, "then": then}
        lines.append(say("calibrate.level", **words))
    if peaks:
        held, found = _posterior("memory", peaks)
        lines.append(say("calibrate.peaks", peak=math.exp(float((found.mean @ held.rows).mean()))))
    frame, base = known_machine(cluster, name)
    source = plural(len(measured), "measured training step")
    alike = [{key: [*runs[n].setting.labels[key]] for key in _ALIKE} for n in measured]
    frame = structs.replace(frame, source=source, as_of=dated(), runs=alike)
    frame, base = _with_links(frame, base, factors[EXCHANGE])
    whole = _kernels(result) * factors[KERNELS]
    frame, fit = slowed(result, frame, base, whole, _kernels)
    document = document_of(frame, fit, lines)
    steps = (result.timeline, simulated_on(result.scenario, document).timeline)
    was, now_is = (format_quantity(each.step_time_s, Dimension.TIME, digits=4) for each in steps)
    lines.append(say("calibrate.own_step", was=was, now=now_is))
    among = [place for place, run in enumerate(runs) if not run.measured]
    telling = runs[posterior.most_telling(errors, among)].name if among else ""
    lines.append(say("calibrate.run_next" if among else "calibrate.none_open", name=telling))
    return Calibrated(document, fit, tuple(lines), *_told(runs, posterior, errors))


def _posterior(figure: str, runs: Sequence[Run]) -> tuple[Errors, Posterior]:
    """Errors of all runs, and what those that were measured say of them."""
    settings = [run.setting for run in runs]
    known = residuals_of(settings[0]) if figure == "step" else residuals(figure)
    errors = errors_of(settings, figure, sigma=known.interval(1.0, settings[0]).sigma)
    measured = [place for place, run in enumerate(runs) if run.measured]
    seen = np.log([runs[place].factor for place in measured])
    return errors, Posterior.of(errors.less(measured), seen)


def _check(runs: Sequence[Run], chip: str, wrong: Sequence[str]) -> None:
    """Refuse a table with runs of another machine, or that were not measured as it seems."""
    told = [*wrong] if any(run.measured for run in runs) else [*wrong, say("calibrate.no_step")]
    most, alike = limit("off"), dict[tuple[object, ...], list[str]]()
    for run in runs:
        key = (run.predicted, run.measured, *run.setting.labels.values())
        alike.setdefault(key, []).append(run.name)
        other = run.setting.labels["accelerator"][0]
        if other != chip:
            told.append(f"{run.name}: runs on {other}, the scenario on {chip}")
        elif not 1 / most < run.factor < most:
            figures = {each: run.told(getattr(run, each)) for each in ("measured", "predicted")}
            told.append(say("calibrate.far_off", run=run, **figures))
    doubles = (", ".join(names) for names in alike.values() if len(names) > 1)
    told += [say("calibrate.doubles", names=names) for names in doubles]
    if told:
        raise CalibrationError("; ".join(told))


def _with_links(frame: Frame, base: Fit, factor: float) -> tuple[Frame, Fit]:
    """The machine's links and measured curves of collectives, slower by a factor."""
    nic = None if frame.nic is None else _slow(frame.nic, factor)
    frame = structs.replace(frame, scale_up=_slow(frame.scale_up, factor), nic=nic)
    return frame, structs.replace(base, collectives=longer(base.collectives, factor))


def _slow(entry: Entry, factor: float) -> Entry:
    return {
        **entry,
        "bandwidth": scaled(entry["bandwidth"], Dimension.BANDWIDTH, factor),
        "latency": scaled(entry["latency"], Dimension.TIME, 1 / factor),
    }


def _kernels(result: Result) -> float:
    """Time of a step in kernels of the model [s]."""
    return shares_of(result.breakdown)["compute"] * result.timeline.step_time_s


def _told(
    runs: Sequence[Run], posterior: Posterior, errors: Errors
) -> tuple[Section, tuple[Entry, ...]]:
    """Runs as measured, predicted, and expected now: in words, and in figures."""
    expected, ends = np.exp(posterior.mean @ errors.rows), posterior.ends(errors.rows)
    rows, steps = [], list[Entry]()
    for run, *factors in zip(runs, expected, *ends, strict=True):
        now, *between = map(run.at, factors)
        figures = (run.measured, run.predicted, now, *sorted(between))
        keys = ("measured", "predicted", "now", "low", "high")
        steps.append({"run": run.name, "unit": run.unit, **dict(zip(keys, figures, strict=True))})
        known, was, after, low, high = map(run.told, figures)
        fit = (run.predicted, now)
        off = [f"{each / run.measured - 1:+.1%}" if run.measured else "" for each in fit]
        rows.append((run.name, known, was, off[0], after, off[1], f"{low} to {high}"))
    header = ("run", "measured", "predicted", "error", "now", "error", "80 % of such runs")
    return Section(tuple(rows), header, (1, 2, 3, 4, 5)), tuple(steps)
