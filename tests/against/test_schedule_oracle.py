"""Orders and times against every recorded row: makespan, bubble, rank spans, peaks, waiting weight gradients and sends.

data/schedule-oracle.csv, column source:

* torch: orders that PyTorch 2.13.0 generated (1F1B and GPipe: executed), simulated with integer times and no transfers by a
  simulator that shares no code with this one;
* formula: closed forms alone;
* megatron-rule: rules of NVIDIA/Megatron-LM's schedules.py at d98e8a64;
* deepseek-run: orders recorded from deepseek-ai/DualPipe at 3da1bbea;
* own-rule: Chimera's construction.

The schedules that an authors' own search produced are in test_searched_oracle.py.
"""

from __future__ import annotations

import csv
import functools
import itertools
import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from mpsim.engine import run
from mpsim.engine.timeline import Timeline
from mpsim.schedule import Action, Orders, make_orders
from mpsim.training import from_orders

NAMES = {
    "GPipe": "gpipe",
    "1F1B": "1f1b",
    "Interleaved1F1B": "interleaved-1f1b",
    "Interleaved1F1B group>pp": "interleaved-1f1b",
    "Interleaved1F1B+moe-overlap-warmup": "interleaved-1f1b",
    "LoopedBFS": "looped-bfs",
    "InterleavedZeroBubble": "interleaved-zb",
    "ZB-H1": "zb-h1",
    "ZBVZeroBubble": "zb-v",
    "DualPipe": "dualpipe",
    "DualPipeV": "dualpipe-v",
    "Chimera": "chimera",
}
SOURCES = {"torch": 1081, "formula": 315, "megatron-rule": 24, "deepseek-run": 32, "own-rule": 8}
GROUP_NOTE = "microbatch group "
STAGE_0_NOTE = "stage 0 as torch runs it: I costs 0 and W costs tB+tW"
_DATA = Path(__file__).parent / "data"

with (_DATA / "schedule-oracle.csv").open(newline="", encoding="utf-8") as _file:
    ROWS = list(csv.DictReader(_file))


@functools.cache
def _built(name: str, pp: int, microbatches: int, virtual: int, **options: int) -> Orders:
    return make_orders(
        name, pp=pp, microbatches=microbatches, virtual_stages=virtual, **options
    ).validate()


def _orders(row: dict[str, str]) -> Orders:
    options = {}
    if row["note"].startswith(GROUP_NOTE):
        options["group_size"] = int(row["note"].removeprefix(GROUP_NOTE))
    if row["schedule"].endswith("+moe-overlap-warmup"):
        options["extra_warmup"] = 1
    sizes = (int(row[key]) for key in ("pp", "microbatches", "virtual_stages"))
    return _built(NAMES[row["schedule"]], *sizes, **options)


def _times(row: dict[str, str]) -> tuple[float, float, float]:
    return float(row["tF"]), float(row["tB"]), float(row["tW"])


def _timeline(row: dict[str, str], engine: str = "replay") -> Timeline:
    orders = _orders(row)
    forward, backward, weight = _times(row)
    backward_S, weight_S = np.full(orders.stages, backward), np.full(orders.stages, weight)
    if row["note"] == STAGE_0_NOTE:
        backward_S[0], weight_S[0] = 0, backward + weight
    overlap = "serial" if row["overlap_block"] == "none" else row["overlap_block"]
    program = from_orders(
        orders, forward=forward, backward=backward_S, weight=weight_S, overlap=overlap
    )
    return run(program, engine)


def _spans(timeline: Timeline) -> list[float]:
    rank = timeline.program.rank
    compute = timeline.program.peer < 0
    return [
        float(
            timeline.end[compute & (rank == one)].max()
            - timeline.start[compute & (rank == one)].min()
        )
        for one in range(timeline.program.ranks)
    ]


def _pending(orders: Orders) -> list[int]:
    """Most weight gradients that wait at once on each rank."""
    change = (orders.kind == Action.I).astype(int) - (orders.kind == Action.W)
    ends = orders.rank_ptr.tolist()
    return [
        max(0, int(np.cumsum(change[start:end]).max())) for start, end in itertools.pairwise(ends)
    ]


def _sends(timeline: Timeline, label: str) -> list[int]:
    program = timeline.program
    chosen = (program.peer >= 0) & (np.array(program.labels)[program.label] == label)
    return np.bincount(program.rank[chosen], minlength=program.ranks).tolist()


def _id(row: dict[str, str]) -> str:
    keys = ("schedule", "source", "pp", "microbatches", "virtual_stages", "overlap_block", "note")
    return " ".join(row[key] for key in (*keys, "tF", "tB", "tW"))


def _wrong(row: dict[str, str]) -> list[str]:
    """Filled columns of a row that differ, with what was got."""
    orders, timeline = _orders(row), _timeline(row)
    # two chains: each rank holds two stages, and each microbatch goes through one of them
    ideal = sum(_times(row)) * orders.microbatches * orders.virtual_stages
    span = max(_spans(timeline))
    got = {
        "makespan": timeline.makespan,
        "bubble_fraction": round(1 - ideal / timeline.makespan, 6),
        "max_rank_span": span,
        "span_bubble_fraction": round(1 - ideal / span, 6),
        "peak_inflight_activations": orders.peak_inflight(),
        "peak_until_input_grad": orders.peak_until_input_grad(),
        "peak_pending_wgrad": _pending(orders),
    }
    if orders.chain.max() == 0:  # else see test_two_way_schedules_send_over_every_hop
        got["crossrank_sends_fwd"] = _sends(timeline, "send activation")
        got["crossrank_sends_bwd"] = _sends(timeline, "send gradient")
    return [
        f"{_id(row)}: {key} {value}, recorded {row[key]}"
        for key, value in got.items()
        if row[key] and json.loads(row[key]) != value
    ]


def test_every_row_of_these_schedules_is_here() -> None:
    """The comparisons below would pass on an empty file; it is not empty."""
    assert {row["schedule"] for row in ROWS} == set(NAMES)
    assert Counter(row["source"] for row in ROWS) == SOURCES


@pytest.mark.parametrize("schedule", NAMES)
def test_every_row_is_reproduced_exactly(schedule: str) -> None:
    """Every filled column of every row is equal; nothing is rounded but the six-digit fractions of the file."""
    wrong = [text for row in ROWS if row["schedule"] == schedule for text in _wrong(row)]
    assert wrong == []


def _two_way_rows() -> list[dict[str, str]]:
    return [row for row in ROWS if row["schedule"] in ("DualPipe", "Chimera")]


def test_two_way_schedules_send_over_every_hop() -> None:
    """Of m/2 microbatches a direction, each rank sends to each neighbour once an activation and once a gradient."""
    for row in _two_way_rows():
        orders, timeline = _orders(row), _timeline(row)
        pp, half = orders.pp, orders.microbatches // 2
        hops = [half * ((rank > 0) + (rank < pp - 1)) for rank in range(pp)]
        assert _sends(timeline, "send activation") == hops, _id(row)
        assert _sends(timeline, "send gradient") == hops, _id(row)


def test_recorded_two_way_sends_miss_one_hop_by_their_own_rule() -> None:
    """Recorded: each part of the model counted as on the last rank that holds a copy, so p/2 to p/2 - 1 seems local."""
    for row in _two_way_rows():
        pp, half = int(row["pp"]), int(row["microbatches"]) // 2
        hops = [half * ((rank > 0) + (rank < pp - 1)) for rank in range(pp)]
        hops[pp // 2] -= half
        assert json.loads(row["crossrank_sends_fwd"]) == hops, _id(row)
        assert json.loads(row["crossrank_sends_bwd"]) == hops, _id(row)


def test_both_engines_agree_bit_for_bit_on_a_sample() -> None:
    """simpy and replay give the same start and end of every operation."""
    for row in ROWS[::37]:
        slow, fast = _timeline(row, "simpy"), _timeline(row)
        assert np.array_equal(slow.start, fast.start), _id(row)
        assert np.array_equal(slow.end, fast.end), _id(row)
