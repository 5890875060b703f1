"""``mpsim export`` and ``--emit``: a scenario in another tool's words, and what these lack."""

from __future__ import annotations

import collections
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mpsim import structs
from mpsim.cli.console import note, print_text, wrote
from mpsim.cli.options import check_file, check_folder, wrong
from mpsim.errors import ScenarioError
from mpsim.output import safe_name
from mpsim.shipped import say

if TYPE_CHECKING:
    from mpsim.formats import Exported, Writer
    from mpsim.scenario import Scenario


@structs.dataclass(frozen=True, slots=True)
class Target:
    """A format to write, and the file or the folder it is for; stdout where there is none."""

    writer: Writer
    path: Path | None

    def of(self, scenario: Scenario) -> Emitted:
        """The scenario in this format; nothing is written yet."""
        return Emitted(self.path, self.writer.write(scenario))


@structs.dataclass(frozen=True, slots=True)
class Emitted:
    """A scenario in another tool's words, and the file or folder it is for; None is stdout."""

    path: Path | None
    exported: Exported

    def to_json(self) -> dict[str, object]:
        """Format, file, every value that the file holds, and every one that it does not."""
        exported = self.exported
        data: dict[str, object] = {"format": exported.format, "tool": exported.tool}
        if self.path is None:
            data["text"] = exported.text
        elif exported.files:
            files = [str(self.path / name) for name in exported.files]
            data |= {"files": files, "nodes": exported.nodes}
        else:
            data["file"] = str(self.path)
        return data | {
            "held": [{"from": item.source, "to": item.to} for item in exported.held],
            "lost": [structs.asdict(item) for item in exported.lost],
            "notes": list(exported.notes),
        }

    def write(self, *, as_json: bool) -> None:
        """Write the file, and say on stderr what it does not hold, where no JSON says so."""
        is_replaced = self.path is not None and self.path.is_file()
        if self.path is not None:
            self.exported.save(self.path)
        elif not as_json:
            print_text(self.exported.text)
        if not as_json:
            for loss in self.exported.lost:
                note(f"lost in {self.exported.format}: {loss}")
            for text in self.exported.notes:
                note(f"note: {text}")
        if self.path is not None:
            wrote(self.path)
        if is_replaced:
            note(f"{self.path} was there already, and is replaced")


def target(form: str, path: Path | None) -> Target:
    """The format of a name, and a path that it can be written to. typer.BadParameter if nothing can
    be written there, or a folder of files has no path; FormatError if there is no such format.
    """
    from mpsim.formats import writer

    known = writer(form)
    if not known.ending and path is None:
        raise wrong(say("cli.rank_files", name=known.name), "--output")
    return Target(known, check_file(path) if known.ending else check_folder(path))


def targets(words: Sequence[str] | None, scenarios: Sequence[Scenario]) -> list[list[Target]]:
    """Targets of every scenario, refused before anything is simulated where nothing could be
    written.

    `words`: ``FORMAT`` or ``FORMAT=FILE`` each; left out, the file is named after the scenario and
    the format, in the current folder.
    """
    found = [[_parsed(word, scenario, scenarios) for word in words or ()] for scenario in scenarios]
    paths = collections.Counter(item.path for listed in found for item in listed)
    if twice := [path for path, times in paths.items() if times > 1]:
        raise wrong(f"{twice[0]} would be written twice", "--emit")
    return found


def _parsed(word: str, scenario: Scenario, scenarios: Sequence[Scenario]) -> Target:
    """The target of a word for one of the scenarios."""
    from mpsim.formats import writer
    from mpsim.formats.outgoing import check_trains

    name, equals, file = word.partition("=")
    known = writer(name)
    if equals and not file:
        raise wrong(f"got {word!r}; needed FORMAT=FILE", "--emit")
    if file and len(scenarios) > 1:
        raise wrong(say("cli.one_scenario", count=len(scenarios)), "--emit")
    if not known.serves:
        check_trains(scenario)
    usual = Path(f"{safe_name(scenario.name)}.{known.name}{known.ending}")
    if not file and usual.exists():
        raise wrong(
            f"{usual} is there already; give {known.name}={usual} to replace it, or another file",
            "--emit",
        )
    return target(known.name, Path(file) if file else usual)


def refuse_unwritable(listed: Sequence[Target], scenario: Scenario) -> None:
    """Refuse a model that a format has no words for before a search that may take hours."""
    for item in listed:
        if item.writer.ending:  # a folder of traces takes as long as a simulation
            try:
                item.of(scenario)
            except ScenarioError:
                continue
