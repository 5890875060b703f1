"""Sizes of a model: bounds that its nouns mark their fields with, and what does not fit them."""

import typing
from collections.abc import Iterator
from typing import Annotated, Literal, TypeAlias

from mpsim.errors import nearest
from mpsim.nouns import Plain, hints

# more is a slip of the keyboard
Layers: TypeAlias = Annotated[int, Plain(bounds={"ge": 1, "le": 10_000})]
AnyLayers: TypeAlias = Annotated[int, Plain(bounds={"ge": 0, "le": 10_000})]
Many: TypeAlias = Annotated[int, Plain(bounds={"ge": 1, "le": 1_000_000})]
AnyMany: TypeAlias = Annotated[int, Plain(bounds={"ge": 0, "le": 1_000_000})]
AnyWidth: TypeAlias = Annotated[int, Plain(bounds={"ge": 0, "le": 1_000_000_000})]
AnyTokens: TypeAlias = Annotated[int, Plain(bounds={"ge": 0, "le": 100_000_000})]
Vocabulary: TypeAlias = Annotated[int, Plain(bounds={"ge": 1, "le": 100_000_000})]
Times: TypeAlias = Annotated[float, Plain(bounds={"ge": 0, "le": 1000})]
Over: TypeAlias = Annotated[float, Plain(bounds={"ge": 1, "le": 1000})]
Probability: TypeAlias = Annotated[float, Plain(bounds={"ge": 0, "lt": 1})]
Images: TypeAlias = Annotated[float, Plain(bounds={"gt": 0, "le": 1_000_000})]
Pattern: TypeAlias = Annotated[str, Plain(bounds={"max_length": 10_000})]


def unfit(owner: object, head: str = "") -> Iterator[str]:
    """Say which sizes of a model, or of a part of it, are too small, and which words unknown."""
    for name, hint in hints(type(owner)).items():
        value, kind = getattr(owner, name), typing.get_origin(hint)
        if kind is Literal and value not in typing.get_args(hint):
            yield f"{head}{name} is {value!r}; {nearest(str(value), typing.get_args(hint))}"
        elif kind is Annotated and (marked := typing.get_args(hint))[0] is int:
            least = marked[1].bounds["ge"]
            if type(value) is not int or value < least:
                yield f"{head}{name} is {value!r}; it must be a whole number of at least {least}"
