"""`dataclasses` of the standard library, whose classes compile ``__init__`` when it is needed.

The standard decorator compiles up to eight functions a class, a sixth of every start of a command.
Here only what is made is compiled, and fields of a frozen class with slots are set in half the time
(both measured).
"""

from __future__ import annotations

import dataclasses
import functools
import reprlib
import sys
from dataclasses import *  # noqa: F403 (what a class may say of its fields)
from operator import attrgetter
from types import MemberDescriptorType
from typing import TYPE_CHECKING, Any, NoReturn


class _Init:
    """``__init__`` of a class until somebody looks it up, who gets the compiled one."""

    def __init__(self, cls: Any, frozen: bool) -> None:
        self._cls, self._frozen = cls, frozen

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        self._cls.__init__ = made = _compiled(self._cls, self._frozen)
        return made.__get__(instance, owner)


def _compiled(cls: Any, frozen: bool) -> Any:
    names: dict[str, Any] = {"_missing": dataclasses.MISSING, "_set": object.__setattr__}
    asked, named, body = ["self"], ["*"], list[str]()
    for field in dataclasses.fields(cls):
        name = given = value = field.name
        if field.default is not dataclasses.MISSING:
            names[f"_default_{name}"], given = field.default, f"{name}=_default_{name}"
        elif field.default_factory is not dataclasses.MISSING:
            names[f"_make_{name}"], given = field.default_factory, f"{name}=_missing"
            value = f"_make_{name}() if {name} is _missing else {name}"
        if field.init:
            (named if field.kw_only else asked).append(given)
        elif given == name:
            continue
        else:
            body.append(given)  # a variable, as nobody may give it
        slot = getattr(cls, name, None)
        if not frozen:
            body.append(f"self.{name} = {value}")
        elif isinstance(slot, MemberDescriptorType):
            names[f"_set_{name}"] = slot.__set__
            body.append(f"_set_{name}(self, {value})")
        else:
            body.append(f"_set(self, {name!r}, {value})")
    body.append("self.__post_init__()" if hasattr(cls, "__post_init__") else "pass")
    header = f"__init__({', '.join(asked + named * (len(named) > 1))})"
    lines = [f"def make({', '.join(names)}):", f" def {header}:", *(f"  {line}" for line in body)]
    space: dict[str, Any] = {}
    text = "\n".join([*lines, " return __init__"])
    exec(text, sys.modules[cls.__module__].__dict__, space)  # noqa: S102 (of names of fields)
    init = space["make"](**names)
    init.__qualname__ = f"{cls.__qualname__}.__init__"
    init.__annotations__ = {f.name: f.type for f in dataclasses.fields(cls) if f.init}
    return init


def _compared(cls: Any, frozen: bool) -> dict[str, Any]:
    fields = {f.name: f for f in dataclasses.fields(cls)}
    compared = [name for name, f in fields.items() if f.compare]
    hashed = [name for name, f in fields.items() if (f.compare if f.hash is None else f.hash)]
    # with the class these are tuples, however many fields there are
    values, hashable = (attrgetter("__class__", *names) for names in (compared, hashed))

    def eq(self: object, other: object) -> bool:
        same = other.__class__ is self.__class__
        return values(self) == values(other) if same else NotImplemented

    return {"__eq__": eq, "__hash__": (lambda self: hash(hashable(self))) if frozen else None}


@reprlib.recursive_repr()
def _repr(self: Any) -> str:
    shown = [f"{f.name}={getattr(self, f.name)!r}" for f in dataclasses.fields(self) if f.repr]
    return f"{type(self).__qualname__}({', '.join(shown)})"


def _refuse(self: object, name: str, *value: object) -> NoReturn:
    does = "assign to" if value else "delete"
    raise dataclasses.FrozenInstanceError(f"cannot {does} field {name!r}")


def _setstate(self: object, state: tuple[None, dict[str, Any]]) -> None:
    for name, value in state[1].items():
        object.__setattr__(self, name, value)


if not TYPE_CHECKING:

    def dataclass(
        cls: Any = None, /, *, eq: bool = True, frozen: bool = False, **options: bool
    ) -> Any:
        """The decorator; `options`: `kw_only`, `repr` and `slots`."""
        if cls is None:
            return functools.partial(dataclass, eq=eq, frozen=frozen, **options)
        own = {name for name, value in cls.__dict__.items() if value is not None}
        methods = {"__repr__": _repr} if options.pop("repr", True) else {}
        cls = dataclasses.dataclass(cls, init=False, repr=False, eq=False, **options)
        methods |= {"__init__": _Init(cls, frozen)} | (_compared(cls, frozen) if eq else {})
        if frozen:
            methods |= {"__setattr__": _refuse, "__delattr__": _refuse}
        if frozen and options.get("slots"):
            methods["__setstate__"] = _setstate
        for name in methods.keys() - own:
            setattr(cls, name, methods[name])
        return cls
