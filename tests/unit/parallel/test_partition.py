"""Layers on stages."""

from __future__ import annotations

import pytest

from mpsim.errors import ScenarioError
from mpsim.parallel import partition_layers


def test_layers_divide_evenly_with_the_ends_free() -> None:
    """8 layers on 4 stages: two each, embedding on the first, head on the last."""
    stages = partition_layers(8, 4)
    assert [one.layers for one in stages] == [2, 2, 2, 2]
    assert [one.first_layer for one in stages] == [0, 2, 4, 6]
    assert [one.embedding for one in stages] == [True, False, False, False]
    assert [one.head for one in stages] == [False, False, False, True]


def test_embedding_and_loss_may_take_a_layers_place() -> None:
    """BLOOM: 70 layers on 12 stages, 72 places of 6."""
    stages = partition_layers(70, 12, embedding_counts=True, loss_counts=True)
    assert [one.layers for one in stages] == [5, *[6] * 10, 5]


def test_each_end_takes_a_layers_place_on_its_own_stage() -> None:
    """7 layers on 4 stages make 8 places of 2: the embedding has one of the first stage, the loss one of the last."""
    first = partition_layers(7, 4, embedding_counts=True)
    last = partition_layers(7, 4, loss_counts=True)
    assert [stage.layers for stage in first] == [1, 2, 2, 2]
    assert [stage.layers for stage in last] == [2, 2, 2, 1]


def test_given_layers_are_taken_as_they_are() -> None:
    """Also none on a stage."""
    assert [one.layers for one in partition_layers(7, 3, given=[3, 4, 0])] == [3, 4, 0]


@pytest.mark.parametrize(
    ("layers", "stages", "given", "wanted"),
    [
        (7, 4, None, "7 layers do not divide among 4 stages"),
        (8, 2, [4, 4, 0], "got 3 stages; needed 2"),
        (8, 2, [4, 5], "got 9 layers in all; needed the model's 8"),
        (8, 2, [9, -1], "negative"),
    ],
)
def test_what_does_not_fit_is_refused(
    layers: int, stages: int, given: list[int] | None, wanted: str
) -> None:
    """The message says what was got and what is needed."""
    with pytest.raises(ScenarioError, match=wanted):
        partition_layers(layers, stages, given=given)


def test_a_stage_without_any_layer_is_refused_in_an_even_division() -> None:
    """Two layers cannot fill four stages."""
    with pytest.raises(ScenarioError):
        partition_layers(2, 4)
