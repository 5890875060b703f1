"""Megatron-LM's flags: those that are mapped or tell a version, with the tags that have them, the eras of versions, and flags whose models are refused.

References
----------
NVIDIA/Megatron-LM, ``arguments.py`` at 22 tags from v1.0 to core_v0.19.0 and at d98e8a64 (2026-08-22).
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import NamedTuple

from mpsim.errors import FormatError
from mpsim.formats.words import DATA, table
from mpsim.memo import remembered


class Flag(NamedTuple):
    """One flag of Megatron-LM."""

    name: str  # without its dashes
    first: str  # first, last: first and last tag that has it
    last: str
    is_switch: bool  # whether it takes no value


@remembered(1)
def flags() -> Mapping[str, Flag]:
    """Every flag of the table, by name."""
    text = (resources.files(DATA) / "megatron-flags.csv").read_text("utf-8")
    aborts = table(DATA, "megatron")["aborts"]
    return {
        name: Flag(name, first, aborts.get(name, last), kind == "switch")
        for name, first, last, kind in list(csv.reader(text.splitlines()))[1:]
    }


@remembered(1)
def tags() -> tuple[str, ...]:
    """Tags of Megatron-LM, oldest first."""
    return tuple(table(DATA, "megatron")["tags"])


@remembered(1)
def refused() -> Mapping[str, str]:
    """Why a flag's model or step cannot be simulated."""
    reasons = table(DATA, "megatron")["refused"]
    return {name: why for why, names in reasons.items() for name in names.split()}


@remembered(1)
def moves() -> frozenset[str]:
    """Flags that move the time or the memory of a step and are not simulated."""
    return frozenset(table(DATA, "megatron")["moves"].split())


def era_of(names: Sequence[str]) -> tuple[str, str]:
    """First and last tag that have all of these flags. FormatError if no tag has all; two flags
    that exclude each other are named.
    """
    known = [flags()[name] for name in names if name in flags()]
    if not known:
        return tags()[0], tags()[-1]
    youngest = max(known, key=lambda flag: tags().index(flag.first))
    oldest = min(known, key=lambda flag: tags().index(flag.last))
    if tags().index(youngest.first) > tags().index(oldest.last):
        raise FormatError(
            f"--{youngest.name} came with {youngest.first}, and --{oldest.name} went after {oldest.last}: no version of Megatron-LM has both; drop one"
        )
    return youngest.first, oldest.last


def preset_of(tag: str) -> str:
    """The framework preset of the era that a tag belongs to."""
    eras: list[tuple[str, str]] = table(DATA, "megatron")["eras"]
    return [name for first, name in eras if tags().index(first) <= tags().index(tag)][-1]


def newest_tag(preset: str) -> str | None:
    """The newest tag of the era that a framework preset stands for; None where it stands for none."""
    released = (tag for tag in reversed(tags()) if tag != "HEAD")
    return next((tag for tag in released if preset_of(tag) == preset), None)
