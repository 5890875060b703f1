"""Descriptions of nouns: figures with units and sources, for anybody who lays them out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from mpsim import structs
from mpsim.nouns import dimensions
from mpsim.units import Dimension, format_quantity

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
