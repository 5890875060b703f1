"""A file that cannot be included: one error, since nobody knows what it says."""

from __future__ import annotations

import pytest

from mpsim.errors import ScenarioError
from mpsim.scenario import load


@pytest.mark.parametrize("include", ["../base.yaml", "nowhere.yaml"])
def test_one_refused_include_is_one_error(include, tmp_path):
    """Sections that the other file may have are not missing; what this one writes wrongly is told beside it."""
    inside = tmp_path / "inside"
    inside.mkdir()
    (tmp_path / "base.yaml").write_text("model: gpt3-175b\n", encoding="utf-8")
    file = inside / "own.yaml"
    file.write_text(f"schema: 1\ninclude: {include}\nparallelism: {{tp: 2}}\n", encoding="utf-8")
    with pytest.raises(ScenarioError) as raised:
        load(file)
    assert [problem.key for problem in raised.value.problems] == ["include"]
    file.write_text(f"schema: 1\ninclude: {include}\nparallelism: {{tp: no}}\n", encoding="utf-8")
    with pytest.raises(ScenarioError) as raised:
        load(file)
    assert {problem.key for problem in raised.value.problems} == {"include", "parallelism.tp"}
