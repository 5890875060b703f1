"""The kinds of field a scenario is made of: strict models, quantities with units, shorthands."""

import importlib
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final, Literal, Self, TypeAlias, TypeVar

import pydantic
from pydantic_core import PydanticCustomError, SchemaValidator, core_schema

from mpsim import structs
from mpsim.scenario.layers import expand_shorthand
from mpsim.shipped import say
from mpsim.units import Dimension, format_exact, format_quantity, parse_quantity, units_of

Fields: TypeAlias = dict[str, Any]
"""Values by field, to be spread over a section, a dataclass or a JSON schema."""
SAFE_COUNT: Final = 1_000_000  # more of anything is a slip of the keyboard


class Section(pydantic.BaseModel):
    """A mapping of the scenario file: unknown keys refused, values never coerced, frozen.

    The string under a field says what it is for (see `mpsim.scenario.schema`).
    """

    model_config = pydantic.ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        allow_inf_nan=False,
        defer_build=True,  # the schema of the scenario holds those of its parts
    )


def contradiction(name: str, section: Section, /, **figures: object) -> ValueError:
    """A section that contradicts itself, in the words of data/said.yaml."""
    return ValueError(say(f"scenario.{name}", s=section, **figures))


@structs.dataclass(frozen=True, slots=True)
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
            raise PydanticCustomError(
                "quantity_range",
                "got {got}; needed a quantity from {low} to {high}",
                {"got": repr(value), "low": low, "high": high},
            )
        return number

    def write(self, number: float) -> str:
        """Text that a person would write for the same float."""
        return format_exact(number, self.dimension)

    def __get_pydantic_core_schema__(
        self, source: object, handler: pydantic.GetCoreSchemaHandler
    ) -> core_schema.CoreSchema:
        write = core_schema.plain_serializer_function_ser_schema(self.write)
        return core_schema.no_info_before_validator_function(
            self.parse, handler(source), serialization=write
        )

    def __get_pydantic_json_schema__(
        self, schema: core_schema.CoreSchema, handler: pydantic.GetJsonSchemaHandler
    ) -> Fields:
        units = ", ".join(units_of(self.dimension))
        return {
            "type": "string",
            "pattern": r"^\s*[+]?[0-9_.]+([eE][-+]?[0-9]+)?\s*[^\s0-9].*$",
            "description": f"a number with one of the units {units}",
        }


@structs.dataclass(frozen=True, slots=True)
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
    def _literal(self) -> core_schema.CoreSchema:
        return core_schema.literal_schema(list(self.names()))

    def __get_pydantic_core_schema__(
        self, source: object, handler: pydantic.GetCoreSchemaHandler
    ) -> core_schema.CoreSchema:
        return core_schema.no_info_plain_validator_function(self.check)

    def __get_pydantic_json_schema__(
        self, schema: core_schema.CoreSchema, handler: pydantic.GetJsonSchemaHandler
    ) -> Fields:
        return handler(self._literal)


@structs.dataclass(frozen=True, slots=True)
class Later:
    """A section whose model is imported when somebody writes one, as few scenarios do."""

    module: str  # of `mpsim.scenario`
    name: str

    @property
    def model(self) -> type[Section]:
        """The model of the section."""
        model: type[Section] = getattr(
            importlib.import_module(f"mpsim.scenario.{self.module}"), self.name
        )
        return model

    def validate(self, value: object) -> Section:
        """The section that a mapping says."""
        return self.model.model_validate(value)

    def __get_pydantic_core_schema__(
        self, source: object, handler: pydantic.GetCoreSchemaHandler
    ) -> core_schema.CoreSchema:
        return core_schema.no_info_plain_validator_function(self.validate)


@structs.dataclass(frozen=True, slots=True)
class Shorthand:
    """A mapping that may also be written as one word; `key` is where it stands in the scenario."""

    key: str

    def expand(self, value: object) -> object:
        """`value` as a mapping if it is one word."""
        return expand_shorthand(self.key, value)

    def __get_pydantic_core_schema__(
        self, source: object, handler: pydantic.GetCoreSchemaHandler
    ) -> core_schema.CoreSchema:
        return core_schema.no_info_before_validator_function(self.expand, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: core_schema.CoreSchema, handler: pydantic.GetJsonSchemaHandler
    ) -> Fields:
        return {"anyOf": [{"type": "string"}, handler(schema)]}


T = TypeVar("T")
Listed: TypeAlias = Annotated[tuple[T, ...], pydantic.Field(strict=False)]  # as files have lists
Some: TypeAlias = Annotated[tuple[T, ...], pydantic.Field(strict=False, min_length=1)]
Name: TypeAlias = Annotated[str, pydantic.Field(min_length=1, max_length=200)]
Count: TypeAlias = Annotated[int, pydantic.Field(ge=1, le=SAFE_COUNT)]
Tokens: TypeAlias = Annotated[int, pydantic.Field(ge=1, le=100_000_000)]
Share: TypeAlias = Annotated[float, pydantic.Field(gt=0, le=1, strict=False)]
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

    @pydantic.model_validator(mode="before")
    @classmethod
    def _gather(cls, data: object) -> object:
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
    spread: Annotated[float, pydantic.Field(ge=0, le=10, strict=False)] = 0.0
    """Standard deviation over the mean of lognormal lengths."""

    @pydantic.model_validator(mode="before")
    @classmethod
    def _from_number(cls, data: object) -> object:
        return {"tokens": data} if isinstance(data, int) and not isinstance(data, bool) else data

    @pydantic.model_validator(mode="after")
    def _check_kind(self) -> Self:
        for key, kind, usual in (("shortest", "uniform", 1.0), ("spread", "lognormal", 0.0)):
            if getattr(self, key) != usual and self.kind != kind:
                raise contradiction("idle_length", self, key=key, kind=kind)
        return self
