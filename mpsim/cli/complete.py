"""Words that a shell may complete: keys of a scenario, names of catalogs, templates."""

from __future__ import annotations

import typing
from collections.abc import Iterator
from typing import Any

import typer

__all__ = ["catalogs", "entries", "keys", "templates"]

_DEEPEST = 3  # parts of a key that is proposed


def keys(incomplete: str) -> list[str]:
    """Dotted keys of a scenario, as ``--set``, ``--over`` and ``--vs`` take them."""
    from mpsim.scenario import Scenario

    return [f"{key}=" for key in _keys(Scenario) if key.startswith(incomplete)]


def _keys(schema: Any, prefix: str = "") -> Iterator[str]:
    for name, field in schema.model_fields.items():
        key = f"{prefix}{field.alias or name}"
        inner = [kind for kind in _kinds(field.annotation) if hasattr(kind, "model_fields")]
        if not inner or key.count(".") + 1 == _DEEPEST:
            yield key
        for kind in inner:
            if key.count(".") + 1 < _DEEPEST:
                yield from _keys(kind, f"{key}.")


def _kinds(annotation: Any) -> Iterator[Any]:
    """Classes that a field may be of."""
    parts = typing.get_args(annotation)
    if not parts:
        yield annotation
    for part in parts:
        yield from _kinds(part)


def templates(incomplete: str) -> list[tuple[str, str]]:
    """Templates of ``mpsim new`` with their titles."""
    from mpsim.scenario import template_names, template_title

    return [
        (name, template_title(name)) for name in template_names() if name.startswith(incomplete)
    ]


def catalogs(incomplete: str) -> list[str]:
    """Catalogs and questions of ``mpsim show``."""
    from mpsim.cli.catalogs import HEEDED, Catalog

    known = [*map(str, Catalog), *HEEDED, "engine", "formats"]
    return sorted(name for name in known if name.startswith(incomplete))


def entries(context: typer.Context, incomplete: str) -> list[str]:
    """Entries of the catalog that the command line names."""
    from mpsim.cli.catalogs import Catalog, shelf

    word = str(context.params.get("catalog") or "").removesuffix("s")
    if word not in list(Catalog):
        return []
    return [name for name in shelf(Catalog(word)).names() if name.startswith(incomplete)]
