"""Bubble by cause: hand-worked pipelines, and sums that are the account's."""

from pathlib import Path

import numpy as np
import pytest

from mpsim.engine import Timeline, run
from mpsim.errors import ScheduleError
from mpsim.scenario.scenario import load
from mpsim.schedule import make_orders, schedules
from mpsim.simulate import simulate_step
from mpsim.training import from_orders
from mpsim.training.bubbles import CAUSES, bubble_causes
from mpsim.training.result import attribute, idle_waits
from mpsim.training.vocabulary import PARTS

SCENARIOS = Path(__file__).resolve().parents[3] / "scenarios"
BUBBLE = PARTS.index("bubble")


def _timeline(name: str, pp: int, microbatches: int, **times) -> Timeline:
    orders = make_orders(name, pp=pp, microbatches=microbatches)
    return run(from_orders(orders, **{"forward": 1, "backward": 2, **times}), "replay")


def _causes(timeline: Timeline) -> dict[str, list[float]]:
    table = bubble_causes(timeline, idle_waits(timeline)).ticks
    return {cause: table[:, number].tolist() for number, cause in enumerate(CAUSES)}


def test_a_balanced_pipeline_only_fills_and_empties() -> None:
    """1F1B of 2 ranks and 2 microbatches, F = 1, B = 2: each rank waits 3 of 9.

    Rank 0: F0 F1 . . B0 B0 . B1 B1: 2 before its first backward, 1 after its last forward. Rank 1: . F0 B0 B0 F1 B1 B1 . .: 1 before, 2 after.
    """
    assert _causes(_timeline("1f1b", 2, 2)) == {
        "warm-up": [2, 1],
        "drain": [1, 2],
        "imbalance": [0, 0],
        "message": [0, 0],
    }


def test_a_slow_stage_is_imbalance_for_its_neighbour() -> None:
    """1F1B of 2 ranks and 4 microbatches where rank 1 takes F = 2, B = 4 and rank 0 half of it.

    Rank 1 computes from 1 to 25 without a gap. Rank 0: F0 F1 until 2, waits for B0 of rank 1 until 7, B0 F2 until 10, waits for B1 until 13, B1 F3
    until 16, waits for B2 until 19, B2 until 21, waits for B3 until 25, B3 until 27.
    """
    timeline = _timeline("1f1b", 2, 4, forward=[1, 2], backward=[2, 4])
    causes = _causes(timeline)
    assert timeline.makespan == 27
    assert causes["warm-up"] == [5, 1]
    assert causes["imbalance"] == [3, 0]  # 10 to 13; what follows F3, its last forward, is drain
    assert causes["drain"] == [3 + 4, 2]


def test_a_message_on_its_way_to_another_rank_is_told_apart() -> None:
    """GPipe of 3 ranks, 1 microbatch, F = 1, B = 2, messages of 10: F of rank 2 waits for one message itself and for rank 1, which waited for another.

    Rank 2 waits 0-22: its own message 12-22 is exposed, the bubble is F0 0-1, the message 1-11 and F1 11-12.
    """
    timeline = _timeline("gpipe", 3, 1, send=10)
    causes = _causes(timeline)
    assert causes["message"][2] == 10
    assert causes["warm-up"][2] == 2
    bubble = attribute(timeline)[:, BUBBLE]
    assert np.sum([*causes.values()], axis=0).tolist() == bubble.tolist()


@pytest.mark.parametrize("name", sorted(plan.name for plan in schedules()))
def test_causes_sum_to_the_bubble_of_every_schedule(name: str) -> None:
    """Tick for tick, on every rank, with messages and uneven stages; intervals of a rank do not overlap."""
    try:
        orders = make_orders(name, pp=4, microbatches=8)
    except ScheduleError:  # some have two chunks a rank
        orders = make_orders(name, pp=4, microbatches=8, virtual_stages=2)
    forward = 10.0 + np.arange(orders.stages) % 3
    program = from_orders(orders, forward=forward, backward=2 * forward, weight=forward, send=3)
    timeline = run(program, "replay")
    causes = bubble_causes(timeline, idle_waits(timeline))
    assert causes.ticks.sum(axis=1).tolist() == attribute(timeline)[:, BUBBLE].tolist()
    for rank in range(4):
        mine = causes.rank == rank
        order = np.argsort(causes.start[mine])
        assert (causes.start[mine][order][1:] >= causes.end[mine][order][:-1]).all()


@pytest.mark.parametrize("network", ["analytic", "flow"])
@pytest.mark.parametrize("name", ["quickstart", "what-if/mixed", "what-if/pp-dp"])
def test_causes_sum_to_the_bubble_of_a_step(name: str, network: str) -> None:
    """And an even division of uneven hardware shows as imbalance."""
    scenario = load(SCENARIOS / f"{name}.yaml").with_values({"simulation.network": network})
    result = simulate_step(scenario)
    causes = bubble_causes(result.timeline, result.idle)
    assert causes.ticks.sum(axis=1).tolist() == result.parts[:, BUBBLE].tolist()
    if name == "what-if/mixed":
        assert causes.ticks.sum(axis=0).argmax() == CAUSES.index("imbalance")
