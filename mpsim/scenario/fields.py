"""The kinds of field a scenario is made of: strict sections, quantities with units, shorthands.

Sections have the manners of pydantic's models, and its core reads and writes them. Pydantic itself
takes as long to import as half a run (measured): it makes the JSON schema and nothing else.
"""

import importlib
import inspect
import typing
from collections.abc import Callable, Mapping
from typing import Annotated, Any, ClassVar, Final, Literal, NamedTuple, Self, TypeAlias, TypeVar

import pydantic_core
from pydantic_core import SchemaSerializer, SchemaValidator

from mpsim import structs
from mpsim.memo import remembered
from mpsim.nouns import Schema, core_schema
from mpsim.scenario.layers import expand_shorthand
from mpsim.shipped import say
from mpsim.units import Dimension, format_exact, format_quantity, parse_quantity, units_of

T = TypeVar("T")
Fields: TypeAlias = dict[str, Any]
"""Values by field, to be spread over a section, a dataclass or a JSON schema."""
SAFE_COUNT: Final = 1_000_000  # more of anything is a slip of the keyboard
_CONFIG: Final = {"extra_fields_behavior": "forbid", "strict": True, "allow_inf_nan": False}
_READY: Final = 128  # validators and serializers of sections
_Json: TypeAlias = Callable[[Schema, Callable[[Schema], Fields]], Fields]
"""What a JSON schema says of a core schema, given what it would say of any."""


class Field:
    """Mark of what the core is told of a field beside its type, such as bounds."""

    def __init__(self, **told: object) -> None:
        self.told = told

    def schema(self, plain: Schema) -> Schema:
        """How the core reads it."""
        return {**plain, **self.told}


class Key(NamedTuple):
    """A field of a section, and what it is where nobody says; ``...`` where somebody has to."""

    annotation: Any
    default: object

    def schema(self) -> Schema:
        """How the core reads and writes it."""
        schema = core_schema(self.annotation)
        if self.default is not ...:
            schema = {"type": "default", "schema": schema, "default": self.default}
        return {"type": "model-field", "schema": schema}


@typing.dataclass_transform(kw_only_default=True, frozen_default=True)
class Section:
    """A mapping of the scenario file: unknown keys refused, values never coerced, frozen.

    The string under a field says what it is for (see `mpsim.scenario.schema`).
    """

    # where the core keeps what it has read
    __slots__ = "__dict__ __pydantic_extra__ __pydantic_fields_set__ __pydantic_private__".split()
    model_config: ClassVar = {"extra": "forbid"}  # of a JSON schema
    model_fields: ClassVar[Mapping[str, Key]] = {}

    def __init_subclass__(cls) -> None:
        own = {
            name: Key(hint, vars(cls).get(name, ...))
            for name, hint in inspect.get_annotations(cls).items()
            if not name.startswith("_")
        }
        cls.model_fields = {**cls.model_fields, **own}

    def __init__(self, **values: object) -> None:
        _made(SchemaValidator, type(self)).validate_python(values, self_instance=self)

    @classmethod
    def _before(cls, data: object) -> object:
        """Data to read in place of `data`, where a section takes other forms of it too."""
        return data

    def _after(self) -> Self:
        """The section as it was read, if its fields go together; else a ValueError."""
        return self

    @classmethod
    def whole_schema(cls) -> Schema:
        """How the core reads and writes it."""
        fields = {name: key.schema() for name, key in cls.model_fields.items()}
        schema: Schema = {"type": "model-fields", "model_name": cls.__name__, "fields": fields}
        schema = Read(cls._before).schema(schema)
        schema = {"type": "model", "cls": cls, "schema": schema, "config": _CONFIG}
        return Read(cls._after, "after").schema(schema)

    @classmethod
    def __get_pydantic_core_schema__(cls, *_: object) -> Schema:
        """How the core reads it in another section."""
        return _nested(f"{cls.__module__}.{cls.__qualname__}", lambda: cls)

    @classmethod
    def model_validate(cls, data: object) -> Self:
        """The section that a mapping says. pydantic_core.ValidationError: of every mistake."""
        return typing.cast(Self, _made(SchemaValidator, cls).validate_python(data))

    @classmethod
    def model_construct(cls, **values: object) -> Self:
        """A section of values that are right; what is not given is as usual."""
        whole = {name: values.get(name, key.default) for name, key in cls.model_fields.items()}
        known = {name: value for name, value in whole.items() if value is not ...}
        return cls.__new__(cls)._put(known, {*values})

    def model_copy(self, *, update: Mapping[str, Any] | None = None) -> Self:
        """A copy with some fields replaced by values that are right."""
        new = update or {}
        made = self.__new__(type(self))
        return made._put({**vars(self), **new}, self.model_fields_set | new.keys())

    def _put(self, values: Fields, given: set[str]) -> Self:
        object.__setattr__(self, "__dict__", values)
        object.__setattr__(self, "__pydantic_fields_set__", given)
        return self

    def model_dump(self, **how: Any) -> Fields:
        """Plain data, quantities with their units; `how`: as for pydantic's models."""
        return typing.cast(Fields, self.__pydantic_serializer__.to_python(self, **how))

    @property
    def __pydantic_serializer__(self) -> SchemaSerializer:
        """Where the core looks for it, in values whose type it was not told."""
        return _made(SchemaSerializer, type(self))

    @property
    def model_fields_set(self) -> set[str]:
        """Fields that were given."""
        return typing.cast("set[str]", getattr(self, "__pydantic_fields_set__"))  # noqa: B009

    def _values(self) -> tuple[object, ...]:
        return tuple(map(vars(self).get, self.model_fields))

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other):
            return False
        # what is worked out of the fields stands beside them
        return vars(self) == vars(other) or self._values() == typing.cast(Self, other)._values()

    def __hash__(self) -> int:
        return hash((type(self), self._values()))

    def __repr__(self) -> str:
        values = zip(self.model_fields, self._values(), strict=True)
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in values)})"

    def __setattr__(self, name: str, value: object) -> None:
        if name.startswith("__pydantic"):  # of the core
            return object.__setattr__(self, name, value)
        wrong = pydantic_core.InitErrorDetails(type="frozen_instance", loc=(name,), input=value)
        raise pydantic_core.ValidationError.from_exception_data(type(self).__name__, [wrong])


@remembered(_READY)
def _made(kind: Callable[[Any], T], section: type[Section]) -> T:
    """The validator or the serializer of a section."""
    return kind(section.whole_schema())


def _nested(place: str, section: Callable[[], type[Section]]) -> Schema:
    """How the core reads a section in another: with a validator of its own, which is made when one
    is written. No scenario has all of them.
    """

    def json(_: Schema, say_of: Callable[[Schema], Fields]) -> Fields:
        from mpsim.scenario.schema import descriptions

        said = say_of(section().whole_schema())
        for key, text in descriptions(section()).items():
            said["properties"][key]["description"] = text
        return said

    read = Read(lambda data: section().model_validate(data), "plain").schema({})
    return {**read, "ref": place, "metadata": {"pydantic_js_functions": [json]}}


def contradiction(name: str, section: Section, /, **figures: object) -> ValueError:
    """A section that contradicts itself, in the words of data/said.yaml."""
    return ValueError(say(f"scenario.{name}", s=section, **figures))


@structs.dataclass(eq=False, frozen=True, slots=True)
class Read:
    """A value that a function reads: before the core, after it, or in its place."""

    function: Callable[[Any], object]
    when: Literal["before", "after", "plain"] = "before"
    json: _Json | None = None  # where it is not that of the type

    def schema(self, plain: Schema) -> Schema:
        """How the core reads it."""
        inner = {} if self.when == "plain" else {"schema": plain}
        told = {"type": f"function-{self.when}", **inner}
        if self.json:
            told["metadata"] = {"pydantic_js_annotation_functions": [self.json]}
        return {**told, "function": {"type": "no-info", "function": self.function}}


@structs.dataclass(eq=False, frozen=True, slots=True)
class Within:
    """A quantity with a unit, between two bounds."""

    dimension: Dimension  # what it measures
    low: float  # low, high: allowed range, both included [SI unit of `dimension`]
    high: float

    def parse(self, value: object) -> float:
        """The SI float of what a person wrote."""
        number = parse_quantity(value, self.dimension)
        if not self.low <= number <= self.high:
            low, high = (format_quantity(bound, self.dimension) for bound in (self.low, self.high))
            raise pydantic_core.PydanticCustomError(
                "quantity_range",
                "got {got}; needed a quantity from {low} to {high}",
                {"got": repr(value), "low": low, "high": high},
            )
        return number

    def write(self, number: float) -> str:
        """Text that a person would write for the same float."""
        return format_exact(number, self.dimension)

    def schema(self, plain: Schema) -> Schema:
        """How the core reads and writes it."""
        write = {"type": "function-plain", "function": self.write}
        return {**Read(self.parse, json=self._json).schema(plain), "serialization": write}

    def _json(self, schema: Schema, say_of: Callable[[Schema], Fields]) -> Fields:
        units = ", ".join(units_of(self.dimension))
        return {
            "type": "string",
            "pattern": r"^\s*[+]?[0-9_.]+([eE][-+]?[0-9]+)?\s*[^\s0-9].*$",
            "description": f"a number with one of the units {units}",
        }


@structs.dataclass(eq=False, frozen=True, slots=True)
class OneOf:
    """Text that is one of the names of a catalog, all of which are asked for to refuse another."""

    knows: Callable[[str], bool]
    names: Callable[[], tuple[str, ...]]

    def check(self, value: object) -> object:
        """The value as it is, if it is such a text."""
        if isinstance(value, str) and self.knows(value):
            return value
        return SchemaValidator(self._literal).validate_python(value)

    @property
    def _literal(self) -> Any:
        return {"type": "literal", "expected": [*self.names()]}

    def schema(self, plain: Schema) -> Schema:
        """How the core reads it."""
        return Read(self.check, "plain", lambda _, say_of: say_of(self._literal)).schema(plain)


@structs.dataclass(eq=False, frozen=True, slots=True)
class Later:
    """A section of another module, which is imported when somebody writes one."""

    module: str
    name: str

    @property
    def model(self) -> type[Section]:
        """The section."""
        section: type[Section] = getattr(importlib.import_module(self.module), self.name)
        return section

    def schema(self, plain: Schema) -> Schema:
        """How the core reads it."""
        return _nested(f"{self.module}.{self.name}", lambda: self.model)


@structs.dataclass(eq=False, frozen=True, slots=True)
class Shorthand:
    """A mapping that may also be written as one word; `key` is where it stands in the scenario."""

    key: str

    def expand(self, value: object) -> object:
        """`value` as a mapping if it is one word."""
        return expand_shorthand(self.key, value)

    def schema(self, plain: Schema) -> Schema:
        """How the core reads it."""
        json: _Json = lambda own, say_of: {"anyOf": [{"type": "string"}, say_of(own)]}  # noqa: E731
        return Read(self.expand, json=json).schema(plain)


Listed: TypeAlias = Annotated[tuple[T, ...], Field(strict=False)]  # as files have lists
Some: TypeAlias = Annotated[tuple[T, ...], Field(strict=False, min_length=1)]
Name: TypeAlias = Annotated[str, Field(min_length=1, max_length=200)]
Count: TypeAlias = Annotated[int, Field(ge=1, le=SAFE_COUNT)]
Tokens: TypeAlias = Annotated[int, Field(ge=1, le=100_000_000)]
Share: TypeAlias = Annotated[float, Field(gt=0, le=1, strict=False)]
Time: TypeAlias = Annotated[float, Within(Dimension.TIME, 0.0, 3600.0)]
Span: TypeAlias = Annotated[float, Within(Dimension.TIME, 0.0, 1e8)]
Bytes: TypeAlias = Annotated[float, Within(Dimension.BYTES, 1.0, 1e18)]
Bandwidth: TypeAlias = Annotated[float, Within(Dimension.BANDWIDTH, 1.0, 1e18)]
FlopRate: TypeAlias = Annotated[float, Within(Dimension.FLOP_RATE, 1.0, 1e21)]
Power: TypeAlias = Annotated[float, Within(Dimension.POWER, 0.0, 1e9)]
Frequency: TypeAlias = Annotated[float, Within(Dimension.FREQUENCY, 1e6, 1e11)]
PriceRate: TypeAlias = Annotated[float, Within(Dimension.PRICE_RATE, 0.0, 1e9)]


class PresetSection(Section):
    """A preset by name, and fields of it to replace, written beside it."""

    preset: Name
    """Name of the catalog."""
    overrides: Mapping[str, object] = {}
    """Fields of the preset to replace."""

    @classmethod
    def _before(cls, data: object) -> object:
        """Put fields beside the name among the overrides; the schema takes no such mapping else."""
        if not isinstance(data, Mapping):
            return data
        inner = data.get("overrides", {})
        beside = {key: value for key, value in data.items() if key not in ("preset", "overrides")}
        if not isinstance(inner, Mapping) or not all(isinstance(key, str) for key in beside):
            return data
        preset = {"preset": data["preset"]} if "preset" in data else {}
        return {**preset, "overrides": {**inner, **beside}}


class LengthChoice(Section):
    """Tokens of prompts or outputs."""

    kind: Literal["fixed", "uniform", "lognormal"] = "fixed"
    """All alike; from shortest x tokens to tokens; or lognormal with tokens as its mean."""
    tokens: Tokens
    """Tokens: the length, the longest, or the mean."""
    shortest: Share = 1.0
    """Shortest over longest of uniform lengths."""
    spread: Annotated[float, Field(ge=0, le=10, strict=False)] = 0.0
    """Standard deviation over the mean of lognormal lengths."""

    @classmethod
    def _before(cls, data: object) -> object:
        return {"tokens": data} if isinstance(data, int) and not isinstance(data, bool) else data

    def _after(self) -> Self:
        for key, kind, usual in (("shortest", "uniform", 1.0), ("spread", "lognormal", 0.0)):
            if getattr(self, key) != usual and self.kind != kind:
                raise contradiction("idle_length", self, key=key, kind=kind)
        return self
