"""Memo: the one way in which anything is remembered, by what it is and within a bound.

* `remembered` keeps what a function said for its last arguments.
* `Memo` is the dictionary of an object that keeps what it worked out; `asked_once` gives a method
  one.
* What a frozen object works out from itself is a `functools.cached_property`, gone with it.

Keys are content: numbers, strings, tuples and frozen values. An object that compares by identity (a
template, a program) may be a key itself, because the memo holds it while it holds the value; its
address may not, because another object can get the same one later.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

P = ParamSpec("P")
R = TypeVar("R")
K = TypeVar("K")
V = TypeVar("V")
S = TypeVar("S")

_NOTHING = object()
_OF_METHOD = 4096  # answers that an object keeps of a method
_CACHES: list[functools._lru_cache_wrapper[object]] = []


def remembered(bound: int) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Keep what a function returned for the last `bound` distinct arguments. `bound`: answers kept,
    at least 1; the one not asked for the longest time is forgotten first.

    Examples
    --------
    >>> asked = []
    >>> @remembered(2)
    ... def square(number: int) -> int:
    ...     asked.append(number)
    ...     return number * number
    >>> [square(number) for number in (1, 1, 2, 3, 1)]
    [1, 1, 4, 9, 1]
    >>> asked
    [1, 2, 3, 1]
    """
    if bound < 1:
        raise ValueError(f"got a bound of {bound}; needed 1 or more")

    def wrap(function: Callable[P, R]) -> Callable[P, R]:
        # the wrapper in C is returned as it is: an answer that is there costs no Python frame
        if "<locals>" in function.__qualname__:
            raise ValueError("a function inside another is a new one at each call; give it a Memo")
        cached = functools.lru_cache(maxsize=bound)(function)
        _CACHES.append(cached)
        return cast(Callable[P, R], cached)

    return wrap


class Memo(dict[K, V]):
    """A dictionary that forgets its oldest entries when all weigh more than `bound`. `bound`: at
    least 1. `weigh`: what an entry weighs; 1 when left out, so that `bound` counts entries.

    Notes
    -----
    Looking up is that of any dictionary, so hot loops pay nothing; only what is new is counted.
    `update`, `setdefault` and `|=` go around the bound and are refused.

    Examples
    --------
    >>> memo = Memo[str, int](2)
    >>> for name in ("a", "b", "c"):
    ...     memo[name] = len(memo)
    >>> memo
    {'b': 1, 'c': 2}
    >>> texts = Memo[int, str](5, weigh=len)
    >>> for number, text in enumerate(("ab", "cd", "efg", "more than all")):
    ...     texts[number] = text
    ...     print([*texts])
    [0]
    [0, 1]
    [1, 2]
    [3]
    """

    __slots__ = ("_bound", "_weigh")

    def __init__(self, bound: int, *, weigh: Callable[[V], int] | None = None) -> None:
        super().__init__()
        if bound < 1:
            raise ValueError(f"got a bound of {bound}; needed 1 or more")
        self._bound, self._weigh = bound, weigh

    def __setitem__(self, key: K, value: V) -> None:
        super().__setitem__(key, value)
        # the newest stays whatever it weighs: somebody asked for it
        while len(self) > 1 and self._weight > self._bound:
            # another thread may have made room at the same moment
            with contextlib.suppress(KeyError, RuntimeError):
                del self[next(iter(self))]

    @property
    def _weight(self) -> int:
        weigh = self._weigh
        return sum(weigh(each) for each in [*self.values()]) if weigh else len(self)

    def get_or(self, key: K, make: Callable[[], V]) -> V:
        """The value of `key`; made and kept where it is not there."""
        # asked for once, as another thread may make room meanwhile
        if (value := self.get(key, _NOTHING)) is not _NOTHING:
            return value  # type: ignore[return-value] # a cast takes as long as looking up
        self[key] = made = make()
        return made

    def update(self, *_: object, **__: object) -> None:
        """Refuse: entries come one by one, so that the bound holds."""
        raise TypeError("a Memo takes entries one by one")

    setdefault = __ior__ = update  # type: ignore[assignment] # both would go around the bound


def asked_once(
    key: Callable[..., object],
) -> Callable[[Callable[Concatenate[S, P], R]], Callable[Concatenate[S, P], R]]:
    """Keep what a method returned in its object, by a key of its arguments."""

    def wrap(method: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
        place = f"_{method.__name__}_known"

        @functools.wraps(method)
        def ask(self: S, *args: P.args, **kwargs: P.kwargs) -> R:
            own: dict[str, Any] = self.__dict__
            if (known := own.get(place)) is None:
                known = own[place] = Memo[object, R](_OF_METHOD)
            made = known.get_or(key(*args, **kwargs), lambda: method(self, *args, **kwargs))
            return cast(R, made)

        return cast(Callable[Concatenate[S, P], R], ask)

    return wrap


def usage() -> list[tuple[int, int | None]]:
    """Answers that each remembered function keeps, and its bound."""
    return [(info.currsize, info.maxsize) for info in (each.cache_info() for each in _CACHES)]


def forget() -> None:
    """Forget what every remembered function has said."""
    for cache in _CACHES:
        cache.cache_clear()
