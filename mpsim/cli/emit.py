"""``--emit``: the scenario of a command as the configuration of another tool, with what the format cannot hold."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from mpsim.cli.paths import check_file
from mpsim.output import safe_name, write_whole

if TYPE_CHECKING:
    from mpsim.formats import Exported
    from mpsim.scenario import Scenario

__all__ = ["Emitted", "check_emit", "emitted", "losses", "write_emitted"]


@dataclasses.dataclass(frozen=True, slots=True)
class Emitted:
    """A configuration and the file it is for."""

    file: Path
    exported: Exported

    def to_json(self) -> dict[str, Any]:
        """Format, file, and every value that the file does not hold."""
        return {
            "format": self.exported.format,
            "file": str(self.file),
            "lost": losses(self.exported),
            "notes": list(self.exported.notes),
        }

    def write(self) -> None:
        """Write the file, and say on stderr what it does not hold."""
        from mpsim.cli.console import note, wrote

        is_replaced = self.file.exists()
        write_whole(self.file, self.exported.text)
        for loss in self.exported.lost:
            note(f"lost in {self.exported.format}: {loss}")
        wrote(self.file)
        if is_replaced:
            note(f"{self.file} was there already, and is replaced")


def losses(exported: Exported) -> list[dict[str, Any]]:
    """Every value that a file does not hold, as plain data."""
    return [{"key": loss.key, "value": loss.value, "why": loss.why} for loss in exported.lost]


def check_emit(words: Sequence[str], names: Sequence[str]) -> None:
    """Refuse an unknown format, one file for several scenarios, and a file that is there and was not named, before anything is simulated.

    Parameters
    ----------
    names : sequence of str
        Of the scenarios.
    """
    for word in words:
        form, file, ending = _parsed(word)
        if len(names) > 1 and file is not None:
            raise typer.BadParameter(
                f"one file holds one scenario, got {len(names)}; leave the file out",
                param_hint="--emit",
            )
        for usual in (_usual(name, form, ending) for name in names if file is None):
            if usual.exists():
                raise typer.BadParameter(
                    f"{usual} is there already; give {form}={usual} to replace it, or another file",
                    param_hint="--emit",
                )


def emitted(scenario: Scenario, words: Sequence[str] | None) -> list[Emitted]:
    """The scenario in each format that was asked for; nothing is written yet.

    Parameters
    ----------
    words : sequence of str, optional
        ``FORMAT`` or ``FORMAT=FILE`` each; left out, the file is named after the scenario and the format, in the current folder.
    """
    files: list[Emitted] = []
    for word in words or ():
        from mpsim.formats import export

        name, file, ending = _parsed(word)
        usual = _usual(scenario.name, name, ending)
        files.append(Emitted(check_file(file or usual) or usual, export(scenario, name)))
    return files


def write_emitted(files: Sequence[Emitted]) -> None:
    """Write every file."""
    for item in files:
        item.write()


def _usual(scenario: str, form: str, ending: str) -> Path:
    """The file of a configuration that names none."""
    return Path(f"{safe_name(scenario)}.{form}{ending}")


def _parsed(word: str) -> tuple[str, Path | None, str]:
    """Format, file and usual ending of ``FORMAT`` or ``FORMAT=FILE``."""
    from mpsim.formats import writer

    name, equals, file = word.partition("=")
    if equals and not file:
        raise typer.BadParameter(f"got {word!r}; needed FORMAT=FILE", param_hint="--emit")
    known = writer(name)
    return known.name, Path(file) if file else None, known.ending
