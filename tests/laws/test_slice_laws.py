"""Laws of what runs inside and between actions: exposed slices are the account, cut into intervals."""

import itertools
from pathlib import Path

import numpy as np
import pytest

from mpsim.engine.cover import Cover
from mpsim.parallel.axes import AXES
from mpsim.program import TICK
from mpsim.result import Result
from mpsim.result.slices import CommunicationSlices
from mpsim.scenario.scenario import load
from mpsim.simulate import simulate_step
from mpsim.training.vocabulary import PARTS
from tests.nightly import some

ROOT = Path(__file__).resolve().parents[2]
SCENARIOS = sorted(
    path
    for folder in ("scenarios", "mpsim/scenario/templates")
    for path in (ROOT / folder).rglob("*.yaml")
)
VARIED = (
    {"simulation.network": "flow"},
    {"simulation.interference": True},
    {"parallelism.pp": 1, "parallelism.zero": 3},
    {"framework.blocking_sends": "always"},
    {"training.recompute": "full"},
)


def _results() -> list[pytest.param]:
    quick = ROOT / "scenarios/quickstart.yaml"
    return [
        *(pytest.param(path, {}, id=path.relative_to(ROOT).as_posix()) for path in SCENARIOS),
        *(pytest.param(quick, values, id=str(values)) for values in VARIED),
    ]


def _simulate(path: Path, values: dict[str, object]) -> Result:
    scenario = load(path)
    if scenario.serves:
        pytest.skip("a service has no step")
    return simulate_step(scenario.with_values(values) if values else scenario)


@pytest.mark.parametrize(("path", "values"), some(_results(), 17))
def test_exposed_slices_sum_to_the_account(path: Path, values: dict[str, object]) -> None:
    """For every axis the exposed slices of a rank last as long as its part of the step, tick for tick, and never overlap."""
    result = _simulate(path, values)
    slices = result.communication_slices()
    ticks = slices.ticks()
    size = result.timeline.program.class_size
    mean = (size / size.sum()) @ ticks * TICK
    for number, axis in enumerate(AXES):
        assert ticks[:, number] == pytest.approx(result.parts[:, PARTS.index(axis.part)], abs=0.5)
        assert mean[number] == pytest.approx(result.breakdown[axis.part], abs=1e-9)
    assert (slices.end > slices.start).all()
    _check_order(slices)
    for axis in range(len(AXES)):
        exposed = slices.where(slices.exposed & (slices.axis == axis))
        same = exposed.rank[1:] == exposed.rank[:-1]
        # stretched templates round ends to ticks and keep sums: a few ticks of a slice may reach into the one before
        assert (exposed.start[1:] - exposed.end[:-1])[same].min(initial=0.0) > -100


def _check_order(slices: CommunicationSlices) -> None:
    keys = np.stack([slices.rank, slices.axis, slices.start])
    assert (np.lexsort(keys[::-1]) == np.arange(len(slices))).all()


@pytest.mark.parametrize("values", [{}, *VARIED], ids=str)
def test_idle_intervals_fill_what_kernels_leave(values: dict[str, object]) -> None:
    """Idle intervals of a rank lie between its rows, do not overlap, and with busy parts sum to the step."""
    result = _simulate(ROOT / "scenarios/quickstart.yaml", values)
    idle, timeline = result.idle, result.timeline
    busy = timeline.program.busy_parts.sum(axis=1)
    rank, row = timeline.program.compute_rows
    for number in range(timeline.program.ranks):
        mine = idle.where(idle.rank == number)
        order = np.argsort(mine.start)
        assert (mine.start[order][1:] >= mine.end[order][:-1]).all()
        assert busy[number] + (mine.end - mine.start).sum() == pytest.approx(timeline.makespan)
        rows = row[rank == number]
        works = Cover(timeline.start[rows], timeline.end[rows])
        assert works.within(mine.start, mine.end).sum() == 0


@pytest.mark.parametrize("name", ["quickstart", "mixtral-8x7b-h100", "gpt3-175b-a100"])
def test_waits_inside_templates_sum_to_their_parts(name: str) -> None:
    """What each transfer of an action is waited for adds up to the action's exposed parts, stretched templates included."""
    result = _simulate(ROOT / f"scenarios/{name}.yaml", {})
    exposed = [PARTS.index(axis.part) for axis in AXES]
    for template in result.program.templates:
        waited = np.bincount(template.part, weights=template.exposed, minlength=len(PARTS))
        packed = np.bincount(
            template.part, weights=template.duration * (template.stream == 0), minlength=len(PARTS)
        )
        assert (waited + packed)[exposed].tolist() == template.parts[exposed].tolist()


@pytest.mark.parametrize("name", ["quickstart", "mixtral-8x7b-h100", "bloom-176b-a100"])
def test_memory_by_kind_sums_to_what_is_held(name: str) -> None:
    """At every moment the kinds add up, none is negative, and the fullest moment has those of the account."""
    result = _simulate(ROOT / f"scenarios/{name}.yaml", {})
    for rank in range(result.program.ranks):
        curve = result.memory_curve(rank)
        assert sum(curve.components.values()) == pytest.approx(curve.held)
        assert min(held.min() for held in curve.components.values()) > -1.0
        fullest = int(np.argmax(curve.held))
        for kind, held in curve.components.items():
            assert held[fullest] == pytest.approx(result.memory.components[kind][rank], abs=1.0)


def test_pieces_of_a_cover_are_what_lies_in_each_window() -> None:
    """Cover [0, 2) and [5, 6): of the window [1, 5.5) there are [1, 2) and [5, 5.5), and the rest of it is [2, 5)."""
    cover = Cover(np.array([0.0, 5.0]), np.array([2.0, 6.0]))
    window = np.array([1.0]), np.array([5.5])
    pieces = [
        list(zip(*pair, strict=True)) for pair in (cover.cut(*window), cover.rest.cut(*window))
    ]
    assert pieces == [[(0, 1.0, 2.0), (0, 5.0, 5.5)], [(0, 2.0, 5.0)]]
    for time, inside in itertools.product([0.0, 2.0, 5.5, 6.0], [cover]):
        assert inside.contains(np.array([time]))[0] == (time in (0.0, 5.5))
