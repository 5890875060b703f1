"""Routing: in turn, to the least loaded, or to where most of the prompt is cached."""

from __future__ import annotations

from pathlib import Path

import pytest

import mpsim

TRACE = Path(__file__).resolve().parents[3] / "scenarios" / "serving" / "replay-trace.yaml"


def _summary(routing, **values):
    return mpsim.simulate(
        mpsim.load(TRACE).with_values({"serving.routing": routing, **values})
    ).summary


def test_turns_of_a_chat_find_the_engine_that_knows_it():
    """Prefix-aware routing finds more cached tokens than turns that go round, and answers sooner; both keep every request."""
    aware, blind = _summary("prefix-aware"), _summary("round-robin")
    assert aware["requests"] == blind["requests"]
    assert aware["prefix_hit_share"] > 1.1 * blind["prefix_hit_share"]
    assert aware["ttft_s"]["mean"] < blind["ttft_s"]["mean"]


def test_prefixes_are_not_followed_into_a_crowd():
    """Everything at once shares one prefix: were it followed always, one engine would have all; the loads stay within 32 requests."""
    crowd = {
        "serving.workload": {
            "arrival": "all-at-once",
            "trace": None,
            "warmup": None,
            "requests": 300,
            "prompt": 1200,
            "output": 50,
            "shared_prefix": 1024,
        }
    }
    base = mpsim.load(TRACE).with_values({**crowd, "serving.routing": "prefix-aware"})
    steps = mpsim.simulate(base).served.steps
    decoded = [
        float((steps["decodes"] * steps["count"])[steps["engine"] == n].sum()) for n in (0, 1)
    ]
    assert min(decoded) > 0.6 * max(decoded)


@pytest.mark.parametrize("routing", ["round-robin", "least-load", "prefix-aware"])
def test_every_request_is_served_whatever_the_routing(routing):
    summary = _summary(routing)
    assert summary["slo"]["met"]
    assert sum(summary["account_s"].values()) == pytest.approx(summary["duration_s"])
