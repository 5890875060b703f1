"""Layers of pipeline stages, balanced by work where a scenario leaves the split to mpsim."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mpsim
from mpsim.framework import StageSplit
from mpsim.scenario import Scenario
from mpsim.scenario.balance import Work, balanced_layers, stage_loads, unruly_split, work_of

PLAIN = {
    "schema": 1,
    "name": "llama",
    "model": "llama3-405b",
    "cluster": {"preset": "dgx-h100", "nodes": 64},
    "parallelism": {"tp": 8, "pp": 16, "sequence_parallel": True, "layers_per_stage": "auto"},
    "schedule": "1f1b",
    "training": {
        "global_batch": 128,
        "micro_batch": 1,
        "sequence_length": 8192,
        "precision": "bf16",
        "recompute": "full",
    },
    "framework": "megatron-core-2025",
}


def _changed(**sections):
    return {
        key: {**value, **sections.get(key, {})}
        if isinstance(value, dict)
        else sections.get(key, value)
        for key, value in PLAIN.items()
    }


def _best(work, stages):
    """The least possible slowest stage, by trying every split; the first and the last stage may be empty."""
    layers, least = len(work.layers), float("inf")
    for cuts in itertools.combinations_with_replacement(range(layers + 1), stages - 1):
        ends = (0, *cuts, layers)
        counts = [later - earlier for earlier, later in itertools.pairwise(ends)]
        if all(counts[1:-1]):
            least = min(least, max(stage_loads(work, counts)))
    return least


@settings(deadline=None, max_examples=60)
@given(
    layers=st.integers(3, 12),
    stages=st.integers(2, 5),
    head=st.floats(0.0, 3.0),
    other=st.integers(0, 3),
)
def test_the_slowest_stage_is_as_fast_as_any_split_makes_it(layers, stages, head, other):
    """Exhaustive search over small models, also with a few first layers that take half as long, finds nothing faster."""
    if stages > layers:
        return
    alike = Work((1.0,) * layers, head)
    counts = balanced_layers(alike, tuple(range(stages)), StageSplit.ANY)
    assert sum(counts) == layers
    assert max(stage_loads(alike, counts)) == pytest.approx(_best(alike, stages))
    mixed = Work((0.5,) * min(other, layers) + (1.0,) * (layers - min(other, layers)), head)
    counts = balanced_layers(mixed, tuple(range(stages)), StageSplit.ANY)
    assert sum(counts) == layers
    assert max(stage_loads(mixed, counts)) == pytest.approx(_best(mixed, stages))


def test_a_head_of_half_a_layer_makes_the_last_stage_one_layer_shorter():
    """126 layers on 16 stages: 16 x 8 are 128, so the two ends have 7, as Llama 3 405B was trained."""
    work = work_of(mpsim.Scenario.from_mapping(PLAIN).transformer, 8192)
    ends = balanced_layers(work, tuple(range(16)), StageSplit.ENDS)
    assert ends == balanced_layers(work, tuple(range(16)), StageSplit.ANY) == (7, *(8,) * 14, 7)
    assert balanced_layers(work, tuple(range(16)), StageSplit.EVEN) is None


def test_a_slower_rank_gets_fewer_layers():
    """Twice the speed takes twice the layers: 12 layers on speeds 2 and 1 are 8 and 4."""
    work = Work((1.0,) * 12, 0.0)
    assert balanced_layers(work, (0, 1), StageSplit.ANY, (2.0, 1.0)) == (8, 4)


def test_auto_is_the_list_it_stands_for():
    """Same digest, same step."""
    auto = mpsim.Scenario.from_mapping(PLAIN)
    listed = _changed(parallelism={"layers_per_stage": list(auto.stage_layers)})
    same = mpsim.Scenario.from_mapping(listed)
    assert auto.digest == same.digest
    assert mpsim.simulate(auto).summary == mpsim.simulate(same).summary


def test_check_proposes_the_list_that_balances():
    """The refusal of layers that do not divide can be pasted."""
    uneven = _changed(parallelism={"layers_per_stage": None})
    with pytest.raises(mpsim.ScenarioError, match=r"layers_per_stage: auto, which is \[7, 8, 8"):
        mpsim.simulate(mpsim.Scenario.from_mapping(uneven))


@pytest.mark.parametrize("split", ["auto", None])
def test_a_framework_that_divides_evenly_is_not_offered_another_split(split):
    """Megatron-LM of 2021 asserts that the layers divide."""
    old = _changed(parallelism={"layers_per_stage": split}, framework="megatron-2021")
    with pytest.raises(mpsim.ScenarioError, match=r"even|no uneven split"):
        mpsim.simulate(mpsim.Scenario.from_mapping(old))


@pytest.mark.parametrize("framework", ["megatron-core", "megatron-core-2025"])
def test_a_plain_file_finds_the_uneven_pipeline(framework):
    """Without any list a search lays 126 layers on more than one pipeline rank, and says what fell away."""
    plain = _changed(framework=framework, parallelism={"pp": 1, "layers_per_stage": None})
    scenario = mpsim.Scenario.from_mapping(plain)
    over = {"parallelism.tp": [8], "parallelism.cp": [1], "training.micro_batch": [1]}
    found = mpsim.search(scenario, over, top=1, front=False)
    counts = found.best.values["parallelism.layers_per_stage"]
    assert sum(counts) == 126
    assert found.best.values["parallelism.pp"] > 1
    assert found.undivided > 0
    own = mpsim.simulate(scenario.with_values(found.best.values))
    assert own.summary["step_time_s"] == found.best.step_time_s


@pytest.mark.parametrize(
    ("stack", "layers", "runs"),
    [
        ("megatron-core-2025", [10, 8, 8, 6], True),
        ("megatron-core-2025", [10, 10, 6, 6], False),
        ("megatron-core-2025", [7, 8, 8, 9], True),
        ("megatron-core-2026", [10, 10, 6, 6], True),
        ("megatron-2021", [7, 8, 8, 9], False),
        ("megatron-2021", [8, 8, 8, 8], True),
    ],
)
def test_a_list_that_a_stack_has_no_option_for_is_told(stack, layers, runs):
    """Its time is right, and nobody can launch it."""
    data = {
        "schema": 1,
        "model": "llama2-7b",
        "cluster": {"preset": "dgx-h100", "nodes": 1},
        "parallelism": {"tp": 2, "pp": 4, "sequence_parallel": True, "layers_per_stage": layers},
        "training": {"global_batch": 8, "sequence_length": 1024},
        "framework": stack,
    }
    told = unruly_split(Scenario.from_mapping(data))
    assert not told if runs else "cannot run this list" in told[0]
