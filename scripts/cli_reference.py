"""Refresh the tables of docs/reference/cli.md from the commands: ``python scripts/cli_reference.py``.

Each stands between ``<!-- NAME -->`` and ``<!-- end -->``; the words around them are written by hand. A test holds the tables to the commands.
"""

from __future__ import annotations

import enum
import inspect
import re
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from typer.models import ArgumentInfo, OptionInfo

from mpsim.cli import app
from mpsim.cli.options import unfold

COMMANDS = [app.command_of(name) for name in app.COMMANDS]
PAGE = Path(__file__).resolve().parent.parent / "docs" / "reference" / "cli.md"
_OR = "\\|"  # a bare one would end the cell of a table
WORDS = {int: "N", float: "NUMBER", str: "TEXT", Path: "FILE"}


def render(text: str) -> str:
    """`text` with every table as the commands are now."""
    tables = {"commands": "\n".join(_commands())}
    tables |= {_name(command): "\n".join(_options(command)) for command in COMMANDS}
    for name, table in tables.items():
        marked = re.compile(rf"(<!-- {name} -->\n).*?(<!-- end -->)", re.DOTALL)
        pieces = marked.split(text)
        if len(pieces) != 4:
            raise SystemExit(f"{PAGE.name} needs one table marked {name}")
        text = f"{pieces[0]}{pieces[1]}{table}\n{pieces[2]}{pieces[3]}"
    return text


def _commands() -> Iterator[str]:
    """A table of the commands by group, each with what its docstring claims."""
    yield "| to | command | does |\n| --- | --- | --- |"
    for group, names in app.GROUPS.items():
        for command in map(app.command_of, names):
            claim = (inspect.getdoc(command) or "").splitlines()[0]
            yield f"| {group.lower()} | [`{_usage(command)}`](#{_name(command)}) | {claim} |"


def _name(command: Callable[..., None]) -> str:
    """What a user types; a word that Python keeps for itself has an underscore behind it there."""
    return command.__name__.rstrip("_")


def _usage(command: Callable[..., None]) -> str:
    words = [_name(command)]
    for kind, info, default in _parameters(command):
        if isinstance(info, ArgumentInfo):
            word = f"{info.metavar}{'...' if typing.get_origin(kind) is list else ''}"
            words.append(word if default is inspect.Parameter.empty else f"[{word}]")
    return " ".join(words)


def _options(command: Callable[..., None]) -> Iterator[str]:
    """A table of arguments and options of one command."""
    examples = {name: line for group in app.GROUPS.values() for name, line in group.items()}
    yield f"    mpsim {_usage(command)} [OPTIONS]\n"
    yield f"Example: `{examples[_name(command)]}`\n"
    yield "| argument or option | when left out | does |\n| --- | --- | --- |"
    for kind, info, default in _parameters(command):
        names = [str(one) for one in (info.default, *(info.param_decls or ())) if _is_name(one)]
        spelled = ", ".join(f"`{_valued(one, kind, info)}`" for one in names) or f"`{info.metavar}`"
        yield f"| {spelled} | {_default(default)} | {_help(info)} |"


def _parameters(
    command: Callable[..., None],
) -> Iterator[tuple[Any, ArgumentInfo | OptionInfo, object]]:
    """Type, description and default of each parameter."""
    for parameter in inspect.signature(unfold(command)).parameters.values():
        kind, info = typing.get_args(parameter.annotation)
        inner = [one for one in typing.get_args(kind) if one is not type(None)]
        optional = type(None) in typing.get_args(kind)
        yield inner[0] if optional else kind, info, parameter.default


def _is_name(word: object) -> bool:
    return isinstance(word, str) and word.startswith("-")


def _valued(name: str, kind: Any, info: ArgumentInfo | OptionInfo) -> str:
    """An option as it is written, with what it takes."""
    if kind is bool:
        return name
    inner = typing.get_args(kind)[0] if typing.get_origin(kind) is list else kind
    if isinstance(inner, type) and issubclass(inner, enum.Enum):
        return f"{name} {_OR.join(str(one.value) for one in inner)}"
    return f"{name} {info.metavar or WORDS[inner]}"


def _default(default: object) -> str:
    if default is inspect.Parameter.empty:
        return "**required**"
    if default is None or default is False or default == "":
        return ""
    if default is True:
        return "on"
    return f"`{default.value if isinstance(default, enum.Enum) else default}`"


def _help(info: ArgumentInfo | OptionInfo) -> str:
    limits = [
        words
        for bound, words in ((info.min, f"{info.min} or more"), (info.max, f"at most {info.max}"))
        if bound is not None
    ]
    if not info.help:
        raise SystemExit(f"{info.default} has no help")
    text = info.help.replace("|", _OR)
    return f"{text.rstrip('.')} ({', '.join(limits)})." if limits else text


if __name__ == "__main__":
    PAGE.write_text(render(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
