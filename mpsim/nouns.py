"""Nouns made of plain data: pydantic's core reads a mapping as the annotations of a dataclass say,
every mistake comes back in plain words, and figures are described with units and sources.

A noun is a frozen dataclass, made of SI numbers as it stands; a mapping that a person wrote is
validated. Validators are built when the first mapping of a kind is read, straight from the few
kinds of annotation that nouns have: pydantic, which knows many, takes ten times as long (measured).
"""

from __future__ import annotations

import enum
import functools
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias, TypeVar

from mpsim import structs
from mpsim.errors import nearest
from mpsim.inputs import shown
from mpsim.memo import remembered
from mpsim.units import Dimension, format_quantity, parse_quantity

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails, SchemaValidator

T = TypeVar("T")
Schema: TypeAlias = dict[str, Any]  # of pydantic's core
_KINDS = 64  # nouns whose validators stay built
TYPES: Mapping[str, str] = {
    "bool_type": "true or false",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "string_type": "text",
    "tuple_type": "a list",
    "list_type": "a list",
    "dict_type": "a mapping",
    "mapping_type": "a mapping",
}
_BOUNDS = {
    "greater_than_equal": "{ge:g} or more",
    "greater_than": "more than {gt:g}",
    "less_than_equal": "at most {le:g}",
    "less_than": "less than {lt:g}",
}


@structs.dataclass(eq=False, frozen=True, slots=True)
class Quantity:
    """Mark of a number that a person writes with a unit of `dimension`."""

    dimension: Dimension

    def parse(self, value: object) -> float:
        """The SI number of what was written."""
        return parse_quantity(value, self.dimension)

    def schema(self, plain: Schema) -> Schema:
        """How the core reads it: text first, then the number."""
        parse = {"type": "no-info", "function": self.parse}
        return {"type": "function-before", "function": parse, "schema": plain}


@structs.dataclass(eq=False, frozen=True, slots=True)
class Plain:
    """Mark of a truth value or a plain number: nothing is taken for one that is none."""

    unit: str = ""  # what it counts, such as ``B an element``; empty for a ratio or a count
    # of ``ge``, ``gt``, ``le`` and ``lt``, or ``allow_inf_nan``
    bounds: Mapping[str, float] = structs.field(default_factory=dict)

    def schema(self, plain: Schema) -> Schema:
        """How the core reads it: within its bounds."""
        return {**plain, "strict": True, **self.bounds}


class _Scalar:
    """Mark of text, a plain number or a truth value."""

    def schema(self, plain: Schema) -> Schema:
        """How the core reads it: in place of what else it would take a value for."""
        return {"type": "function-plain", "function": {"type": "no-info", "function": self.check}}

    def check(self, value: object) -> object:
        """The value as it is, unless it is a list or a mapping."""
        if isinstance(value, str | bool | int | float):
            return value
        raise ValueError(f"got {value!r}; needed text, a number, or true or false")


_MOST = 1e12
Scalar: TypeAlias = Annotated[str | bool | int | float, _Scalar()]
Flag: TypeAlias = Annotated[bool, Plain()]
Whole: TypeAlias = Annotated[int, Plain(bounds={"ge": 0, "lt": int(_MOST)})]
Count: TypeAlias = Annotated[int, Plain(bounds={"ge": 1, "lt": int(_MOST)})]
Number: TypeAlias = Annotated[float, Plain(bounds={"ge": 0.0, "lt": _MOST})]
Factor: TypeAlias = Annotated[float, Plain(bounds={"gt": 0.0, "allow_inf_nan": False})]
Finite: TypeAlias = Annotated[float, Plain(bounds={"allow_inf_nan": False})]
Share: TypeAlias = Annotated[float, Plain(bounds={"ge": 0.0, "le": 1.0})]
Seconds: TypeAlias = Annotated[float, Quantity(Dimension.TIME)]
Bytes: TypeAlias = Annotated[float, Quantity(Dimension.BYTES)]
Bandwidth: TypeAlias = Annotated[float, Quantity(Dimension.BANDWIDTH)]
FlopRate: TypeAlias = Annotated[float, Quantity(Dimension.FLOP_RATE)]
Frequency: TypeAlias = Annotated[float, Quantity(Dimension.FREQUENCY)]
Power: TypeAlias = Annotated[float, Quantity(Dimension.POWER)]
PriceRate: TypeAlias = Annotated[float, Quantity(Dimension.PRICE_RATE)]


@structs.dataclass(frozen=True, slots=True)
class Mistake:
    """One mistake in a mapping."""

    key: str  # dotted
    got: object
    needed: str  # such as ``needed text``, or the nearest of the choices; empty for a missing key
    whole: bool = False  # whether `needed` says what was got too, as what a unit was parsed by does

    def __str__(self) -> str:
        return self.needed if self.whole else f"got {shown(self.got)}; {self.needed}"


class MistakenError(ValueError):
    """A mapping that is not what a noun needs."""

    def __init__(self, mistakes: Sequence[Mistake]) -> None:
        super().__init__("\n".join(f"{mistake.key}: {mistake}" for mistake in mistakes))
        self.mistakes = mistakes


@remembered(_KINDS)
def hints(noun: type) -> Mapping[str, Any]:
    """Annotations of a noun's fields, with their marks."""
    return typing.get_type_hints(noun, include_extras=True)


_SIMPLE: Final = {str: "str", int: "int", float: "float", bool: "bool", object: "any", Any: "any"}


def core_schema(hint: Any) -> Schema:
    """How the core reads a value of an annotation of these kinds, or that says itself how."""
    if hint in _SIMPLE:
        return {"type": _SIMPLE[hint]}
    if isinstance(hint, type) and (own := getattr(hint, "__get_pydantic_core_schema__", None)):
        return typing.cast(Schema, own(hint, None))
    if isinstance(hint, type) and structs.is_dataclass(hint):
        return _schema_of_noun(hint)
    if isinstance(hint, enum.EnumType):
        return {"type": "enum", "cls": hint, "members": [*hint], "sub_type": "str"}
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        return {"type": "literal", "expected": [*parts]}
    if origin is Annotated:
        plain = core_schema(parts[0])
        return functools.reduce(lambda schema, mark: mark.schema(schema), parts[1:], plain)
    known = origin in (tuple, dict, Mapping, types.UnionType, typing.Union)
    assert known, f"no noun has a field of {hint}"
    inner = [core_schema(part) for part in parts if part not in (..., types.NoneType)]
    if origin is tuple:
        every = {"variadic_item_index": 0} if ... in parts else {}
        return {"type": "tuple", "items_schema": inner, **every}
    if origin in (dict, Mapping):
        kinds = {"keys_schema": inner[0], "values_schema": inner[1]}
        return {"type": "dict", **kinds, "strict": False}
    either = inner[0] if len(inner) == 1 else {"type": "union", "choices": inner}
    return {"type": "nullable", "schema": either} if types.NoneType in parts else either


def _schema_of_noun(noun: type) -> Schema:
    """How the core reads a dataclass; its `extra_keys` say whether it refuses what it has not."""
    checked, fields = hasattr(noun, "__post_init__"), list[Schema]()
    for field in structs.fields(noun):
        schema = core_schema(hints(noun)[field.name])
        usual = {"default": field.default, "default_factory": field.default_factory}
        if usual := {key: it for key, it in usual.items() if it is not structs.MISSING}:
            schema = {"type": "default", "schema": schema, **usual}
        fields.append({"type": "dataclass-field", "name": field.name, "schema": schema})
    args = {"type": "dataclass-args", "dataclass_name": noun.__name__, "fields": fields}
    return {
        "type": "dataclass",
        "cls": noun,
        "schema": {**args, "collect_init_only": checked},
        "post_init": checked,
        "fields": [field["name"] for field in fields],
        "slots": True,
        "config": {"extra_fields_behavior": getattr(noun, "extra_keys", "ignore")},
    }


@remembered(_KINDS)
def _validator(noun: type) -> SchemaValidator:
    from pydantic_core import SchemaValidator

    return SchemaValidator(typing.cast("Any", _schema_of_noun(noun)))


def read(noun: type[T], data: Mapping[str, object]) -> T:
    """Make a noun of a mapping. `noun`: a dataclass; the mapping holds its fields by name.
    MistakenError with every mistake, in the order of the noun's fields.
    """
    from pydantic_core import ValidationError

    try:
        return typing.cast("T", _validator(noun).validate_python(data))
    except ValidationError as error:
        details = error.errors(include_url=False)
    raise MistakenError([_mistake(".".join(map(str, detail["loc"])), detail) for detail in details])


def _mistake(key: str, detail: ErrorDetails) -> Mistake:
    kind, got, context = detail["type"], detail["input"], detail.get("ctx", {})
    if kind == "missing":
        return Mistake(key, None, "")
    if kind in ("enum", "literal_error"):
        # pydantic has put the choices into one text: 'a', 'b' or 'c'
        choices = str(context["expected"]).replace(" or ", ", ").split(", ")
        return Mistake(key, got, nearest(str(got), [word.strip("'") for word in choices]))
    if kind == "unexpected_keyword_argument":
        return Mistake(key, got, "unknown key", whole=True)
    if kind in TYPES:
        return Mistake(key, got, f"needed {TYPES[kind]}")
    if kind in _BOUNDS:
        return Mistake(key, got, f"needed {_BOUNDS[kind].format(**context)}")
    text = str(context["error"]) if kind == "value_error" else detail["msg"]
    return Mistake(key, got, text, whole=True)


@remembered(_KINDS)
def markers(noun: type) -> Mapping[str, tuple[Quantity | Plain, ...]]:
    """Marks of the fields of a noun that are numbers, the last one the nearest to the field."""
    return {name: getattr(hint, "__metadata__", ()) for name, hint in hints(noun).items()}


@remembered(_KINDS)
def dimensions(noun: type) -> Mapping[str, Dimension]:
    """Dimensions of the fields of a noun that carry a unit; of a mapping, that of its values."""
    marked = ((name, mark) for name, hint in hints(noun).items() for mark in _quantities(hint))
    return {name: mark.dimension for name, mark in marked}


def _quantities(hint: object) -> Iterator[Quantity]:
    for part in typing.get_args(hint):
        yield from (part,) if isinstance(part, Quantity) else _quantities(part)


_HIDDEN = frozenset({"sources", "source", "as_of"})  # told beside each figure instead
_RECALLED = "recalled"


@structs.dataclass(frozen=True, slots=True)
class Figure:
    """One figure."""

    name: str  # dotted, as a scenario overrides it
    value: object  # plain, in SI units
    text: str  # with its unit
    source: str = ""  # where it was read; empty where nobody says
    # unit, area: SI unit, and the group it belongs to; empty where figures have none
    unit: str = ""
    area: str = ""


@structs.dataclass(frozen=True, slots=True)
class Description:
    """All figures of a noun."""

    figures: tuple[Figure, ...]
    recalled: tuple[str, ...] = ()  # names of figures that come from memory and were read nowhere


def describe_fields(noun: object) -> Description:
    """Every field of a dataclass, and of the dataclasses in it, with unit and source.

    `noun`: its ``sources`` map figures to texts, ``*`` those without one of their own; or it has
    one ``source`` and ``as_of`` for all. Fields marked as quantities (`mpsim.nouns`) carry their
    unit.
    """
    sources = _sources(noun)
    recalled = sorted(name for name, source in sources.items() if source.startswith(_RECALLED))
    return Description(tuple(_figures(noun, sources)), tuple(recalled))


def _figures(
    noun: object, sources: Mapping[str, str], prefix: str = "", dimension: Dimension | None = None
) -> Iterator[Figure]:
    """Figures of a noun, or of a mapping whose numbers are of `dimension`."""
    marked = {} if isinstance(noun, Mapping) else dimensions(type(noun))
    for key, value in _fields(noun):
        if key in _HIDDEN:
            continue
        name, own = f"{prefix}{key}", marked.get(key, dimension)
        if isinstance(value, Mapping) or _is_noun(value):
            yield from _figures(value, sources, f"{name}.", own)
        elif value is not None and value != "":
            yield Figure(name, value, _text(value, own), _source(sources, name))


def _is_noun(value: object) -> bool:
    return structs.is_dataclass(value) and not isinstance(value, type)


def _fields(noun: object) -> list[tuple[str, object]]:
    if isinstance(noun, Mapping):
        return [(str(key), value) for key, value in noun.items()]
    assert structs.is_dataclass(noun)
    return [(field.name, getattr(noun, field.name)) for field in structs.fields(noun)]


def _text(value: object, dimension: Dimension | None) -> str:
    if dimension is None or isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    return format_quantity(value, dimension)


def _sources(noun: object) -> Mapping[str, str]:
    """Source of each figure; ``*`` stands for the figures that have none of their own."""
    own = getattr(noun, "sources", None)
    if own is not None:
        nested = {
            f"{key}.{figure}": source
            for key, part in _parts(noun)
            for figure, source in _sources(part).items()
        }
        return {**nested, **own}
    text, as_of = getattr(noun, "source", ""), getattr(noun, "as_of", "")
    return {"*": f"{text} ({as_of})" if as_of else text} if text else {}


def _parts(noun: object, prefix: str = "") -> Iterator[tuple[str, object]]:
    """Parts of a noun that have sources of their own, by dotted name."""
    for key, value in _fields(noun):
        if not structs.is_dataclass(value):
            continue
        if getattr(value, "sources", None):
            yield f"{prefix}{key}", value
        else:
            yield from _parts(value, f"{prefix}{key}.")


def _source(sources: Mapping[str, str], figure: str) -> str:
    """Source of a figure: its own, or that of the nearest thing it belongs to."""
    place = figure
    while place:
        for key in (place, f"{place}.*"):
            if key in sources:
                return sources[key]
        place = place.rpartition(".")[0]
    return sources.get("*", "")
