"""Short keys: ``tp`` for ``parallelism.tp``, wherever only one section of a scenario has a key of that name."""

from __future__ import annotations

import typing
from collections.abc import Iterator, Mapping
from typing import Any

import pydantic

from mpsim.errors import Problem, ScenarioError, nearest

__all__ = ["long_keys"]

_JOBS = ("training", "serving")


def long_keys(
    schema: type[pydantic.BaseModel], values: Mapping[str, object], *, job: str
) -> dict[str, object]:
    """Values by dotted key.

    Parameters
    ----------
    schema : type
        The scenario's.
    values : mapping of str to object
        By dotted key, by section, or by the name of a key that one section alone has.
    job : str
        The section of the job, ``training`` or ``serving``; that of the other one counts for nothing.

    Raises
    ------
    ScenarioError
        For every name that no section has, or several.
    """
    homes: dict[str, list[str]] = {}
    for section, fields in _sections(schema):
        if section == job or section not in _JOBS:
            for name in fields:
                homes.setdefault(name, []).append(f"{section}.{name}")
    found: dict[str, object] = {}
    problems = []
    for key, value in values.items():
        if "." in key or key in schema.model_fields:
            found[key] = value
        elif len(known := homes.get(key, [])) == 1:
            found[known[0]] = value
        else:
            several = f"stands for {', '.join(known)}; give one of them"
            near = nearest(key, [*homes, *schema.model_fields])
            problems.append(Problem(several if known else f"unknown key; {near}", key=key))
    if problems:
        raise ScenarioError(problems)
    return found


def _sections(schema: type[pydantic.BaseModel]) -> Iterator[tuple[str, list[str]]]:
    """Names of the sections, and of the keys in each."""
    for name, field in schema.model_fields.items():
        known: list[Any] = [field.annotation, *typing.get_args(field.annotation)]
        for kind in known:
            if fields := getattr(kind, "model_fields", None):
                yield name, [inner.alias or key for key, inner in fields.items()]
