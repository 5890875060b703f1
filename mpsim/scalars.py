"""Meaning of a plain scalar of YAML: the core schema of YAML 1.2, strictly."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, TypeAlias

Scalar: TypeAlias = str | int | float | bool | None

MAX_DIGITS: Final = 400  # of one number; a double has 309 before its point
_INTEGER = re.compile(r"[-+]?[0-9]+(?:_[0-9]+)*")
_BASED = re.compile(r"0(?:x[0-9a-fA-F]+|o[0-7]+)")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:_[0-9]+)*(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_NUMERIC = frozenset("0123456789.+-")  # what a number can begin with
_NOT_FINITE = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")
_WORDS: Mapping[str, bool | None] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}


def resolve(text: str) -> Scalar:
    """The value of a plain scalar: null, a truth, a number, or else the text itself.

    Examples
    --------
    >>> resolve("1e9"), resolve("on"), resolve("~")
    (1000000000.0, 'on', None)
    """
    if text in _WORDS:
        return _WORDS[text]
    if text[0] not in _NUMERIC or len(text) > MAX_DIGITS:
        return text
    if _INTEGER.fullmatch(text):
        return int(text)
    if _BASED.fullmatch(text):
        return int(text[2:], 16 if text[1] == "x" else 8)
    if _FLOAT.fullmatch(text):
        return float(text)
    if _NOT_FINITE.fullmatch(text):
        return float(text.replace(".", "", 1))
    return text
