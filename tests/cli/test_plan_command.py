"""``mpsim plan``."""

from __future__ import annotations

import json

import pytest


def test_json_has_the_figures_of_the_contract(mpsim_cli, scenarios):
    """Steps, days, hours, dollars, energy, carbon, goodput and their interval."""
    outcome = mpsim_cli("plan", scenarios / "quickstart.yaml", "--tokens", "3B", "--json")
    figures = json.loads(outcome.out)
    names = ("days", "gpu_hours", "usd", "mwh", "tco2")
    assert figures["steps"] > 0
    assert 0 < figures["goodput"] < 1
    for name in names:
        low, high = figures["interval"][name]
        assert low <= figures[name] <= high


def test_text_says_what_was_assumed(mpsim_cli, scenarios):
    """Days, price with its offer and its dates and without nodes that stand by, PUE and grid."""
    out = mpsim_cli(
        "plan", scenarios / "quickstart.yaml", "--tokens", "300B", "--region", "fra"
    ).out
    for word in (
        "days",
        "GPU-hours",
        "goodput",
        "USD an accelerator-hour",
        "on-demand",
        "nodes that stand by are in no price",
        "1% more",
        "PUE",
        "fra",
    ):
        assert word in " ".join(out.split())


def test_every_value_is_planned_and_drawn(mpsim_cli, scenarios, tmp_path):
    """A line a combination, and a picture of days against dollars."""
    picture = tmp_path / "plans.png"
    arguments = (
        "--tokens",
        "3B",
        "--over",
        "cluster.nodes=1,2,3",
        "--deadline",
        "60 d",
        "--plot",
        picture,
    )
    outcome = mpsim_cli("plan", scenarios / "quickstart.yaml", *arguments)
    assert outcome.out.count("nodes ") >= 3
    assert picture.stat().st_size > 10_000


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--tokens", "many"), "15.6T"),
        (("--tokens", "-3B"), "above 0"),
        (("--tokens", "3B", "--offer", "free"), "on-demand"),
        (("--tokens", "3B", "--pue", "low"), "pue"),
        (("--tokens", "3B", "--prices", "missing.yaml"), "missing.yaml"),
        (("--tokens", "3B", "--pue", "1e308", "--json"), "1 to 1e+09"),
        (("--tokens", "3B", "--restart", "1e300 s", "--json"), "never ends"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(mpsim_cli, scenarios, arguments, text):
    """Nothing is printed on stdout."""
    outcome = mpsim_cli("plan", scenarios / "quickstart.yaml", *arguments)
    assert outcome.code == 2
    assert text in outcome.err
    assert not outcome.out
