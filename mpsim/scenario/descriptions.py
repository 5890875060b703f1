"""Purpose of each key of the schema: the text under its field.

Reading the source takes longer than making all the models, so it waits until somebody asks.
"""

from __future__ import annotations

import ast
import inspect
import itertools
import sys
from collections.abc import Mapping
from typing import Any

import pydantic

from mpsim.memo import remembered

__all__ = ["describe_schema", "descriptions"]


@remembered(256)
def descriptions(kind: type[pydantic.BaseModel]) -> Mapping[str, str]:
    """The texts under the fields of a model, its bases' included, by name of the field."""
    texts: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if issubclass(base, pydantic.BaseModel) and base is not pydantic.BaseModel:
            texts |= _texts(base.__module__).get(base.__name__, {})
    return texts


@remembered(256)
def _texts(module: str) -> Mapping[str, Mapping[str, str]]:
    """Texts by class and field of a module."""
    tree = ast.parse(inspect.getsource(sys.modules[module]))
    return {
        node.name: dict(_documented(node.body))
        for node in tree.body
        if isinstance(node, ast.ClassDef)
    }


def _documented(body: list[ast.stmt]) -> list[tuple[str, str]]:
    """Annotated names that a string follows."""
    return [
        (field.target.id, inspect.cleandoc(text.value.value))
        for field, text in itertools.pairwise(body)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
        and isinstance(text.value.value, str)
    ]


def describe_schema(schema: dict[str, Any], kind: type[pydantic.BaseModel]) -> dict[str, Any]:
    """`schema`, the JSON schema of `kind`, with the texts under the fields of every model in it."""
    for model in _models(kind):
        part = schema if model is kind else schema.get("$defs", {}).get(model.__name__, {})
        texts = descriptions(model)
        for name, field in model.model_fields.items():
            entry = part.get("properties", {}).get(field.alias or name)
            if entry is not None and name in texts:
                entry["description"] = texts[name]
    return schema


def _models(kind: type[pydantic.BaseModel]) -> list[type[pydantic.BaseModel]]:
    """`kind` and every model that its fields hold."""
    models = [kind]
    for model in models:  # grows while it is walked
        for field in model.model_fields.values():
            models += [new for new in _inside(field.annotation) if new not in models]
    return models


def _inside(annotation: Any) -> list[type[pydantic.BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, pydantic.BaseModel):
        return [annotation]
    nested = getattr(annotation, "__args__", ())
    return [model for argument in nested for model in _inside(argument)]
