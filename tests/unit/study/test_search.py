"""Searches: limits, budgets, interruptions, and what is told about layouts that lost."""

from __future__ import annotations

import csv
import dataclasses
import io
import itertools
import json
import math
import random

import pytest

import mpsim
from mpsim.errors import ScenarioError
from mpsim.plot import search_chart
from mpsim.study.search import Found, Search, trainings
from mpsim.study.search.branch_and_bound import Queue
from mpsim.study.search.layouts import Layouts
from mpsim.study.search.trainings import WaitingFrame

OVER = {
    "parallelism.tp": [1, 2, 4],
    "parallelism.cp": [1],
    "parallelism.pp": [1, 2, 4],
    "schedule.virtual_stages": [2],
    "training.micro_batch": [1, 2],
    "parallelism.zero": [0, 1],
    "training.recompute": ["none", "full"],
}


@pytest.fixture(scope="module")
def scenario(request):
    return mpsim.load(request.config.rootpath / "scenarios" / "quickstart.yaml")


@pytest.fixture(scope="module")
def found(scenario):
    return mpsim.search(scenario, OVER, top=4)


def test_every_legal_layout_is_accounted_for(found):
    """What was not simulated has a reason."""
    assert found.complete
    assert found.looked_at == sum(found.counts.values()) > 100
    assert found.counts["simulated"] == len(found.rows)
    assert found.counts["bound"] > len(found.rows)


def test_the_best_carry_the_whole_result(scenario, found):
    """And it is the one that running their values gives."""
    for row in found.leaders:
        assert row.summary == mpsim.simulate(scenario.with_values(row.values)).summary
        assert row.summary["step_time_s"] == row.step_time_s
        assert row.summary["peak_memory_bytes"] == pytest.approx(row.memory_bytes)
    assert all(row.summary is None for row in found.rows[4:])


def test_a_search_is_deterministic(scenario, found):
    """The same question, the same bytes."""
    again = mpsim.search(scenario, OVER, top=4)
    assert json.dumps(again.to_json()) == json.dumps(found.to_json())


def test_a_search_prints_the_warnings_of_the_best(scenario):
    """TPUs without a stack of theirs may win, and every answer that chooses them says so."""
    odd = {"cluster": {"preset": "tpu-v6e", "nodes": 4}, "framework": "torchtitan-2025"}
    over = {**OVER, "parallelism.tp": [1], "parallelism.pp": [1], "parallelism.zero": [3]}
    found = mpsim.search(scenario.with_values(odd, checked=False), over, top=1)
    assert "warning: framework: torchtitan-2025 was not written for tpu-v6e" in found.sheet().text()


def test_nothing_is_above_a_limit_of_memory(scenario, found):
    """Half of what the best one needs rules it out."""
    most = found.best.memory_bytes / 2
    less = mpsim.search(scenario, OVER, top=4, max_memory=most)
    assert all(row.memory_bytes <= most for row in less.rows)
    assert less.counts["memory"] > found.counts.get("memory", 0)
    assert less.best.step_time_s >= found.best.step_time_s


def test_other_keys_are_searched_too_and_limits_apply_to_them(scenario):
    """Two, three or four nodes: the price allows two or three, the power two."""
    over = {
        **OVER,
        "parallelism.tp": [2],
        "cluster.nodes": [2, 3, 4],
        "training.global_batch": [48],
    }
    price = scenario.hardware.accelerator.price_per_hour
    found = mpsim.search(scenario, over, top=3, max_price=24 * price)
    assert {row.accelerators for row in found.rows} == {16, 24}
    by_nodes = found.best_by_value["cluster.nodes"]
    assert {value: row.accelerators for value, row in by_nodes.items()} == {"2": 16, "3": 24}
    assert found.best in by_nodes.values()
    assert found.counts["price"] > 0
    power = scenario.hardware.nodes * scenario.hardware.node.power_w
    assert {row.accelerators for row in mpsim.search(scenario, over, max_power=power).rows} == {16}


def test_the_cheapest_need_not_be_the_fastest(scenario):
    """More nodes shorten the step and cost more of it: dollars a token grow."""
    over = {**OVER, "cluster.nodes": [1, 2], "parallelism.tp": [1]}
    fastest = mpsim.search(scenario, over, top=1, front=False)
    cheapest = mpsim.search(scenario, over, top=1, front=False, objective="cost")
    assert fastest.best.accelerators == 16
    assert cheapest.best.accelerators == 8
    assert cheapest.best.cost_per_step < fastest.best.cost_per_step


def test_an_interrupted_search_keeps_what_it_found_and_resumes(
    scenario, found, tmp_path, monkeypatch
):
    """The layouts of the first try are not simulated again."""
    journal = tmp_path / "found.jsonl"

    def interrupt(what, done, total):
        if what == "simulated":
            raise KeyboardInterrupt

    first = mpsim.search(scenario, OVER, top=4, resume=journal, progress=interrupt)
    assert first.interrupted
    assert not first.front_complete
    kept = len(journal.read_text().splitlines())
    assert kept == len(first.rows) == first.counts["simulated"] > 0
    timed = []
    seconds = trainings.seconds_of
    monkeypatch.setattr(
        trainings, "seconds_of", lambda timer, some: timed.extend(some) or seconds(timer, some)
    )
    assert mpsim.search(scenario, OVER, top=4, resume=journal).rows == found.rows
    assert len(timed) == len(found.rows) - kept


DEFAULTS = trainings.defaults


def test_a_budget_ends_a_search_and_it_says_that_nothing_is_proved(scenario, found):
    """An instant is enough for a first look at one family of layouts."""
    cut = mpsim.search(scenario, OVER, budget=1e-9)
    assert not cut.complete
    assert cut.gap is None
    assert cut.looked_at == found.looked_at
    assert 0 < cut.counts["unseen"] < cut.looked_at


def test_what_was_bounded_and_not_simulated_bounds_what_is_missed(scenario, monkeypatch):
    """Simulation that is interrupted once all is bounded leaves the least bound of what waits: nothing is faster."""

    def interrupt(what, done, total):
        if what == "simulated":
            raise KeyboardInterrupt

    monkeypatch.setattr(
        trainings,
        "defaults",
        lambda section: {**DEFAULTS(section), "bounded_a_turn": 10**9, "batch": 1},
    )
    cut = mpsim.search(scenario, OVER, top=4, progress=interrupt)
    whole = mpsim.search(scenario, OVER, top=4)
    assert cut.counts["unsimulated"] > 0
    assert cut.best.step_time_s * (1 - cut.gap) <= whole.best.step_time_s <= cut.best.step_time_s
    assert (whole.gap, whole.complete) == (0.0, True)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"objective": "speed"}, "objective"),
        ({"top": 0}, "top"),
        ({"budget": -1.0}, "budget"),
        ({"max_memory": 0.0}, "max_memory"),
        ({"over": {"parallelism.dp": [2]}}, "follows"),
        ({"over": {"parallelism.tp": []}}, "no values"),
        ({"over": {"parallelism.zero": [None, 1]}}, "got null for parallelism.zero"),
        ({"over": {"parallelism.tp": [7]}}, "no legal layout"),
        ({"over": {"schedule.name": ["auto"]}}, "auto"),
    ],
)
def test_a_question_that_makes_no_sense_is_refused(scenario, arguments, text):
    """Before anything is computed."""
    with pytest.raises(ScenarioError, match=text):
        mpsim.search(scenario, **arguments)


def test_csv_and_json_hold_what_was_simulated(found, tmp_path):
    """Units in the names, layouts by dotted key."""
    rows = list(csv.DictReader(io.StringIO(found.to_csv(tmp_path / "found.csv"))))
    assert len(rows) == len(found.rows)
    assert {"parallelism.tp", "step_time_s", "memory_bytes", "mfu", "reason"} - set(rows[0]) == {
        "reason"
    }
    assert len(json.loads(json.dumps(found.to_json()))["rows"]) == 4


def test_a_layout_has_a_short_name(found):
    """Degrees always, the rest where it is unusual."""
    name = found.best.name
    assert name.startswith("tp ")
    assert "cp" not in name


def test_the_front_is_that_of_numbers_one_can_check_by_hand():
    """(1 s, 9 B), (2, 5), (3, 5), (4, 1): the third is beaten by the second."""
    points = [(1.0, 9.0), (2.0, 5.0), (3.0, 5.0), (4.0, 1.0)]
    rows = tuple(Found({}, time, time, memory, 1, 1, None) for time, memory in points)
    front = Search("by hand", "time", 2, rows, {"simulated": 4}, complete=True).front
    assert [(row.step_time_s, row.memory_bytes) for row in front] == [
        points[0],
        points[1],
        points[3],
    ]


def test_the_picture_holds_what_was_found(found):
    """Numbers in; the front ascends in time and descends in memory."""
    chart = search_chart(found)
    every, front, leaders = chart.series
    assert every.x == [row.step_time_s for row in found.rows]
    assert leaders.x == every.x[:4]
    assert all(after < before for before, after in itertools.pairwise(front.y))
    chart.plot()


def test_nothing_simulated_is_nothing_to_draw():
    """Said in words."""
    with pytest.raises(ScenarioError, match="nothing to draw"):
        search_chart(Search("none", "time", 1, (), {}, complete=True))


def test_an_illegal_layout_of_the_file_does_not_stop_a_search(scenario, found):
    """A layout is what a search is asked for; its ranking is the same, and the mistake is told."""
    wrong = scenario.with_values({"parallelism.tp": 3}, checked=False)
    again = mpsim.search(wrong, OVER, top=4)
    assert again.rows == found.rows
    assert "tp 3 x pp 4 x cp 1 = 12" in again.own.reason


def test_what_no_layout_mends_stops_a_search(scenario):
    """A format that the accelerator lacks is one mistake, said once."""
    wrong = scenario.with_values({"training.precision": "nvfp4"}, checked=False)
    with pytest.raises(ScenarioError, match=r"training\.precision: .* has no nvfp4"):
        mpsim.search(wrong, OVER, top=4)


def test_the_own_layout_and_the_second_are_set_against_the_best(scenario):
    """The step of the file's layout is that of a run; differences by part sum to that of the steps."""
    whole = mpsim.search(scenario, OVER, top=4)
    own = mpsim.simulate(scenario.with_values({}))
    assert whole.own.step_time_s == own.summary["step_time_s"]
    assert whole.own.reason == ""
    gap = whole.rows[1].step_time_s - whole.rows[0].step_time_s
    assert sum(whole.runner_up.values()) == pytest.approx(gap)
    small = mpsim.search(scenario, OVER, top=1, max_memory=own.summary["peak_memory_bytes"] / 2)
    assert small.own.reason == "does not fit into memory"
    assert small.runner_up == {}


def test_ties_are_those_of_all_layouts_not_of_the_rows_printed(scenario):
    """However few are printed, those simulated and those that a bound does not exclude hold every tie of the whole space."""
    chunks = {"schedule.virtual_stages": [1, 2, 4], "training.micro_batch": [1, 2, 4]}
    over = {**OVER, **chunks, "parallelism.zero": [1], "training.recompute": ["none"]}
    whole = mpsim.search(scenario, over, top=10**6)
    few = mpsim.search(scenario, over, top=1, front=False)
    assert whole.may_tie == 0 < few.may_tie
    assert few.ties <= whole.ties <= few.ties + few.may_tie
    assert few.simplest.complexity == whole.simplest.complexity
    front = mpsim.search(scenario, over, top=1)
    assert front.safest.filled == whole.safest.filled
    assert whole.safest.filled == min(row.filled for row in (*whole.tied, whole.best))


def test_the_answer_is_ten_lines_and_a_short_front(scenario):
    """The best, what it gains, the second, ties, the proof; then at most eight of the front, numbered from 1."""
    found = mpsim.search(scenario, {"parallelism.tp": [1, 2, 4], "training.micro_batch": [1, 2]})
    answer, _, front = found.sheet().text().partition("\n\n")
    assert len(answer.splitlines()) <= 10
    assert answer.startswith(f"best: {found.best.name}\n")
    assert f"\nsecond: {found.rows[1].name}; " in answer
    numbers = [line.split()[0] for line in front.splitlines()[3:] if line[0] != " "]
    assert numbers == [str(1 + place) for place in range(len(numbers))]
    assert len(found.front) > 8 == len(numbers)
    assert "twin" in found.sheet(long=True).text()


def test_the_own_layout_is_set_against_the_best_by_what_was_asked(scenario):
    """With other numbers of nodes and by cost, a step that is shorter on more nodes is not better."""
    nodes = {**OVER, "cluster.nodes": [1, 2], "cluster.price_per_hour": ["4 USD/h"]}
    found = mpsim.search(scenario.with_values({"cluster.nodes": 2}), nodes, objective="cost", top=2)
    assert found.own.objective >= found.best.objective("cost")
    assert "the file's own layout" in found.sheet().text()
    assert " -" not in found.sheet().text().split("the file's own layout")[1].splitlines()[0]


def test_the_own_layout_is_set_against_the_best_on_as_many_nodes(scenario):
    """Two nodes take half the time of one: that says nothing of the layout, and is not told as if it did."""
    two = scenario.with_values({"cluster.nodes": 2})
    found = mpsim.search(two, {**OVER, "cluster.nodes": [1]}, top=1, front=False)
    assert found.own.objective < found.best.objective("time")
    (line,) = (line for line in found.sheet().text().splitlines() if "own layout" in line)
    assert line.endswith("with other cluster.nodes than were searched")
    both = mpsim.search(two, {**OVER, "cluster.nodes": [2, 4]}, top=1, front=False)
    assert both.best.values["cluster.nodes"] == 4
    (line,) = (line for line in both.sheet().text().splitlines() if "own layout" in line)
    assert "against the best with cluster.nodes 2" in line
    assert both.own.objective >= both.own.rival.objective("time")


def test_a_difference_that_counts_launches_that_die_says_so(found):
    """Of a best layout that fits in half of the cases, and not of one that surely fits."""
    for odds, said in ((0.5, True), (1.0, False)):
        rival = dataclasses.replace(found.best, fits_probability=odds)
        own = dataclasses.replace(found.own, rival=rival)
        text = dataclasses.replace(found, own=own).sheet().text()
        assert ("against the best, launches that die counted;" in text) is said


def test_switches_that_decide_are_turned_on_the_best_layout(scenario):
    """What each would give, and together no less, is what running it takes; what was searched is not told as not searched."""
    experts = scenario.with_values(
        {"model": {"preset": "mixtral-8x7b", "layers": 8}, "framework": "megatron-core-2025"},
        checked=False,
    )
    over = {**OVER, "parallelism.tp": [2], "parallelism.ep": [8], "training.recompute": ["none"]}
    found = mpsim.search(experts, over, top=2, front=False)
    keys = [key for each in found.switches.alone for key in each.turned]
    assert "framework.expert_dispatch" in keys
    together = found.switches.together
    for each in (*found.switches.alone, together):
        again = mpsim.simulate(experts.with_values(each.values)).timeline.step_time_s
        assert again == each.step_time_s < found.best.step_time_s
        assert each.gain == pytest.approx(1 - again / found.best.step_time_s)
    assert together.step_time_s <= found.switches.alone[0].step_time_s
    assert "with these switches as the file has them" in found.sheet().text()
    dispatch = {**over, "framework.expert_dispatch": ["all-to-all", "fused"]}
    searched = mpsim.search(experts, dispatch, top=2, front=False)
    assert searched.best.values["framework.expert_dispatch"] == "fused"
    rest = [key for each in searched.switches.alone for key in each.turned]
    assert "framework.expert_dispatch" not in rest


def test_the_best_is_expected_to_take_longer_than_predicted(found):
    """By what a choice among ties errs, and no more than its interval."""
    _, high = found.best.interval["step_time_s"]
    assert found.best.step_time_s < found.expected_step_time_s < high
    assert found.to_json()["expected_step_time_s"] == found.expected_step_time_s


def test_a_prediction_above_all_measurements_says_so(found):
    """639 TFLOP/s were measured on a dense model in bf16 on an H100."""
    for rate, said in ((600.0, False), (700.0, True)):
        summary = {**found.best.summary, "model_tflops_per_accelerator": rate}
        rows = (dataclasses.replace(found.best, summary=summary), *found.rows[1:])
        text = dataclasses.replace(found, rows=rows).sheet().text()
        assert ("faster than any measured run like it" in text) is said


def test_twins_stand_in_one_line(found):
    """Leaders of the same degrees that tie with the first of them: each leader is in one line, and the line says what varies."""
    lines = found.lines
    assert sum(1 + len(line.twins) for line in lines) == len(found.leaders)
    assert len(lines) < len(found.leaders)
    degrees = ("parallelism.tp", "parallelism.pp", "parallelism.cp", "parallelism.dp")
    for line in lines:
        for twin in line.twins:
            assert [twin.values[key] for key in degrees] == [
                line.row.values[key] for key in degrees
            ]
            assert twin.ranked_by_s >= line.row.ranked_by_s
        assert bool(line.twins) == bool(line.varies)
        for key, values in line.varies.items():
            assert line.row.values.get(key) not in values
    assert "twin" in found.sheet(long=True).text()


def test_decisions_cost_what_the_best_without_them_costs(scenario, found):
    """Asked for, they are told in text, JSON and Python; the ranking is the same."""
    explained = mpsim.search(scenario, OVER, top=4, explain=True)
    assert [row.step_time_s for row in explained.leaders] == [
        row.step_time_s for row in found.leaders
    ]
    costs = [item.cost_s for item in explained.decisions if item.cost_s is not None]
    assert costs == sorted(costs, reverse=True)
    assert costs[-1] >= 0
    assert not found.decisions
    assert "decisions of the best layout" in explained.sheet().text()
    told = explained.to_json()["decisions"]
    assert [item["key"] for item in told] == [item.key for item in explained.decisions]


def test_words_search_further_keys(request):
    """An order of axes, a placement: the layouts of a usual search are among them, and no better one is lost."""
    two = mpsim.load(request.config.rootpath / "scenarios" / "quickstart.yaml").with_values(
        {"cluster.nodes": 2}
    )
    over = {**OVER, "training.micro_batch": [1], "parallelism.zero": [1]}
    plain = mpsim.search(two, over, top=1, front=False)
    further = mpsim.search(two, over, also=["order", "placement"], top=1, front=False)
    assert further.complete
    assert further.looked_at > plain.looked_at
    assert further.best.step_time_s <= plain.best.step_time_s
    assert further.keys == ()
    again = mpsim.simulate(two.with_values(further.best.values))
    assert again.timeline.step_time_s == further.best.step_time_s
    with pytest.raises(ScenarioError, match="placement"):
        mpsim.search(two, over, also=["placemen"])


def test_a_cluster_that_is_mixed_along_the_pipeline_is_searched():
    """Parts keep their shares, stages are balanced by speed, and the ranked time is that of running the best layout."""
    mixed = mpsim.Scenario.from_mapping(
        {
            "schema": 1,
            "model": {"preset": "llama2-7b", "layers": 12},
            "cluster": {
                "preset": "dgx-h100",
                "nodes": 4,
                "stages": [{"count": 1}, {"count": 1, "accelerator": "a100-sxm-80"}],
            },
            "parallelism": {"pp": 2, "tp": 8},
            "training": {"global_batch": 32, "sequence_length": 4096},
            "framework": "megatron-core-2026",
        }
    )
    over = {
        "parallelism.tp": [4, 8],
        "parallelism.cp": [1],
        "parallelism.zero": [1],
        "training.micro_batch": [1],
        "training.recompute": ["none"],
        "schedule.name": ["1f1b"],
    }
    found = mpsim.search(mixed, over, top=3)
    assert found.complete
    assert {row.values["parallelism.pp"] for row in found.rows} <= {2, 4, 8}
    best = found.best
    first, *_, last = best.values["parallelism.layers_per_stage"]
    assert first > last  # an H100 does two to three times the work of an A100
    again = mpsim.simulate(mixed.with_values(best.values))
    assert again.timeline.step_time_s == best.step_time_s


def test_every_layout_is_looked_at_once_whatever_is_foreseen(scenario):
    """Only the order hangs on scores: random ones, none that fits, all alike."""
    for seed, score in ((1, None), (2, None), (3, math.inf), (4, 1.0)):
        draw = random.Random(seed)
        space = Layouts(scenario, {})
        frames = [WaitingFrame(0, None, space.layouts(frame)) for frame in space.frames()]
        seen = []

        def look(frame, layouts, seen=seen, draw=draw, score=score):
            seen.extend(layouts)
            return draw.choice([draw.random(), math.inf]) if score is None else score

        queue = Queue(frames)
        while frame := queue.next():
            queue.back(frame, frame.look(look))
        every = [layout for frame in frames for layout in frame.layouts]
        assert sorted(map(id, seen)) == sorted(map(id, every))


def test_layers_that_do_not_divide_cost_nothing_that_a_list_would_save():
    """126 layers on 16 ranks: no list of layers written by hand, embedding and loss in place of one, beats the search without any."""
    plain = mpsim.Scenario.from_mapping(
        {
            "schema": 1,
            "model": "llama3-405b",
            "cluster": {"preset": "dgx-h100", "nodes": 64},
            "training": {"global_batch": 128, "sequence_length": 4096},
            "framework": "megatron-core-2026",
        },
        checked=False,
    )
    shape = {"parallelism.tp": 8, "parallelism.cp": 1, "parallelism.pp": 16, "parallelism.zero": 1}
    shape |= {"parallelism.sequence_parallel": True, "training.micro_batch": 1}
    over = {key: [value] for key, value in shape.items()}
    over |= {"schedule.virtual_stages": [2, 4], "training.recompute": ["none"]}
    best = mpsim.search(plain, over, top=1, front=False).best
    by_hand = []
    for chunks in (1, 2, 4):
        each = 128 // (16 * chunks)
        layers = [each - 1, *[each] * (16 * chunks - 2), each - 1]
        name = "interleaved-1f1b" if chunks > 1 else "1f1b"
        schedule = {
            "schedule.name": name,
            "schedule.virtual_stages": chunks if chunks > 1 else None,
        }
        hand = plain.with_values({**shape, **schedule, "parallelism.layers_per_stage": layers})
        step = mpsim.simulate(hand)
        if step.summary["peak_memory_bytes"] <= 0.95 * plain.hardware.accelerator.memory_bytes:
            by_hand.append(step.timeline.step_time_s)
    assert len(by_hand) > 1
    assert best.step_time_s <= min(by_hand)
