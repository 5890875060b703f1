"""Nouns are read from plain data as their annotations say; every mistake names the key and the mend."""

from __future__ import annotations

import dataclasses
import runpy
from typing import Literal

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


@pytest.mark.parametrize("noun", [Accelerator, EnginePreset, Host, HostBehaviour, Link, Lowering])
def test_texts_stand_under_the_fields_of_a_noun(noun: type, pytestconfig) -> None:
    """Most fields have one; those without are told by their name."""
    script = pytestconfig.rootpath / "scripts" / "framework_reference.py"
    texts = runpy.run_path(str(script))["described"](noun)
    assert list(texts) == [field.name for field in dataclasses.fields(noun)]  # type: ignore[arg-type]
    assert sum(map(bool, texts.values())) >= len(texts) / 2
