"""Comparisons."""

from __future__ import annotations

import json
import math

import pytest

import mpsim
from mpsim.errors import ScenarioError


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
