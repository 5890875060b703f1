"""Laws of the fluid network: fair, full, order does not matter, nothing moves faster than it may."""

from __future__ import annotations

import itertools
import math
import random

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.optimize import linprog

from mpsim.engine.fluid import Fluid
from mpsim.errors import HardwareError
from tests.nightly import examples

SLACK = 1e-6
"""Share of a link by which rounding may exceed its capacity."""


def run(
    network: Fluid, starts: list[tuple[float, int, dict[int, float], float, float]]
) -> dict[int, float]:
    """Ends of flows given as (start, key, uses, cap, work)."""
    ends: dict[int, float] = {}
    pending = sorted(starts, key=lambda one: one[0])
    now = 0.0
    while pending or len(network):
        upcoming = pending[0][0] if pending else math.inf
        now = min(upcoming, network.next_end())
        ends |= dict.fromkeys(network.finish(now), now)
        while pending and pending[0][0] == now:
            _, key, uses, cap, work = pending.pop(0)
            network.start(key, uses, cap=cap, work=work, now=now)
    return ends


@pytest.mark.parametrize("count", [1, 2, 3, 7, 64])
def test_flows_on_one_link_share_it_evenly(count: int) -> None:
    """n equal flows take n times as long as one."""
    network = Fluid([5.0])
    for key in range(count):
        network.start(key, {0: 1.0}, cap=5.0, work=1000.0, now=0.0)
    assert network.next_end() == pytest.approx(1000.0 * count, abs=1)


def test_parking_lot_gives_the_long_flow_its_share_of_every_link() -> None:
    """One flow over three unit links with one local flow on each: everybody gets a half."""
    network = Fluid([1.0, 1.0, 1.0])
    network.start(0, {0: 1.0, 1: 1.0, 2: 1.0}, cap=1.0, work=1.0, now=0.0)
    for link in range(3):
        network.start(link + 1, {link: 1.0}, cap=1.0, work=1.0, now=0.0)
    assert [network.rate(key) for key in range(4)] == pytest.approx([0.5] * 4)


def test_incast_leaves_senders_ports_idle() -> None:
    """Eight senders into one port share the port; a ninth flow out of one sender takes the rest of that sender."""
    receiver = 8
    network = Fluid([1.0] * 10)
    for sender in range(8):
        network.start(sender, {sender: 1.0, receiver: 1.0}, cap=1.0, work=1.0, now=0.0)
    network.start(8, {0: 1.0, 9: 1.0}, cap=1.0, work=1.0, now=0.0)
    assert network.rate(3) == pytest.approx(1 / 8)
    assert network.rate(8) == pytest.approx(7 / 8)


def test_a_ring_of_neighbours_runs_at_full_rate() -> None:
    """Flows that meet nobody on their links do not slow each other."""
    network = Fluid([1.0] * 12)
    for key in range(12):
        network.start(key, {key: 1.0}, cap=1.0, work=77.0, now=3.0)
    assert network.next_end() == 80.0
    assert network.finish(80.0) == list(range(12))


def test_multiplicity_counts_as_that_many_flows() -> None:
    """One flow that stands for three takes what three take."""
    one, three = Fluid([2.0]), Fluid([2.0])
    one.start(0, {0: 3.0}, cap=1.0, work=10.0, now=0.0)
    for key in range(3):
        three.start(key, {0: 1.0}, cap=1.0, work=10.0, now=0.0)
    assert one.next_end() == three.next_end() == 15.0


def test_a_degraded_link_slows_what_uses_it_from_then_on() -> None:
    """Half way through, the link loses half its capacity: the second half takes twice as long."""
    network = Fluid([1.0])
    network.start(0, {0: 1.0}, cap=1.0, work=100.0, now=0.0)
    network.rescale(0, 0.5, 50.0)
    assert network.next_end() == 150.0


def test_mistakes_are_refused() -> None:
    """A link without capacity, a flow twice, a flow without a cap."""
    with pytest.raises(HardwareError, match="without capacity"):
        Fluid([0.0])
    network = Fluid([1.0])
    network.start(0, {0: 1.0}, cap=1.0, work=1.0, now=0.0)
    with pytest.raises(HardwareError, match="under way"):
        network.start(0, {0: 1.0}, cap=1.0, work=1.0, now=0.0)
    with pytest.raises(HardwareError, match="positive cap"):
        network.start(1, {0: 1.0}, cap=0.0, work=1.0, now=0.0)


def random_case(
    seed: int,
) -> tuple[list[float], list[tuple[float, int, dict[int, float], float, float]]]:
    """A few links, and flows over some of them that start at random times."""
    draw = random.Random(seed)
    links = draw.randint(1, 6)
    capacity = [draw.choice([0.5, 1.0, 2.0, 3.7]) for _ in range(links)]
    flows = []
    for key in range(draw.randint(1, 8)):
        path = draw.sample(range(links), draw.randint(1, links))
        uses = {link: draw.choice([0.25, 1.0, 1.0, 2.0]) for link in path}
        cap = draw.choice([0.3, 1.0, 2.5])
        flows.append((float(draw.randint(0, 50)), key, uses, cap, float(draw.randint(1, 1000))))
    return capacity, flows


@pytest.mark.parametrize("block", range(10))
def test_no_link_carries_more_than_it_can_and_every_flow_is_held_by_something(block: int) -> None:
    """Ten thousand random cases: capacities hold, and a flow below its cap crosses a full link where nobody is faster."""
    for seed in range(1000 * block, 1000 * (block + 1)):
        capacity, flows = random_case(seed)
        network = Fluid(capacity)
        for _, key, uses, cap, work in flows:
            network.start(key, uses, cap=cap, work=work, now=0.0)
        loads = [network.load(link) for link in range(len(capacity))]
        assert all(load <= most * (1 + SLACK) for load, most in zip(loads, capacity, strict=True))
        rates = {key: network.rate(key) for _, key, *_ in flows}
        for _, key, uses, cap, _ in flows:
            full = [link for link in uses if loads[link] >= capacity[link] * (1 - SLACK)]
            bound = any(
                all(
                    rates[other] <= rates[key] * (1 + SLACK)
                    for _, other, using, *_ in flows
                    if link in using
                )
                for link in full
            )
            assert bound or rates[key] == cap


@pytest.mark.parametrize("seed", range(40))
def test_the_order_in_which_flows_are_entered_changes_nothing(seed: int) -> None:
    """Flows that start together end at the same ticks whichever is entered first."""
    capacity, flows = random_case(seed)
    shuffled = random.Random(seed).sample(flows, len(flows))
    assert run(Fluid(capacity), flows) == run(Fluid(capacity), shuffled)


@pytest.mark.parametrize("seed", range(200))
def test_work_is_conserved(seed: int) -> None:
    """No flow ends before its work at its cap is done, and one that meets nobody ends exactly then."""
    capacity, flows = random_case(seed)
    ends = run(Fluid(capacity), flows)
    assert sorted(ends) == sorted(key for _, key, *_ in flows)
    for start, key, uses, cap, work in flows:
        assert ends[key] >= start + work
        alone = run(Fluid(capacity), [(start, key, uses, cap, work)])[key]
        slowed = max(1.0, *(use * cap / capacity[link] for link, use in uses.items()))
        assert alone == (
            start + work if slowed == 1.0 else pytest.approx(start + work * slowed, abs=1)
        )
        assert ends[key] >= alone


@settings(max_examples=examples(12, 30), deadline=None)
@given(st.integers(0, 10**6))
def test_total_rate_between_two_hosts_is_within_the_maximum_flow(seed: int) -> None:
    """Flows over several paths between two vertices of a random graph never exceed the cut."""
    draw = np.random.default_rng(seed)
    graph = nx.gnp_random_graph(7, 0.5, seed=int(draw.integers(1 << 30)), directed=True)
    for _, _, data in graph.edges(data=True):
        data["capacity"] = float(draw.integers(1, 5))
    number = {edge: index for index, edge in enumerate(graph.edges)}
    paths = list(itertools.islice(nx.all_simple_paths(graph, 0, 6), 12))
    if not paths:
        return
    network = Fluid([graph.edges[edge]["capacity"] for edge in graph.edges])
    for key, path in enumerate(paths):
        uses = {number[edge]: 1.0 for edge in itertools.pairwise(path)}
        network.start(key, uses, cap=100.0, work=1.0, now=0.0)
    total = sum(network.rate(key) for key in range(len(paths)))
    assert total <= nx.maximum_flow_value(graph, 0, 6) * (1 + SLACK)


def fair_rates(
    capacity: list[float], flows: list[tuple[dict[int, float], float]]
) -> NDArray[np.float64]:
    """Max-min fair rates by linear programs: raise the least of all as far as it goes, fix whoever cannot rise further, repeat."""
    count = len(flows)
    loads = np.zeros((len(capacity), count))
    for flow, (uses, _) in enumerate(flows):
        loads[list(uses), flow] = list(uses.values())
    rates = np.full(count, np.nan)
    while np.isnan(rates).any():
        free = np.flatnonzero(np.isnan(rates))
        fixed = [(0, cap) if np.isnan(rate) else (rate, rate)
                 for rate, (_, cap) in zip(rates, flows, strict=True)]  # fmt: skip
        # variables: every rate, and the least of those that are free
        wide = np.hstack([loads, np.zeros((len(capacity), 1))])
        above = np.zeros((len(free), count + 1))
        above[np.arange(len(free)), free], above[:, -1] = -1.0, 1.0
        limits = np.concatenate([np.array(capacity) * (1 + 1e-9), np.zeros(len(free))])
        goal = np.zeros(count + 1)
        goal[-1] = -1.0
        best = linprog(goal, np.vstack([wide, above]), limits, bounds=[*fixed, (0, None)])
        least = -best.fun
        floor = [(max(low, least * (1 - 1e-9)), high) if np.isnan(rate) else (low, high)
                 for rate, (low, high) in zip(rates, fixed, strict=True)]  # fmt: skip
        stuck = [
            flow
            for flow in free
            if -linprog(-np.eye(count)[flow], loads, limits[: len(capacity)], bounds=floor).fun
            <= least * (1 + 1e-6)
        ]
        assert stuck
        rates[stuck] = least
    return rates


@pytest.mark.parametrize("seed", range(60))
def test_rates_are_those_of_a_linear_program(seed: int) -> None:
    """An independent solver finds the same fair rates."""
    capacity, flows = random_case(seed)
    network = Fluid(capacity)
    for _, key, uses, cap, work in flows:
        network.start(key, uses, cap=cap, work=work, now=0.0)
    expected = fair_rates(capacity, [(uses, cap) for _, _, uses, cap, _ in flows])
    got = [network.rate(key) for _, key, *_ in flows]
    assert got == pytest.approx(expected.tolist(), rel=1e-5)


@pytest.mark.parametrize("seed", range(40))
def test_the_log_of_rates_adds_up_to_the_work(seed: int) -> None:
    """Rates integrated from change to change give every flow's bytes, and no link is ever above its capacity."""
    capacity, flows = random_case(seed)
    network = Fluid(capacity)
    run(network, flows)
    uses = {key: using for _, key, using, *_ in flows}
    for _, key, _, cap, work in flows:
        mine = [(time, rate) for flow, time, rate in network.changes if flow == key]
        moved = sum(rate * (later - time) for (time, rate), (later, _) in itertools.pairwise(mine))
        # ends are whole ticks: at most one tick's worth more
        assert work * cap <= moved * (1 + SLACK) <= (work * cap + cap) * (1 + 2 * SLACK)
        assert mine[-1][1] == 0.0
    for moment in {time for _, time, _ in network.changes}:
        now = {flow: rate for flow, time, rate in network.changes if time <= moment}
        for link, most in enumerate(capacity):
            taken = sum(rate * uses[flow].get(link, 0.0) for flow, rate in now.items())
            assert taken <= most * (1 + SLACK)
