"""The one exception tree of mpsim.

Every class is an `MpsimError` and the exception of Python that fits it: DeadlockError and
TooLargeError are RuntimeErrors, MissingExtraError is an ImportError, all others are ValueErrors.

A message says where, what was got, what is needed, and the change that mends it.
"""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Iterable

from mpsim import structs

LONGEST_KEY = 120  # characters of a key that are printed: nobody reads more
MOST_PROBLEMS = 50  # mistakes of a file that are printed, one a line
LONGEST_LINE = 1000  # characters of a line that are printed
LONGEST_WORD = re.compile(r"(?<=\S{140})\S{10,}(?=\S{50})")  # the middle of somebody's value
LONGEST_LIST = 24  # names that `nearest` prints when none is close


@structs.dataclass(frozen=True, slots=True)
class Problem:
    """One mistake in what a person wrote."""

    message: str  # what was got, what is needed, and the mend, in one sentence or two
    # dotted key of the offending value (``parallelism.tp``); empty for the whole file
    key: str = ""
    file: str = ""  # where it was read; empty when it did not come from a file
    # line, column: position in the file, counted from 1; 0 when unknown
    line: int = 0
    column: int = 0

    def __str__(self) -> str:
        place = self.file
        if self.line:
            place += f":{self.line}:{self.column}" if self.column else f":{self.line}"
        key = self.key if len(self.key) <= LONGEST_KEY else f"{self.key[:LONGEST_KEY]}..."
        head = " ".join(part for part in (place, key) if part)
        return f"{head}: {self.message}" if head else self.message


class MpsimError(Exception):
    """Root of everything mpsim raises on purpose; lines are as long as a person reads."""

    def __str__(self) -> str:
        lines = LONGEST_WORD.sub("...", super().__str__()).split("\n")
        return "\n".join(
            line if len(line) <= LONGEST_LINE else f"{line[:LONGEST_LINE]}..." for line in lines
        )


class UnitError(MpsimError, ValueError):
    """A quantity whose unit is missing, unknown, or of another dimension."""


class ScenarioError(MpsimError, ValueError):
    """A scenario that cannot be simulated; ``problems`` holds every mistake found, at least one."""

    def __init__(self, problems: Iterable[Problem] | str) -> None:
        given = [Problem(problems)] if isinstance(problems, str) else list(problems)
        self.problems: tuple[Problem, ...] = tuple(given)
        lines = [str(problem) for problem in self.problems[:MOST_PROBLEMS]]
        if len(self.problems) > MOST_PROBLEMS:
            lines.append(f"and {len(self.problems) - MOST_PROBLEMS:,} more mistakes")
        super().__init__("\n".join(lines))


class HardwareError(MpsimError, ValueError):
    """Hardware that does not exist or lacks what was asked of it."""


class WorkloadError(MpsimError, ValueError):
    """A model that does not exist or contradicts itself."""


class ScheduleError(MpsimError, ValueError):
    """An order of actions that no pipeline can execute as given."""


class DeadlockError(MpsimError, RuntimeError):
    """Operations that wait for each other, so the program can never finish."""


class CalibrationError(MpsimError, ValueError):
    """Measured data that cannot be used."""


class FormatError(MpsimError, ValueError):
    """A file of another tool that cannot be read as a scenario, points or a timeline."""


class TooLargeError(MpsimError, RuntimeError):
    """A question that costs more than the limits, and was not marked as meant (`mpsim.unlimited`).

    `memory_bytes`, `seconds`: estimated cost [B], [s]. `points`: simulations of a study, else 0.
    """

    def __init__(
        self, message: str, *, memory_bytes: float = 0.0, seconds: float = 0.0, points: int = 0
    ) -> None:
        super().__init__(message)
        self.memory_bytes = memory_bytes
        self.seconds = seconds
        self.points = points


class MissingExtraError(MpsimError, ImportError):
    """An optional dependency, the import `package`, that the `extra` of mpsim would bring."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(f"{package} is not installed; run: pip install 'mpsim[{extra}]'")
        self.package = package
        self.extra = extra


# what others call a thing, where no spelling of ours is near
_OTHERS = dict.fromkeys(("int4", "awq", "gptq"), "w4a16")


def nearest(name: str, known: Iterable[str], *, count: int = 3) -> str:
    """Say which known names are close to `name`. `name`: what was written. `known`: what would have
    been accepted. `count`: how many suggestions at most.

    Returns: ``"did you mean 'a' or 'b'?"``, or the sorted names when none is close (the first of
    many).

    Examples
    --------
    >>> nearest("h100-sxn", ["h100-sxm", "tpu-v4"])
    "did you mean 'h100-sxm'?"
    """
    names = sorted(set(known))
    if (meant := _OTHERS.get(name.lower())) in names:
        return f"did you mean {meant!r}?"
    cutoff = 0.5 if len(name) < 4 else 0.6  # one slip in two letters is half of them
    plain = name.rpartition("/")[2]
    begun = [each for each in names if each.startswith(f"{plain.lower()}-")]  # V100, A800
    alike = functools.partial(
        difflib.get_close_matches, possibilities=names, n=count, cutoff=cutoff
    )
    if close := begun[:count] or alike(plain) or alike(plain.lower()):
        return f"did you mean {' or '.join(repr(match) for match in close)}?"
    tail = f" and {more} more" if (more := len(names) - LONGEST_LIST) > 0 else ""
    return f"known: {', '.join(names[:LONGEST_LIST])}{tail}"
