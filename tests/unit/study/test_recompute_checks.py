"""Recomputation in a scenario: which keys go together, and what a model can run again."""

from __future__ import annotations

from typing import Any

import pytest

from mpsim.errors import ScenarioError
from mpsim.scenario import Scenario
from mpsim.study.fitting import changes_that_fit
from mpsim.study.search.layouts import Layouts
from mpsim.study.search.switches import further
from mpsim.training import make_plan
from mpsim.training.memory.account import account_memory


def _scenario(training: dict[str, Any], **changes: Any) -> Scenario:
    base = {
        "schema": 1,
        "model": "llama3-8b",
        "cluster": {"preset": "dgx-h100", "nodes": 1},
        "parallelism": {"tp": 1, "pp": 4, **changes.pop("parallelism", {})},
        "training": {"global_batch": 16, "sequence_length": 4096, "recompute": "full", **training},
        "framework": "megatron-core-2025",
    }
    return Scenario.from_mapping({**base, **changes})


@pytest.mark.parametrize(
    ("training", "changes", "key", "words"),
    [
        ({"recompute_method": "block"}, {}, "recompute_layers", "0 to 8"),
        ({"recompute_method": "block", "recompute_layers": 9}, {}, "recompute_layers", "set it to 8"),
        ({"recompute_layers": 0}, {}, "recompute_layers", "set it to 1"),
        ({"recompute": "none", "recompute_layers": 2}, {}, "recompute_layers", "only full has it"),
        ({"recompute_modules": ["mlp"]}, {}, "recompute_modules", "only selective has it"),
        ({"recompute": "selective", "recompute_modules": ["moe_act"]}, {}, "recompute_modules", "core_attn, mlp"),
        ({"recompute": "selective", "recompute_modules": ["layernorm"]}, {}, "recompute_modules", "one kernel with"),
        ({"recompute": "per-op"}, {"model": "deepseek-v2", "cluster": {"preset": "dgx-h100", "nodes": 4}}, "recompute", "has experts"),
        ({"recompute_layers": 2}, {"parallelism": {"pp": 1, "zero": 3}}, "recompute_layers", "zero to 2"),
    ],
)  # fmt: skip
def test_what_does_not_go_together_is_refused_with_the_nearest_that_does(
    training: dict[str, Any], changes: dict[str, Any], key: str, words: str
) -> None:
    """The key that is at fault, and legal values."""
    with pytest.raises(ScenarioError) as caught:
        _scenario(training, **changes)
    assert [one.key for one in caught.value.problems] == [f"training.{key}"]
    assert words in caught.value.problems[0].message


def test_modules_beside_an_exchange_cannot_run_again() -> None:
    """Megatron-Core: moe is not recomputed under the overlap of two microbatches."""
    with pytest.raises(ScenarioError, match="beside an exchange"):
        make_plan(
            _scenario(
                {"recompute": "selective", "recompute_modules": ["moe"]},
                model="qwen3-30b-a3b",
                framework={"preset": "megatron-core-2025", "expert_overlap": "microbatch"},
                parallelism={"pp": 1, "ep": 8},
            )
        )


def test_the_plan_has_what_the_scenario_says() -> None:
    """Method, layers and modules reach the plan; what is left out is one layer at a time, the attention core."""
    block = make_plan(_scenario({"recompute_method": "block", "recompute_layers": 3})).recompute
    assert (block.granularity, block.method, block.layers) == ("full", "block", 3)
    plain = make_plan(_scenario({"recompute": "selective"})).recompute
    assert plain.modules == ("core_attn",)


_TITAN = {"framework": "torchtitan", "parallelism": {"pp": 1, "zero": 3}}


def _recomputes(training: dict[str, Any], **changes: Any) -> str:
    return make_plan(_scenario(training, **{**_TITAN, **changes})).recompute.granularity


def test_selective_is_what_the_framework_calls_so() -> None:
    """torchtitan's is per-op, Megatron's the attention core; modules that are named are Megatron's on both."""
    selective = {"recompute": "selective"}
    assert _recomputes(selective) == "per-op"
    assert _recomputes({**selective, "recompute_modules": ["core_attn"]}) == "selective"
    assert _recomputes(selective, framework="megatron-core") == "selective"
    written = {"preset": "megatron-core", "recompute_selective": "per-op"}
    assert _recomputes(selective, framework=written) == "per-op"
    titan = _scenario(selective, **_TITAN)
    assert titan.digest == _scenario({"recompute": "per-op"}, **_TITAN).digest
    assert Scenario.from_mapping(titan.resolved()).digest == titan.digest


def test_torchtitans_selective_is_refused_by_its_name_where_it_has_no_rule() -> None:
    mixture = {**_TITAN, "model": "deepseek-v2", "cluster": {"preset": "dgx-h100", "nodes": 4}}
    with pytest.raises(ScenarioError, match="which torchtitan calls selective"):
        _scenario({"recompute": "selective"}, **mixture)


def test_a_search_tries_selective_as_the_framework_means_it() -> None:
    """The words of a search are those of its rows: none of them means one thing to the bound and another to the simulation."""
    titan = _scenario({"recompute": "none"}, **_TITAN)
    assert Layouts(titan, {}).choices["recompute"] == ("none", "per-op", "full")
    assert further(titan, ["recompute-modules"]) == {}
    asked = {"recompute": ("none", "selective"), "modules": (None, ("mlp",))}
    legal = Layouts(titan, asked)
    habits = {
        (habit["recompute"], habit["modules"])
        for frame in legal.frames()
        for habit in legal.habits(frame)
    }
    assert habits == {("none", None), ("per-op", None), ("selective", ("mlp",))}


def test_a_mend_of_memory_says_what_it_does_in_the_framework() -> None:
    """Too little memory for everything: what the mend leaves is what per-op leaves."""
    tight = {"cluster": {"preset": "dgx-h100", "nodes": 1, "accelerator": {"memory": "60 GB"}}}
    training = {"recompute": "none", "sequence_length": 8192, "global_batch": 8}
    full = _scenario(training, **{**_TITAN, **tight})
    mend = next(change for change in changes_that_fit(full) if "selective" in str(change))
    per_op = account_memory(make_plan(full.with_values({"training.recompute": "per-op"})))
    assert mend.total == float(per_op.total.max())
