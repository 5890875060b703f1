"""One reading of the schema: keys of sections, sections of keys, what each is for."""

from __future__ import annotations

import ast
import inspect
import itertools
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias, get_args

from mpsim.errors import Problem, ScenarioError, nearest
from mpsim.memo import remembered
from mpsim.scenario.fields import Later, Section
from mpsim.scenario.layers import join

Kind: TypeAlias = type[Section]

_JOBS = ("training", "serving")


def _sections(annotation: object) -> Iterator[Kind]:
    """Sections that an annotation holds, however deep."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        yield annotation
    if isinstance(annotation, Later):
        yield annotation.model
    for inner in get_args(annotation):
        yield from _sections(inner)


def section_at(root: Kind, loc: Sequence[object]) -> Kind | None:
    """The model that holds the keys at dotted place `loc` of `root`, if one does."""
    model: Kind | None = root
    for part in loc:
        if model is None:
            return None
        if not isinstance(part, int):  # else which entry of a list of sections
            field = model.model_fields.get(str(part))
            model = next(_sections(field.annotation), None) if field else None
    return model


@remembered(256)
def known_keys(root: Kind, head: str = "") -> tuple[str, ...]:
    """Every dotted key that `root` has a field for."""
    keys: list[str] = []
    for name, field in root.model_fields.items():
        key = join(head, name)
        keys.append(key)
        for inner in _sections(field.annotation):
            keys += known_keys(inner, key)
    return tuple(keys)


def long_keys(schema: Kind, values: Mapping[str, object], *, job: str) -> dict[str, object]:
    """Values by dotted key: ``tp`` is ``parallelism.tp`` where only one section has a key of that
    name.

    `schema`: the scenario's. `values`: by dotted key, by section, or by the name of a key that one
    section alone has. `job`: the section of the job, ``training`` or ``serving``; that of the other
    one counts for nothing. ScenarioError for every name that no section has, or several.
    """
    homes: dict[str, list[str]] = {}
    for key in known_keys(schema):
        section, *name = key.split(".")
        if len(name) == 1 and (section == job or section not in _JOBS):
            homes.setdefault(name[0], []).append(key)
    dotted: dict[str, object] = {}
    problems = []
    for key, value in values.items():
        if "." in key or key in schema.model_fields:
            dotted[key] = value
        elif len(known := homes.get(key, [])) == 1:
            dotted[known[0]] = value
        else:
            several = f"stands for {', '.join(known)}; give one of them"
            near = nearest(key, [*homes, *schema.model_fields])
            problems.append(Problem(several if known else f"unknown key; {near}", key=key))
    if problems:
        raise ScenarioError(problems)
    return dotted


@remembered(256)
def descriptions(kind: Kind) -> Mapping[str, str]:
    """The texts under the fields of a section, its bases' included, by key."""
    texts: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if issubclass(base, Section):
            if (noun := vars(base).get("noun")) is not None:  # whose fields it may leave out
                texts |= _texts(noun.__module__)[noun.__name__]
            texts |= _texts(base.__module__).get(base.__name__, {})
    return {name: texts[name] for name in kind.model_fields if name in texts}


@remembered(256)
def _texts(module: str) -> Mapping[str, Mapping[str, str]]:
    """Texts by class and field of a module."""
    tree = ast.parse(inspect.getsource(sys.modules[module]))
    return {
        node.name: dict(_documented(node.body))
        for node in tree.body
        if isinstance(node, ast.ClassDef)
    }


def _documented(body: list[ast.stmt]) -> Iterator[tuple[str, str]]:
    """Annotated names that a string follows."""
    for pair in itertools.pairwise(body):
        match pair:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                yield name, inspect.cleandoc(text)
