"""Words that a shell may complete: keys of a scenario, names of catalogs, templates."""

from __future__ import annotations

import typer

_DEEPEST = 3  # parts of a key that is proposed


def keys(incomplete: str) -> list[str]:
    """Dotted keys of a scenario, as ``--set``, ``--over`` and ``--vs`` take them."""
    from mpsim.scenario import Scenario
    from mpsim.scenario.schema import known_keys

    known = [key for key in known_keys(Scenario) if key.count(".") < _DEEPEST]
    sections = {key.rpartition(".")[0] for key in known}
    return [f"{key}=" for key in known if key.startswith(incomplete) and key not in sections]


def templates(incomplete: str) -> list[tuple[str, str]]:
    """Templates of ``mpsim new`` with their titles."""
    from mpsim.scenario.examples import template_names, template_title

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
