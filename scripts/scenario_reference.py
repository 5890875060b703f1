"""Write docs/reference/scenario.md from the schema: ``python scripts/scenario_reference.py``.

A test holds the page to the schema, so nobody edits it by hand.
"""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Iterator
from pathlib import Path

from mpsim.scenario import Scenario
from mpsim.scenario.fields import Key, Later, Section
from mpsim.scenario.schema import descriptions
from mpsim.units import Dimension, units_of

PAGE = Path(__file__).resolve().parent.parent / "docs" / "reference" / "scenario.md"
HEAD = """\
# Scenario file

A YAML file of the keys below (this page is generated from the schema). Keys are strict: an unknown one is refused with the nearest valid name.
A quantity [B/s] is
a string with a unit of that kind, such as `400 Gb/s`, `50 GB/s` or `50 GiB/s`; a small `b` is a bit and a capital `B` a byte, `Gbps` is `Gb/s`, and `GBps` is refused because it is written for both.

- **Presets.** Where a preset is expected, its name alone is enough (`model: gpt3-175b`); `{preset: gpt3-175b, layers: 48}` replaces fields of it.
  `mpsim show` lists the names.
- **Layers.** `include:` reads one file or several first, the file itself comes on top, then `--override NAME` blocks in order, then `--set
  KEY=VALUE`. Mappings merge key by key, everything else is replaced; `KEY=null` leaves it out.
"""


def render() -> str:
    """The page as text."""
    return "\n".join([HEAD, *_sections()]).rstrip("\n") + "\n"


def _sections() -> Iterator[str]:
    """A heading and its keys for each kind of section, under every place that has one of the kind."""
    places: dict[type[Section], list[str]] = {}
    waiting: list[tuple[str, type[Section]]] = [("", Scenario)]
    while waiting:
        place, model = waiting.pop(0)
        places.setdefault(model, []).append(place)
        inner = [
            (f"{place}.{key}".lstrip("."), nested)
            for key, field in model.model_fields.items()
            for nested in _kind(field.annotation, [])[1]
        ]
        waiting = [*inner, *waiting]
    for model, names in places.items():
        yield from _section(names, model)


def _section(places: list[str], model: type[Section]) -> Iterator[str]:
    """One heading and its table."""
    claim = (inspect.getdoc(model) or "").partition("\n")[0]
    title = ", ".join(f"`{place}`" for place in places)
    yield f"## {title}\n\n{claim}\n" if any(places) else "## Top level\n"
    yield "| key | value | meaning |\n| --- | --- | --- |"
    for key, field in model.model_fields.items():
        value = f"{_kind(field.annotation, [])[0]} {_default(field)}".rstrip()
        yield f"| `{key}` | {value} | {' '.join(descriptions(model).get(key, '').split())} |"
    yield ""


def _default(field: Key) -> str:
    if field.default is ...:
        return "(required)"
    value = field.default
    if value is None or value in ((), {}, "") or isinstance(value, Section):
        return ""
    return f"(default `{str(value).lower() if isinstance(value, bool) else value}`)"


def _kind(annotation: object, metadata: list[object]) -> tuple[str, list[type[Section]]]:
    """What may be written, in words, and the sections inside."""
    dimension = next((one.dimension for one in metadata if hasattr(one, "dimension")), None)
    if dimension is not None:
        return _quantity(dimension), []
    names = next((one.names for one in metadata if hasattr(one, "names")), None)
    if names is not None:
        return ", ".join(f"`{name}`" for name in names()), []
    if later := next((one for one in metadata if isinstance(one, Later)), None):
        return "section", [later.model]
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return _kind(arguments[0], [*metadata, *arguments[1:]])
    if origin in (typing.Union, types.UnionType):
        parts = [_kind(one, metadata) for one in arguments if one is not type(None)]
        return " or ".join(dict.fromkeys(kind for kind, _ in parts)), [
            m for _, ms in parts for m in ms
        ]
    if origin is typing.Literal:
        return ", ".join(f"`{one}`" for one in arguments), []
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return "section", [annotation]
    if origin is not None:
        nested = _kind(arguments[-1], [])[1] if arguments else []
        return ("mapping" if "apping" in str(origin) or origin is dict else "list"), nested
    words = {int: "integer", float: "number", bool: "boolean", str: "text"}
    return words.get(annotation, "anything"), []  # type: ignore[call-overload]


def _quantity(dimension: Dimension) -> str:
    return f"quantity [{units_of(dimension)[0]}]"


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
