"""Charts of two figures, with the Pareto front: layouts, services, plans, schedules, designs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from mpsim.errors import ScenarioError
from mpsim.plot.chart import LINE_INCHES, Axis, Bars, Chart, Limit, Lines, Panels, Part, Series
from mpsim.plot.palette import SERIES
from mpsim.result.words import Figures
from mpsim.study import ScheduleChoice, Search
from mpsim.study.design import Design
from mpsim.study.plan import Plans, Training, changed
from mpsim.study.search.service_outcome import FoundService, ServiceSearch
from mpsim.study.ties import front_of
from mpsim.table import plural

FRONT = "Pareto front: no other is better in both"
_LETTERS = "ABCDEFGH"
_REACH, _BEFORE, _ROOM = 2.5, 0.97, 1.25  # of a search's axes, times the shortest and the largest
_MILLION = 1e6


class Point(NamedTuple):
    """A point of a chart: its name, and two figures in SI units."""

    name: str
    x: float
    y: float


def lowest(points: Iterable[Point]) -> list[Point]:
    """The points that no other is below in both figures, by the first."""
    return list(front_of(points, lambda point: (point.x, point.y)))


def _series(name: str, points: Sequence[Point], colour: str, **style: Any) -> Series:
    """Marks at points, joined by a line unless `style` says none; labels are their names."""
    x, y = [point.x for point in points], [point.y for point in points]
    labels = [point.name for point in points]
    return Series(name if x else "", x, y, colour, **{"mark": "o", "labels": labels, **style})


def _names(points: Sequence[Point]) -> dict[int, str]:
    return {at: point.name for at, point in enumerate(points)}


def search_chart(search: Search) -> Lines:
    """Simulated layouts by step time and memory, up to 2.5 times the shortest step: the best ones,
    and those that no other beats in both. ScenarioError if no layout was simulated.
    """
    rows, front, leaders = (
        [Point(row.name, row.step_time_s, row.memory_bytes) for row in each]
        for each in (search.rows, search.front, search.leaders)
    )
    return layouts_chart(rows, front, leaders)


def layouts_chart(
    rows: Sequence[Point], front: Sequence[Point], leaders: Sequence[Point] = ()
) -> Lines:
    """The same from points of step time [s] and memory [B].

    The front's ends have letters, and places between where memory falls most; notes say which.
    """
    if not rows:
        raise ScenarioError("no layout was simulated: nothing to draw")
    quickest, slowest = min(point.x for point in rows), max(point.x for point in rows)
    edge = min(_REACH * quickest, slowest / _BEFORE)
    beyond = sum(point.x > edge for point in rows)
    left_out = f" ({plural(beyond, 'slower one')} not shown)" if beyond else ""
    letters = dict(zip(_lettered([point.y for point in front]), _LETTERS, strict=False))
    notes = [
        *(f"{n}  {point.x:.4g} s  {point.name}" for n, point in enumerate(leaders[:3], 1)),
        *(
            f"{letter}  {front[at].x:.4g} s, {front[at].y / 1e9:.3g} GB: {front[at].name}"
            for at, letter in letters.items()
        ),
    ]
    series = [
        _series(f"simulated{left_out}", rows, "other", line="", size=3.5),
        _series(
            FRONT,
            front,
            "backward",
            size=2.0,
            step=True,
            written={at: letter for at, letter in letters.items() if front[at].x <= edge},
        ),
    ]
    if leaders:
        series.append(_series(f"the best {len(leaders)}", leaders, "forward", line=""))
    return Lines(
        title="Step time and memory",
        alt=f"{len(rows)} layouts; the quickest takes {quickest:.4g} s.",
        notes=notes,
        series=series,
        x=Axis("step time", "s", limits=(_BEFORE * quickest, edge)),
        y=Axis(
            "memory of the fullest rank", "B", limits=(0.0, _ROOM * max(point.y for point in rows))
        ),
        size=(8.0, 4.5 + LINE_INCHES * len(notes)),
    )


def _lettered(memory: Sequence[float]) -> list[int]:
    """Places of a front, by step time, with a letter: ends, and where memory falls most."""
    falls = np.concatenate([[0.0], -np.diff(memory)])
    between = [place for place in np.argsort(-falls, kind="stable").tolist() if falls[place] > 0]
    chosen = dict.fromkeys([0, len(memory) - 1, *between]) if len(memory) else {}
    return sorted(list(chosen)[: len(_LETTERS)])


def service_front_chart(search: ServiceSearch) -> Lines:
    """Output tokens/s of a user against those of an accelerator, with the Pareto front."""

    def points(rows: Iterable[FoundService]) -> list[Point]:
        return [Point(row.name, row.per_user, row.per_accelerator) for row in rows]

    kept, missed = (
        points(row for row in search.rows if row.misses is out) for out in (False, True)
    )
    return services_chart(
        {"keeps the limits": kept, "misses the limits": missed}, points(search.front)
    )


def services_chart(groups: Mapping[str, Sequence[Point]], front: Sequence[Point] = ()) -> Lines:
    """The same from points, marks of the second group hollow, the front numbered in the notes."""
    every = [point for points in groups.values() for point in points]
    if not every:
        raise ScenarioError("no service was simulated: nothing to draw")
    series = [
        _series(name, points, "other", line="", size=4.0, hollow=[hollow] * len(points))
        for (name, points), hollow in zip(groups.items(), (False, True), strict=False)
        if points
    ]
    if front:
        written = {at: str(at + 1) for at in range(len(front))}
        series.append(_series(FRONT, front, "forward", written=written))
    user, chip = (1.1 * max(each) for each in zip(*((p.x, p.y) for p in every), strict=True))
    return Lines(
        title="Users and accelerators",
        alt=f"{len(every)} services, {len(front)} on the front.",
        notes=[f"{number}  {point.name}" for number, point in enumerate(front, 1)],
        series=series,
        x=Axis("output tokens/s of a user", limits=(0.0, user)),
        y=Axis("output tokens/s of an accelerator", limits=(0.0, chip)),
        size=(8.0, 4.4 + 0.16 * len(front)),
    )


def plan_chart(plans: Plans) -> Lines:
    """Plans that have a price by their days and dollars, the front of those that no other beats in
    both, and the deadline. ScenarioError if no plan has a price.
    """

    def points(rows: Iterable[Training]) -> list[Point]:
        return [
            Point(f"{row.accelerators:,} accelerators", row.days, row.cost / _MILLION)
            for row in rows
            if row.cost is not None
        ]

    every, deadline = points(plans.rows), plans.deadline
    front = sorted(points(plans.front), key=lambda point: point.x)
    if not every:
        raise ScenarioError("no plan has a price: nothing to draw; give --prices FILE")
    latest = max(deadline or 0.0, *(point.x for point in every))
    return Lines(
        title="Days and price",
        alt=f"{len(every)} plans, {len(front)} on the front.",
        series=[
            _series("plan", [p for p in every if p not in front], "other", line="", size=4.2),
            _series(FRONT, front, "forward", step=True, written=_names(front)),
        ],
        x=Axis("days of training, failures and checkpoints included", limits=(0.0, 1.2 * latest)),
        y=Axis("price (million USD)", limits=(0.0, 1.2 * max(point.y for point in every))),
        limits=[] if deadline is None else [Limit(deadline, "deadline", along=True)],
        size=(8.0, 4.5),
    )


def schedules_chart(choices: Sequence[ScheduleChoice], *, memory: float | None = None) -> Lines:
    """Bubble of each schedule against the activations that it holds, and a line through those that
    no other beats in both.

    Hollow marks do not fit the memory that was given; the shape tells copies of the weights.
    `memory`: activations that fit, of a rank's share of the model, as the comparison had it.
    ScenarioError if no schedule could be built.
    """
    groups: dict[tuple[int, bool], list[Point]] = {}
    for choice in choices:
        if choice.timed is not None:
            point = Point(choice.name, choice.activations, choice.timed.bubble_fraction)
            groups.setdefault((choice.weight_copies, bool(choice.reason)), []).append(point)
    if not groups:
        raise ScenarioError("no schedule could be built: nothing to draw")
    fitting = [point for (_, refused), points in groups.items() if not refused for point in points]
    every, front = [point for points in groups.values() for point in points], lowest(fitting)
    copies = sorted({each for each, _ in groups})
    series = [_series(FRONT, front, "other", mark="", labels=(), width=1.0, step=True)]
    for (own, refused), points in sorted(groups.items()):
        number = copies.index(own)
        series.append(
            _series(
                f"weights x{own}" + ", does not fit" * refused,
                points,
                SERIES[number % len(SERIES)],
                line="",
                mark="oDs"[number % 3],
                hollow=[refused] * len(points),
                written=_names(points),
            )
        )
    held = [point.x for point in every if point.x > 0] or [1.0]
    most = max(point.y for point in every) or 1.0
    return Lines(
        title="Bubble against memory",
        alt=f"{len(every)} schedules, {len(front)} on the front.",
        series=series,
        x=Axis(
            "activations held at most, of a rank's share of the model",
            log=2,
            limits=(0.7 * min(held), 1.6 * max(held)),
        ),
        y=Axis("bubble, of the makespan", "share", limits=(-0.04 * most, 1.12 * most)),
        limits=[] if memory is None else [Limit(memory, f"memory for {memory:g}", along=True)],
        size=(9.0, 5.0),
    )


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
    front = sorted(data["front"], key=_cost)

    def points(of: Sequence[Figures]) -> list[Point]:
        return [Point(changed(row["values"]), _cost(row), _slowness(row)) for row in of]

    ranges = [row["interval"]["days"] for row in front]
    top = max(*((each or [0.0])[-1] for each in ranges), *map(_slowness, rows))
    errors = ranges if all(ranges) else ()
    return Lines(
        title="Cost and speed",
        alt=f"{len(rows)} clusters, {len(front)} on the front, with their 80 % intervals.",
        series=[
            _series("cluster", points(rows), "other", line="", size=4.2),
            _series(FRONT, points(front), "backward", step=True, errors=errors),
            _series("chosen", points([data["chosen"]]), "forward", line="", size=7.0),
        ],
        x=Axis(_money(rows), limits=(0.0, 1.1 * max(map(_cost, rows)))),
        y=Axis(_speed(rows), limits=(0.0, 1.1 * top)),
    )


def _flips(flips: Sequence[Figures]) -> Bars:
    return Bars(
        title="What makes another as good",
        alt=f"The nearest: {flips[0]['name']} x {flips[0]['times']:.3g}.",
        names=[flip["name"] for flip in flips],
        parts=[Part("change", [100 * (flip["times"] - 1.0) for flip in flips], "forward")],
        value=Axis("change of one price or time (%)"),
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
        value=Axis("change (%)"),
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
                value=Axis(word),
                written="total",
            )
