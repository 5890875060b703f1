"""Methods that remember what they answered, for as long as their object lives."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Concatenate, ParamSpec, TypeVar

__all__ = ["remembered"]

S = TypeVar("S")
R = TypeVar("R")
P = ParamSpec("P")


def remembered(method: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
    """Answer once for the same arguments.

    Parameters
    ----------
    method : callable
        Takes arguments that can be hashed; of a class without slots.

    Notes
    -----
    Unlike ``functools.cache``, which keeps every object it was ever asked about, answers go with their object.

    Examples
    --------
    >>> class Tower:
    ...     @remembered
    ...     def height(self, floor):
    ...         print("measured")
    ...         return 3 * floor
    >>> tower = Tower()
    >>> tower.height(2), tower.height(2)
    measured
    (6, 6)
    """
    name = f"_{method.__name__}_known"

    def answer(self: S, /, *arguments: P.args, **more: P.kwargs) -> R:
        known: dict[tuple[object, ...], R] = self.__dict__.setdefault(name, {})
        asked = (*arguments, *more.items()) if more else arguments
        if asked not in known:
            known[asked] = method(self, *arguments, **more)
        return known[asked]

    functools.update_wrapper(answer, method)
    return answer
