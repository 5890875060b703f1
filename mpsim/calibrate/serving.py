"""Constants of serving from measured services: rates of kernels, and host times of engines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from mpsim import structs
from mpsim.arrays import Floats
from mpsim.calibrate.parts import Fit, Score, fitted, limit
from mpsim.calibrate.robust import Estimate, Unknown, fit_robust
from mpsim.errors import CalibrationError, MpsimError
from mpsim.hardware import Calibration, Fitted
from mpsim.serving.engines import calibrated
from mpsim.serving.plan import ServicePlan
from mpsim.serving.rates import BY_FORMAT
from mpsim.serving.result import ServedPoint, measurable
from mpsim.shipped import say

_RATES = ("attention_bandwidth", "prompt_share", "reduction_latency")
_TIMES = ("step_time", "request_time", "layer_time", "host_layer_time", "first_token_time")
_QUANTITIES = ("ttft", "tpot", "e2e", "throughput")
# of a derivative, in logarithms: iterations are formed anew, so that less drowns in their steps
_STEP = 0.05
_ROUNDS, _PASSES = 8, 2  # each serves every point once more for every constant
_PRIOR = {"share": 2.0, "time": 5.0}  # standard deviation of a preset's value, in logarithms


def fit_serving(points: Sequence[ServedPoint]) -> Fit:
    """Find the constants of serving whose predictions are closest to what was measured.

    `points`: of one accelerator. Every third of more than `serving_points` is fitted at most; the
    others are held out. CalibrationError if they are of several accelerators, or none can be
    served.

    Notes
    -----
    Constants start at their presets, which also weigh as a first guess; those that the points do
    not feel stay. Latencies and the inverse of the throughput are fitted together, in logarithms.
    """
    chips = {point.plan.cluster.accelerator.name for point in points}
    if len(chips) != 1:
        names = ", ".join(sorted(chips)) or "no accelerator"
        raise CalibrationError(say("calibrate.several_services", names=names))
    points, refused = _servable(points)
    if not points:
        raise CalibrationError(f"none of the measured services can be served: {refused[0]}")
    most = int(limit("serving_points"))
    every = max(1, -(-len(points) // most))
    chosen, others = points[::every], [p for at, p in enumerate(points) if at % every]
    unknowns = _unknowns(chosen)
    measured = _measured(chosen)
    estimates = fit_robust(
        lambda values: _times(chosen, _named(unknowns, values)),
        unknowns,
        measured,
        step=_STEP,
        rounds=_ROUNDS,
        passes=_PASSES,
        method="dogbox",
    )
    constants = {
        estimate.name: fitted(estimate, _unit(estimate.name))
        for estimate in estimates
        if estimate.identified
    }
    held = others[:: max(1, len(others) // most)] if others else []
    every_point = [*chosen, *held]
    predicted = _times(every_point, {name: constant.value for name, constant in constants.items()})
    scores = tuple(_scores(every_point, predicted, len(chosen)))
    return Fit(constants, scores=scores, warnings=(*refused, *_bound_warnings(estimates)))


def on_machine(plan: ServicePlan, values: Mapping[str, float]) -> ServicePlan:
    """A plan with constants of a machine in place of its own, as a machine file would make it."""
    if not values:
        return plan
    constants = {name: Fitted(value, value, value, _unit(name)) for name, value in values.items()}
    measured = Calibration("fit", "", "", constants, (), (), "", {})
    cluster = plan.cluster
    chip = structs.replace(cluster.accelerator, calibration=measured)
    node = structs.replace(cluster.node, accelerator=chip)
    cluster = structs.replace(cluster, node=node)
    prefill = None if plan.prefill is None else on_machine(plan.prefill, values)
    engine = calibrated(plan.engine, cluster)
    return structs.replace(plan, cluster=cluster, engine=engine, prefill=prefill)


def _servable(points: Sequence[ServedPoint]) -> tuple[list[ServedPoint], list[str]]:
    good: list[ServedPoint] = []
    refused: list[str] = []
    for point in points:
        try:
            point.plan.require()
        except MpsimError as error:
            refused.append(f"{point.id}: {error}")
        else:
            good.append(point)
    return good, refused


def _unknowns(points: Sequence[ServedPoint]) -> list[Unknown]:
    """Constants that the points' plans use, starting at their values there."""
    starts: dict[str, float] = {}
    for point in points:
        for plan in point.plan.pools.values():
            starts |= _starts(plan)
    unknowns: list[Unknown] = []
    for name, value in sorted(starts.items()):
        kind = "share" if _unit(name) == "1" else "time"
        reach = 3.0 if kind == "share" else 50.0
        is_share = kind == "share" and ".rates." in name
        high = min(value * reach, 1.0) if is_share else value * reach
        unknowns.append(Unknown(name, value, value / reach, high, _PRIOR[kind]))
    return unknowns


def _starts(plan: ServicePlan) -> dict[str, float]:
    rates, work = plan.rates, plan.work
    starts = {f"serving.rates.{name}": float(getattr(rates, name)) for name in _RATES}
    products = {linear.format.name for linear in work.linears}
    experts = {routed.format.name for routed in work.experts}
    for name, keys in (("product_rate", products), ("expert_rate", experts)):
        by_format: Mapping[str, float] = getattr(rates, name)
        for key in keys:
            usual = key if key in by_format else "*"
            starts[f"serving.{name}.{usual}"] = by_format[usual]
    for name in _TIMES:
        if value := float(getattr(plan.engine, name)):
            starts[f"serving.engines.{plan.engine.name}.{name}"] = value
    return starts


def _unit(name: str) -> str:
    """Seconds of times and latencies, else a ratio."""
    leaf = name.rpartition(".")[2]
    group = name.split(".")[1]
    timed = leaf.endswith(("_time", "_latency")) or (group in BY_FORMAT and "latency" in group)
    return "s" if timed else "1"


def _named(unknowns: Sequence[Unknown], values: Floats) -> dict[str, float]:
    return {unknown.name: float(value) for unknown, value in zip(unknowns, values, strict=True)}


def _quantities(point: ServedPoint) -> list[str]:
    return [name for name in _QUANTITIES if name in point.measured]


def _measured(points: Sequence[ServedPoint]) -> Floats:
    """Every measured quantity as a time."""
    return np.array(
        [_time(name, point.measured[name]) for point in points for name in _quantities(point)]
    )


def _times(points: Sequence[ServedPoint], values: Mapping[str, float]) -> Floats:
    """The same quantities predicted with some constants."""
    times: list[float] = []
    for point in points:
        figures = measurable(on_machine(point.plan, values))
        times += [_time(name, figures[name]) for name in _quantities(point)]
    return np.array(times)


def _time(name: str, value: float) -> float:
    return 1.0 / value if name == "throughput" else value


def _scores(points: Sequence[ServedPoint], predicted: Floats, chosen: int) -> list[Score]:
    """Errors by quantity; those behind the first `chosen` points were held out."""
    rows: dict[str, list[tuple[str, float, float, bool]]] = {}
    flat = iter(predicted.tolist())
    for number, point in enumerate(points):
        for name in _quantities(point):
            entry = (point.id, _time(name, point.measured[name]), next(flat), number >= chosen)
            rows.setdefault(name, []).append(entry)
    scores: list[Score] = []
    for name, entries in rows.items():
        ids, measured, found, held = (tuple(column) for column in zip(*entries, strict=True))
        scores.append(Score(name, "constants", ids, measured, measured, found, held, 0.0))
    return scores


def _bound_warnings(estimates: Sequence[Estimate]) -> list[str]:
    return [
        f"{estimate.name} is at its bound of {estimate.value:.4g}: something else is in these times"
        for estimate in estimates
        if estimate.at_bound
    ]
