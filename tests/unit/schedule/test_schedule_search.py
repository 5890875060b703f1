"""Searches: their evaluator against the engine, their lower bound against all orders there are, and what they refuse."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpsim.engine import run
from mpsim.errors import DeadlockError, ScheduleError
from mpsim.schedule import Action, Orders, make_orders, schedule_names
from mpsim.schedule.search.bound import lower_bound
from mpsim.schedule.search.evaluate import Room, Setting, evaluate, evaluate_orders, peak_held
from mpsim.schedule.search.greedy import Policy, build_greedily
from mpsim.schedule.search.synthesise import synthesise
from mpsim.schedule.search.v_search import zb_v_search
from mpsim.schedule.search.zb_auto import zb_1p, zb_2p
from mpsim.schedule.stages import loop_map, v_map
from mpsim.schedule.tape import Step, from_steps, steps_of
from mpsim.training import from_orders

_F, _I, _W = int(Action.F), int(Action.I), int(Action.W)


def _same_as_engine(orders: Orders, rng: random.Random) -> None:
    """Compare start and end of every action, with different times for every stage, and messages that queue."""
    times = {
        key: [float(rng.randint(0, 9)) for _ in range(orders.stages)]
        for key in ("forward", "backward", "weight")
    }
    send = float(rng.choice([0, 1, 3, 20]))
    timeline = run(from_orders(orders, send=send, **times), "replay")
    setting = Setting.of(
        orders.stage_rank,
        microbatches=orders.microbatches,
        feeds=orders.feeds,
        send=send,
        **times,
    )
    result = evaluate_orders(setting, orders)
    actions = len(orders)  # the first rows of the program, in the order of the orders
    assert np.concatenate(result.start).tolist() == timeline.start[:actions].tolist()
    assert np.concatenate(result.end).tolist() == timeline.end[:actions].tolist()
    assert result.makespan == timeline.makespan


@pytest.mark.parametrize("name", [name for name in schedule_names() if name != "auto"])
def test_the_evaluator_agrees_with_the_engine_on_every_named_schedule(name: str) -> None:
    """Every start and end is the same, whatever the stage map, the blocks and the copies of the weights."""
    rng, compared = random.Random(name), 0
    for pp, microbatches in ((1, 1), (2, 4), (2, 8), (3, 6), (4, 8), (4, 16)):
        try:
            orders = make_orders(name, pp=pp, microbatches=microbatches)
        except ScheduleError:
            continue  # not for these numbers
        _same_as_engine(orders, rng)
        compared += 1
    assert compared


def test_the_evaluator_agrees_with_the_engine_on_a_fused_block() -> None:
    """Outputs of both halves of a block leave at its end."""
    orders = Orders.from_tokens(
        [
            ["0F0", "0F1", "(0F2;0B0)OVERLAP_F_B", "0B1", "0B2"],
            ["1F0", "1B0", "1F1", "1B1", "1F2", "1B2"],
        ]
    ).validate()
    for seed in range(10):
        _same_as_engine(orders, random.Random(seed))


def test_orders_that_wait_for_each_other_are_named() -> None:
    """A deadlock says which action waits."""
    orders = Orders.from_tokens([["0F1", "0F0", "0B0", "0B1"], ["1F0", "1B0", "1F1", "1B1"]])
    setting = Setting.of(orders.stage_rank, microbatches=2, forward=1, backward=1, weight=1)
    evaluate_orders(setting, orders)  # another order of forwards alone is no deadlock
    stuck = Orders.from_tokens([["0F0", "0B0", "0F1", "0B1"], ["1F0", "1F1", "1B0", "1B1"]])
    with pytest.raises(DeadlockError, match=r"2 ranks wait .* rank 0 waits for the input of 0B0"):
        evaluate_orders(setting, stuck)


def test_steps_and_orders_are_the_same_thing() -> None:
    """assemble undoes steps_of."""
    orders = make_orders("zb-1p", pp=3, microbatches=5)
    again = from_steps("again", steps_of(orders), microbatches=5, stage_rank=loop_map(3, 1))
    assert again.tokens() == orders.tokens()


def _interleavings(chains: list[list[Step]]) -> Iterator[list[Step]]:
    """All ways to run some chains of actions on one rank."""
    if not any(chains):
        yield []
    for index, chain in enumerate(chains):
        if chain:
            rest = [*chains[:index], chain[1:], *chains[index + 1 :]]
            for order in _interleavings(rest):
                yield [chain[0], *order]


def _best_of_all(setting: Setting, room: Room) -> float:
    """Shortest makespan of all orders within `room`; infinite where there is none."""
    by_rank: list[list[list[Step]]] = []
    for rank in range(setting.pp):
        chains = [
            [(kind, stage, microbatch) for kind in (_F, _I, _W)]
            for stage, home in enumerate(setting.stage_rank)
            if home == rank
            for microbatch in range(setting.microbatches)
        ]
        orders = _interleavings(chains)
        by_rank.append([one for one in orders if room.fits(rank, peak_held(room, one))])
    best = float("inf")
    for steps in itertools.product(*by_rank):
        try:
            best = min(best, evaluate(setting, steps).makespan)
        except DeadlockError:
            continue
    return best


# (stage map, microbatches): 400 orders each, or one rank with 2520
_TINY = [
    (loop_map(2, 1), 2),
    (v_map(2, 2), 1),
    (loop_map(2, 2), 1),
    (v_map(1, 2), 1),
    (loop_map(1, 1), 3),
]


@pytest.mark.parametrize("case", range(len(_TINY)))
@pytest.mark.parametrize("seed", range(6))
def test_no_order_at_all_undercuts_the_lower_bound(case: int, seed: int) -> None:
    """The best of all orders is at least the bound, and the synthesiser is between it and its own best start."""
    stage_rank, microbatches = _TINY[case]
    rng, stages = random.Random(10 * case + seed), len(stage_rank)
    times = {
        key: [float(rng.randint(0, 5)) for _ in range(stages)]
        for key in ("forward", "backward", "weight")
    }
    setting = Setting.of(
        stage_rank, microbatches=microbatches, send=(send := float(rng.randint(0, 3))), **times
    )
    held = [float(rng.randint(0, 2)) for _ in range(stages)], [1.0] * stages
    limit = float(rng.choice([2, 3, 4, 6, 9]))
    room = Room([limit] * setting.pp, *held)
    best = _best_of_all(setting, room)
    assert lower_bound(setting, room) <= best
    try:
        found = synthesise(
            pp=setting.pp,
            microbatches=microbatches,
            virtual_stages=stages // setting.pp,
            stage_map="loop"
            if np.array_equal(stage_rank, loop_map(setting.pp, stages // setting.pp))
            else "v",
            send=send,
            memory_limit=limit,
            held_until_input=held[0],
            budget=300,
            **times,
        )
    except ScheduleError:
        assert best == float("inf")  # nothing fits
    else:
        assert found.makespan == best


def test_the_bound_is_reached_where_the_algebra_says_so() -> None:
    """Zero bubble with enough memory; 1F1B's idle time with room for one activation; one microbatch takes its path."""
    ample = Room([float("inf")] * 4, [0.0] * 4, [1.0] * 4)
    one = Room([1.0] * 4, [0.0] * 4, [1.0] * 4)
    setting = Setting.of(loop_map(4, 1), microbatches=8, forward=1, backward=1, weight=1)
    # the last rank starts after 3 forwards and is never idle: 3 + 8 x 3; so is every other rank
    assert lower_bound(setting, ample) == 27
    # rank 0 holds one activation for 4 forwards, 4 input gradients and its own weight gradient: 8 x 9
    assert lower_bound(setting, one) == pytest.approx(72)
    single = Setting.of(loop_map(4, 1), microbatches=1, forward=1, backward=1, weight=1, send=2)
    # 4 F, 4 I, 1 W and 6 messages
    assert lower_bound(single, ample) == 21


@settings(max_examples=40, deadline=None)
@given(
    pp=st.integers(1, 6),
    microbatches=st.integers(1, 12),
    times=st.tuples(*[st.integers(0, 6)] * 3),
    send=st.integers(0, 3),
    scale=st.sampled_from([1, 2]),
)
def test_zb_orders_keep_within_their_memory(
    pp: int, microbatches: int, times: tuple[int, int, int], send: int, scale: int
) -> None:
    """With everything held until W, ZB-1p holds at most p and ZB-2p at most 2p activations."""
    build = zb_1p if scale == 1 else zb_2p
    orders = build(pp=pp, microbatches=microbatches, times=times, send=send, until_weight=1.0)
    assert max(orders.peak_inflight()) <= scale * pp


@settings(max_examples=40, deadline=None)
@given(
    pp=st.integers(1, 6),
    microbatches=st.integers(1, 12),
    times=st.tuples(*[st.integers(0, 6)] * 3),
    send=st.integers(0, 3),
)
def test_zb_v_can_be_run_for_any_times(
    pp: int, microbatches: int, times: tuple[int, int, int], send: int
) -> None:
    """The search on a V gives an order that runs, with at most 2p chunks held until I."""
    orders = zb_v_search(pp=pp, microbatches=microbatches, times=times, send=send)
    run(from_orders(orders, forward=times[0], backward=times[1], weight=times[2], send=send))
    assert max(orders.peak_until_input_grad()) <= 2 * pp


@pytest.mark.parametrize("name", ["v-half", "v-min"])
def test_v_schedules_hold_what_the_paper_says(name: str) -> None:
    """At most 2 floor((p + 2) / 2) chunks for V-Half and 2 floor((p + 4) / 3) for V-Min, and as many once m is large."""
    for pp in (2, 4, 6, 8):
        limit = 2 * ((pp + 2) // 2) if name == "v-half" else 2 * ((pp + 4) // 3)
        orders = make_orders(name, pp=pp, microbatches=3 * pp)
        assert max(orders.peak_inflight()) == limit


def test_list_scheduling_says_when_it_is_stuck() -> None:
    """No room for one activation: no order, rather than half of one."""
    setting = Setting.of(loop_map(2, 1), microbatches=2, forward=1, backward=1, weight=1)
    room = Room([0.5, 0.5], [0.0, 0.0], [1.0, 1.0])
    assert build_greedily(setting, room, Policy(ahead=(2, 2))) is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"memory_limit": 0.5}, r"in which no order was found; needed room"),
        ({"memory_limit": [1, 2, 3]}, "needed one number of at least 0, or 2, one a rank"),
        ({"memory_limit": float("nan")}, "memory_limit: got nan"),
        ({"forward": [1, 2, 3]}, "forward: got .*; needed one finite number of at least 0, or 2"),
        ({"weight": -1}, "weight: got -1"),
        ({"send": [1, 2, 3]}, "send: .*needed one number, or 2 by 2"),
        ({"stage_map": "zigzag"}, "got stage_map 'zigzag'; needed one of loop, v"),
        ({"stage_map": "v"}, "needed 2, one chunk on the way down"),
        ({"budget": 0}, "got budget = 0"),
        ({"microbatches": 0}, "auto: got microbatches = 0"),
    ],
)
def test_the_synthesiser_says_what_is_wrong(change: dict[str, object], message: str) -> None:
    """Every mistake is refused with what to set."""
    given_: dict[str, object] = {
        "pp": 2,
        "microbatches": 2,
        "forward": 1,
        "backward": 1,
        "weight": 1,
    }
    with pytest.raises(ScheduleError, match=message):
        synthesise(**(given_ | change))  # type: ignore[arg-type]


def test_searches_refuse_times_and_sizes_out_of_range() -> None:
    """Two times, a negative message, a part above 1 and too little room on a V are refused."""
    with pytest.raises(ScheduleError, match=r"zb-1p: got times .* needed the times of F, I and W"):
        zb_1p(pp=2, microbatches=2, times=(1, 1))
    with pytest.raises(ScheduleError, match="send -1"):
        zb_2p(pp=2, microbatches=2, send=-1)
    with pytest.raises(ScheduleError, match="until_weight = 2"):
        zb_1p(pp=2, microbatches=2, until_weight=2)
    with pytest.raises(ScheduleError, match="needed at least 2 pp = 4"):
        zb_v_search(pp=2, microbatches=2, memory_limit=3)


@pytest.mark.parametrize(("pp", "microbatches"), [(2, 3), (4, 8), (8, 16), (8, 32), (12, 36)])
def test_v_min_is_no_longer_than_its_authors_make_it_and_holds_no_more(
    pp: int, microbatches: int
) -> None:
    """With 8 ranks and 32 microbatches an order of 109.0 exists that holds 8 chunks a rank; the authors' takes 109.5."""
    sizes = {"pp": pp, "microbatches": microbatches}
    own, authors = make_orders("v-min", **sizes), make_orders("v-min", **sizes, delay=0)
    setting = Setting.of(
        v_map(pp), microbatches=microbatches, forward=0.5, backward=0.5, weight=0.5
    )
    took = evaluate_orders(setting, own).makespan
    assert took <= evaluate_orders(setting, authors).makespan
    assert max(own.peak_inflight()) <= max(authors.peak_inflight())
    if sizes == {"pp": 8, "microbatches": 32}:
        assert took <= 109.0


def test_v_min_refuses_a_delay_that_puts_two_kinds_in_one_slot() -> None:
    """On 4 ranks a delay of one slot gives rank 0 two actions at once."""
    with pytest.raises(ScheduleError, match=r"v-min: got delay = 1 with pp = 4; needed"):
        make_orders("v-min", pp=4, microbatches=8, delay=1)
