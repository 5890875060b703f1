"""Charts of a design: days against cost of every cluster with the Pareto front, what flips the
choice, what upgrades buy, and the best of each value of a choice.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mpsim.errors import ScenarioError
from mpsim.plot.chart import Axis, Bars, Chart, Lines, Panels, Part, Series
from mpsim.plot.fronts import FRONT
from mpsim.result.words import Figures
from mpsim.study.design import Design
from mpsim.study.plan import changed

_COLUMNS = 3


def design_chart(design: Design) -> Panels:
    """The charts of a design side by side. ScenarioError if no cluster is possible."""
    charts = design_charts(design.to_json())
    if not charts:
        raise ScenarioError("no cluster keeps every bound: nothing to draw")
    columns = min(_COLUMNS, len(charts))
    rows = -(-len(charts) // columns)
    return Panels(charts=charts, columns=columns, size=(5.2 * columns + 0.8, 4.6 * rows))


def design_charts(data: Figures) -> list[Chart]:
    """Days (seconds a request of services alone) against cost of every possible cluster; where they
    are known, flips and upgrades; and the best of each value.

    `data`: what ``mpsim design --json`` prints.
    """
    rows = [row for row in data["rows"] if row["possible"]]
    if not rows:
        return []
    charts: list[Chart] = [_front(data, rows)]
    if data["flips"]:
        charts.append(_flips(data["flips"]))
    if data["upgrades"]:
        charts.append(_upgrades(data["upgrades"]))
    return [*charts, *_choices(data, rows)]


def _cost(row: Figures) -> float:
    return float(row["cost_usd" if "cost_usd" in row else "cost_usd_per_h"])


def _slowness(row: Figures) -> float:
    return float(row["days"]) if row["days"] is not None else 1.0 / row["requests_per_s"]


def _money(rows: Sequence[Figures]) -> str:
    return "cost (USD)" if "cost_usd" in rows[0] else "cost (USD/h)"


def _speed(rows: Sequence[Figures]) -> str:
    return "days of the work" if rows[0]["days"] is not None else "seconds a request"


def _front(data: Figures, rows: Sequence[Figures]) -> Lines:
    front, chosen = sorted(data["front"], key=_cost), [data["chosen"]]

    def series(
        name: str, of: Sequence[Figures], colour: str, size: float, *, joined: bool = False
    ) -> Series:
        ranges = [row["interval"]["days"] for row in of] if joined else []
        return Series(
            name,
            [_cost(row) for row in of],
            [_slowness(row) for row in of],
            colour,
            mark="o",
            line="-" if joined else "",
            step=joined,
            size=size,
            labels=[changed(row["values"]) for row in of],
            errors=ranges if all(ranges) else (),
        )

    ends = [(row["interval"]["days"] or [0.0])[-1] for row in front]
    top = max(*ends, *map(_slowness, rows))
    return Lines(
        title="Cost and speed",
        alt=f"{len(rows)} clusters, {len(front)} on the front, with their 80 % intervals.",
        series=[
            series("cluster", rows, "other", 4.2),
            series(FRONT, front, "backward", 5.0, joined=True),
            series("chosen", chosen, "forward", 7.0),
        ],
        x=Axis(name=_money(rows), limits=(0.0, 1.1 * max(map(_cost, rows)))),
        y=Axis(name=_speed(rows), limits=(0.0, 1.1 * top)),
    )


def _flips(flips: Sequence[Figures]) -> Bars:
    return Bars(
        title="What makes another as good",
        alt=f"The nearest: {flips[0]['name']} x {flips[0]['times']:.3g}.",
        names=[flip["name"] for flip in flips],
        parts=[Part("change", [100 * (flip["times"] - 1.0) for flip in flips], "forward")],
        value=Axis(name="change of one price or time (%)"),
        written="total",
    )


def _upgrades(upgrades: Sequence[Figures]) -> Bars:
    throughput = [100 * upgrade["faster"] for upgrade in upgrades]
    cost = [100 * (upgrade["dearer"] or 0.0) for upgrade in upgrades]
    return Bars(
        title="Upgrades of the chosen one",
        alt=f"{len(upgrades)} changes.",
        names=[upgrade["name"] for upgrade in upgrades],
        parts=[Part("throughput", throughput, "forward"), Part("cost", cost, "backward")],
        value=Axis(name="change (%)"),
        beside=True,
    )


def _choices(data: Figures, rows: Sequence[Figures]) -> Iterator[Bars]:
    """For each choice with several values, the best cluster that has each."""
    by_cost = data["by"] == "cost"
    score, word = (_cost, _money(rows)) if by_cost else (_slowness, _speed(rows))
    for key in data["chosen"]["values"]:
        best: dict[str, float] = {}
        for row in rows:
            value = str(row["values"].get(key))
            best[value] = min(best.get(value, float("inf")), score(row))
        if len(best) > 1:
            yield Bars(
                title=f"The best by {key.removeprefix('cluster.')}",
                alt=", ".join(f"{value}: {least:.4g}" for value, least in best.items()),
                names=list(best),
                parts=[Part(word, list(best.values()), "forward")],
                value=Axis(name=word),
                written="total",
            )
