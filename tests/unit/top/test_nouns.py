"""Nouns are read from plain data as their annotations say; every mistake names the key and the mend."""

from __future__ import annotations

import dataclasses
import enum
import runpy
import sys
from collections.abc import Mapping
from typing import ClassVar, Literal

import pytest

from mpsim.framework import HostBehaviour
from mpsim.hardware import Accelerator, Host, Link
from mpsim.nouns import Bytes, Count, Flag, MistakenError, Number, Seconds, Share, read
from mpsim.serving.engines import EnginePreset
from mpsim.workload import Lowering


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Noun:
    """Something with a field of every kind."""

    time: Seconds
    """How long it takes [s]."""
    size: Bytes = 1.0
    count: Count = 1
    share: Share = 0.5
    rate: Number = 1.0
    flag: Flag = False
    word: Literal["left", "right"] = "left"
    sizes: tuple[Count, ...] = ()


def test_quantities_are_parsed_and_plain_values_are_taken_as_they_are() -> None:
    """A unit is needed where a dimension is declared; a whole number is a number too."""
    noun = read(_Noun, {"time": "2 ms", "size": "1 KiB", "rate": 3, "flag": True, "sizes": [1, 2]})
    assert noun == _Noun(time=2e-3, size=1024.0, rate=3.0, flag=True, sizes=(1, 2))
    assert isinstance(noun.rate, float)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("time", 3, r"got 3 \(no unit\); needed a quantity such as"),
        ("count", 0, "got 0; needed 1 or more"),
        ("count", True, "got True; needed a whole number"),
        ("count", 1.0, "got 1.0; needed a whole number"),
        ("share", 1.5, "got 1.5; needed at most 1"),
        ("rate", "3", "got '3'; needed a number"),
        ("rate", float("nan"), "got nan; needed"),
        ("rate", float("inf"), "got inf; needed less than"),
        ("flag", 1, "got 1; needed true or false"),
        ("word", "wright", "got 'wright'; did you mean 'right'"),
        ("sizes", 3, "got 3; needed a list"),
    ],
)
def test_a_wrong_value_says_what_was_got_and_what_is_needed(field, value, message) -> None:
    """Nothing is taken for a number, a truth value or a choice that is none."""
    with pytest.raises(MistakenError, match=f"{field}: {message}"):
        read(_Noun, {"time": "1 s", field: value})


def test_all_mistakes_are_reported_together() -> None:
    """A missing key beside two wrong ones."""
    with pytest.raises(MistakenError) as caught:
        read(_Noun, {"count": 0, "flag": 1})
    assert [mistake.key for mistake in caught.value.mistakes] == ["time", "count", "flag"]


class _Side(enum.StrEnum):
    LEFT = "left"
    RIGHT = "right"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """Knows its keys."""

    side: _Side
    limit: Count | None = None

    extra_keys: ClassVar = "forbid"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Whole:
    """Holds others."""

    parts: Mapping[str, _Part]
    times: Mapping[str, Seconds] = dataclasses.field(default_factory=dict)


def test_nouns_hold_nouns_and_are_read_without_building_pydantic_models(monkeypatch) -> None:
    """The core alone, which a command has loaded in any case: pydantic's own way costs a start 17,000 bare."""
    monkeypatch.setitem(sys.modules, "pydantic", None)
    data = {"parts": {"a": {"side": "left"}, "b": {"side": "right", "limit": 3}}, "other": 1}
    left, right = _Part(side=_Side.LEFT), _Part(side=_Side.RIGHT, limit=3)
    assert read(_Whole, data) == _Whole(parts={"a": left, "b": right}, times={})
    with pytest.raises(MistakenError) as caught:
        read(_Whole, {"parts": {"a": {"side": "up", "limit": 0, "x": 1}}, "times": {"b": "1 m"}})
    assert [(mistake.key, str(mistake)) for mistake in caught.value.mistakes] == [
        ("parts.a.side", "got 'up'; known: left, right"),
        ("parts.a.limit", "got 0; needed 1 or more"),
        ("parts.a.x", "unknown key"),
        (
            "times.b",
            "got '1 m' (unknown unit 'm'); needed a quantity such as '2.5 us' or '3 s' or '30 d'",
        ),
    ]


@pytest.mark.parametrize("kind", [list[int], set[str], complex])
def test_a_field_of_another_kind_is_no_field_of_a_noun(kind: type) -> None:
    """It would be read as something else: a list of numbers as one number."""
    noun = dataclasses.make_dataclass("noun", [("field", kind)])
    with pytest.raises(AssertionError, match="no noun has a field of"):
        read(noun, {"field": 1})


def test_a_pair_is_no_list_of_any_length() -> None:
    """Each place has its own kind, and there are no others."""
    noun = dataclasses.make_dataclass("noun", [("field", tuple[int, str])])
    assert read(noun, {"field": [1, "a"]}) == noun((1, "a"))
    with pytest.raises(MistakenError):
        read(noun, {"field": [1, "a", "b"]})


@pytest.mark.parametrize("noun", [Accelerator, EnginePreset, Host, HostBehaviour, Link, Lowering])
def test_texts_stand_under_the_fields_of_a_noun(noun: type, pytestconfig) -> None:
    """Most fields have one; those without are told by their name."""
    script = pytestconfig.rootpath / "scripts" / "framework_reference.py"
    texts = runpy.run_path(str(script))["described"](noun)
    assert list(texts) == [field.name for field in dataclasses.fields(noun)]  # type: ignore[arg-type]
    assert sum(map(bool, texts.values())) >= len(texts) / 2
