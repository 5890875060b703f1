"""Refresh the tables of docs/reference/cli.md from the commands: ``python scripts/cli_reference.py``.

Each stands between ``<!-- NAME -->`` and ``<!-- end -->``; the words around them are written by hand. A test holds the tables to the commands.
"""

from __future__ import annotations

import enum
import inspect
import re
import typing
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

from typer.models import ArgumentInfo, OptionInfo

from mpsim.cli import app
from mpsim.cli.options import unfold

COMMANDS = [app.command_of(name) for name in app.COMMANDS]
PAGE = Path(__file__).resolve().parent.parent / "docs" / "reference" / "cli.md"


def render(text: str) -> str:
    """`text` with every table as the commands are now."""
    shared = _shared()
    tables = {"commands": "\n".join(_commands()), "shared": "\n".join(shared)}
    tables |= {_name(command): "\n".join(_options(command, shared)) for command in COMMANDS}
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
            many = typing.get_origin(kind) is list
            word = f"{info.metavar}{'...' if many else ''}"
            words.append(word if default is inspect.Parameter.empty else f"[{word}]")
    return " ".join(words)


def _options(command: Callable[..., None], shared: Collection[str]) -> Iterator[str]:
    """Arguments and options of one command; those that others have too are named only."""
    examples = {name: line for group in app.GROUPS.values() for name, line in group.items()}
    yield f"    mpsim {_usage(command)} [OPTIONS]\n"
    yield f"Example: `{examples[_name(command)]}`\n"
    lines = list(_lines(command))
    yield from (line for line in lines if line not in shared)
    if named := [line.split("`")[1].split()[0] for line in lines if line in shared]:
        yield f"- shared: {', '.join(f'`{name}`' for name in named)}"


def _shared() -> list[str]:
    """Lines that more than one command has in the same words, in the order in which they come."""
    counts = Counter(line for command in COMMANDS for line in _lines(command))
    return [line for line, count in counts.items() if count > 1 and line.startswith("- `--")]


def _lines(command: Callable[..., None]) -> Iterator[str]:
    """A line for each argument and option."""
    for kind, info, default in _parameters(command):
        names = [str(one) for one in (info.default, *(info.param_decls or ())) if _is_name(one)]
        spelled = ", ".join(f"`{_valued(one, kind, info)}`" for one in names) or f"`{info.metavar}`"
        yield f"- {spelled}: {_help(info, default)}"


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
        return f"{name} {'|'.join(str(one.value) for one in inner)}"
    return f"{name} {info.metavar}"


def _default(default: object) -> str:
    """What holds where an option is left out."""
    if default in (inspect.Parameter.empty, None, False, ""):
        return ""
    return f"default {'on' if default is True else default.value if isinstance(default, enum.Enum) else default}"


def _help(info: ArgumentInfo | OptionInfo, default: object) -> str:
    limits = [
        words
        for bound, words in ((info.min, f"{info.min} or more"), (info.max, f"at most {info.max}"))
        if bound is not None
    ]
    if not info.help:
        raise SystemExit(f"{info.default} has no help")
    if default is inspect.Parameter.empty and isinstance(info, OptionInfo):
        limits.append("required")
    limits += filter(None, [_default(default)])
    return f"{info.help.rstrip('.')} ({', '.join(limits)})." if limits else info.help


if __name__ == "__main__":
    PAGE.write_text(render(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
