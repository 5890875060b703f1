"""Laws of searches: what is ruled out could not have won, and what is known without simulating is what simulating says."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

import mpsim
from mpsim.errors import DeadlockError, ScenarioError
from mpsim.scenario import Scenario
from mpsim.scenario.checks import CHECKS
from mpsim.schedule import make_orders
from mpsim.study.search.bound import Bounder, Order
from mpsim.study.search.given import ranked_by, split_axes
from mpsim.study.search.layouts import AXES, DEPENDS, Layouts
from mpsim.study.search.switches import choices, further, pipelines, turned
from mpsim.study.search.trainings import Timer
from mpsim.training.memory.account import account_memory
from mpsim.training.memory.flight import Flight
from mpsim.training.planning import Division, make_plan, recompute_of
from tests.nightly import some

DENSE = {
    "schema": 1,
    "model": {"preset": "llama2-7b", "layers": 8},
    "cluster": {"preset": "dgx-h100", "nodes": 2},
    "training": {"global_batch": 16, "sequence_length": 2048},
    "framework": "megatron-core",
}
VARIANTS = {
    "dense": {},
    "tied": {"model": {"preset": "gpt3-175b", "layers": 8}, "framework": "megatron-lm"},
    "2021": {"framework": "megatron-2021"},
    "sharded": {"framework": "deepspeed"},
    "fsdp": {"framework": "fsdp2"},
    "titan": {"framework": "torchtitan"},
    "zero3": {"framework": "deepspeed-zero3"},
    "ddp": {"framework": "torch-ddp"},
    "experts": {"model": {"preset": "mixtral-8x7b", "layers": 8}},
    "latent": {
        "model": {"preset": "deepseek-v3", "layers": 8, "mtp_layers": 0},
        "framework": "megatron-core-2025",
    },
}
SCHEDULES = [
    "1f1b",
    "interleaved-1f1b",
    "gpipe",
    "zb-h1",
    "zb-v",
    "v-half",
    "dualpipe",
    "dualpipe-v",
    "chimera",
    "looped-bfs",
]


def scenario_of(name):
    """A small scenario."""
    return Scenario.from_mapping({**DENSE, **VARIANTS[name]}, checked=False)


def legal_layouts(scenario, given=None):
    """Every legal layout, frame by frame."""
    space = Layouts(scenario, given or {})
    return [layout for frame in space.frames() for layout in space.layouts(frame)]


@pytest.mark.parametrize("name", some(VARIANTS, 4))
def test_what_is_known_before_is_what_simulating_says(name):
    """Of random layouts: the memory to rounding, the step time bit for bit, and a bound that is not above it."""
    scenario = scenario_of(name)
    check_layouts(name, scenario, legal_layouts(scenario, {"schedule": SCHEDULES}))


@pytest.mark.parametrize("name", some(["dense", "sharded", "zero3", "experts", "latent"], 2))
def test_what_is_searched_by_words_is_known_as_well(name):
    """Orders of axes, offload and modules that run again are part of a layout like the others."""
    scenario = scenario_of(name)
    own, other = split_axes(further(scenario, ["order", "recompute-modules", "offload"]), AXES)
    assert not other
    layouts = legal_layouts(scenario, own)
    check_layouts(name, scenario, [layout for layout in layouts if layout.frame.order])
    chosen = [layout for layout in layouts if layout.modules or layout.offload != "none"]
    check_layouts(name, scenario, chosen)


@pytest.mark.parametrize("stages", [[{}, {"accelerator": "a100-sxm-80"}], [{"count": 3}, {}]])
def test_a_pipeline_over_nodes_that_differ_is_known_as_well(stages):
    """Parts keep their shares of the ranks, and every rank has the memory and the speed of its own nodes."""
    stages[-1] = {"nic": "ib-hdr", **stages[-1]}
    mixed = {"preset": "dgx-h100", "nodes": 4, "stages": stages}
    scenario = Scenario.from_mapping({**DENSE, "cluster": mixed}, checked=False)
    lengths = []
    for parts, given in pipelines(scenario, {"schedule": ("1f1b", "interleaved-1f1b")}):
        varied = scenario.with_values(parts, checked=False)
        counts = [part["count"] for part in parts["cluster.stages"]]
        assert sum(counts) == given["pp"][0]
        assert counts[0] * stages[1].get("count", 1) == counts[1] * stages[0].get("count", 1)
        if layouts := legal_layouts(varied, given):
            check_layouts(str(stages), varied, layouts, at_least=2)
            lengths += given["pp"]
    assert lengths


def check_layouts(name, scenario, layouts, *, at_least=5):
    """Check what is known of random layouts against simulating them."""
    chosen = random.Random(name).sample(layouts, min(14, len(layouts)))
    known = {}
    for layout in chosen:
        varied = scenario.with_values(layout.values())
        try:
            plan = make_plan(varied)
        except ScenarioError:
            continue  # schedules have rules of their own
        known[layout] = varied, plan
    _, plan = next(iter(known.values()))
    bounder = Bounder(plan, Division.of(scenario), recompute_of(scenario))
    timer = Timer(bounder, scenario)
    assert len(known) >= at_least
    for layout, (varied, plan) in known.items():
        assert bounder.order(layout).runs()
        bounded = bounder.bound([layout])
        try:
            step = mpsim.simulate(varied).timeline.step_time_s
        except DeadlockError:
            with pytest.raises(DeadlockError):
                timer.seconds([layout])
            continue
        assert timer.seconds([layout]) == [step]
        rough, least = (bounder.least(layout, roughly=roughly) for roughly in (True, False))
        assert 0.0 < rough <= least <= bounded.bound[0]
        memory = account_memory(plan)
        assert bounded.memory[0] == pytest.approx(memory.total.max(), rel=1e-12)
        assert bounded.bound[0] <= step * (1 + 1e-12), layout


@pytest.mark.parametrize("name", ["dense", "sharded", "experts"])
def test_the_space_is_what_the_checks_accept(name):
    """Asked one by one, with nothing remembered: the same layouts, but for those that say the same twice."""
    scenario = scenario_of(name)
    given = {
        "tp": (1, 3, 4),
        "cp": (1, 2),
        "pp": (1, 2, 3),
        "ep": (1, 4),
        "schedule": ("1f1b", "interleaved-1f1b"),
        "virtual_stages": (2, 3),
        "layers_per_stage": (None,),
        "micro_batch": (1, 3),
        "zero": (0, 1, 3),
        "recompute": ("none", "full"),
    }
    found = {tuple(layout.values().items()) for layout in legal_layouts(scenario, given)}
    space = Layouts(scenario, given)
    accepted = set()
    for choice in itertools.product(*(space.choices[axis] for axis in AXES)):
        point = {
            axis: value
            for axis, value in zip(AXES, choice, strict=True)
            if axis not in ("order", "offload", "modules")
        }
        plain = point["schedule"] == "1f1b"
        twice = [
            plain and point["virtual_stages"] != 2,
            not plain and point["pp"] == 1,
            point["tp"] == 1 and point["sequence_parallel"],
        ]
        if any(twice):
            continue
        values = {AXES[axis]: value for axis, value in point.items()}
        values |= {"schedule.virtual_stages": None if plain else point["virtual_stages"]}
        try:
            legal = scenario.with_values({**values, "parallelism.dp": None})
        except ScenarioError:
            continue
        if legal.dp * point["cp"] == 1 and point["zero"]:
            continue
        order = ("tp", "pp", "dp", "cp", "ep", "sequence_parallel", "zero")
        parallel = {f"parallelism.{axis}": getattr(legal.parallelism, axis) for axis in order}
        rest = {
            key: values[key]
            for key in (
                "schedule.name",
                "schedule.virtual_stages",
                "training.micro_batch",
                "training.recompute",
            )
        }
        accepted.add(tuple({**parallel, "parallelism.dp": legal.dp, **rest}.items()))
    assert found == accepted
    assert found


@pytest.mark.parametrize("name", ["dense", "experts"])
def test_the_best_and_the_front_are_those_of_simulating_everything(name):
    """Pruning is admissible: nothing that was not simulated would have been among them."""
    scenario = scenario_of(name)
    over = {
        "parallelism.tp": [1, 2, 4],
        "parallelism.cp": [1],
        "parallelism.pp": [1, 2],
        "parallelism.ep": [1, 4],
        "training.micro_batch": [1],
        "parallelism.zero": [0, 1],
        "training.recompute": ["none", "full"],
        "schedule.virtual_stages": [2],
    }
    found = mpsim.search(scenario, over, top=5, explain=True)
    given = {axis: tuple(over[key]) for axis, key in AXES.items() if key in over}
    everything = []
    for layout in legal_layouts(scenario, given):
        try:
            plan = make_plan(scenario.with_values(layout.values()))
        except ScenarioError:
            continue
        memory = account_memory(plan)
        if memory.fits:
            result = mpsim.simulate(scenario.with_values(layout.values()))
            time, values = result.timeline.step_time_s, layout.values()
            ranked = ranked_by(time, result.summary["fits_probability"])
            everything.append((time, float(memory.total.max()), values, ranked))
    assert found.complete
    assert len(found.rows) < len(everything)
    best = sorted(ranked for *_, ranked in everything)[:5]
    assert [row.ranked_by_s for row in found.leaders] == pytest.approx(best, rel=1e-12)
    front = {
        (time, memory)
        for time, memory, *_ in everything
        if not any(
            (t <= time and m < memory * (1 - 1e-12)) or (t < time and m <= memory * (1 + 1e-12))
            for t, m, *_ in everything
        )
    }
    assert {row.step_time_s for row in found.front} == {time for time, _ in front}
    chosen = choices(found.best.values)
    assert found.decisions
    for decision in found.decisions:
        others = [
            ranked for _, _, values, ranked in everything if decision.key in turned(chosen, values)
        ]
        assert decision.proved
        assert decision.value == chosen[decision.key]
        if decision.without is None:
            assert not others
        else:
            assert decision.without.ranked_by_s == pytest.approx(min(others), rel=1e-12)
            assert decision.cost_s == pytest.approx(min(others) - best[0], abs=1e-12)


@pytest.mark.parametrize(
    ("schedule", "chunks"), [("1f1b", None), ("interleaved-1f1b", 2), ("interleaved-1f1b", 3)]
)
@pytest.mark.parametrize("pp", [1, 2, 3, 4, 8])
def test_few_rounds_show_every_moment_of_many(schedule, chunks, pp):
    """The middle of these orders repeats itself."""
    many = 9 * pp
    short = Order(schedule, pp, many, chunks).flight()
    whole = Flight.of(make_orders(schedule, pp=pp, microbatches=many, virtual_stages=chunks))
    assert np.array_equal(short.first, whole.first)
    assert np.array_equal(short.for_input, whole.for_input)
    assert np.array_equal(short.for_weight, whole.for_weight)
    assert np.array_equal(short.stage, whole.stage)


@pytest.mark.parametrize(
    ("schedule", "chunks", "most"),
    [("1f1b", None, 8), ("interleaved-1f1b", 3, 56), ("zb-h1", None, 16)],
)
def test_moments_that_are_dropped_hold_no_more_than_one_that_stays(
    schedule, chunks, most, monkeypatch
):
    """Of the same action on the same stage; 1F1B has two moments a stage, its forward and its backward."""
    orders = make_orders(schedule, pp=4, microbatches=16, virtual_stages=chunks)
    few = _moments(Flight.of(orders))
    monkeypatch.setattr("mpsim.training.memory.flight._fullest_moments", lambda moments: moments)
    every = _moments(Flight.of(orders))
    alike = (every[:, None, :3] == few[None, :, :3]).all(axis=2)
    assert (alike & (every[:, None, 3:] <= few[None, :, 3:]).all(axis=2)).any(axis=1).all()
    assert len(few) <= most < len(every)


def _moments(flight):
    """Rank, stage, what is differentiated, and what is held of each chunk."""
    rank = np.searchsorted(flight.first, np.arange(len(flight.stage)), side="right")
    place = [rank, flight.stage, flight.differentiates]
    return np.column_stack([*place, flight.for_input, flight.for_weight])


@pytest.mark.parametrize(
    "simulation", [{"network": "flow"}, {"interference": True}], ids=["flow", "interference"]
)
def test_a_search_times_layouts_as_they_run(simulation):
    """Where rates change while a step runs, the ranked times are those of whole simulations, not of a replay."""
    small = {"preset": "llama2-7b", "layers": 4}
    scenario = Scenario.from_mapping({**DENSE, "model": small, "simulation": simulation})
    over = {"parallelism.tp": [2, 4], "parallelism.pp": [2, 4], "parallelism.zero": [1]}
    over |= {"training.micro_batch": [1], "schedule.name": ["1f1b"], "training.recompute": ["none"]}
    found = mpsim.search(scenario, over, top=2)
    assert found.leaders
    for leader in found.leaders:
        assert leader.summary["step_time_s"] == leader.step_time_s
        assert leader.bound_s <= leader.step_time_s


def test_the_bound_counts_host_time_that_grows_with_ranks():
    """A second of `step_rank_time` a rank is a second of every step, and of its bound: 16 ranks, 16 seconds."""
    without, slow = (
        Scenario.from_mapping(
            {**DENSE, "framework": {"preset": "megatron-core", "step_rank_time": time}}
        )
        for time in ("0 s", "1 s")
    )
    layout = legal_layouts(slow, {"tp": (2,), "pp": (2,), "schedule": ("1f1b",)})[0]
    bounds, steps = [], []
    for scenario in (without, slow):
        varied = scenario.with_values(layout.values())
        bounds.append(Bounder(make_plan(varied)).bound([layout]).bound[0])
        steps.append(mpsim.simulate(varied).timeline.step_time_s)
        assert bounds[-1] <= steps[-1] * (1 + 1e-12)
    assert steps[1] - steps[0] == pytest.approx(16)
    assert bounds[1] - bounds[0] == pytest.approx(16)


@pytest.mark.parametrize("layers", [(1, 7), (0, 1, 1, 6)])
def test_the_bound_lets_ranks_step_apart_where_no_norm_joins_them(layers):
    """The last stage has most to update and has done so when the flush ends on the first: the step is not longer for it."""
    # the bound has no passes that add gradients up
    framework = {"preset": "torch-ddp", "gradient_norm": False, "accumulation_traffic": 0}
    pp = len(layers)
    shape = {"tp": (8 // pp,), "pp": (pp,), "dp": (1,), "schedule": ("1f1b",)}
    small = {
        **DENSE,
        "cluster": {"preset": "dgx-h100", "nodes": 1},
        "training": {"global_batch": 4, "sequence_length": 1024},
        "framework": framework,
    }
    scenario = Scenario.from_mapping(small, checked=False)
    layout = legal_layouts(scenario, shape)[0]
    varied = scenario.with_values({**layout.values(), "parallelism.layers_per_stage": list(layers)})
    bound = Bounder(make_plan(varied), Division(given=layers)).bound([layout]).bound[0]
    step = mpsim.simulate(varied).timeline.step_time_s
    assert 0.99 * step < bound <= step * (1 + 1e-12)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_a_check_looks_at_no_axis_that_it_does_not_list(check):
    """What a check says stays as it is while all axes change that it does not list, and every check lists its own."""
    draw = random.Random(check.__name__)
    listed = DEPENDS[check.__name__]
    for variant, more in itertools.product(("dense", "experts"), ({}, {"method": "qlora"})):
        scenario = scenario_of(variant)
        training = scenario.training.model_copy(update=more)
        space = Layouts(scenario.model_copy(update={"training": training}), {})
        every = {**space.choices, "micro_batch": (1, 2, 3), "layers_per_stage": (None, (3, 5))}
        every |= {"offload": ("none", "optimizer"), "modules": (None, ("core_attn",))}
        every |= {"order": ("tp-cp-ep-dp-pp", "tp-cp-ep-pp-dp"), "recompute": ("none", "full")}
        for _ in range(8):
            first, other = (
                {axis: draw.choice(values) for axis, values in every.items()} for _ in range(2)
            )
            other |= {axis: first[axis] for axis in listed}
            told = [bool(check(space.scenario(values))) for values in (first, other)]
            assert told[0] == told[1], (first, other)


def test_what_fits_surely_leads_what_is_hardly_faster():
    """A step of 1 s at odds of one in two costs as 1.048 s, a day of 21 lost before one runs: one of 1.04 s that surely fits is ahead of it, one of 1.05 s is not."""
    assert ranked_by(1.04, 1.0) < ranked_by(1.0, 0.5) < ranked_by(1.05, 1.0)
    assert ranked_by(1.0, 0.5) == pytest.approx(1 + 1 / 21, abs=1e-3)
    assert ranked_by(1.0, None) == ranked_by(1.0, 1.0) == 1.0


def test_search_plan_and_design_choose_alike():
    """One order: where the fastest that fits leaves little memory, all three choose the one that ranks first."""
    data = {
        **{key: DENSE[key] for key in ("schema", "training", "framework")},
        "model": {"preset": "llama2-7b", "layers": 16},
        "cluster": {"preset": "dgx-h100", "nodes": 1, "accelerator": {"preset": "h100-sxm", "memory": "24 GB"}},
        "parallelism": {},
        "design": {"jobs": {"train": {"tokens": "1B"}}, "choices": {"cluster.nodes": [1]}, "money": {"basis": "rent"}},
    }  # fmt: skip
    scenario = Scenario.from_mapping(data, checked=False)
    found = mpsim.search(scenario, top=3, front=False)
    ranked = [row.ranked_by_s for row in found.rows]
    assert ranked == sorted(ranked)
    assert min(found.rows, key=lambda row: row.step_time_s) is not found.best
    (option,) = mpsim.design(scenario, upgrades=False).options
    planned = mpsim.plan(scenario, 1e9, search=60.0).best
    assert option.entries["train"]["layout"] == dict(found.best.values)
    assert dict(planned.values) == dict(found.best.values)
