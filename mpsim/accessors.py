"""Accessors: what a value can do with the help of packages to the right of its own.

A Result draws itself, is studied and is written as a trace, and plots, studies and exporters import
results, never the other way round. Results therefore look these services up in a table, and the
front door (`mpsim/__init__.py`) fills it with functions that import on their first call.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol


class Drawn(Protocol):
    """A picture, as packages to the left of pictures know it: it can be written to a file."""

    def save(self, path: str | Path) -> Path:
        """Write it; the suffix chooses the format."""


class Drawable(Drawn, Protocol):
    """A chart, as they know it: it can be drawn, under another title too."""

    def plot(self, ax: Any = None) -> Drawn:
        """Draw on axes, or on a figure of its own."""

    def titled(self, title: str) -> Drawable:
        """The same with another title."""


Service = Callable[..., Any]

_OFFERED: dict[str, Service] = {}


def offer(name: str, service: Service) -> None:
    """Put a `service` (it imports what it needs when called) into the table as `name`."""
    _OFFERED[name] = service


def call(name: str, *arguments: Any, **options: Any) -> Any:
    """Call a service. KeyError if nobody offers it.

    Examples
    --------
    >>> offer("number.double", lambda number: 2 * number)
    >>> call("number.double", 4)
    8
    """
    return _OFFERED[name](*arguments, **options)


def chart(name: str, *arguments: object) -> Drawable:
    """A chart of a study, which the package of pictures makes."""
    made: Drawable = call(f"chart.{name}", *arguments)
    return made
