"""Nouns made of plain data: pydantic reads a mapping as the annotations of a dataclass say, and
every mistake comes back in plain words.

A noun is a frozen dataclass, made of SI numbers as it stands; a mapping that a person wrote is
validated. Validators are built when the first mapping of a kind is read.
"""

from __future__ import annotations

import typing
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, TypeAlias, TypeVar

from mpsim import structs
from mpsim.errors import nearest
from mpsim.inputs import shown
from mpsim.memo import remembered
from mpsim.units import Dimension, parse_quantity

if TYPE_CHECKING:
    import pydantic
    from pydantic_core import ErrorDetails, core_schema

T = TypeVar("T")
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


@structs.dataclass(frozen=True, slots=True)
class Quantity:
    """Mark of a number that a person writes with a unit of `dimension`."""

    dimension: Dimension

    def parse(self, value: object) -> float:
        """The SI number of what was written."""
        return parse_quantity(value, self.dimension)

    def __get_pydantic_core_schema__(
        self, source: object, handler: pydantic.GetCoreSchemaHandler
    ) -> core_schema.CoreSchema:
        return {
            "type": "function-before",
            "function": {"type": "no-info", "function": self.parse},
            "schema": handler(source),
        }


@structs.dataclass(frozen=True, slots=True)
class Plain:
    """Mark of a truth value or a plain number: nothing is taken for one that is none."""

    unit: str = ""  # what it counts, such as ``B an element``; empty for a ratio or a count
    # of ``ge``, ``gt``, ``le`` and ``lt``, or ``allow_inf_nan``
    bounds: Mapping[str, float] = structs.field(default_factory=dict, hash=False)

    def __get_pydantic_core_schema__(
        self, source: object, handler: pydantic.GetCoreSchemaHandler
    ) -> core_schema.CoreSchema:
        schema: object = {**handler(source), "strict": True, **self.bounds}
        return typing.cast("core_schema.CoreSchema", schema)


class _Scalar:
    """Mark of text, a plain number or a truth value."""

    def __get_pydantic_core_schema__(
        self, source: object, handler: pydantic.GetCoreSchemaHandler
    ) -> core_schema.CoreSchema:
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
def _validator(noun: type[T]) -> pydantic.TypeAdapter[T]:
    import pydantic

    return pydantic.TypeAdapter(noun)


def read(noun: type[T], data: Mapping[str, object]) -> T:
    """Make a noun of a mapping. `noun`: a dataclass; the mapping holds its fields by name, or by
    the alias of a field. MistakenError with every mistake, in the order of the noun's fields.
    """
    import pydantic

    try:
        return _validator(noun).validate_python(data)
    except pydantic.ValidationError as error:
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
    hints = typing.get_type_hints(noun, include_extras=True)
    return {name: getattr(hint, "__metadata__", ()) for name, hint in hints.items()}


@remembered(_KINDS)
def dimensions(noun: type) -> Mapping[str, Dimension]:
    """Dimensions of the fields of a noun that carry a unit; of a mapping, that of its values."""
    hints = typing.get_type_hints(noun, include_extras=True)
    return {name: mark.dimension for name, hint in hints.items() for mark in _quantities(hint)}


def _quantities(hint: object) -> Iterator[Quantity]:
    for part in typing.get_args(hint):
        if isinstance(part, Quantity):
            yield part
        else:
            yield from _quantities(part)
