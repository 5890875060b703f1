"""Megatron-LM's flags: every one with the tags that have it, the eras of its versions, and what those that change no scenario stand for.

References
----------
NVIDIA/Megatron-LM, ``arguments.py`` at 22 tags from v1.0 to core_v0.19.0 and at d98e8a64 (2026-08-22).
"""

from __future__ import annotations

import csv
import dataclasses
from collections.abc import Mapping, Sequence
from importlib import resources

from mpsim.errors import FormatError
from mpsim.formats.words import table
from mpsim.memo import remembered

__all__ = ["Flag", "era_of", "flags", "newest_tag", "preset_of", "reviewed", "tags"]

_PACKAGE = "mpsim.formats.data"


@dataclasses.dataclass(frozen=True, slots=True)
class Flag:
    """One flag of Megatron-LM.

    Parameters
    ----------
    name : str
        Without its dashes.
    first, last : str
        First and last tag that has it.
    is_switch : bool
        Whether it takes no value.
    """

    name: str
    first: str
    last: str
    is_switch: bool


@remembered(1)
def flags() -> Mapping[str, Flag]:
    """Every flag of every version, by name."""
    rows = csv.DictReader(
        (resources.files(_PACKAGE) / "megatron-flags.csv").read_text("utf-8").splitlines()
    )
    aborts = table(_PACKAGE, "megatron")["aborts"]
    return {
        row["flag"]: Flag(
            row["flag"], row["first"], aborts.get(row["flag"], row["last"]), row["kind"] == "switch"
        )
        for row in rows
    }


@remembered(1)
def tags() -> tuple[str, ...]:
    """Tags of Megatron-LM, oldest first."""
    return tuple(table(_PACKAGE, "megatron")["tags"])


@remembered(1)
def reviewed() -> Mapping[str, tuple[str, str]]:
    """Flags that change no value of a scenario: which of ``still``, ``told`` and ``refused``, and why."""
    data = table(_PACKAGE, "megatron")
    return {
        name: (verdict, why)
        for verdict in ("still", "told", "refused")
        for why, names in data[verdict].items()
        for name in names.split()
    }


def era_of(names: Sequence[str]) -> tuple[str, str]:
    """First and last tag that have all of these flags.

    Raises
    ------
    FormatError
        If no tag has all; two flags that exclude each other are named.
    """
    order = {tag: place for place, tag in enumerate(tags())}
    known = [flags()[name] for name in names if name in flags()]
    if not known:
        return tags()[0], tags()[-1]
    youngest = max(known, key=lambda flag: order[flag.first])
    oldest = min(known, key=lambda flag: order[flag.last])
    if order[youngest.first] > order[oldest.last]:
        raise FormatError(
            f"--{youngest.name} came with {youngest.first}, and --{oldest.name} went after {oldest.last}: no version of Megatron-LM has both; drop one"
        )
    return youngest.first, oldest.last


def preset_of(tag: str) -> str:
    """The framework preset of the era that a tag belongs to."""
    preset = ""
    for first, name in table(_PACKAGE, "megatron")["eras"]:
        if tags().index(first) <= tags().index(tag):
            preset = name
    return preset


def newest_tag(preset: str) -> str | None:
    """The newest tag of the era that a framework preset stands for; None where it stands for none."""
    return next(
        (tag for tag in reversed(tags()) if tag != "HEAD" and preset_of(tag) == preset), None
    )
