"""Includes: inside the folder of the scenario unless somebody allows more, and nothing of a foreign file in a message."""

from __future__ import annotations

import os

import pytest

from mpsim.errors import ScenarioError
from mpsim.scenario import load

GOOD = """\
schema: 1
model: gpt3-175b
cluster: {preset: dgx-a100-80gb, nodes: 16}
parallelism: {tp: 8, pp: 16}
training: {global_batch: 128, sequence_length: 2048}
"""
SECRET = "root:x:0:0:the-secret:/root:/bin/bash\n"


def _scenario(tmp_path, include):
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "scenario.yaml").write_text(f"include: {include}\n")
    (tmp_path / "base.yaml").write_text(GOOD)
    (tmp_path / "secret").write_text(SECRET)
    return folder / "scenario.yaml"


@pytest.mark.parametrize(
    "include", ["../base.yaml", "../secret", "/etc/passwd", "inner/../../base.yaml", "../../x/../base.yaml"]
)  # fmt: skip
def test_an_include_outside_the_folder_is_not_opened(tmp_path, include):
    """Whatever it is, and whether it is there or not, the answer is the same."""
    path = _scenario(tmp_path, include)
    with pytest.raises(ScenarioError) as caught:
        load(path)
    (problem,) = [problem for problem in caught.value.problems if problem.key == "include"]
    assert "outside the folder of the scenario" in problem.message
    assert "--allow-include" in problem.message
    assert "secret:" not in str(caught.value)


def test_a_link_out_of_the_folder_is_no_way_out(tmp_path):
    """Links are followed before the folder is looked at."""
    path = _scenario(tmp_path, "link.yaml")
    (path.parent / "link.yaml").symlink_to(tmp_path / "base.yaml")
    with pytest.raises(ScenarioError, match="outside the folder"):
        load(path)


def test_folders_below_may_include_what_is_above_them_inside(tmp_path):
    """The folder of the scenario that was asked for counts, not that of each file."""
    path = _scenario(tmp_path, "below/middle.yaml")
    (path.parent / "below").mkdir()
    (path.parent / "below" / "middle.yaml").write_text("include: ../base.yaml\n")
    (path.parent / "base.yaml").write_text(GOOD)
    assert load(path).degrees["tp"] == 8


def test_who_allows_it_gets_the_include(tmp_path, mpsim_cli):
    """As an argument in Python, as an option on the command line."""
    path = _scenario(tmp_path, "../base.yaml")
    assert load(path, allow_include=True).degrees["pp"] == 16
    refused, allowed = mpsim_cli("check", path), mpsim_cli("check", path, "--allow-include")
    assert (refused.code, allowed.code) == (2, 0)


def test_a_file_that_is_no_scenario_is_not_shown(tmp_path, mpsim_cli):
    """An allowed include of a foreign file says that it is none, and none of its words."""
    path = _scenario(tmp_path, "../secret")
    done = mpsim_cli("check", path, "--allow-include")
    assert done.code == 2
    assert "secret:" not in done.err
    assert "plain text at the top" in done.err


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this machine: has no named pipes")
def test_an_include_of_a_pipe_is_not_waited_for(tmp_path):
    """It is refused as what it is."""
    path = _scenario(tmp_path, "pipe")
    os.mkfifo(path.parent / "pipe")
    with pytest.raises(ScenarioError, match="is a pipe"):
        load(path)
