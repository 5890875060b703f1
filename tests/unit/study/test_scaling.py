"""Scaling: the same training on more accelerators."""

import json

import pytest

import mpsim
from mpsim.study.scaling import doublings, scale


@pytest.fixture(scope="module")
def scenario(scenarios):
    """Eight H100 and a model of 7B."""
    return mpsim.load(scenarios / "quickstart.yaml").with_values({})


@pytest.fixture(scope="module")
def scaled(scenario):
    """On one to eight nodes."""
    return scale(scenario, doublings(8, 64))


def test_strong_scaling_keeps_the_batch_and_weak_scaling_that_of_a_replica(scenario, scaled):
    """Tokens of a step stay, or grow with the accelerators."""
    tokens = {
        mode: [row.figure("tokens_per_s") * row.figure("step_time_s") for row in scaled.of(mode)]
        for mode in ("strong", "weak")
    }
    assert tokens["strong"] == pytest.approx([tokens["strong"][0]] * 4)
    assert tokens["weak"] == pytest.approx([tokens["weak"][0] * 2**n for n in range(4)])


def test_each_size_is_the_run_of_that_scenario(scenario, scaled):
    """Data parallelism takes the nodes that are added."""
    own = scenario.with_values({"cluster.nodes": 4, "parallelism.dp": None})
    row = next(row for row in scaled.of("strong") if row.accelerators == 32)
    assert row.summary == mpsim.simulate(own).summary


def test_efficiency_is_what_shares_leave(scaled):
    """No size is more efficient than the one before here, and shares sum to one."""
    for mode in ("strong", "weak"):
        rows = scaled.of(mode)
        efficiency = [scaled.efficiency(row) for row in rows]
        assert efficiency[0] == 1.0
        assert efficiency == sorted(efficiency, reverse=True)
        for row in rows:
            assert sum(row.shares.values()) == pytest.approx(1.0)


def test_a_size_that_cannot_run_says_why_and_keeps_the_others(scenario):
    """48 sequences are no whole microbatches for seven nodes' replicas."""
    found = scale(scenario.with_values({"training.global_batch": 64}), [8, 56], modes=("strong",))
    assert [row.summary is None for row in found.rows] == [False, True]
    assert "global_batch" in found.rows[1].reason


@pytest.mark.parametrize(("sizes", "modes"), [([9], ("weak",)), ([], ("weak",)), ([8], ("week",))])
def test_what_is_no_size_or_mode_is_refused(scenario, sizes, modes):
    """With what is needed."""
    with pytest.raises(mpsim.ScenarioError, match=r"multiples of the 8|weak"):
        scale(scenario, sizes, modes=modes)


def test_the_command_prints_draws_and_gives_json(mpsim_cli, scenarios, tmp_path):
    """A table a mode, a picture, one object."""
    picture = tmp_path / "scale.png"
    outcome = mpsim_cli(
        "scale", scenarios / "quickstart.yaml", "--gpus", "8..32", "--plot", picture
    )
    assert "strong scaling" in outcome.out
    assert "weak scaling" in outcome.out
    assert picture.stat().st_size > 10_000
    arguments = ("--gpus", "8,16", "--mode", "weak", "--json")
    rows = json.loads(mpsim_cli("scale", scenarios / "quickstart.yaml", *arguments).out)["rows"]
    assert [row["accelerators"] for row in rows] == [8, 16]
    assert mpsim_cli("scale", scenarios / "quickstart.yaml", "--gpus", "64..8").code == 2
