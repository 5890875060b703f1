"""What a question leaves open is the fastest that fits."""

from __future__ import annotations

import pytest

from mpsim.errors import ScenarioError
from mpsim.scenario import Scenario
from mpsim.study.usual import Tried, settled, usual

QUESTION = {
    "schema": 1,
    "model": "llama2-70b",
    "cluster": {"preset": "dgx-a100-80gb", "nodes": 8},
    "training": {"global_batch": 512, "sequence_length": 4096},
}


def asked(**training: object) -> Scenario:
    """The plain question, with more of its training said."""
    return Scenario.from_mapping({**QUESTION, "training": {**QUESTION["training"], **training}})


def test_a_model_that_no_accelerator_holds_is_divided() -> None:
    """70B in 16 bytes a parameter are 14 times 80 GB: parts of it fit, and all of them make up the cluster."""
    values = usual(asked())
    assert values["parallelism.tp"] * values["parallelism.dp"] == 64
    assert values["parallelism.tp"] > 1


def test_what_the_file_writes_stays() -> None:
    """Of a micro batch and recomputation that are stated nothing is said."""
    values = usual(asked(micro_batch=2, recompute="full"))
    assert not values.keys() & {"training.micro_batch", "training.recompute"}


def test_the_fastest_that_fits_counts_and_the_nearest_where_none_does() -> None:
    """By hand: micro batch 4 is fastest and too large, 2 fits, 1 is slower; of 1.2 and 1.1 times the memory the latter."""
    scenario, key = asked(), "training.micro_batch"
    seconds = lambda values: 1.0 / values.get(key, 1)  # noqa: E731
    for filled, best in (
        (lambda values: values.get(key, 1) / 2.5, {key: 2}),
        (lambda values: 1.2 if values else 1.1, {}),
    ):
        assert settled(scenario, {key}, Tried(filled, seconds)) == best


def test_more_is_tried_only_while_nothing_fits() -> None:
    """A third choice stands behind one that fits, and before the end where none does."""
    more = {"training.offload_layers": 10}
    for full, best in ((0.9, {}), (1.2, more)):
        tried = Tried(lambda values, full=full: 0.5 if values else full, lambda _: 1.0)
        assert settled(asked(), set(), tried, [more]) == best


def test_a_question_that_nothing_mends_says_why() -> None:
    """The mistake of the scenario itself, where its layout is stated."""

    def refuse(_: object) -> float:
        raise ScenarioError("no")

    with pytest.raises(ScenarioError, match="no"):
        settled(asked(), {"training.recompute"}, Tried(refuse, refuse))


LAYOUT = {
    *("parallelism.tp", "parallelism.pp", "parallelism.zero", "parallelism.sequence_parallel"),
    "schedule",
}


def test_of_layouts_that_fit_the_fastest_counts_whatever_comes_first() -> None:
    """By hand: tp 4 and tp 8 fit, and tp 8, which is tried later, takes half as long."""
    degree = lambda values: int(values.get("parallelism.tp", 1))  # noqa: E731
    tried = Tried(lambda values: 4 / degree(values), lambda values: 8 / degree(values))
    assert settled(asked(), LAYOUT, tried)["parallelism.tp"] == 8


def test_where_no_layout_fits_another_counts_only_far_beyond_the_memory() -> None:
    """Peaks are hardly ever off by half: at 1.9 times the memory the scenario stays, at 4 times the nearest layout is taken."""
    degree = lambda values: int(values.get("parallelism.tp", 1))  # noqa: E731
    for need, layout in ((1.9, None), (12.0, 8)):
        tried = Tried(lambda values, need=need: max(1.1, need / degree(values)), lambda _: 1.0)
        assert settled(asked(), LAYOUT, tried).get("parallelism.tp") == layout


def test_stages_hold_unlike_numbers_of_layers_where_these_do_not_divide() -> None:
    """95 layers under a stated schedule: the pipeline is balanced, not left out."""
    odd = Scenario.from_mapping({**QUESTION, "model": {"preset": "llama2-70b", "layers": 95}})
    staged = Tried(lambda values: 8 / int(values.get("parallelism.pp", 1)), lambda _: 1.0)
    values = settled(odd, LAYOUT - {"schedule"}, staged)
    assert values["parallelism.pp"] == 8
    assert values["parallelism.layers_per_stage"] == "auto"


def test_under_a_stated_number_of_stages_every_tensor_degree_is_tried() -> None:
    """With one stage under 1F1B that two ranks hold, two are faster than eight."""
    degree = lambda values: int(values.get("parallelism.tp", 1))  # noqa: E731
    tried = Tried(lambda values: 1.5 / degree(values), lambda values: float(degree(values)))
    opened = {"parallelism.tp", "parallelism.sequence_parallel"}
    assert settled(asked(), opened, tried)["parallelism.tp"] == 2


def test_a_policy_of_kept_values_that_does_not_fit_becomes_full_recomputation() -> None:
    """A run that says per-op and cannot have had the memory for it: its list of values goes with it."""
    scenario = asked(recompute="per-op", recompute_keeps=["query", "gate"])
    chosen = settled(scenario, {"training.recompute"}, Tried(lambda v: 0.9 if v else 3.0, len))
    assert chosen == {"training.recompute": "full", "training.recompute_keeps": None}


def test_experts_that_eight_ranks_do_not_hold_are_divided_into_stages() -> None:
    """By hand: of 671 billion parameters 128 ranks have a part that fits, 8 do not, and gathering every layer takes twice as long."""
    layout = LAYOUT | {"parallelism.ep"}
    question = {**QUESTION, "model": "deepseek-v3", "cluster": {"preset": "dgx-h100", "nodes": 32}}
    held = lambda values: values.get("parallelism.ep", 1) * values.get("parallelism.pp", 1)  # noqa: E731
    sharded = lambda values: values.get("parallelism.zero") == 3  # noqa: E731
    tried = Tried(
        lambda values: 0.5 if sharded(values) else 60 / held(values),
        lambda values: 2.0 if sharded(values) else 1.0,
    )
    values = settled(Scenario.from_mapping(question, checked=False), layout, tried)
    assert (values["parallelism.pp"], values["parallelism.ep"]) == (8, 8)
    assert values["parallelism.layers_per_stage"] == "auto"
