"""Pools of two kinds of chips: each is priced by its own accelerators, the other is as it was."""

from __future__ import annotations

import pytest

import mpsim
from mpsim.errors import ScenarioError
from mpsim.scenario import Scenario


def summary_of(prefill=None, decode=None):
    base = {"tp": 4, "replicas": 2}
    return mpsim.simulate(
        Scenario.from_mapping(
            {
                "schema": 1,
                "model": "llama3-8b",
                "cluster": {"preset": "dgx-h100", "nodes": 2, "price_per_hour": "2 USD/h"},
                "serving": {
                    "disaggregated": {
                        "prefill": {**base, **(prefill or {})},
                        "decode": {**base, **(decode or {})},
                    },
                    "workload": {"rate": 6, "requests": 60, "prompt": 1500, "output": 80},
                },
            }
        )
    ).summary


def test_a_faster_decoder_shortens_tokens_and_not_prompts():
    """H200s read their memory faster: TPOT falls, TTFT stays, memory and price are theirs."""
    same = summary_of()
    mixed = summary_of(decode={"accelerator": "h200-sxm", "price_per_hour": "3 USD/h"})
    assert mixed["tpot_s"]["mean"] < same["tpot_s"]["mean"]
    assert mixed["ttft_s"]["mean"] == pytest.approx(same["ttft_s"]["mean"], rel=1e-3)
    memories = [mixed["pools"][name]["memory"]["capacity"] for name in ("prefill", "decode")]
    assert memories[1] > 1.5 * memories[0]
    hours = [
        each["measured_s"] / each["output_tokens_per_s"] / each["measured_s"]
        for each in (same, mixed)
    ]
    prices = [
        each["cost_per_million_output_tokens"] / hour
        for each, hour in zip((same, mixed), hours, strict=True)
    ]
    assert prices[1] / prices[0] == pytest.approx((8 * 2 + 8 * 3) / (16 * 2), rel=1e-9)


def test_naming_the_chip_that_is_there_changes_nothing():
    """The same accelerator by name is the same service."""
    own = {"accelerator": "h100-sxm", "price_per_hour": "2 USD/h"}
    named, same = summary_of(prefill=own, decode=own), summary_of()
    for key in ("ttft_s", "tpot_s", "cost_per_million_output_tokens"):
        assert named[key] == same[key]


def test_two_kinds_on_one_node_are_refused():
    """Chips of a node are alike; an unknown one names the nearest; a format it has not is refused."""
    with pytest.raises(ScenarioError, match="needed whole nodes: a multiple of 8"):
        summary_of(prefill={"replicas": 1}, decode={"accelerator": "h200-sxm"})
    with pytest.raises(ScenarioError, match="unknown accelerator 'h202'"):
        summary_of(decode={"accelerator": "h202"})
    with pytest.raises(ScenarioError, match="a100-sxm-80 has no fp8"):
        summary_of(decode={"accelerator": "a100-sxm-80", "weights": "fp8"})
