"""Keys of other tools: what a row of a table decides alone is spelled in the table and nowhere else."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import mpsim.formats
from mpsim.formats.words import TABLES, keys

FORMATS = Path(mpsim.formats.__file__).parent
MODULES = {
    "megatron": "megatron*.py",
    "megatron-yaml": "megatron_yaml.py",
    **dict.fromkeys(("vllm", "sglang", "trtllm"), "servers.py"),
}


def spelled(table):
    """Every string in the code of a tool."""
    files = FORMATS.glob(MODULES.get(table, f"{table}.py"))
    trees = [ast.parse(file.read_text(encoding="utf-8")) for file in files]
    assert trees
    nodes = [node for tree in trees for node in ast.walk(tree)]
    return {node.value for node in nodes if isinstance(node, ast.Constant)}


@pytest.mark.parametrize("table", TABLES)
def test_a_row_that_decides_alone_is_not_spelled_in_code(table):
    """Rows with a kind, or with a meaning and a condition, are read and written by the table."""
    code = spelled(table)
    alone = [row for row in keys(table) if row.kind or (row.when and (row.says or row.values))]
    assert [row.name for row in alone if row.name in code] == []
    assert alone or table in ("huggingface", "torchtitan", "megatron-yaml")


def test_few_rows_need_code_of_their_own():
    """Keys that say a value only together, or that an era moved, are 81 of 259: no row is added to them without need."""
    rows = [(table, row.name) for table in TABLES for row in keys(table)]
    codes = {table: spelled(table) for table in TABLES}
    needed = [(table, name) for table, name in rows if name in codes[table]]
    assert len(needed) <= 81, needed
    assert len(rows) > 200
