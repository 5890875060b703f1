"""The worked example of docs/how-to/add-a-schedule.md, run as it is printed, and what schedules say of themselves."""

from __future__ import annotations

import inspect
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import mpsim
from mpsim.schedule import make_orders, schedule, schedule_names, schedules

_PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "add-a-schedule.md"
_ROOT = _PAGE.parents[2]


def _blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", _PAGE.read_text(encoding="utf-8"), re.DOTALL)


@pytest.fixture
def extended(tmp_path: Path) -> Path:
    """A folder with mpsim as it is, the printed file, the printed line, and nothing else changed."""
    file, line, _ = _blocks("python")
    package, source = tmp_path / "mpsim", Path(mpsim.__file__).parent
    package.mkdir()
    for part in source.iterdir():
        if part.name not in ("schedule", "__pycache__"):
            (package / part.name).symlink_to(part)
    shutil.copytree(source / "schedule", package / "schedule")
    (package / "schedule" / "slack_1f1b.py").write_text(file, encoding="utf-8")
    registry = package / "schedule" / "registry.py"
    table = registry.read_text(encoding="utf-8")
    last = '        "auto": '
    assert table.count(last) == 1
    registry.write_text(table.replace(last, f"        {line}{last}"), encoding="utf-8")
    (tmp_path / "scenarios").symlink_to(_ROOT / "scenarios")
    return tmp_path


def _python(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


_ENDS_OF_SLACK = """
same, plain = (
    make_orders(name, pp=4, microbatches=8, **options)
    for name, options in (("slack-1f1b", {"slack": 0}), ("1f1b", {}))
)
assert same.tokens() == plain.tokens()
try:
    make_orders("slack-1f1b", pp=4, microbatches=8, slack=-1)
except ValueError as error:
    print(error)
"""


_RULE = "=== the next command"
_COMMANDS = f"""
from mpsim.cli import main
for line in {{lines}}:
    print({_RULE!r})
    assert main(line) == 0
"""


def test_one_file_and_one_line_make_a_schedule_that_every_command_knows(extended: Path) -> None:
    """The printed commands run, the scenario's step is a little different from that of 1F1B, and the closed forms hold."""
    _, _, claims = _blocks("python")
    one, every, run = (shlex.split(line[2:]) for line in _blocks("console")[0].splitlines())
    assert one[0] == every[0] == run[0] == "mpsim"
    lines = (one[1:], every[1:], [*run[1:], "--json"])
    program = claims + _ENDS_OF_SLACK + _COMMANDS.format(lines=lines)
    ends, *told = _python(extended, "-c", program).split(_RULE)
    assert "slack-1f1b: got slack = -1" in ends
    assert ["slack-1f1b" in text for text in told[:2]] == [True, True]
    assert '"step_time_s"' in told[2]


@pytest.mark.parametrize("name", schedule_names())
def test_a_schedule_is_what_it_says_of_itself(name: str) -> None:
    """Name, chunks, directions, split backwards and whether it trains, read off its orders."""
    facts = schedule(name)
    assert facts.name == name
    default = inspect.signature(facts.build).parameters["virtual_stages"].default
    assert default == (facts.chunks or 1)
    pp, chunks = 2, facts.chunks or 2
    orders = make_orders(name, pp=pp, microbatches=4, virtual_stages=chunks)
    assert orders.virtual_stages == chunks
    assert int(orders.chain.max()) + 1 == facts.directions
    kinds = set(orders.kind.tolist())
    assert (1 not in kinds) == (facts.splits or facts.synthesises or not facts.trains)
    assert orders.forward_only != facts.trains
    assert bool(orders.fused.any()) <= facts.fuses


def test_interleaved_forms_have_chunks_to_choose() -> None:
    """What a schedule is called over several chunks is a schedule that needs to be told how many."""
    forms = {facts.name: facts.interleaved for facts in schedules() if facts.interleaved}
    assert forms == {"gpipe": "looped-bfs", "1f1b": "interleaved-1f1b", "zb-h1": "interleaved-zb"}
    for form in forms.values():
        assert schedule(form).interleaves
        assert schedule(form).chunks is None
