"""Comparisons."""

from __future__ import annotations

import json
import math

import pytest

import mpsim
from mpsim.errors import ScenarioError
from mpsim.scenario import Scenario


def result(name: str, **parts: float) -> dict[str, object]:
    """A summary whose step is the sum of its parts."""
    step = math.fsum(parts.values())
    return {"scenario": name, "step_time_s": step, "breakdown_s": parts, "mfu": 1 / step}


A = result("a", forward=1.0, backward=2.0, bubble=0.5)
B = result("b", forward=1.0, backward=1.9, bubble=0.1, exposed_dp=0.2)


def test_the_parts_explain_the_step():
    """The differences of the parts sum to the difference of the step times."""
    comparison = mpsim.compare(A, B)
    step = next(one for one in comparison.figures if one.name == "step_time_s")
    assert math.fsum(part.difference for part in comparison.parts) == pytest.approx(step.difference)


def test_the_explanation_names_the_largest_part_in_the_direction_of_the_change():
    """b is 0.3 s faster: 0.4 s less bubble, not 0.2 s more exposed communication."""
    assert mpsim.compare(A, B).explanation == (
        "b is 300 ms (8.6 %) a step faster than a; most of it is bubble (-400 ms)"
    )


def test_a_figure_that_one_result_lacks_has_no_difference():
    """None is not zero."""
    price = next(one for one in mpsim.compare(A, B).figures if one.name == "cost_per_step")
    assert (price.a, price.difference, price.relative) == (None, None, None)


def test_a_result_equals_itself():
    """No difference, and the explanation says so."""
    comparison = mpsim.compare(A, A)
    assert {part.difference for part in comparison.parts} == {0.0}
    assert "both take" in comparison.explanation


def test_json_is_plain_data():
    """Everything that --json prints can be printed."""
    assert (
        json.loads(json.dumps(mpsim.compare(A, B).to_json()))["breakdown_s"]["bubble"]["a"] == 0.5
    )


@pytest.mark.parametrize("wrong", [{}, {"scenario": "x", "step_time_s": 1.0, "breakdown_s": 3}])
def test_what_is_no_result_is_refused(wrong):
    """A stray JSON file is a mistake, not a comparison with zero."""
    with pytest.raises(ScenarioError, match="breakdown_s"):
        mpsim.compare(A, wrong)


@pytest.fixture(scope="module")
def step(scenarios):
    """One step of the quickstart."""
    return mpsim.simulate(mpsim.load(scenarios / "quickstart.yaml"))


def test_a_comparison_says_what_differs(step):
    """Keys with both values, in the row of B."""
    other = mpsim.simulate(step.scenario.replace(tp=4))
    comparison = mpsim.compare(step, other)
    assert comparison.changes == {"parallelism.tp": (2, 4)}
    assert "quickstart, parallelism.tp 2 to 4" in comparison.sheet().text()


def test_one_word_and_a_mapping_of_it_are_alike(step):
    """`model: x` says what `model: {preset: x}` does; another model is one difference."""
    data = dict(step.scenario.source.data)
    spelled = {**data, "model": {"preset": "llama2-7b"}}
    word, mapping, other = (
        mpsim.simulate(Scenario.from_mapping({**each, "schedule": "1f1b"}))
        for each in ({**data, "model": "llama2-7b"}, spelled, {**data, "model": "qwen2.5-7b"})
    )
    assert mpsim.compare(word, mapping).changes == {}
    assert mpsim.compare(mapping, other).changes == {"model.preset": ("llama2-7b", "qwen2.5-7b")}
    link = word.scenario.replace({"cluster.nic.bandwidth": "200 Gb/s"})
    assert list(mpsim.compare(word, mpsim.simulate(link)).changes) == ["cluster.nic.bandwidth"]


def test_a_comparison_says_what_a_framework_settles(step):
    """FSDP without a `zero` shards: a key that neither file has differs too."""
    data = {**step.scenario.source.data, "parallelism": {"tp": 2, "pp": 4}}
    fsdp, ddp = (
        mpsim.simulate(Scenario.from_mapping({**data, "framework": stack}))
        for stack in ("torch-fsdp2", "torch-ddp")
    )
    assert mpsim.compare(fsdp, ddp).changes["parallelism.zero"] == (3, None)


def test_plans_stand_side_by_side(step):
    """Days and dollars of both trainings, with their intervals; stored results have no plan."""
    narrow = mpsim.simulate(step.scenario.replace({"training.precision": "fp8"}))
    comparison = mpsim.compare(step, narrow, tokens=1e12)
    ratio = narrow.summary["step_time_s"] / step.summary["step_time_s"]
    days = next(figure for figure in comparison.figures if figure.name == "days")
    assert days.relative == pytest.approx(ratio - 1, abs=1e-6)
    assert days.intervals is not None
    assert "MFU (A of the 16-bit peak, B of the fp8 peak)" in " ".join(
        row[0] for section in comparison.sheet().sections for row in section.rows
    )
    with pytest.raises(ScenarioError, match="tokens"):
        mpsim.compare(A, B, tokens=1e12)


def test_a_warning_of_both_results_is_told_once():
    """One of a single result names it."""
    a, b = ({**side, "warnings": ["hot", *more]} for side, more in ((A, []), (B, ["late"])))
    assert mpsim.compare(a, b).warnings == ("warning: hot", "warning (B): late")
