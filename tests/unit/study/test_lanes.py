"""Steps that are measured side by side tell what each tells alone."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import yaml

import mpsim
from mpsim.engine import lanes as engine_lanes
from mpsim.result import Result
from mpsim.scenario import Scenario
from mpsim.study.together import Together

CORPUS = Path(__file__).parents[2] / "corpus"
VALUES = {"parallelism.pp": [1, 2, 4], "parallelism.zero": [0, 1], "training.micro_batch": [1, 2]}


@pytest.mark.parametrize("rows", [1 << 15, 700])
def test_steps_side_by_side_are_told_to_the_byte_as_alone(
    scenarios, monkeypatch, rows: int
) -> None:
    """Steps of other ranks, rows and templates, two of them held up by their links, all at once or some at a time."""
    monkeypatch.setattr(engine_lanes, "_TOGETHER", rows)
    base = mpsim.load(scenarios / "quickstart.yaml")
    chosen = [
        base.with_values(dict(zip(VALUES, values, strict=True)))
        for values in itertools.product(*VALUES.values())
    ]
    held = sorted(CORPUS.glob("scenario-below-floor-*.yaml"))
    chosen[3:3] = [Scenario.from_mapping(yaml.safe_load(path.read_text())) for path in held]
    results = [each for each in Together().simulate(chosen) if isinstance(each, Result)]
    alone = [mpsim.simulate(scenario) for scenario in chosen]
    assert [each.to_json() for each in results] == [each.to_json() for each in alone]
    assert sum(each.timeline.makespan > each.timeline.last for each in results) == len(held) > 0
    together = {id(each.lane.together) for each in results if each.lane is not None}
    assert (len(together) == 1) == (rows > 700)
