"""Accessors: what a value can do with the help of packages to the right of its own.

A Result draws itself, is studied and is written as a trace, and plots, studies and exporters import results, never the other way round. Results therefore
look these services up in a table, and the front door (`mpsim/__init__.py`), which alone knows every package, fills it with functions that import on their first call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["call", "offer"]

Service = Callable[..., Any]

_OFFERED: dict[str, Service] = {}


def offer(name: str, service: Service) -> None:
    """Put a service into the table.

    Parameters
    ----------
    name : str
        Such as ``result.plot``.
    service : callable
        It imports what it needs when it is called, so that offering costs nothing.
    """
    _OFFERED[name] = service


def call(name: str, *arguments: Any, **options: Any) -> Any:
    """Call a service.

    Raises
    ------
    KeyError
        If nobody offers it.

    Examples
    --------
    >>> offer("number.double", lambda number: 2 * number)
    >>> call("number.double", 4)
    8
    """
    return _OFFERED[name](*arguments, **options)
