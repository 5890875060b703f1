"""The readable part of a scenario with mistakes, so that all are reported together."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final, NoReturn, TypeVar

import pydantic

from mpsim.errors import MpsimError
from mpsim.scenario.fields import Fields
from mpsim.scenario.translate import suggestions

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

S = TypeVar("S", bound=pydantic.BaseModel)

_SECTIONS: Final = (
    *("model", "cluster", "parallelism", "schedule", "training", "serving", "server", "framework"),
    *("simulation", "variation", "sweep", "design", "overrides"),
)
_VARIANTS: Final = (
    "sweep",
    "design",
    "overrides",
)  # without which a scenario is checked as if it had none


class _NotReadError(MpsimError):
    """A check asked for a section that could not be read; it has nothing to say."""


class _NotRead:
    """Stands for a section that could not be read."""

    def __getattr__(self, name: str) -> NoReturn:
        raise _NotReadError(name)


def fragment(root: type[S], data: Mapping[str, object], error: pydantic.ValidationError) -> S:
    """The sections of `data` that are well-formed, as a scenario to check and for nothing else.

    Asking an unread section raises an MpsimError, on which `check` passes over whoever asked.

    A section with a wrong value or a misspelt key is not read: what it would have said is unknown.
    An unknown key that resembles no other is passed over.
    """
    left = copy.deepcopy(dict(data))
    wrong = _wrong_sections(left, error.errors(include_url=False), root)
    sections: Fields = {}
    for name in _SECTIONS:
        if name in wrong or (name in left and not _read(root, name, left[name], sections)):
            sections.update({} if name in _VARIANTS else {name: _NotRead()})
    sections.setdefault("training", None)  # of a scenario that serves: it has no default
    # one of the two, of which a key was meant there at most
    for job, other in (("serving", "training"), ("training", "serving")):
        if job not in left and (other in left or other in wrong):
            sections[job] = None
    return root.model_construct(**sections)


def is_read(scenario: pydantic.BaseModel, section: str) -> bool:
    """Whether `section` of a fragment was read."""
    return not isinstance(scenario.__dict__[section], _NotRead)


def _read(root: type[pydantic.BaseModel], name: str, value: object, sections: Fields) -> bool:
    """Put the validated `value` of a section into `sections`, if it is valid."""
    field = root.model_fields[name]
    kind: Any = Annotated[field.annotation, *field.metadata, None]
    try:
        sections[name] = pydantic.TypeAdapter(kind).validate_python(value)
    except pydantic.ValidationError:
        return False
    return True


def _wrong_sections(
    data: Fields, details: Iterable[ErrorDetails], root: type[pydantic.BaseModel]
) -> set[str]:
    """Sections with mistakes or keys meant elsewhere; other unknown keys leave `data`."""
    wrong: set[str] = set()
    for detail in details:
        loc = detail["loc"]
        if detail["type"] == "extra_forbidden" and _removed(data, loc):
            wrong.update(key.partition(".")[0] for key in suggestions(loc, root))
        elif loc:
            wrong.add(str(loc[0]))
    return wrong


def _removed(data: Any, loc: tuple[int | str, ...]) -> bool:
    """Whether the key at `loc` was there to be removed."""
    for part in loc[:-1]:
        inside = part in data if isinstance(data, dict) else isinstance(data, list)
        if not inside:
            return False
        data = data[part]
    return isinstance(data, dict) and data.pop(loc[-1], data) is not data
