"""Fixtures shared by all tests."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings

# The same examples on every run: a red test is a change of the code, never of the dice.
settings.register_profile("fixed", derandomize=True, deadline=None)
settings.load_profile("fixed")
# On a busy machine a command may take so long that it says how far it is; tests of that turn it on.
os.environ["MPSIM_PROGRESS"] = "off"

MACHINE = "this machine: "
"""How the reason of a skip begins where the machine, not a missing package, is why."""

ROOT = Path(__file__).resolve().parent.parent


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """What a command did: exit code, stdout, stderr."""

    code: int
    out: str
    err: str

    def json(self) -> dict[str, object]:
        """The one JSON object on stdout."""
        (line,) = self.out.splitlines()
        return json.loads(line)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave to the night what is marked so; a test named by its id runs all the same."""
    if os.environ.get("MPSIM_NIGHTLY") == "1" or any("::" in argument for argument in config.args):
        return
    left = [item for item in items if item.get_closest_marker("nightly")]
    if left:
        config.hook.pytest_deselected(items=left)
        items[:] = [item for item in items if not item.get_closest_marker("nightly")]


@pytest.fixture
def mpsim_cli(capsys: pytest.CaptureFixture[str]) -> Callable[..., Outcome]:
    """Run a command in this process, as ``mpsim_cli("run", "x.yaml")``."""
    from mpsim.cli import main

    def run(*arguments: object) -> Outcome:
        capsys.readouterr()
        code = main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return Outcome(code, captured.out, captured.err)

    return run


@pytest.fixture(scope="session")
def scenarios() -> Path:
    """The folder of the scenarios that ship."""
    return ROOT / "scenarios"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]):
    """Where torch is required, a test of torch that skips has failed, unless the machine is too small or too noisy for it."""
    report = yield
    required = os.environ.get("MPSIM_REQUIRE_TORCH") == "1" and item.get_closest_marker("torch")
    excused = call.excinfo is not None and str(call.excinfo.value).startswith(MACHINE)
    if required and report.skipped and not excused and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"MPSIM_REQUIRE_TORCH=1 and {item.nodeid} was skipped: {call.excinfo}"
    return report
