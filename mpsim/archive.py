"""Archives: values on disk, a zip of one JSON document and the arrays it names.

What a file may become is decided here and by the declared fields of the class that is asked for:
nothing is imported, looked up or executed by a name in the file, and arrays of objects are refused.
Fields that a later version added take their defaults, those that it dropped are left out.
"""

from __future__ import annotations

import contextlib
import enum
import json
import math
import types
import typing
import warnings
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Self, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from mpsim import structs
from mpsim.errors import MpsimError, ScenarioError
from mpsim.inputs import DOCUMENT, open_regular
from mpsim.limits import refuse_large
from mpsim.memo import remembered
from mpsim.output import whole

if TYPE_CHECKING:
    import zipfile

T = TypeVar("T")
Plain: TypeAlias = "bool | int | float | str | list[Plain] | dict[str, Plain] | None"
"""Data of the document."""
Kind: TypeAlias = Any  # what a field is declared as: a class, or what typing makes of several
Array: TypeAlias = NDArray[np.generic]

_DOCUMENT, _VALUE = "value.json", "value"
_FORMAT = 1
_KINDS = 256  # classes whose fields stay known
_WRONG = (
    *(OSError, ValueError, LookupError, TypeError, AssertionError, AttributeError),
    *(MemoryError, EOFError, zlib.error, RuntimeError),
)
"""What a file that is damaged or made up, nested too deeply or packed oddly can lead to."""
_NOT_FINITE = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}


class Saved:
    """A value that can be saved and loaded."""

    __slots__ = ()

    def save(self, path: str | Path) -> None:
        """Write an archive."""
        save(path, type(self).__name__, {_VALUE: self})

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read what `save` wrote. ScenarioError if the file is no archive of such a value."""
        return Archive(path).of(cls.__name__).part(_VALUE, cls)


def save(path: str | Path, kind: str, parts: Mapping[str, object]) -> None:
    """Write an archive. `kind`: class of the whole. `parts`: values made of dataclasses,
    enumerations, arrays, sequences, mappings and scalars.
    """
    import zipfile

    from mpsim.stamp import stamp

    arrays: list[Array] = []
    document = {
        "format": _FORMAT,
        "mpsim": stamp(),
        "kind": kind,
        "parts": {name: _plain(value, arrays) for name, value in parts.items()},
    }
    with whole(path) as beside, zipfile.ZipFile(beside, "w") as archive:

        def member(name: str) -> zipfile.ZipInfo:
            # a date of its own, so that equal values give equal bytes
            info = zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0))
            info.compress_type = zipfile.ZIP_DEFLATED
            return info

        archive.writestr(member(_DOCUMENT), json.dumps(document, allow_nan=False))
        for number, array in enumerate(arrays):
            with archive.open(member(f"{number}.npy"), "w", force_zip64=True) as file:
                np.lib.format.write_array(file, array, allow_pickle=False)


def is_archive(path: str | Path) -> bool:
    """Whether a file is an archive."""
    import zipfile

    try:
        with _opened(path) as file:
            return zipfile.is_zipfile(file)
    except ScenarioError:  # said by the reader that is asked to read it
        return False


def _opened(path: str | Path) -> AbstractContextManager[IO[bytes]]:
    return open_regular(path, needed="a saved value", error=ScenarioError)


class Archive:
    """An archive that is read: `kind` is the class of the whole, `version` that of its mpsim."""

    def __init__(self, path: str | Path) -> None:
        self._path = path
        with self._opened() as archive:
            # a file of a few kilobytes may claim to be petabytes
            unpacked = sum(member.file_size for member in archive.infolist())
            refuse_large(f"{path} unpacked", memory_bytes=unpacked)
            if archive.getinfo(_DOCUMENT).file_size > DOCUMENT:
                raise ValueError(f"its document is over {DOCUMENT >> 20} MiB; save it again")
            document = json.loads(archive.read(_DOCUMENT))
            self.version, self.kind = str(document["mpsim"]), str(document["kind"])
            self._parts: Mapping[str, Plain] = document["parts"]
            if document["format"] != _FORMAT:
                raise ValueError(f"its format is {document['format']}; needed {_FORMAT}")

    @contextlib.contextmanager
    def _opened(self) -> Iterator[zipfile.ZipFile]:
        """The zip; whatever is wrong with it inside the block is one error."""
        import zipfile

        try:
            with _opened(self._path) as file, zipfile.ZipFile(file) as archive:
                yield archive
        except MpsimError:
            raise
        except (zipfile.BadZipFile, *_WRONG) as error:
            raise self._refused(_words(error)) from error

    def of(self, kind: str) -> Archive:
        """Check that it holds a `kind`, and warn if another version of mpsim wrote it."""
        if self.kind != kind:
            raise self._refused(f"it holds a {self.kind}; needed a {kind}")
        from mpsim.stamp import stamp

        if self.version != stamp():
            warnings.warn(
                f"{self._path} was saved by mpsim {self.version}, this is {stamp()}: it is shown as"
                " it was saved",
                stacklevel=3,
            )
        return self

    def part(self, name: str, kind: type[T]) -> T:
        """One part, which has to be of the class `kind`; plain data where that is ``object``."""
        with self._opened() as archive:
            return typing.cast(T, _Reader(archive).made(self._parts[name], kind))

    def _refused(self, reason: str) -> ScenarioError:
        return ScenarioError(f"{self._path} is not a saved value: {reason}")


class _Reader:
    """Makes values of plain data, as classes declare their fields."""

    def __init__(self, archive: zipfile.ZipFile) -> None:
        self._archive = archive

    def made(self, plain: Plain, kind: Kind) -> object:
        """The value that `plain` stands for where `kind` is declared."""
        origin: Kind = typing.get_origin(kind)
        arguments = typing.get_args(kind)
        if kind in (Any, object) or origin is typing.Literal:
            return _unplain(plain)
        if origin in (typing.Union, types.UnionType):
            kinds = [kind for kind in arguments if (kind is types.NoneType) == (plain is None)]
            return self._of_kinds(plain, kinds)
        if origin is np.ndarray:
            return self._array(plain, arguments)
        if origin is not None:
            return self._collection(plain, origin, arguments)
        if structs.is_dataclass(kind):
            return self._dataclass(plain, kind)
        if issubclass(kind, enum.Enum):
            return kind[str(_inside(plain, "enum"))]
        value = _unplain(plain)
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        if not isinstance(value, kind):
            raise TypeError(f"got {type(value).__name__}; needed {kind.__name__}")
        return value

    def _of_kinds(self, plain: Plain, kinds: Sequence[Kind]) -> object:
        """The value of the first kind that `plain` can be; the reasons of the last if of none."""
        *others, last = kinds
        for kind in others:
            with contextlib.suppress(TypeError, KeyError, ValueError, AttributeError):
                return self.made(plain, kind)
        return self.made(plain, last)

    def _collection(self, plain: Plain, origin: Kind, arguments: tuple[Kind, ...]) -> object:
        if issubclass(origin, Mapping):
            key, value = arguments
            return {self.made(k, key): self.made(v, value) for k, v in _pairs(plain)}
        items = _listed(_inside(plain, "items"))
        if origin is tuple and arguments[1:] != (Ellipsis,):
            return tuple(self.made(item, kind) for item, kind in zip(items, arguments, strict=True))
        values = (self.made(item, arguments[0]) for item in items)
        return origin(values) if issubclass(origin, frozenset | set) else tuple(values)

    def _dataclass(self, plain: Plain, kind: Kind) -> object:
        fields = _inside(plain, kind.__name__)
        if not isinstance(fields, dict):
            raise TypeError(f"got no fields of a {kind.__name__}")
        hints = _hints(kind)
        known = {field.name for field in structs.fields(kind) if field.init}
        return kind(
            **{key: self.made(value, hints[key]) for key, value in fields.items() if key in known}
        )

    def _array(self, plain: Plain, arguments: tuple[Kind, ...]) -> Array:
        with self._archive.open(f"{_inside(plain, 'array')}.npy") as file:
            array: Array = np.lib.format.read_array(file, allow_pickle=False)
        declared = typing.get_args(arguments[1])
        if declared and declared[0] is not Any and array.dtype != np.dtype(declared[0]):
            raise TypeError(f"got an array of {array.dtype}; needed {np.dtype(declared[0])}")
        return array


def _inside(plain: Plain, form: str) -> Plain:
    """Content of a mapping of one form."""
    if not isinstance(plain, dict) or list(plain) != [form]:
        got = next(iter(plain), "nothing") if isinstance(plain, dict) else type(plain).__name__
        raise TypeError(f"got {got}; needed {form}")
    return plain[form]


def _listed(plain: Plain) -> list[Plain]:
    if not isinstance(plain, list):
        raise TypeError(f"got {type(plain).__name__}; needed a list")
    return plain


def _pairs(plain: Plain) -> Iterator[list[Plain]]:
    return map(_listed, _listed(_inside(plain, "pairs")))


def _words(error: BaseException) -> str:
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    return f"it lacks {error}" if isinstance(error, KeyError) else str(error)


@remembered(_KINDS)
def _hints(kind: type) -> dict[str, Kind]:
    return typing.get_type_hints(kind)


def _plain(value: object, arrays: list[Array]) -> Plain:
    """A value as JSON has it; arrays go to `arrays` and leave their number."""
    if isinstance(value, enum.Enum):
        return {"enum": value.name}
    if structs.is_dataclass(value) and not isinstance(value, type):
        fields = {
            field.name: _plain(getattr(value, field.name), arrays)
            for field in structs.fields(value)
            if field.init
        }
        return {type(value).__name__: fields}
    if isinstance(value, np.ndarray):
        arrays.append(value)
        return {"array": len(arrays) - 1}
    if isinstance(value, np.generic):
        return _plain(value.item(), arrays)
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": str(value)}
    if value is None or isinstance(value, str | int | float | bool):
        return value
    if isinstance(value, Mapping):
        return {"pairs": [[_plain(part, arrays) for part in pair] for pair in value.items()]}
    if isinstance(value, Sequence | frozenset | set):
        return {"items": [_plain(item, arrays) for item in value]}
    raise TypeError(f"cannot save a {type(value).__name__}")


def _unplain(plain: Plain) -> object:
    """Data without classes: scalars, lists and mappings."""
    if not isinstance(plain, dict):
        return plain
    ((form, content),) = plain.items()
    if form == "float":
        return _NOT_FINITE[str(content)]
    if form == "items":
        return [_unplain(item) for item in _listed(content)]
    if form == "pairs":
        return {_unplain(key): _unplain(value) for key, value in _pairs(plain)}
    raise TypeError(f"got {form}; needed data without classes")
