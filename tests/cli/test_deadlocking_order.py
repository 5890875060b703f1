"""An order that cannot run is bad input: exit 2, the place of its file, the actions that wait for each other."""

import pytest

SCENARIO = """\
schema: 1
model: gpt2-medium
cluster: {preset: dgx-a100-80gb, nodes: 1}
parallelism: {tp: 4, pp: 2}
schedule: {file: order.csv}
training: {global_batch: 2, sequence_length: 1024}
framework: megatron-2021
"""


@pytest.fixture
def scenario(tmp_path):
    """Stage 0 wants the gradient of microbatch 0 before it has sent microbatch 1, which stage 1 runs first."""
    (tmp_path / "order.csv").write_text("0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1\n", encoding="utf-8")
    file = tmp_path / "s.yaml"
    file.write_text(SCENARIO, encoding="utf-8")
    return file


@pytest.mark.parametrize("command", ["check", "run"])
def test_a_scenario_with_it_is_refused_at_its_line(mpsim_cli, scenario, command):
    """Found by check as well as by run."""
    outcome = mpsim_cli(command, scenario, "--json")
    assert (outcome.code, outcome.out) == (2, "")
    assert f"{scenario}:5:" in outcome.err
    assert "schedule.file" in outcome.err
    assert "backward stage 0 microbatch 0" in outcome.err
    assert "forward stage 1 microbatch 1" in outcome.err


def test_it_is_refused_alone(mpsim_cli, scenario):
    """mpsim schedule FILE says the same."""
    outcome = mpsim_cli("schedule", scenario.with_name("order.csv"), "--json")
    assert (outcome.code, outcome.out) == (2, "")
    assert "wait for each other" in outcome.err


def test_a_good_order_from_a_file_runs_like_its_schedule(mpsim_cli, scenario):
    """1F1B written out: the same step as 1F1B by name, where transfers do not block."""
    scenario.with_name("order.csv").write_text(
        "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n", encoding="utf-8"
    )
    free = ("--set", "framework.blocking_sends=never", "--json")
    own = mpsim_cli("run", scenario, "--set", "framework.preset=megatron-2021", *free).json()
    text = SCENARIO.replace("{file: order.csv}", "1f1b")
    scenario.write_text(text, encoding="utf-8")
    named = mpsim_cli("run", scenario, *free).json()
    assert own["step_time_s"] == named["step_time_s"]
