"""YAML files that ship with mpsim: plain data, read quickly and once; and what plain scalars mean.

libyaml composes them where it is built in, and `resolve` types them, so that they mean what
`mpsim.document` would have read (tested). What a file means is kept beside compiled modules, as
Python keeps those: while the file and what reads it are the same, and where Python may write.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from importlib import resources
from importlib.machinery import SourceFileLoader
from importlib.resources.abc import Traversable
from pathlib import Path
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from mpsim.memo import remembered

if TYPE_CHECKING:
    import yaml


@remembered(64)
def read_shipped(package: str, name: str) -> Any:
    """Plain data of a YAML file that ships with mpsim, as `read_document` has it, without places.

    It is read once and shared by every caller: do not change it in place.
    """
    file = _folder(package) / name
    if not isinstance(file, Path):  # inside an archive, beside which nothing is kept
        return _parsed(file.read_bytes())
    code = _Kept(f"{package}.{name}", str(file)).get_code(f"{package}.{name}")
    assert code is not None, "there is a source"
    return FunctionType(code, dict(_NAMES))()


_NAMES: Mapping[str, object] = {"__builtins__": {}, "inf": math.inf, "nan": math.nan}


class _Kept(SourceFileLoader):
    """Reads YAML as Python reads modules."""

    # its bases disagree on whether it is static
    def source_to_code(self, data: Any, path: Any, **_: Any) -> CodeType:  # type: ignore[override]
        """A literal of what the text means."""
        return compile(repr(_parsed(data)), path, "eval")

    def path_stats(self, path: Any) -> Mapping[str, Any]:
        """Time and size that have to be the same: a new reader reads anew."""
        known = super().path_stats(path)
        return {**known, "mtime": max(known["mtime"], Path(__file__).stat().st_mtime)}


@remembered(64)
def _folder(package: str) -> Traversable:
    """Folder of a package's data, which is not imported for that."""
    root, *folders = package.split(".")
    return resources.files(root).joinpath(*folders)


def _parsed(text: bytes) -> object:
    import yaml  # not before: what is kept needs none of it

    node = yaml.compose(text, Loader=_untyped())
    assert node is not None, "a file that ships with mpsim is not empty"
    return _data(node)


def say(name: str, part: str = "says", /, **figures: object) -> str:
    """Words of a refusal or a warning, with `figures` for those in braces.

    `name`: ``package.row`` of the package's ``data/said.yaml``, where each row is a text, or a
    mapping of parts such as the ``key`` that a mistake is blamed on beside what it ``says``.
    """
    package, _, row = name.partition(".")
    words = read_shipped(f"mpsim.{package}.data", "said.yaml")[row]
    text: str = words if isinstance(words, str) else words[part]
    return text.format(**figures)


def load_catalog(package: str) -> Iterator[tuple[str, Any]]:
    """Every ``*.yaml`` shipped in `package`, by name, as (stem, data); see `read_shipped`."""
    for name in _catalog(package):
        yield name.removesuffix(".yaml"), read_shipped(package, name)


@remembered(64)
def _catalog(package: str) -> tuple[str, ...]:
    names = (entry.name for entry in _folder(package).iterdir())
    return tuple(sorted(name for name in names if name.endswith(".yaml")))


@remembered(1)
def _untyped() -> type[yaml.SafeLoader]:
    """Composes nodes without guessing the types of their values."""
    import yaml

    base = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return type("Untyped", (base,), {"yaml_implicit_resolvers": {}})


def _data(node: Any) -> Any:
    """The value of a node of a shipped file, which has no tag and repeats no key (tested)."""
    if node.id == "scalar":
        return node.value if node.style else resolve(node.value)
    if node.id == "sequence":
        return [_data(item) for item in node.value]
    data: dict[object, object] = {}
    for key, value in node.value:
        if key.value != "<<":
            data[_data(key)] = _data(value)
        else:  # one mapping: of several it fails
            data = _data(value) | data
    return data


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
    """The value of a plain scalar (core schema of YAML 1.2): null, truth, number, else its text.

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
