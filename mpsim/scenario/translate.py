"""Mistakes that pydantic reports, in plain English: got what, needed what, and the nearest name;
and the readable part of a scenario that has some, so that all are reported together.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NoReturn, TypeVar

from pydantic_core import ErrorDetails, SchemaValidator, ValidationError

from mpsim.errors import MpsimError, Problem, nearest
from mpsim.inputs import shown
from mpsim.nouns import TYPES, core_schema
from mpsim.scenario.fields import Fields, Section
from mpsim.scenario.layers import join
from mpsim.scenario.schema import Kind, descriptions, known_keys, section_at
from mpsim.shipped import read_shipped

MISSING = "missing"  # how the message of a key that is not there begins
MAX_PROBLEMS: Final = 30

_TYPES: Final[Mapping[str, str]] = {
    **TYPES,
    "int_parsing": "a whole number",
    "int_parsing_size": "a smaller number",
    "float_parsing": "a number",
    "bool_parsing": "true or false",
}
_LENGTHS: Final[Mapping[str, str]] = {
    "string_too_short": "characters; needed {min_length} or more",
    "string_too_long": "characters; needed at most {max_length}",
    "too_long": "entries; needed at most {max_length}",
    "too_short": "entries; needed {min_length} or more",
}
_FEW: Final = 8  # keys of a section that are listed beside a nearest one of another
_BOUNDS: Final[Mapping[str, tuple[str, str]]] = {
    "greater_than_equal": ("ge", "{} or more"),
    "greater_than": ("gt", "more than {}"),
    "less_than_equal": ("le", "at most {}"),
    "less_than": ("lt", "less than {}"),
}


def translate(error: ValidationError, root: Kind) -> list[Problem]:
    """Every mistake in `error`, from validating `root`, as a Problem keyed by where it was written.

    In the order of the model; a missing key is left out where a misspelt one explains it.
    """
    details = error.errors(include_url=False)
    extra = [detail for detail in details if detail["type"] == "extra_forbidden"]
    problems = [
        Problem(_message(detail, root), key=join(*detail["loc"]))
        for detail in details
        if not (detail["type"] == "missing" and _misspelt(detail["loc"], extra))
    ]
    if len(problems) > MAX_PROBLEMS:
        left = len(problems) - MAX_PROBLEMS
        problems[MAX_PROBLEMS:] = [Problem(f"and {left} more mistakes; mend these first")]
    return problems


def _misspelt(loc: tuple[int | str, ...], extra: list[ErrorDetails]) -> bool:
    siblings = [str(other["loc"][-1]) for other in extra if other["loc"][:-1] == loc[:-1]]
    return any("did you mean" in nearest(str(loc[-1]), [name]) for name in siblings)


def _message(detail: ErrorDetails, root: Kind) -> str:
    kind, context = detail["type"], detail.get("ctx", {})
    if kind in ("extra_forbidden", "invalid_key"):
        return _unknown(detail["loc"], root)
    if kind == "missing":
        return f"{MISSING}; {_purpose(detail['loc'], root)}"
    if kind == "value_error":
        return str(context["error"])
    if kind == "literal_error":
        return _choice(detail, context)
    if kind in ("model_type", "model_attributes_type"):
        return f"got {_got(detail['input'])}; needed a mapping{_keys(detail['loc'], root)}"
    if kind in _BOUNDS:
        name, words = _BOUNDS[kind]
        return f"got {_got(detail['input'])}; needed {words.format(_plain(context[name]))}"
    if kind in _LENGTHS:
        count = len(detail["input"])
        return f"got {count} {_LENGTHS[kind]}".format(**context)
    if kind in _TYPES:
        return f"got {_got(detail['input'])}; needed {_TYPES[kind]}{_hint(detail)}"
    return detail["msg"]


def _unknown(loc: tuple[int | str, ...], root: Kind) -> str:
    name = str(loc[-1])
    names = _names_at(loc[:-1], root)
    near, elsewhere = nearest(name, names), _elsewhere(loc, root)
    if name in elsewhere:
        near = f"it stands at the top level, not in {join(*loc[:-1])!r}"
    elif elsewhere:
        here = f"known: {', '.join(names)}; " if 0 < len(names) <= _FEW else ""
        near = f"{here}did you mean {' or '.join(repr(key) for key in elsewhere[:3])}?"
    return f"unknown key {shown(name)}; {near}"


def suggestions(loc: tuple[int | str, ...], root: Kind) -> list[str]:
    """Dotted keys that the unknown key at `loc` may mean; none if it resembles no other."""
    name, here = str(loc[-1]), loc[:-1]
    near = [each for each in _names_at(here, root) if "did you mean" in nearest(name, [each])]
    return [join(*here, each) for each in near] or _elsewhere(loc, root)


def _names_at(loc: Sequence[object], root: Kind) -> list[str]:
    section = section_at(root, loc)
    return list(section.model_fields) if section else []


def _elsewhere(loc: tuple[int | str, ...], root: Kind) -> list[str]:
    """Dotted keys that other tools call so; else the shortest ones that end in the unknown key at
    `loc`, unless one beside is near.
    """
    name = str(loc[-1])
    if theirs := _others()["keys"].get(name.lower().replace("-", "_")):
        return list(theirs)
    if "did you mean" in nearest(name, _names_at(loc[:-1], root)):
        return []
    every = [key for key in known_keys(root) if key.rpartition(".")[2] == name]
    same = [key for key in every if key.startswith(f"{join(*loc[:-1])}.")] or every
    least = min((key.count(".") for key in same), default=0)
    return [key for key in same if key.count(".") == least]


def _others() -> Mapping[str, Mapping[str, Any]]:
    """Words to write for `keys` and `values` of other tools."""
    words: Mapping[str, Mapping[str, Any]] = read_shipped("mpsim.scenario.data", "others.yaml")
    return words


def _choice(detail: ErrorDetails, context: Mapping[str, object]) -> str:
    # pydantic has put the choices into one text: 'a', 'b' or 'c'
    words = str(context["expected"]).replace(" or ", ", ").split(", ")
    choices = [word.strip("'") for word in words]
    got = detail["input"]
    known = _others()["values"].get(join(*detail["loc"]), {})
    near = known.get(got) or nearest(got, choices) if isinstance(got, str) else ""
    listed = f"needed one of {', '.join(choices)}"
    return f"got {_got(got)}; {near if near.startswith('did') else listed}"


def _purpose(loc: tuple[int | str, ...], root: Kind) -> str:
    section, key = section_at(root, loc[:-1]), str(loc[-1])
    if section is None or key not in section.model_fields:
        return "needed"
    purpose = descriptions(section).get(key, key).rstrip(".")
    return f"needed {purpose[0].lower()}{purpose[1:]}"


def _keys(loc: tuple[int | str, ...], root: Kind) -> str:
    names = _names_at(loc, root)
    return f" with keys such as {', '.join(names[:4])}" if names else ""


def _hint(detail: ErrorDetails) -> str:
    got = detail["input"]
    if isinstance(got, float) and detail["type"].startswith("int") and got.is_integer():
        return f" such as {int(got)}" if abs(got) < 2**53 else ""
    if isinstance(got, str) and detail["type"].startswith("bool"):
        words = got.lower() in ("on", "off", "yes", "no")
        return " (on, off, yes and no are text)" if words else ""
    return ""


def _got(value: object) -> str:
    if value is None:
        return "nothing"
    return "a mapping" if isinstance(value, Mapping) else shown(value)


def _plain(bound: object) -> str:
    return f"{bound:g}" if isinstance(bound, float) else str(bound)


S = TypeVar("S", bound=Section)
_PLAIN: Final = ("schema", "name", "include")  # no sections
_VARIANTS: Final = ("sweep", "design", "overrides")  # without which it is checked as if it had none


class _NotReadError(MpsimError):
    """A check asked for a section that could not be read; it has nothing to say."""


class _NotRead:
    """Stands for a section that could not be read."""

    def __getattr__(self, name: str) -> NoReturn:
        raise _NotReadError(name)


def fragment(root: type[S], data: Mapping[str, object], error: ValidationError) -> S:
    """The sections of `data` that are well-formed, as a scenario to check and for nothing else.

    Asking an unread section raises an MpsimError, on which `check` passes over whoever asked.

    A section with a wrong value or a misspelt key is not read: what it would have said is unknown.
    An unknown key that resembles no other is passed over.
    """
    left = copy.deepcopy(dict(data))
    wrong = _wrong_sections(left, error.errors(include_url=False), root)
    sections: Fields = {}
    for name in (name for name in root.model_fields if name not in _PLAIN):
        schema: Any = core_schema(root.model_fields[name].annotation)
        try:
            if name in left and name not in wrong:
                sections[name] = SchemaValidator(schema).validate_python(left[name])
        except ValidationError:
            wrong.add(name)
        if name in wrong and name not in _VARIANTS:
            sections[name] = _NotRead()
    sections.setdefault("training", None)  # of a scenario that serves: it has no default
    # one of the two, of which a key was meant there at most
    for job, other in (("serving", "training"), ("training", "serving")):
        if job not in left and (other in left or other in wrong):
            sections[job] = None
    return root.model_construct(**sections)


def is_read(scenario: Section, section: str) -> bool:
    """Whether `section` of a fragment was read."""
    return not isinstance(scenario.__dict__[section], _NotRead)


def _wrong_sections(data: Fields, details: Iterable[ErrorDetails], root: type[Section]) -> set[str]:
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
