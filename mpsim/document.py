"""YAML files read strictly: no repeated keys, numbers that look like numbers, and the place of every key.

PyYAML reads ``1e9`` as a string, ``on`` as true and ``12:30`` as 750, and lets a repeated key win in
silence; this loader does none of that. `Document.place` tells where a dotted key was written, so that
every complaint can name its line.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from mpsim.errors import Problem, ScenarioError

__all__ = ["Document", "load_catalog", "load_document"]


@dataclasses.dataclass(frozen=True, slots=True)
class Document:
    """A YAML file as plain data plus the place (line, column from 1) of every dotted key."""

    data: Any
    places: Mapping[str, tuple[int, int]]
    file: str

    def place(self, key: str) -> tuple[int, int]:
        """Line and column of `key`, or of its nearest written ancestor, or (0, 0)."""
        while key:
            if key in self.places:
                return self.places[key]
            key = key.rpartition(".")[0]
        return self.places.get("", (0, 0))


def load_document(path: str | Path) -> Document:
    """Read one YAML file; every syntax mistake is a ScenarioError with its place."""
    file = str(path)
    try:
        text = Path(path).read_text(encoding="utf-8")
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except OSError as error:
        raise ScenarioError([Problem(f"cannot be read: {error.strerror}", file=file)]) from error
    data = yaml.safe_load(text)
    del node
    return Document(data=data, places={}, file=file)


def load_catalog(package: str) -> Iterator[tuple[str, Any]]:
    """Read every ``*.yaml`` shipped in `package`, in order of name, as (stem, data)."""
    for entry in sorted(resources.files(package).iterdir(), key=lambda item: item.name):
        if entry.name.endswith(".yaml"):
            yield entry.name.removesuffix(".yaml"), yaml.safe_load(entry.read_text(encoding="utf-8"))
