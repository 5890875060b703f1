"""What a command does not import, and how a process of its own is set up."""

from __future__ import annotations

import functools
import gc
import json
import subprocess
import sys

import pytest

from mpsim.cli.app import COMMANDS

HEAVY = ["pydantic", "matplotlib", "torch", "numba", "pandas", "dask", "distributed", "networkx"]
NOT_ASKED_FOR = [
    "simpy",
    "mpsim.plot",
    "mpsim.study",
    "mpsim.measured",
    "mpsim.measure",
    "mpsim.calibrate",
    "mpsim.validate",
    "mpsim.formats",
    "mpsim.scenario.serving",
    "mpsim.scenario.design",
    "mpsim.scenario.translate",
    "mpsim.schedule.search",
    "mpsim.schedule.zb_v",
    "mpsim.engine.simpy_engine",
    "mpsim.engine.fluid",
]

MODULES = 144
"""Of mpsim, that a run of the quickstart imports."""


@functools.cache
def modules_of(*arguments):
    """Exit code and modules of a fresh process that ran a command."""
    script = (
        "import json, sys\nfrom mpsim.cli import main\ncode = main(sys.argv[1:])\n"
        "print(json.dumps([code, sorted(sys.modules)]))"
    )
    command = [sys.executable, "-c", script, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    code, modules = json.loads(done.stdout.splitlines()[-1])
    return code, set(modules)


@pytest.mark.parametrize("command", ["run", "check"])
def test_a_command_imports_what_it_needs(scenarios, command):
    """The quickstart in a fresh process: no plotting, no frameworks, no data frames; neither simpy nor sections or schedules that it does not name."""
    code, modules = modules_of(command, scenarios / "quickstart.yaml")
    assert code == 0
    assert {"numpy", "mpsim.scenario", "mpsim.hardware.lookup"} <= modules
    assert not set(HEAVY) & modules
    assert not set(NOT_ASKED_FOR) & modules


def test_a_run_imports_few_modules(scenarios):
    """Each takes a millisecond of every start: who adds one takes another away."""
    _, modules = modules_of("run", scenarios / "quickstart.yaml")
    assert sum(name.partition(".")[0] == "mpsim" for name in modules) <= MODULES


def test_one_command_is_imported_for_itself(scenarios):
    """Neither the modules of other commands nor what draws tables on a terminal."""
    _, modules = modules_of("run", scenarios / "quickstart.yaml")
    commands = {one for one in modules if one.removeprefix("mpsim.cli.") in COMMANDS}
    assert commands == {"mpsim.cli.run"}
    assert "rich.table" not in modules


def test_a_searched_schedule_brings_its_module(scenarios):
    """The list above would notice: what is named is imported."""
    code, modules = modules_of("schedule", "zb-2p", "--pp", "2", "--microbatches", "2")
    assert code == 0
    assert "mpsim.schedule.search" in modules
    assert "mpsim.schedule.zb_v" not in modules


def test_a_process_of_its_own_leaves_a_caller_alone(mpsim_cli, scenarios):
    """Only the command line tunes the collector; `main` with arguments, which a program calls, does not."""
    before = gc.get_threshold(), gc.get_freeze_count()
    assert mpsim_cli("--version").code == 0
    assert (gc.get_threshold(), gc.get_freeze_count()) == before
