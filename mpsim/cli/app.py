"""The typer application: which commands there are, and what becomes of their errors.

Only the command that is asked for is imported; help is about all of them.
"""

from __future__ import annotations

import contextlib
import contextvars
import errno
import functools
import importlib
import keyword
import os
import re
import signal
import sys
import threading
import traceback
import typing
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ParamSpec

import typer
from typer.core import TyperCommand, TyperGroup

from mpsim.cli.console import BAD_INPUT, FAILED, INTERRUPTED, note, print_text, working
from mpsim.cli.options import unfold
from mpsim.errors import CalibrationError, DeadlockError, MissingExtraError, MpsimError
from mpsim.version import __version__

P = ParamSpec("P")
_DEBUG: contextvars.ContextVar[bool] = contextvars.ContextVar("debug", default=False)
_INTERRUPTED = threading.Event()
FAILURES = (DeadlockError, CalibrationError, MissingExtraError)
_CLICK = (base for base in typer.BadParameter.__mro__ if base.__name__ == "ClickException")
UsageError: type[Exception] = next(base for base in _CLICK if issubclass(base, Exception))
"""The exception that typer raises for a wrong command line, of its own click or the package."""
OUT_OF_ORDER = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)
"""Errors of a device where nothing is wrong with the path."""
GROUPS: Mapping[str, Mapping[str, str]] = {
    "Start": {
        "new": "mpsim new my-run.yaml --template llama3-70b-h100",
        "check": "mpsim check my-run.yaml --set parallelism.tp=4",
        "run": "mpsim run my-run.yaml --long --plots pictures",
    },
    "Ask": {
        "compare": "mpsim compare my-run.yaml --vs parallelism.tp=4",
        "sweep": "mpsim sweep my-run.yaml --over parallelism.tp=1,2,4 --csv table.csv",
        "scale": "mpsim scale my-run.yaml --gpus 16..1024",
        "goodput": "mpsim goodput my-run.yaml --days 30 --storage '100 GB/s'",
        "schedule": "mpsim schedule 1f1b --pp 4 --microbatches 8",
        "report": "mpsim report my-run.yaml --output page.html",
        "explore": "mpsim explore my-run.yaml --open",
    },
    "Decide": {
        "search": "mpsim search my-run.yaml --budget 60s --csv layouts.csv",
        "plan": "mpsim plan my-run.yaml --tokens 2T --deadline '60 d'",
        "design": "mpsim design my-design.yaml --csv clusters.csv --plot front.png",
    },
    "Your data": {
        "measure": "mpsim measure --budget 5m --out measured.jsonl",
        "calibrate": "mpsim calibrate measured.jsonl --on h100-sxm --out machine.yaml",
        "explain": "mpsim explain my-run.yaml rank0.json.gz rank1.json.gz --plot steps.png",
        "watch": "mpsim watch train.log --scenario my-run.yaml --steps 100000 --follow",
        "validate": "mpsim validate my-runs.csv --scenario my-run.yaml",
        "import": "mpsim import megatron train.sh --cluster dgx-h100 --output my-run.yaml",
        "export": "mpsim export megatron my-run.yaml --output train.sh",
    },
    "Look up": {"show": "mpsim show model llama3-70b"},
}
"""Commands by what a user wants, each with an example of its help.

Each command is a function in the module of its name, with ``_`` behind a word of Python's.
"""
COMMANDS = tuple(name for group in GROUPS.values() for name in group)
INSTEAD: Mapping[str, str] = {
    "serve": (
        "a service is simulated by 'mpsim run' of a scenario with `serving:`; 'mpsim new FILE"
        " --template serving' writes one"
    ),
    "train": (
        "a training step is simulated by 'mpsim run' of a scenario; 'mpsim new FILE' writes one"
    ),
}
"""What to do instead of commands that people try and that there are not."""
LASTING = ("explore",)  # commands that last until somebody ends them


_DEBUGS = "Show the traceback of an error."
_VERSION = "Print the version; with --verbose also what it is made of."
_VERBOSE = "With --version: print digest, dependencies and dates of the data."


def _options(
    context: typer.Context,
    debug: Annotated[bool, typer.Option("--debug", envvar="MPSIM_DEBUG", help=_DEBUGS)] = False,
    version: Annotated[bool, typer.Option("--version", help=_VERSION)] = False,
    verbose: Annotated[bool, typer.Option("--verbose", help=_VERBOSE)] = False,
) -> None:
    _DEBUG.set(debug)
    if version and verbose:
        print_text(importlib.import_module("mpsim.cli.about").about())
    elif version:
        print_text(f"mpsim {__version__}")
    elif verbose:
        raise typer.BadParameter("goes with --version", context, param_hint="--verbose")
    elif context.invoked_subcommand is None:
        context.fail("Missing command.")
    if version:
        raise typer.Exit


def guarded(command: Callable[P, None]) -> Callable[P, None]:
    """`command` with every error as plain lines on stderr and an exit code."""

    @functools.wraps(command)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            name = command.__name__.rstrip("_")
            with contextlib.nullcontext() if name in LASTING else working(f"mpsim {name}"):
                command(*args, **kwargs)
        except (KeyboardInterrupt, BrokenPipeError, MpsimError, Exception) as error:
            if isinstance(error, (typer.Exit, UsageError)):
                raise
            raise typer.Exit(_report(error)) from error

    return wrapper


def _report_usage(error: Any) -> int:
    """Print what is wrong with the command line, unfolded, and where help is."""
    if type(error).__name__ == "NoArgsIsHelpError":
        error.show()
        return BAD_INPUT
    command = error.ctx.command_path if getattr(error, "ctx", None) else "mpsim"
    message = error.format_message()
    tried = re.match(r"No such command '(\w+)'", message)
    if tried and tried[1] in INSTEAD:
        message = f"no command {tried[1]!r}: {INSTEAD[tried[1]]}"
    note(f"{command}: {message}\nsee '{command} --help'")
    return BAD_INPUT


def _report(error: BaseException) -> int:
    """Print `error` and say which exit code it means."""
    if _DEBUG.get():
        traceback.print_exception(error)
    # a library may turn an interrupt into an error of its own, as pydantic does
    turned = _INTERRUPTED.is_set() and not isinstance(error, (MpsimError, OSError))
    if turned or isinstance(error, (KeyboardInterrupt, typer.Abort)):
        note("mpsim: interrupted")
        return INTERRUPTED
    if isinstance(error, BrokenPipeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    if isinstance(error, MpsimError):
        note(str(error))
        return FAILED if isinstance(error, FAILURES) else BAD_INPUT
    if isinstance(error, OSError):
        note(f"mpsim: {error.filename or 'a file'}: {error.strerror or error}")
        return FAILED if error.errno in OUT_OF_ORDER else BAD_INPUT
    note(
        f"mpsim: internal error, a bug of mpsim: {type(error).__name__}: {error}\n"
        "'mpsim --debug COMMAND ...' shows where; please report it with the scenario"
    )
    return FAILED


class _Given:
    """Takes what is not given, text and paths without the adapters of pydantic that typer builds
    of every parameter: a fifth of a start (measured).
    """

    def coerce(self, value: Any, *, param: Any, ctx: Any) -> Any:
        """The value of a parameter."""
        kind = param.type_descriptor.annotation
        if value is None:
            return () if param.multiple or param.nargs == -1 else None
        if kind in (str, Path) and "\0" not in str(value):  # which is no path
            return kind(value)
        if kind in (list[str], list[Path]):
            return [*map(typing.get_args(kind)[0], value)]
        param._runtime_param = None
        return param.get_runtime_param().coerce(value, param=param, ctx=ctx)


class _Typeless:
    """Part of a command whose help names no type beside a flag or an argument."""

    def get_params(self, ctx: Any) -> list[Any]:
        parameters: list[Any] = super().get_params(ctx)  # type: ignore[misc] # of a command
        for parameter in parameters:
            parameter._runtime_param = _Given()
            if getattr(parameter, "is_flag", False):
                parameter.metavar = ""  # else "<bool>", which nobody types
            elif parameter.param_type_name == "argument":
                parameter.display_type_rich = lambda ctx: None  # its name says it
        return parameters


class _Group(_Typeless, TyperGroup):
    """All commands."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except BaseException as error:
            if isinstance(error, typer.Exit) or not _INTERRUPTED.is_set():
                raise
            raise typer.Abort from error  # of options; typer itself would leave without a word


class _Command(_Typeless, TyperCommand):
    """One command."""


def application(*names: str) -> typer.Typer:
    """The application with these commands; with all of them by default."""
    app = typer.Typer(
        name="mpsim",
        cls=_Group,
        help=(
            "Simulate how a transformer trains, or serves requests, on a model-parallel cluster:"
            " how fast, where every GPU-second goes, what fits, what it costs."
        ),
        epilog=(
            "Results go to stdout, progress to stderr. Exit codes: 0 done, 1 failed, 2 usage or bad"
            " input."
        ),
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
        callback=_options,
        invoke_without_command=True,
    )
    for group, examples in GROUPS.items():
        for name, example in examples.items():
            if name in (names or COMMANDS):
                command = guarded(unfold(command_of(name)))
                epilog = f"Example: {example}"
                app.command(name, cls=_Command, rich_help_panel=group, epilog=epilog)(command)
    return app


def command_of(name: str) -> Callable[..., None]:
    """The function behind a command."""
    word = f"{name}_" if keyword.iskeyword(name) else name
    command: Callable[..., None] = getattr(importlib.import_module(f"mpsim.cli.{word}"), word)
    return command


def _asked_for(arguments: Sequence[str]) -> tuple[str, ...]:
    """The command that a command line names; nothing where it names none."""
    word = next((argument for argument in arguments if not argument.startswith("-")), "")
    return (word,) if word in COMMANDS else ()


def _interrupt(number: int, frame: object) -> None:
    """End with what there is, and without a traceback."""
    _INTERRUPTED.set()
    raise KeyboardInterrupt


def execute(arguments: Sequence[str] | None = None) -> int:
    """Run the application on `arguments` and return the exit code; the process stays."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    if threading.current_thread() is threading.main_thread():
        _INTERRUPTED.clear()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, _interrupt)
    try:
        app = application(*_asked_for(given))
        # what a command line says (--debug, --yes) ends with it, also where the process goes on
        context = contextvars.copy_context()
        code = context.run(app, args=given, prog_name="mpsim", standalone_mode=False)
    except UsageError as error:
        return _report_usage(error)
    except (KeyboardInterrupt, OSError, typer.Abort) as error:
        return _report(error)
    except ValueError as error:  # of a path with a null byte, where click is a package of its own
        note(f"mpsim: {error}")
        return BAD_INPUT
    finally:
        # CPython takes an interrupt within an exec of text (dataclasses are made by one) for
        # unhandled until the next exec, and dies of it at exit
        exec("")  # noqa: S102 (nothing)
    return code if isinstance(code, int) else 0
