"""Closed forms of every schedule, for random whole times, and what a latency between stages costs.

p ranks, m microbatches, v chunks a rank; tF, tB, tW whole, of one chunk; S = tF + tB + tW. Times are whole and transfers take
nothing unless said, so every equality is exact.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpsim.engine import run
from mpsim.engine.timeline import Timeline
from mpsim.errors import ScheduleError
from mpsim.schedule import Orders, make_orders, schedule_names
from mpsim.training import from_orders
from tests.nightly import examples

Times = tuple[int, int, int]
EQUAL = (1, 1, 1)
ANY = st.tuples(*(st.integers(1, 9),) * 3)
SORTED = ANY.map(lambda times: (sorted(times)[1], max(times), min(times)))
"""tW <= tF <= tB."""
SHORT_W = ANY.filter(lambda times: times[2] <= times[1])
"""tW <= tB."""
RANKS = st.integers(1, 7)


def _run(orders: Orders, times: Times, *, send: float = 0, overlap: str = "fused") -> Timeline:
    forward, backward, weight = times
    program = from_orders(
        orders, forward=forward, backward=backward, weight=weight, send=send, overlap=overlap
    )
    return run(program, "replay")


def _span(timeline: Timeline) -> float:
    """Longest time from a rank's own first start to its own last end."""
    rank, compute = timeline.program.rank, timeline.program.peer < 0
    own = [compute & (rank == one) for one in range(timeline.program.ranks)]
    return max(float(timeline.end[rows].max() - timeline.start[rows].min()) for rows in own)


def _latency(name: str, pp: int, microbatches: int, *, overlap: str = "fused", **options: int):
    """Extra makespan over that without transfers, in latencies; equal times, a small latency."""
    send = 2.0**-7
    orders = make_orders(name, pp=pp, microbatches=microbatches, **options)
    slow = _run(orders, EQUAL, send=send, overlap=overlap).makespan
    return (slow - _run(orders, EQUAL, overlap=overlap).makespan) / send


@settings(max_examples=examples(16, 40))
@given(pp=RANKS, m=st.integers(1, 20), times=ANY, lifo=st.booleans())
def test_gpipe_1f1b_and_eager_take_m_plus_p_minus_1_rounds(
    pp: int, m: int, times: Times, lifo: bool
) -> None:
    """(m + p - 1) S, whatever the times; the order of GPipe's backwards does not matter."""
    expected = (m + pp - 1) * sum(times)
    for name, options in (("gpipe", {"lifo": lifo}), ("1f1b", {}), ("eager-1f1b", {})):
        orders = make_orders(name, pp=pp, microbatches=m, **options)
        assert _run(orders, times).makespan == expected


@settings(max_examples=examples(16, 40))
@given(pp=RANKS, m=st.integers(1, 9), flushes=st.integers(1, 4), times=ANY)
def test_every_flush_has_a_bubble_of_its_own(pp: int, m: int, flushes: int, times: Times) -> None:
    """f schedules of m microbatches take f (m + p - 1) S: the first rank is the last to be done."""
    for name in ("gpipe", "1f1b"):
        orders = make_orders(name, pp=pp, microbatches=flushes * m, flushes=flushes).validate()
        assert _run(orders, times).makespan == flushes * (m + pp - 1) * sum(times)
        one = make_orders(name, pp=pp, microbatches=m)
        assert orders.peak_inflight() == one.peak_inflight()
    with pytest.raises(ScheduleError, match="divides"):
        make_orders("1f1b", pp=pp, microbatches=flushes * m + 1, flushes=flushes * m + 2)


@settings(max_examples=examples(16, 40))
@given(pp=RANKS, groups=st.integers(1, 3), v=st.integers(1, 4), times=ANY, extra=st.booleans())
def test_chunks_divide_the_bubble_by_v(
    pp: int, groups: int, v: int, times: Times, extra: bool
) -> None:
    """Interleaved 1F1B and looped BFS: (v m + p - 1) S of one chunk; one more warm-up forward changes nothing."""
    m = pp * groups
    sizes = {"pp": pp, "microbatches": m, "virtual_stages": v}
    expected = (v * m + pp - 1) * sum(times)
    assert _run(make_orders("looped-bfs", **sizes), times).makespan == expected
    orders = make_orders("interleaved-1f1b", **sizes, extra_warmup=int(extra))
    assert _run(orders, times).makespan == expected


@settings(max_examples=examples(16, 40))
@given(pp=RANKS, groups=st.integers(1, 3), v=st.integers(1, 4), times=SHORT_W)
def test_interleaved_zero_bubble_makespan(pp: int, groups: int, v: int, times: Times) -> None:
    """For tW <= tB: v m S + (p - 1) (tB + max(tF - tW, 0)); every rank holds (v - 1) p + p chunks until W, less r until I."""
    forward, backward, weight = times
    m = pp * groups
    orders = make_orders("interleaved-zb", pp=pp, microbatches=m, virtual_stages=v)
    bubble = (pp - 1) * (backward + max(forward - weight, 0))
    assert _run(orders, times).makespan == v * m * sum(times) + bubble
    assert orders.peak_inflight() == [v * pp] * pp
    assert orders.peak_until_input_grad() == [v * pp - rank for rank in range(pp)]


@settings(max_examples=examples(16, 40))
@given(pp=RANKS, more=st.integers(0, 12), times=SHORT_W)
def test_zb_h1_makespan(pp: int, more: int, times: Times) -> None:
    """For tW <= tB and m >= p: m S + (p - 1) (tB + max(tF - tW, 0)), with p held on every rank."""
    forward, backward, weight = times
    m = pp + more
    orders = make_orders("zb-h1", pp=pp, microbatches=m)
    bubble = (pp - 1) * (backward + max(forward - weight, 0))
    assert _run(orders, times).makespan == m * sum(times) + bubble
    assert orders.peak_inflight() == [pp] * pp


@settings(max_examples=examples(16, 40))
@given(pp=RANKS, more=st.integers(0, 12), times=SORTED)
def test_zb_h2_span_and_makespan(pp: int, more: int, times: Times) -> None:
    """For tW <= tF <= tB and m >= 2p - 1: span m S + (p - 1)(tF + tB - 2 tW), which is m S at equal times (paper, Table 2).

    Rank r holds 2 (p - r) - 1 until I (Table 2 too) and all hold 2p - 1 until W.
    """
    forward, backward, weight = times
    m = 2 * pp - 1 + more
    orders = make_orders("zb-h2", pp=pp, microbatches=m)
    timeline = _run(orders, times)
    exposed = forward + backward - 2 * weight
    assert _span(timeline) == m * sum(times) + (pp - 1) * exposed
    assert timeline.makespan == m * sum(times) + (pp - 1) * max(forward, exposed)
    assert orders.peak_inflight() == [2 * pp - 1] * pp
    assert orders.peak_until_input_grad() == [2 * (pp - rank) - 1 for rank in range(pp)]


@settings(max_examples=examples(16, 40))
@given(pp=RANKS, more=st.integers(0, 12), times=SORTED)
def test_zb_v_span_and_makespan(pp: int, more: int, times: Times) -> None:
    """For tW <= tF <= tB and m >= 2p - 1: span 2 m S + 2 (p - 1)(tB - tW); 2p chunks on every rank."""
    _, backward, weight = times
    m = 2 * pp - 1 + more
    orders = make_orders("zb-v", pp=pp, microbatches=m)
    timeline, ideal = _run(orders, times), 2 * m * sum(times)
    exposed = 2 * (backward - weight)
    assert _span(timeline) == ideal + (pp - 1) * exposed
    assert timeline.makespan == ideal + (pp - 1) * max(backward, exposed)
    assert orders.peak_inflight() == [2 * pp] * pp


@settings(max_examples=examples(16, 40))
@given(half=st.integers(1, 4), more=st.integers(0, 6), times=SORTED)
def test_dualpipe_bubble(half: int, more: int, times: Times) -> None:
    """(PP/2 - 1)(F&B + B - 3W), PP stages: exact at equal times, at most that for tW <= tF <= tB (DualPipe README).

    A block is one unit of tF + tB + tW. DualPipe holds p + 1 stages' activations, DualPipeV 2p + 1 chunks.
    """
    pp = 2 * half
    m = 2 * (pp + more)
    for name, stages, chunks in (("dualpipe", pp, 1), ("dualpipe-v", 2 * pp, 2)):
        orders = make_orders(name, pp=pp, microbatches=m)
        assert orders.peak_inflight() == [stages + 1] * pp
        for (forward, backward, weight), exact in (((times[0],) * 3, True), (times, False)):
            total = forward + backward + weight
            timeline = _run(orders, (forward, backward, weight))
            bubble = timeline.makespan - chunks * m * total
            stated = (stages // 2 - 1) * (total + backward + weight - 3 * weight)
            assert bubble == stated if exact else 0 <= bubble <= stated


@settings(max_examples=examples(16, 40))
@given(half=st.integers(1, 5), units=st.integers(1, 4), time=st.integers(1, 9))
def test_chimera_takes_2m_plus_p_minus_2_slots(half: int, units: int, time: int) -> None:
    """Where a forward takes as long as a full backward; rank r holds from p/2 + 1 at the ends to p in the middle."""
    pp = 2 * half
    orders = make_orders("chimera", pp=pp, microbatches=units * pp)
    timeline = _run(orders, (time, time, 0))
    assert timeline.makespan == time * (2 * units * pp + pp - 2)
    assert orders.peak_inflight() == [half + 1 + min(r, pp - 1 - r) for r in range(pp)]


@settings(max_examples=examples(16, 40))
@given(pp=RANKS, m=st.integers(1, 8), segments=st.integers(1, 5), times=ANY)
def test_seq_1f1b_fills_with_segments(pp: int, m: int, segments: int, times: Times) -> None:
    """(m k + p - 1) S with S of one segment, which is m S' + (p - 1) S'/k of whole microbatches; p - 1 - r + k held."""
    orders = make_orders("seq-1f1b", pp=pp, microbatches=m, segments=segments)
    if m * segments >= pp - 1 + segments:  # else the warm-up is all there is
        held = [pp - 1 - rank + segments for rank in range(pp)]
        assert orders.peak_inflight() == held
    assert _run(orders, times).makespan == (m * segments + pp - 1) * sum(times)


@settings(max_examples=examples(16, 40))
@given(pp=RANKS, m=st.integers(1, 16), times=ANY)
def test_forward_only_takes_m_plus_p_minus_1_forwards(pp: int, m: int, times: Times) -> None:
    """(m + p - 1) tF."""
    timeline = _run(make_orders("forward-only", pp=pp, microbatches=m), times)
    assert timeline.makespan == (m + pp - 1) * times[0]


@pytest.mark.parametrize("pp", [2, 4, 8])
@pytest.mark.parametrize("groups", [2, 6])
def test_what_a_latency_between_stages_costs(pp: int, groups: int) -> None:
    """Extra time in latencies, equal times, m a multiple of p: all but 1F1B pay a constant."""
    m = groups * pp
    assert _latency("gpipe", pp, m) == 2 * (pp - 1)
    assert _latency("looped-bfs", pp, m, virtual_stages=2) == 2 * (pp - 1)
    assert _latency("eager-1f1b", pp, m) == 2 * (pp - 1)
    assert _latency("1f1b", pp, m) == 2 * (pp - 1) * m / pp + 2 * (pp - 2)
    for v in (2, 3):
        assert _latency("interleaved-1f1b", pp, m, virtual_stages=v) == 2 * (v * pp - 1)
        assert _latency("interleaved-zb", pp, m, virtual_stages=v) == (v + 3) * pp - 4
    assert _latency("zb-h1", pp, m) == 4 * (pp - 1)
    assert _latency("zb-h2", pp, m) == pp - 1


@pytest.mark.parametrize("pp", [2, 4])
@pytest.mark.parametrize("name", ["zb-v", "dualpipe-v", "dualpipe"])
def test_latency_of_v_and_two_way_schedules_is_constant_unless_blocks_hold_it(
    name: str, pp: int
) -> None:
    """Serial halves pay once. Where a block's outputs leave at its end, DualPipeV pays 2 (p - 1)/p more a microbatch, DualPipe half."""
    few, many = (_latency(name, pp, m, overlap="serial") for m in (4 * pp, 8 * pp))
    assert few == many
    few, many = (_latency(name, pp, m, overlap="late-send") for m in (4 * pp, 8 * pp))
    each = {"zb-v": 0, "dualpipe": 1, "dualpipe-v": 2}[name]  # zb-v has no blocks
    assert many - few == each * 4 * (pp - 1)


def _built(name: str, pp: int, m: int) -> Orders | None:
    options = {"budget": 10} if name == "auto" else {}
    try:
        return make_orders(name, pp=pp, microbatches=m, **options)
    except ScheduleError:
        return None


@pytest.mark.parametrize("name", schedule_names())
@settings(max_examples=12)
@given(
    half=st.integers(1, 3),
    m=st.integers(1, 4),
    send=st.integers(0, 3),
    overlap=st.sampled_from(["serial", "late-send", "fused"]),
    data=st.data(),
)
def test_both_engines_agree_bit_for_bit_on_every_schedule(
    name: str, half: int, m: int, send: int, overlap: str, data: st.DataObject
) -> None:
    """No schedule deadlocks, with other times for every stage; simpy and replay give the same starts and ends."""
    orders = _built(name, 2 * half, 2 * half * (m + 1))
    assert orders is not None
    each = st.lists(st.integers(0, 9), min_size=orders.stages, max_size=orders.stages)
    forward, backward, weight = (data.draw(each) for _ in range(3))
    program = from_orders(
        orders.validate(),
        forward=forward,
        backward=backward,
        weight=weight,
        send=send,
        overlap=overlap,
    )
    slow, fast = run(program, "simpy"), run(program, "replay")
    assert np.array_equal(slow.start, fast.start)
    assert np.array_equal(slow.end, fast.end)


@pytest.mark.parametrize("name", schedule_names())
def test_no_schedule_deadlocks_with_few_microbatches(name: str) -> None:
    """Whatever can be built at p <= 6, m <= 8 runs to its end, in no less than one rank's work."""
    built = 0
    for pp in range(1, 7):
        for m in range(1, 9):
            orders = _built(name, pp, m)
            if orders is not None:
                built += 1
                timeline = _run(orders, EQUAL)
                compute = timeline.program.peer < 0
                busy = np.bincount(
                    timeline.program.rank[compute], timeline.program.duration[compute]
                )
                assert timeline.makespan >= busy.max()
    assert built >= 3
