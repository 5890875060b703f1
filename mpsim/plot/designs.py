"""Charts of a design: cost against days of every cluster with the Pareto front, what flips the choice, and what upgrades buy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mpsim.errors import ScenarioError
from mpsim.plot.chart import Axis, Bars, Chart, Lines, Panels, Part, Series
from mpsim.plot.fronts import FRONT
from mpsim.study.design import Design, Option

__all__ = ["design_chart"]


def design_chart(design: Design) -> Panels:
    """Cost against days (requests/s of services alone) of every cluster that is possible, and beside it, where they are known, flips and upgrades.

    Raises
    ------
    ScenarioError
        If no cluster is possible.
    """
    if not design.possible:
        raise ScenarioError("no cluster keeps every bound: nothing to draw")
    charts: list[Chart] = [_front(design)]
    if design.flips:
        charts.append(_flips(design))
    if design.upgrades:
        charts.append(_upgrades(design))
    return Panels(charts=charts, columns=len(charts), size=(5.2 * len(charts) + 0.8, 4.6))


def _front(design: Design) -> Lines:
    best, trains = design.best, design.possible[0].days is not None

    def speed(row: Option) -> float:
        return row.slowness if trains else row.rate or 0.0

    def series(name: str, rows: Sequence[Option], colour: str, **style: Any) -> Series:
        marks: dict[str, Any] = {
            "mark": "o",
            "line": "",
            "labels": [row.name for row in rows],
            **style,
        }
        return Series(
            name, [speed(row) for row in rows], [row.cost for row in rows], colour, **marks
        )

    chosen = [row for row in design.possible if row is best]
    front = sorted(design.front, key=speed)
    return Lines(
        title="Cost and speed",
        alt=f"{len(design.possible)} clusters, {len(front)} on the front.",
        series=[
            series("cluster", design.possible, "other", size=4.2),
            series(FRONT, front, "backward", line="-", step=True),
            series("chosen", chosen, "forward", size=7.0),
        ],
        x=Axis(
            name="days of the work" if trains else "requests/s within the limits",
            limits=(0.0, 1.1 * max(map(speed, design.possible))),
        ),
        y=Axis(
            name="cost (USD)" if trains else "cost (USD/h)",
            limits=(0.0, 1.1 * max(row.cost for row in design.possible)),
        ),
    )


def _flips(design: Design) -> Bars:
    flips = design.flips
    change = [100 * (flip.times - 1.0) for flip in flips]
    return Bars(
        title="What makes another as good",
        alt=f"The nearest: {flips[0].name} x {flips[0].times:.3g}.",
        names=[flip.name for flip in flips],
        parts=[Part("change", change, "forward")],
        value=Axis(name="change of one price or time (%)"),
        written="total",
    )


def _upgrades(design: Design) -> Bars:
    upgrades = design.upgrades
    return Bars(
        title="Upgrades of the chosen one",
        alt=f"{len(upgrades)} changes.",
        names=[upgrade.name for upgrade in upgrades],
        parts=[
            Part("throughput", [100 * upgrade.faster for upgrade in upgrades], "forward"),
            Part("cost", [100 * (upgrade.dearer or 0.0) for upgrade in upgrades], "backward"),
        ],
        value=Axis(name="change (%)"),
        beside=True,
    )
