"""`dataclasses` of the standard library, whose classes compile a method when it is needed often.

The standard decorator compiles up to eight functions a class, a sixth of every start of a command.
Here what is never made, compared or hashed costs nothing, and what is so a few times goes field by
field, in less than compiling takes. Frozen fields with slots are set in half the time, and others
are replaced in half the time (all measured).
"""

from __future__ import annotations

import dataclasses
import functools
import reprlib
import sys
from dataclasses import *  # noqa: F403 (what a class may say of its fields)
from types import MemberDescriptorType
from typing import TYPE_CHECKING, Any, NoReturn, cast

# stands in a signature for a default that is made anew each time
_FACTORY = type("_Factory", (), {"__repr__": lambda self: "<factory>"})()
_FEW = 8  # calls that take less than to compile the method


class _Unwritten:
    """A method that is compiled when it was called a few times, or is looked up in its class."""

    def __init__(self, cls: Any, write: Any, early: Any = None) -> None:
        self._cls, self._write, self._early, self._left = cls, write, early, _FEW if early else 0

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        if instance is not None and self._left:
            self._left -= 1
            return functools.partial(self._early, self._cls, instance)
        cls, space = self._cls, dict[str, Any]()
        names: dict[str, Any] = {"_missing": _FACTORY}
        header, *body = self._write(cls, names)
        name = header.partition("(")[0]
        lines = [
            f"def make({', '.join(names)}):",
            f" def {header}:",
            *(f"  {line}" for line in body),
        ]
        text = "\n".join([*lines, f" return {name}"])
        exec(text, sys.modules[cls.__module__].__dict__, space)  # noqa: S102 (of names of fields)
        method = space["make"](**names)
        method.__qualname__ = f"{cls.__qualname__}.{name}"
        if name == "__init__":
            given = {f.name: f.type for f in dataclasses.fields(cls) if f.init}
            method.__annotations__ = given | {"return": None}
        setattr(cls, name, method)
        return method.__get__(instance, owner)


def _init(cls: Any, names: dict[str, Any]) -> list[str]:
    """Header and lines of ``__init__``; `names` takes what these stand on."""
    names["_set"], asked, named, body = object.__setattr__, ["self"], ["*"], list[str]()
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
        if cls.__setattr__ is not _refuse:
            body.append(f"self.{name} = {value}")
        elif isinstance(slot, MemberDescriptorType):
            names[f"_set_{name}"] = slot.__set__
            body.append(f"_set_{name}(self, {value})")
        else:
            body.append(f"_set(self, {name!r}, {value})")
    body.append("self.__post_init__()" if hasattr(cls, "__post_init__") else "pass")
    return [f"__init__({', '.join(asked + named * (len(named) > 1))})", *body]


def _early_init(cls: Any, self: Any, /, *given: object, **named: object) -> None:
    fields = [f for f in dataclasses.fields(cls) if f.init]
    places = (f.name for f in fields if not f.kw_only)
    values: Any = {**dict(zip(places, given, strict=False)), **named}
    needed = {f.name for f in fields if f.default is f.default_factory}  # neither
    known = needed <= values.keys() <= {f.name for f in fields}
    if not known or len(values) < len(given) + len(named):
        cls.__init__(self, *given, **named)  # says why
    put = object.__setattr__ if cls.__setattr__ is _refuse else setattr
    for field in cast("Any", dataclasses).fields(cls):
        value = values.get(field.name, field.default)
        if value is dataclasses.MISSING is not field.default_factory:
            value = field.default_factory()
        if value is not dataclasses.MISSING:  # else a field that nobody may give
            put(self, field.name, value)
    if hasattr(cls, "__post_init__"):
        self.__post_init__()


def _replace(cls: Any, names: object) -> list[str]:
    fields = [f.name for f in dataclasses.fields(cls) if f.init]
    given = "".join(f", {name}=_missing" for name in fields)
    made = ", ".join(f"{name}=self.{name} if {name} is _missing else {name}" for name in fields)
    return [f"__replace__(self{', *' if given else ''}{given})", f"return self.__class__({made})"]


def _early_replace(cls: Any, self: Any, /, **changes: object) -> Any:
    own = {f.name: getattr(self, f.name) for f in dataclasses.fields(cls) if f.init}
    return self.__class__(**own | changes)


def _hashed(cls: Any) -> list[str]:
    return [f.name for f in dataclasses.fields(cls) if (f.compare if f.hash is None else f.hash)]


def _eq(cls: Any, names: object) -> list[str]:
    fields = [f.name for f in dataclasses.fields(cls) if f.compare]
    mine, theirs = (f"({''.join(f'{of}.{name}, ' for name in fields)})" for of in ("self", "other"))
    same = "other.__class__ is self.__class__"
    return ["__eq__(self, other)", f"return {mine} == {theirs} if {same} else NotImplemented"]


def _hash(cls: Any, names: object) -> list[str]:
    values = "".join(f"self.{name}, " for name in _hashed(cls))
    return ["__hash__(self)", f"return hash(({values}))"]


def _early_hash(cls: Any, self: Any) -> int:
    return hash(tuple([getattr(self, name) for name in _hashed(cls)]))


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

    def replace(value: Any, /, **changes: object) -> Any:
        """The value with changes, as the standard function returns it."""
        made = getattr(value, "__replace__", None)
        return made(**changes) if made else dataclasses.replace(value, **changes)

    def dataclass(
        cls: Any = None, /, *, eq: bool = True, frozen: bool = False, **options: bool
    ) -> Any:
        """The decorator; `options`: `kw_only`, `repr` and `slots`."""
        if cls is None:
            return functools.partial(dataclass, eq=eq, frozen=frozen, **options)
        own = {name for name, value in cls.__dict__.items() if value is not None}
        methods = {"__repr__": _repr} if options.pop("repr", True) else {}
        cls = dataclasses.dataclass(cls, init=False, repr=False, eq=False, **options)
        methods["__init__"] = _Unwritten(cls, _init, _early_init)
        methods["__replace__"] = _Unwritten(cls, _replace, _early_replace)
        if eq:
            methods["__eq__"] = _Unwritten(cls, _eq)
            methods["__hash__"] = _Unwritten(cls, _hash, _early_hash) if frozen else None
        if frozen:
            methods |= {"__setattr__": _refuse, "__delattr__": _refuse}
        if frozen and options.get("slots"):
            methods["__setstate__"] = _setstate
        for name in methods.keys() - own:
            setattr(cls, name, methods[name])
        return cls


def named(value: object, *names: str) -> dict[str, object]:
    """Attributes of a value by their names, as rows and plain data have them."""
    return {name: getattr(value, name) for name in names}
