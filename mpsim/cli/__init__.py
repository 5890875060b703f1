"""The command line: one module a command, results on stdout, everything else on stderr.

Exit codes: 0 done, 1 failed, 2 usage or bad input, 130 interrupted.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code.

    Parameters
    ----------
    arguments : sequence of str, optional
        Without the program's name; left out: those of the process.

    Examples
    --------
    >>> main(["frobnicate"])
    2
    """
    from mpsim.cli.app import execute

    return execute(arguments)
