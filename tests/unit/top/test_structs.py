"""Dataclasses that compile their methods late: the same as the standard ones, whatever is asked first."""

from __future__ import annotations

import copy
import dataclasses as standard
import inspect
import itertools
import pickle

import pytest

from mpsim import structs

KINDS = [
    {"frozen": frozen, "slots": slots, "eq": eq, "kw_only": kw_only, "repr": shown}
    for frozen, slots, eq, kw_only, shown in itertools.product((False, True), repeat=5)
]


def _made(module, options):
    """A class with every kind of field."""

    @module.dataclass(**options)
    class Point:
        """One."""

        x: int
        y: float = 2.0
        names: list[str] = standard.field(default_factory=list, hash=False)
        note: str = standard.field(default="", compare=False, repr=False, kw_only=True)
        seen: list[int] = standard.field(default_factory=list, init=False, hash=False)

        def __post_init__(self):
            self.seen.append(self.x)

    return Point


def _outcome(ask):
    try:
        return ask()
    except (AttributeError, TypeError) as error:
        return type(error), str(error)


@pytest.mark.parametrize("calls", [0, 99])
@pytest.mark.parametrize("options", KINDS, ids=str)
def test_a_class_is_as_the_standard_library_makes_it(options, calls, monkeypatch):
    """Signature, fields, text, comparison, hash, copies and refusals; compiled at once or never."""
    monkeypatch.setattr(structs, "_FEW", calls)
    told = []
    for module in (structs, standard):
        cls = _made(module, options)
        point = cls(x=1, names=["a"], note="n")
        alike, other = cls(x=1, names=["a"]), cls(x=1, y=3.0)
        told.append(
            [
                str(inspect.signature(cls)),
                [field.name for field in standard.fields(cls)],
                standard.asdict(point),
                options["repr"] and repr(point),
                point == alike,
                point == other,
                point == 1,
                _outcome(lambda cls=cls, point=point: hash(point) == hash(cls(x=1, names=["b"]))),
                _outcome(lambda point=point: setattr(point, "x", 5)),
                _outcome(lambda cls=cls: delattr(cls(x=1), "y")),
                _outcome(lambda cls=cls: cls(y=1)),
                standard.asdict(copy.deepcopy(point)),
                standard.asdict(module.replace(other, x=4, note="n")),
                cls.__match_args__,
            ]
        )
    assert told[0] == told[1]


@structs.dataclass(frozen=True, slots=True)
class Base:
    """A frozen class that is pickled by name."""

    x: int


@structs.dataclass(frozen=True, slots=True)
class Derived(Base):
    """Its fields stand behind those of its base."""

    y: int = 2


def test_a_derived_class_sets_and_pickles_all_fields():
    """Slots of the base are set by descriptors of the base."""
    assert pickle.loads(pickle.dumps(Derived(1))) == Derived(1, 2) != Base(1)


@pytest.mark.parametrize("ask", [inspect.signature, lambda cls: [cls(x) for x in range(99)]])
def test_a_class_is_compiled_when_it_is_made_often(ask):
    """Or when somebody asks what it takes."""
    cls = _made(structs, {"frozen": True, "slots": True})
    before = cls(1), inspect.isfunction(cls.__dict__["__init__"])
    ask(cls)
    assert [before[1], inspect.isfunction(cls.__dict__["__init__"])] == [False, True]


@pytest.mark.parametrize("calls", [0, 99])
@pytest.mark.parametrize(("given", "named"), [((1, 2, [], 4), {}), ((1,), {"x": 1}), ((), {})])
def test_wrong_arguments_are_refused_in_the_words_of_python(given, named, calls, monkeypatch):
    """Too many, one twice, one missing: the same of the first object and of the hundredth."""
    monkeypatch.setattr(structs, "_FEW", calls)
    told = []
    for module in (structs, standard):
        cls = _made(module, {"frozen": True, "slots": True})
        told.append(_outcome(lambda cls=cls: cls(*given, **named)))
    assert told[0] == told[1]
    assert told[0][0] is TypeError
