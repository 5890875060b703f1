"""Options that several commands share, checks of their paths, and how a scenario is loaded."""

from __future__ import annotations

import copy
import enum
import functools
import inspect
import math
import os
import re
import types
import typing
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option
from typer.models import ArgumentInfo

from mpsim import structs
from mpsim.errors import Problem, ScenarioError, UnitError
from mpsim.limits import set_unlimited
from mpsim.units import Dimension, parse_count, parse_quantity

if TYPE_CHECKING:
    from mpsim.scenario import Scenario

_DEEPEST = 3  # parts of a key that is proposed


def keys(incomplete: str) -> list[str]:
    """Dotted keys of a scenario, as ``--set``, ``--over`` and ``--vs`` take them."""
    from mpsim.scenario import Scenario
    from mpsim.scenario.schema import known_keys

    known = [key for key in known_keys(Scenario) if key.count(".") < _DEEPEST]
    sections = {key.rpartition(".")[0] for key in known}
    return [f"{key}=" for key in known if key.startswith(incomplete) and key not in sections]


def check_picture(path: Path | None) -> Path | None:
    """`path` if a picture can be written there."""
    if path is None:
        return None
    from mpsim.plot import FORMATS

    return _check_named(path, FORMATS)


def check_page(path: Path | None) -> Path | None:
    """`path` if a page can be written there."""
    return _check_named(path, (".html", ".htm"))


def check_trace(path: Path | None) -> Path | None:
    """`path` if a trace can be written there."""
    return _check_named(path, (".json", ".json.gz"))


def check_file(path: Path | None) -> Path | None:
    """`path` if a file can be written there, in a folder that is there; else BadParameter."""
    if path is None:
        return None
    try:
        there, folder = path.exists(), path.parent.is_dir()
    except (OSError, ValueError) as error:  # too long, or with a null character
        raise typer.BadParameter(f"got {_short(path)}: {_reason(error)}") from None
    if path.is_dir():
        raise typer.BadParameter(f"got {_short(path)}, which is a folder; give a file in it")
    if not folder:
        raise typer.BadParameter(
            f"got {_short(path)}, but there is no folder {_short(path.parent)}; make it first, or "
            "give a file in another"
        )
    if not os.access(path if there else path.parent, os.W_OK):
        blocked = path if there else path.parent
        raise typer.BadParameter(f"got {_short(path)}, but {_short(blocked)} is not writable")
    return path


def check_file_and_folder(path: Path | None) -> Path | None:
    """`path` if a file can be written there, in a folder that is there or can be made."""
    if path is not None:
        check_folder(path.parent)
    return check_file(path) if path is not None and path.parent.is_dir() else path


def check_folder(path: Path | None) -> Path | None:
    """`path` if it is, or can become, a folder for files; typer.BadParameter says why it is not."""
    if path is None:
        return None
    try:
        nearest = next(folder for folder in (path, *path.absolute().parents) if folder.exists())
    except (OSError, ValueError) as error:
        raise typer.BadParameter(f"got {_short(path)}: {_reason(error)}") from None
    if not nearest.is_dir():
        raise typer.BadParameter(
            f"got {_short(path)}, but {_short(nearest)} is a file; give a folder, which is made if"
            " need be"
        )
    if not os.access(nearest, os.W_OK):
        raise typer.BadParameter(f"got {_short(path)}, but {_short(nearest)} is not writable")
    return path


def _check_named(path: Path | None, suffixes: Sequence[str]) -> Path | None:
    """`path` if a file of such a name can be written there."""
    if path is not None and not path.name.lower().endswith(tuple(suffixes)):
        wanted = ", ".join(suffixes[:-1]) + f" or {suffixes[-1]}"
        raise typer.BadParameter(f"got {_short(path)}; needed a name that ends in {wanted}")
    return check_file(path)


def _short(path: Path) -> str:
    """`path` in quotes, the end of it if nobody would read all."""
    text = str(path)
    return repr(text if len(text) <= 200 else f"...{text[-100:]}")


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


Engine = enum.StrEnum("Engine", ["AUTO", "SIMPY", "REPLAY"])
"""Which engine runs the program."""
WORDS: Mapping[object, str] = {int: "N", float: "NUMBER", str: "TEXT", Path: "FILE"}
"""Words for what an option takes, by its type."""


def finite(value: float | None) -> float | None:
    """`value` if it is a finite number of at least 0; what a bound lets pass is not always one."""
    if value is not None and not (math.isfinite(value) and value >= 0):
        raise typer.BadParameter(f"got {value:g}; needed a finite number of 0 or more")
    return value


def share(value: float | None) -> float | None:
    """`value` if it is a number from 0 to 1."""
    if value is not None and not 0 <= value <= 1:
        raise typer.BadParameter(f"got {value:g}; needed a number from 0 to 1")
    return value


def quantity(dimension: str) -> Callable[[str], float]:
    """Reader of an option with a unit; `dimension` is a name of `mpsim.units.Dimension`."""

    def read(text: str) -> float:
        try:
            return parse_quantity(text, Dimension[dimension])
        except UnitError as error:
            raise typer.BadParameter(str(error)) from None

    return read


AsJson = Annotated[bool, Option("--json", help="Print JSON on stdout, SI units.")]
Plot = Annotated[
    Path | None,
    Option("--plot", help="Draw the answer (.png, .svg, .pdf).", callback=check_picture),
]
Plots = Annotated[
    Path | None,
    Option(
        "--plots", metavar="DIR", help="Draw every picture into DIR as PNG.", callback=check_folder
    ),
]
Csv = Annotated[Path | None, Option("--csv", help="Write the table as CSV.", callback=check_file)]
_TRACE = "Write a trace for Perfetto (.json or .json.gz)."
Trace = Annotated[Path | None, Option("--trace", help=_TRACE, callback=check_trace)]
_SNAPSHOT = "Write the allocations of the fullest rank as a pickle that torch's memory_viz opens."
MemorySnapshot = Annotated[
    Path | None, Option("--memory-snapshot", help=_SNAPSHOT, callback=check_file)
]
_EMIT = (
    "Also write the scenario as another tool's configuration (see 'mpsim show formats');"
    " repeatable."
)
Emit = Annotated[list[str] | None, Option("--emit", metavar="FORMAT[=FILE]", help=_EMIT)]
_RESUME = "Keep finished rows in this file, and start from those it holds."
Resume = Annotated[Path | None, Option("--resume", help=_RESUME, callback=check_file)]


def count(text: str) -> float:
    """Read a count such as 300B, 15.6T or 1e12."""
    try:
        return parse_count(text)
    except UnitError as error:
        raise typer.BadParameter(str(error)) from None


def pairs(texts: Sequence[str] | None, *, option: str, needed: str) -> dict[str, str]:
    """Key and value of each ``KEY=VALUE``; a value may be empty.

    Examples
    --------
    >>> pairs(["gpu = H100"], option="--only", needed="COLUMN=VALUE")
    {'gpu': 'H100'}
    """
    values = {}
    for text in texts or ():
        key, equals, value = (part.strip() for part in text.partition("="))
        if not equals or not key:
            raise wrong(f"got {text!r}; needed {needed}", option)
        if key in values:
            raise wrong(f"got {key} twice; needed each key once", option)
        values[key] = value
    return values


def wrong(why: str, of: str) -> typer.BadParameter:
    """The refusal of an option or an argument."""
    return typer.BadParameter(why, param_hint=of)


def refuse(given: Mapping[str, object], why: str) -> None:
    """Refuse options, by name, that were given a value."""
    for name, value in given.items():
        if value is not None and value is not False and value != []:  # 0 is a value
            raise wrong(why, name)


def values_over(
    scenario: Scenario, over: Sequence[str] | None, *, option: str = "--over"
) -> dict[str, list[object]]:
    """Values of each ``KEY=A,B,C``, as YAML reads them. ScenarioError names all that fit none."""
    from mpsim.document import parse_scalar
    from mpsim.scenario import wrong_values

    needed = "KEY=A,B,C such as parallelism.tp=1,2,4"
    values: dict[str, list[object]] = {}
    for key, choices in pairs(over, option=option, needed=needed).items():
        if not choices:
            raise wrong(f"got {key + '='!r}; needed {needed}", option)
        listed = [choice.strip() for choice in choices.split(",")]
        if len(set(listed)) < len(listed):
            raise wrong(f"got a value of {key} twice", option)
        values[key] = [parse_scalar(choice) for choice in listed]
    problems = [
        structs.replace(problem, key="", file=option)
        for problem in wrong_values(scenario, values, indexed=False)
    ]
    if problems:
        raise ScenarioError(problems)
    return values


@structs.dataclass(frozen=True, slots=True, kw_only=True)
class Computing:
    """Where the points of a study are computed, and what keeps them.

    --jobs -j: Processes; left out: one per core.
    --cluster ADDRESS: Run on the workers of this dask scheduler, tcp://host:8786.
    """

    jobs: Annotated[int | None, Option(min=1)] = None
    resume: Resume = None
    cluster: str | None = None

    def arguments(self, points: float = math.inf) -> dict[str, Any]:
        """Arguments of a study; no processes for `points` that are done before one starts."""
        if self.cluster is not None and self.jobs is not None:
            raise wrong("the workers of --cluster compute; leave it out", "--jobs")
        usual = min(os.cpu_count() or 1, max(1, points // 4))
        return {
            "jobs": int(usual) if self.jobs is None else self.jobs,
            "resume": self.resume,
            "cluster": self.cluster,
        }


@structs.dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoints:
    """How checkpoints are written, how often a job fails, and when it goes on.

    --interval TIME: Time between checkpoints, e.g. '30 min'; left out: Daly's optimum, within 15 to
        60 minutes.
    --storage RATE: Bandwidth for all checkpoints, e.g. '200 GB/s'.
    --background/--blocking: Write checkpoints while training goes on, or stop training for them.
    --restart TIME: Time from an interruption to the first step, e.g. '30 min'; left out: 10
        minutes.
    --failures: Multiplier on the published rates of failures, of components and of software; 0 for
        none.
    """

    interval: Annotated[float | None, Option(parser=quantity("TIME"))] = None
    storage: Annotated[float | None, Option(parser=quantity("BANDWIDTH"))] = None
    background: bool = True
    restart: Annotated[float | None, Option(parser=quantity("TIME"))] = None
    failures: Annotated[float, Option(callback=finite)] = 1.0

    def refuse_idle(self, **more: object) -> None:
        """Refuse what counts after a failure alone where nothing fails."""
        if self.failures == 0:
            given = {f"--{name}": value for name, value in more.items()}
            refuse({"--restart": self.restart, **given}, "--failures is 0; leave one of them out")


@structs.dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """How a command reads scenario files: what the command line changes, and their limits.

    --set KEY=VALUE: Change one dotted key, e.g. parallelism.tp=4; repeatable.
    --override NAME: Apply a named block of `overrides:`; repeatable.
    --allow-include: Let a scenario include files outside its folder.
    --yes: Run even if the estimate of memory or time is over the limit.
    """

    sets: Annotated[list[str] | None, Option("--set", autocompletion=keys)] = None
    overrides: Annotated[list[str] | None, Option("--override")] = None
    allow_include: bool = False
    yes: bool = False

    def load(self, file: Path, *changes: str, checked: bool = True) -> Scenario:
        """The scenario of `file` with what the command line changes, then `changes`."""
        from mpsim.scenario import load

        set_unlimited(self.yes)
        return load(
            file,
            overrides=self.overrides or [],
            set=[*(self.sets or ()), *changes],
            checked=checked,
            allow_include=self.allow_include,
        )

    def refuse_varied(self, values: Iterable[str]) -> None:
        """Refuse a setting of a key that takes several values, which would count for none."""
        varied = set(values)
        for setting in self.sets or ():
            if (key := setting.partition("=")[0].strip()) in varied:
                raise wrong(
                    f"got {key}, which takes several values; leave one of them out", "--set"
                )

    def load_all(self, files: Sequence[Path], *changes: str) -> list[Scenario]:
        """Several scenarios; the mistakes of all of them are reported together."""
        scenarios: list[Scenario] = []
        problems: list[Problem] = []
        for file in files:
            try:
                scenarios.append(self.load(file, *changes))
            except ScenarioError as error:
                problems.extend(error.problems)
        if problems:
            raise ScenarioError(problems)
        return scenarios


_ENTRY = re.compile(r"\n(?=--|[A-Z]+(?:\.{3})?: )")


def taken(owner: Callable[..., object]) -> dict[str, inspect.Parameter]:
    """Parameters of a command or a group of options, as typer reads them.

    A line ``--size BYTES: Size of a checkpoint.`` of its docstring names an option and is its help,
    a line ``FILE: Scenario file.`` an argument; what a type says (`WORDS`) need not stand there.
    """
    told = {}
    for entry in _ENTRY.split(inspect.getdoc(owner) or "")[1:]:
        head, _, text = " ".join(entry.split()).partition(": ")
        told[re.split(r"[ /]", head)[0]] = head, text
    hints = typing.get_type_hints(owner, include_extras=True)
    return {
        name: parameter.replace(
            kind=inspect.Parameter.KEYWORD_ONLY, annotation=_told(parameter, hints[name], told)
        )
        for name, parameter in inspect.signature(owner).parameters.items()
    }


def _told(parameter: inspect.Parameter, hint: Any, told: Mapping[str, tuple[str, str]]) -> object:
    """An annotation with the names, the help and a word for what it takes: N, not "<int range>"."""
    if hasattr(hint, "__dataclass_fields__"):
        return hint
    kind, info = typing.get_args(hint) if typing.get_origin(hint) is Annotated else (hint, None)
    info = copy.copy(info) or (Argument() if parameter.name.upper() in told else Option())
    if isinstance(info, ArgumentInfo):
        info.help = info.help or told[info.metavar or parameter.name.upper()][1]
    else:
        own = f"--{parameter.name.rstrip('_').replace('_', '-')}"
        info.param_decls = [own if info.default is ... else info.default]
        info.default = ...
        if info.help is None:
            head, info.help = told[info.param_decls[0]]
            info.param_decls = [word for word in head.split() if word.startswith("-")]
            info.metavar = head.removeprefix(" ".join(info.param_decls)).strip() or None
    inner = next(part for part in (*typing.get_args(kind), kind) if part is not types.NoneType)
    if info.metavar is None:
        info.metavar = WORDS.get(inner)
    return Annotated[kind, info]


def given(group: object) -> dict[str, str]:
    """Options of a group that were given: what each is called, by its field."""
    return {
        field: option.annotation.__metadata__[0].param_decls[0]
        for field, option in taken(type(group)).items()
        if getattr(group, field) not in (option.default, [])
    }


def refuse_of(group: object, fields: Container[str], why: str) -> None:
    """Refuse options of a group that were given, of these fields."""
    for field, name in given(group).items():
        if field in fields:
            raise wrong(why, name)


def unfold(command: Callable[..., None]) -> Callable[..., None]:
    """`command` as typer reads it: a dataclass becomes an option for each of its fields."""
    own = taken(command)
    groups = {
        name: (each.annotation, taken(each.annotation))
        for name, each in own.items()
        if hasattr(each.annotation, "__dataclass_fields__")
    }
    options: list[inspect.Parameter] = []
    for name, parameter in own.items():
        options += groups[name][1].values() if name in groups else [parameter]

    @functools.wraps(command)
    def unfolded(**values: object) -> None:
        for name, (group, fields) in groups.items():
            values[name] = group(**{field: values.pop(field) for field in fields})
        command(**values)

    unfolded.__doc__ = _ENTRY.split(inspect.getdoc(command) or "")[0]
    unfolded.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]
    unfolded.__annotations__ = {option.name: option.annotation for option in options}
    return unfolded
