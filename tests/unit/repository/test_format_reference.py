"""The reference page of formats, and the tables of keys that it is made of."""

from __future__ import annotations

import ast
import dataclasses
import runpy
import typing

import pytest

from mpsim.formats.megatron_settings import flags
from mpsim.formats.words import TABLES, keys
from mpsim.framework import framework
from mpsim.scenario import Scenario
from mpsim.scenario.fields import Later
from mpsim.serving.engines import EnginePreset


def test_the_page_is_what_the_tables_say(pytestconfig):
    """Regenerate it with: python scripts/format_reference.py."""
    module = runpy.run_path(str(pytestconfig.rootpath / "scripts" / "format_reference.py"))
    assert module["PAGE"].read_text(encoding="utf-8") == module["render"]()


def sections(annotation):
    """Sections of the schema that an annotation holds, however deep."""
    if isinstance(annotation, type) and hasattr(annotation, "model_fields"):
        return [annotation]
    if isinstance(annotation, Later):
        return [annotation.model]
    return [part for inner in typing.get_args(annotation) for part in sections(inner)]


def known_keys():
    """Dotted keys that a scenario may have."""
    names = {f"framework.{field}" for field in framework("megatron-lm", {}).fields()}
    names |= {f"framework.{word}" for word in ("preset", "compile", "loss")}
    names |= {f"serving.engine.{field.name}" for field in dataclasses.fields(EnginePreset)}
    stack = [("", Scenario)]
    while stack:
        head, section = stack.pop()
        for name, field in section.model_fields.items():
            key = f"{head}{name}"
            names.add(key)
            stack += [(f"{key}.", part) for part in sections(field.annotation)]
    return names


@pytest.mark.parametrize("name", TABLES)
def test_every_key_leads_to_a_value_of_a_scenario(name):
    """No row names a key that a scenario has not, and none stands twice."""
    rows = keys(name)
    assert {row.to for row in rows} <= known_keys()
    assert len({(row.name, row.to) for row in rows}) == len(rows)


def is_plain(row):
    """Whether the table alone reads and writes a row."""
    return bool(row.kind) or row.says is not None


@pytest.mark.parametrize("name", ["megatron", "deepspeed"])
def test_no_key_of_a_plain_row_is_spelled_in_code(name, pytestconfig):
    """What a row says is not said again in the reader or the writer."""
    plain = {row.name for row in keys(name) if is_plain(row)}
    assert len(plain) > 8
    spelled = {
        (path.name, node.value)
        for path in (pytestconfig.rootpath / "mpsim" / "formats").glob(f"{name}*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in plain
    }
    assert spelled == set()


def test_every_flag_of_the_table_is_one():
    """Rows of Megatron's table are flags that some version has."""
    assert {row.name for row in keys("megatron")} <= flags().keys()
