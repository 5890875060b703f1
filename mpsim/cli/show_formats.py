"""``mpsim show formats``: the files of other tools that can be read and written."""

from __future__ import annotations

from mpsim.cli.console import print_json, print_table
from mpsim.errors import FormatError

TRACE = ("perfetto", "trace of a simulated step for Perfetto (mpsim run --trace)")
"""What is written of a simulated step instead of a scenario."""


def show_formats(name: str | None, *, as_json: bool) -> None:
    """Print every format, which way it goes, and what it becomes. `name`: of one format; all by
    default. FormatError if there is no such format.
    """
    from mpsim.formats import WRITERS
    from mpsim.formats.registry import ALIASES, FORMATS, named

    exports = [(item.name, item.title) for item in WRITERS] + [TRACE]
    written = [item for item in exports if name is None or item[0] == ALIASES.get(name, name)]
    known = FORMATS if name is None else named(name) if _is_read(name) or not written else ()
    also = {
        known.name: [word for word, means in ALIASES.items() if means == known.name]
        for known in FORMATS
    }
    rows: list[tuple[str, str, str, str, list[str]]] = [
        ("import", item.name, item.gives, item.title, also[item.name]) for item in known
    ]
    rows += [("export", word, "", title, []) for word, title in written]
    if as_json:
        keys = ("direction", "format", "gives", "title", "also")
        print_json({"formats": [dict(zip(keys, row, strict=True)) for row in rows]})
        return
    cells = [
        (way, word, gives, title + (f" (also: {', '.join(names)})" if names else ""))
        for way, word, gives, title, names in rows
    ]
    print_table(cells, header=("direction", "format", "gives", "what it is"))


def _is_read(name: str) -> bool:
    """Whether a format of this name is read, not written alone."""
    from mpsim.formats.registry import named

    try:
        return bool(named(name))
    except FormatError:
        return False
