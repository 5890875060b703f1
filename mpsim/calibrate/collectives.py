"""Fits of collectives: constants of a library that talks through the host, and curves."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from mpsim import structs
from mpsim.arrays import Floats
from mpsim.calibrate.parts import Fit, best_curve, fitted, merged, prefers_curve, score, unknown
from mpsim.calibrate.points import Point, hold_out
from mpsim.calibrate.robust import fit_robust
from mpsim.cost import CollectiveModel
from mpsim.cost.curves import Curve
from mpsim.cost.network import COLLECTIVES, floor_seconds
from mpsim.hardware import Calibration, Cluster, Fitted, MeasuredCurve
from mpsim.measured.records import Measurement
from mpsim.parallel import GroupShape

_HOST = ("gloo", "openmpi", "mpich")
_FEWEST = 6
_PAIR = 2


def collective_points(measurements: Iterable[Measurement]) -> list[Point]:
    """Every collective, with some sizes held out.

    The median counts: when the threads of both ends are scheduled differs from call to call on a
    machine of one's own too, and a step holds many calls.
    """
    points = [
        structs.replace(
            Point.of(
                measurement,
                f"{measurement.op}/{len(measurement.group)}x{measurement.domains}",
                float(measurement.shape.get("bytes", 0)),
            ),
            seconds=measurement.median,
            precision="",
            ranks=len(measurement.group),
            domains=measurement.domains,
        )
        for measurement in measurements
        if measurement.family == "collectives"
        and len(measurement.group) >= _PAIR
        and measurement.op in COLLECTIVES
    ]
    return hold_out(points)


def kind_of(point: Point) -> str:
    """The collective of a point."""
    return point.series.partition("/")[0]


def group_of(point: Point) -> GroupShape:
    """Where the group of a point sits."""
    return GroupShape(point.ranks, point.ranks // point.domains, point.domains)


def link_bandwidth(points: Sequence[Point], cluster: Cluster) -> float | None:
    """The rate of the link inside a node that no measured collective contradicts [B/s], or None.

    A link's rate bounds every algorithm: it is the one at which the fastest collective is possible.
    """
    inside = [p for p in points if p.domains == 1 and p.size]
    if not inside:
        return None
    rate = cluster.node.scale_up.bandwidth
    ratios = [
        float(floor_seconds(kind_of(p), p.size, group_of(p), cluster)) / p.seconds for p in inside
    ]
    return rate * max(ratios) if max(ratios) > 0 else None


def fit_collectives(points: Sequence[Point], cluster: Cluster, library: str) -> Fit:
    """Constants of `library` where it is one that talks through the host; a curve for every group
    and collective that they miss. `cluster`: with the link of the measured machine.
    """
    if not points:
        return Fit()
    constants: Mapping[str, Fitted] = {}
    if library in _HOST and len([p for p in points if not p.held_out]) >= _FEWEST:
        constants = _host_fits(points, cluster, library)
    model = _model(cluster, library, {name: constant.value for name, constant in constants.items()})
    fits = [_series(rows, model, formed=bool(constants)) for rows in by_series(points)]
    return merged([Fit(constants), *fits])


def by_series(points: Sequence[Point]) -> Iterator[list[Point]]:
    """Points of each collective in each group, by size."""
    groups: dict[str, list[Point]] = {}
    for point in points:
        groups.setdefault(point.series, []).append(point)
    for rows in groups.values():
        yield sorted(rows, key=lambda row: row.size)


def _model(cluster: Cluster, library: str, values: Mapping[str, float]) -> CollectiveModel:
    """The model of the cluster with these constants and no curves."""
    constants = {name: Fitted(value, value, value, "") for name, value in values.items()}
    trial = Calibration("fit", "", "", constants, (), (), library, {})
    changed = structs.replace(cluster, calibration=trial)
    return CollectiveModel(changed, library=library, loaded=False)


def _predicted(model: CollectiveModel, rows: Sequence[Point]) -> Floats:
    """Seconds of the points of one series."""
    sizes = np.array([p.size for p in rows])
    return np.asarray(model.seconds(kind_of(rows[0]), sizes, group_of(rows[0])))


def _host_fits(points: Sequence[Point], cluster: Cluster, library: str) -> Mapping[str, Fitted]:
    train = [[p for p in rows if not p.held_out] for rows in by_series(points)]
    series = [rows for rows in train if rows]
    leaves = ["dispatch", "near_latency", "near_bandwidth", "sum_bandwidth"]
    if any(p.ranks > _PAIR for p in points):
        leaves.append("post")
    if any(p.domains > 1 for p in points):
        leaves += ["far_latency", "flow_bandwidth"]
    prefix = f"libraries.host.{library}"

    def form(values: Floats) -> Floats:
        named = {f"{prefix}.{leaf}": float(x) for leaf, x in zip(leaves, values, strict=True)}
        model = _model(cluster, library, named)
        return np.concatenate([_predicted(model, rows) for rows in series])

    measured = np.array([p.seconds for rows in series for p in rows])
    estimates = fit_robust(
        form,
        [unknown(leaf, known=cluster.calibration, of=f"{prefix}.{leaf}") for leaf in leaves],
        measured,
    )
    units = {leaf: "B/s" if leaf.endswith("_bandwidth") else "s" for leaf in leaves}
    return {
        f"{prefix}.{estimate.name}": fitted(estimate, units[estimate.name])
        for estimate in estimates
        if estimate.identified
    }


def _series(rows: Sequence[Point], model: CollectiveModel, *, formed: bool) -> Fit:
    """One collective in one group: the form where it holds, else a curve."""
    kind, ranks, domains = kind_of(rows[0]), rows[0].ranks, rows[0].domains
    what = f"{kind}, {ranks} ranks" + (f" on {domains} nodes" if domains > 1 else "")
    by_form = score(what, "constants", rows, _predicted(model, rows))
    sizes = np.array([p.size for p in rows])
    curve = best_curve(rows, sizes)
    if curve is None or (formed and not prefers_curve(by_form, rows, sizes)):
        return Fit(scores=(by_form,))
    measured = MeasuredCurve(kind, "", ranks, domains, *curve)
    read = Curve(*curve).seconds(sizes)
    return Fit(collectives=(measured,), scores=(score(what, "curve", rows, read),))
