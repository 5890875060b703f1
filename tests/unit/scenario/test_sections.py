"""Sections: read by pydantic's core with schemas of their own, in the manner of its models."""

import copy
import functools
import pickle
from typing import Annotated

import pytest
from pydantic_core import ValidationError

from mpsim.scenario.fields import Field, Section


class Inner(Section):
    """Part of another."""

    size: Annotated[int, Field(ge=1)] = 1
    """Size."""

    @functools.cached_property
    def double(self):
        """Worked out of a field."""
        return 2 * self.size


class Outer(Section):
    """Section of parts."""

    parts: Annotated[tuple[Inner, ...], Field(strict=False)] = ()
    """Parts."""
    more: Inner | None = None
    """One more."""


def test_mistakes_of_parts_are_told_together_each_at_its_place():
    """Though every part has a validator of its own."""
    with pytest.raises(ValidationError) as caught:
        Outer.model_validate({"parts": [{}, {"size": 0}], "more": {"sized": 2}})
    found = [(error["loc"], error["type"]) for error in caught.value.errors()]
    assert found == [
        (("parts", 1, "size"), "greater_than_equal"),
        (("more", "sized"), "extra_forbidden"),
    ]


def test_what_is_worked_out_of_a_section_is_no_part_of_it():
    """Equal sections stay equal, in a set and as plain data."""
    asked, other = Inner(size=2), Inner(size=2)
    assert asked.double == 4
    assert asked == other != Inner(size=3)
    assert len({asked, other}) == 1
    assert asked.model_dump() == {"size": 2}
    assert repr(asked) == "Inner(size=2)"


def test_a_copy_has_other_fields_and_knows_which_were_given():
    """The original cannot be changed."""
    whole = Outer(more=Inner())
    copied = whole.model_copy(update={"parts": (Inner(size=3),)})
    assert copied == Outer.model_validate({"parts": [{"size": 3}], "more": {}})
    assert (whole.model_fields_set, copied.model_fields_set) == ({"more"}, {"more", "parts"})
    assert pickle.loads(pickle.dumps(copied)) == copy.deepcopy(copied) == copied
    with pytest.raises(ValidationError, match="frozen"):
        whole.more = None
