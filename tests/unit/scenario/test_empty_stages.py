"""Pipeline stages without layers: the ends have embedding or head to run, those between have nothing."""

from __future__ import annotations

import pytest

from mpsim.errors import ScenarioError
from mpsim.scenario import Scenario
from mpsim.simulate import simulate

RUN = {
    "schema": 1,
    "model": {"preset": "llama3-8b", "layers": 8},
    "cluster": {"preset": "dgx-h100", "nodes": 1},
    "training": {"global_batch": 16, "micro_batch": 1, "sequence_length": 2048},
}


def _step(layers: list[int]) -> float:
    parallelism = {"tp": 1, "pp": 4, "dp": 2, "layers_per_stage": layers}
    scenario = Scenario.from_mapping({**RUN, "parallelism": parallelism})
    return float(simulate(scenario).summary["step_time_s"])


def test_a_stage_between_the_ends_needs_a_layer() -> None:
    """The message names the stage."""
    with pytest.raises(ScenarioError, match="no layer for stage 1, which has neither"):
        _step([4, 0, 2, 2])


def test_the_ends_may_have_none() -> None:
    """A head alone on the last stage, or an embedding alone on the first, is a stage."""
    assert _step([2, 3, 3, 0]) > 0
    assert _step([0, 2, 3, 3]) > _step([2, 2, 2, 2])
