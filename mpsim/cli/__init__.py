"""The command line: one module a command, results on stdout, everything else on stderr.

Exit codes: 0 done, 1 failed, 2 usage or bad input, 130 interrupted.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Sequence
from typing import Final, NoReturn

__all__ = ["main"]

_COLLECT_AFTER: Final = (
    200_000  # new objects: what a command makes while it starts is there to stay
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. `arguments`: without the program's name; left out:
    those of the process.

    Examples
    --------
    >>> main(["frobnicate"])
    2
    """
    if arguments is None:
        _settle()
    if sys.flags.optimize > 1:
        os.write(2, b"mpsim: help of options is in docstrings, which -OO leaves out; give -O\n")
        return 2
    from mpsim.cli.app import execute

    try:
        return execute(arguments)
    finally:
        if arguments is None:
            _end_at_once()
            gc.freeze()  # the process ends: nothing is worth collecting


def _leave(number: int, frame: object) -> NoReturn:
    """End where nothing can be lost."""
    os.write(2, b"mpsim: interrupted\n")
    os._exit(130)


def _end_at_once() -> None:
    """Let an interrupt end this process without a traceback before anything began, or after all."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _leave)


def _settle() -> None:
    """Make this process start quickly (a tenth less time, measured) and end at an interrupt."""
    _end_at_once()
    gc.set_threshold(_COLLECT_AFTER)
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")  # tracers and the like
