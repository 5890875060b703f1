"""Copies of scenarios with other sections, as searches make them."""

from __future__ import annotations

from mpsim import Scenario


def test_a_copy_with_another_section_has_problems_of_its_own():
    """Three ranks do not divide 32 heads, whatever was found of the same scenario with one."""
    cluster = {"preset": "dgx-h100", "nodes": 1}
    scenario = Scenario.from_mapping(
        {"schema": 1, "model": "llama3-8b", "cluster": cluster, "serving": {"engine": "vllm-v1"}}
    )
    assert scenario.problems == []
    parallelism = scenario.parallelism.model_copy(update={"tp": 3})
    copied = scenario.model_copy(update={"parallelism": parallelism})
    assert "parallelism.tp" in [problem.key for problem in copied.problems]
