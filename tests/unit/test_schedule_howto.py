"""The worked example of docs/how-to/add-a-schedule.md, run as it is printed, and what it says of scenarios."""

from __future__ import annotations

import inspect
import re
import sys
import types
from pathlib import Path
from types import MappingProxyType

import pytest

from mpsim.errors import ScheduleError
from mpsim.scenario.sections import FIXED_VIRTUAL_STAGES, SCHEDULES
from mpsim.schedule import make_orders, registry, schedule_names

_PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "add-a-schedule.md"


def _blocks() -> list[str]:
    return re.findall(r"```python\n(.*?)```", _PAGE.read_text(encoding="utf-8"), re.DOTALL)


def test_the_printed_file_and_line_make_a_schedule(monkeypatch: pytest.MonkeyPatch) -> None:
    """The module's text is run, its line added to the registry, and its closed forms hold."""
    file, line, claims = _blocks()
    module = types.ModuleType("mpsim.schedule.slack_1f1b")
    exec(file, module.__dict__)  # noqa: S102
    monkeypatch.setitem(sys.modules, module.__name__, module)
    table = {**registry._SCHEDULES, **eval("{" + line + "}", {})}  # noqa: S307
    monkeypatch.setattr(registry, "_SCHEDULES", MappingProxyType(table))
    assert "slack-1f1b" in schedule_names()
    exec(claims, {})  # noqa: S102
    same = make_orders("slack-1f1b", pp=4, microbatches=8, slack=0)
    assert same.tokens() == make_orders("1f1b", pp=4, microbatches=8).tokens()
    with pytest.raises(ScheduleError, match="slack-1f1b: got slack = -1"):
        make_orders("slack-1f1b", pp=4, microbatches=8, slack=-1)


def test_scenarios_know_every_schedule_and_its_chunks() -> None:
    """The schema's list of names is the registry, and schedules of two chunks by default are the schema's."""
    assert set(SCHEDULES) == set(schedule_names())
    default = {
        name: inspect.signature(registry._builder(name)).parameters["virtual_stages"].default
        for name in schedule_names()
    }
    fixed = {name: chunks for name, chunks in default.items() if chunks != 1}
    assert dict(FIXED_VIRTUAL_STAGES) == fixed
