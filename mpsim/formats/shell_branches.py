"""Branches of a bash script: which part of an ``if`` or a ``case`` runs, as far as the tests are of words that the script itself decides.

A test of anything else (a file, a command, a variable of the environment) is unknown, and so is what hangs on it.

References
----------
GNU Bash manual, 3.2.5 and 6.4: conditional constructs and expressions.
"""

from __future__ import annotations

import dataclasses
import fnmatch
from collections.abc import Callable, Mapping, Sequence
from typing import Final

__all__ = ["Branch", "truth"]

Words = Sequence[str | None]
"""Words of a test; None where one is not known."""

_NUMBERS: Final[Mapping[str, Callable[[int, int], bool]]] = {
    "-eq": lambda left, right: left == right,
    "-ne": lambda left, right: left != right,
    "-lt": lambda left, right: left < right,
    "-le": lambda left, right: left <= right,
    "-gt": lambda left, right: left > right,
    "-ge": lambda left, right: left >= right,
}
_OPEN: Final = {"[": "]", "[[": "]]", "test": ""}


@dataclasses.dataclass(slots=True)
class Branch:
    """One ``if``, ``case``, loop, group or function that is under way.

    Parameters
    ----------
    line : int
        Where it begins; 0 for a group, which always runs.
    kind : str
        ``if``, ``case``, ``loop``, ``group`` or ``function``.
    runs : bool or None
        Whether its present part runs; None where that is not known.
    done : bool or None
        Whether a part before ran.
    subject : str or None
        Of a case: the word that patterns are compared with.
    is_pattern : bool
        Of a case: whether patterns come next.
    """

    line: int
    kind: str
    runs: bool | None = None
    done: bool | None = False
    subject: str | None = None
    is_pattern: bool = False
    patterns: list[str | None] = dataclasses.field(default_factory=list)

    def take(self, condition: bool | None) -> None:
        """Begin a part that runs where the condition holds and no part before ran."""
        if self.done is True or condition is False:
            self.runs = False
        elif self.done is None or condition is None:
            self.runs = self.done = None
        else:
            self.runs = self.done = True

    def turn(self) -> None:
        """Come to the next condition, which is looked at where no part before ran."""
        self.runs = False if self.done else None if self.done is None else True

    def match(self) -> None:
        """Begin the part of a case behind its patterns."""
        known = self.subject is not None and None not in self.patterns
        fits = any(fnmatch.fnmatchcase(self.subject or "", text or "") for text in self.patterns)
        self.take(True if fits else False if known else None)
        self.is_pattern, self.patterns = False, []


def truth(words: Words) -> bool | None:
    """Whether a command succeeds; None where that is not known.

    Parameters
    ----------
    words : sequence of str or None
        Its words, ``&&`` and ``||`` inside double brackets too.

    Examples
    --------
    >>> truth(["[", "8", "-gt", "4", "]"]), truth(["[[", "7B", "==", "13*", "]]"]), truth(["[", "-f", "x", "]"])
    (True, False, None)
    """
    if not words:
        return True
    first = words[0]
    if first in ("true", ":", "false"):
        return first != "false"
    if first not in _OPEN:
        return None
    close = _OPEN[first]
    inner = list(words[1:])
    if close:
        if not inner or inner[-1] != close:
            return None
        inner.pop()
    return _either(inner, globs=first == "[[")


def _either(words: Words, *, globs: bool) -> bool | None:
    """Tests joined by ``||``, each of tests joined by ``&&``."""
    results = [_both(part, globs=globs) for part in _split(words, "||")]
    return True if True in results else None if None in results else False


def _both(words: Words, *, globs: bool) -> bool | None:
    results = [_test(part, globs=globs) for part in _split(words, "&&")]
    return False if False in results else None if None in results else True


def _split(words: Words, operator: str) -> list[list[str | None]]:
    parts: list[list[str | None]] = [[]]
    for word in words:
        if word == operator:
            parts.append([])
        else:
            parts[-1].append(word)
    return parts


def _test(words: Words, *, globs: bool) -> bool | None:
    if words and words[0] == "!":
        inner = _test(words[1:], globs=globs)
        return None if inner is None else not inner
    if None in words:
        return None
    known = [word or "" for word in words]
    if not known:
        return False
    if len(known) == 1:
        return bool(known[0])
    if len(known) == 2 and known[0] in ("-z", "-n"):
        return (known[0] == "-n") == bool(known[1])
    if len(known) != 3:
        return None
    left, operator, right = known
    if operator in _NUMBERS:
        whole = all(
            text.strip().lstrip("+-").isdigit() and len(text) < 20 for text in (left, right)
        )
        return _NUMBERS[operator](int(left), int(right)) if whole else None
    if operator in ("=", "==", "!="):
        same = fnmatch.fnmatchcase(left, right) if globs else left == right
        return same == (operator != "!=")
    return None
