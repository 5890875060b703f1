"""The words of the code: docstrings that say their subject, and variables that say what they hold."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[3] / "mpsim"
FILES = sorted(PACKAGE.rglob("*.py"))
FRAGMENT = re.compile(r"(What|Of|Those|As) ")
BEGINS = re.compile(
    rf'"""{FRAGMENT.pattern}'
)  # what a file without a fragment lacks: it need not be parsed
NAMELESS = re.compile(r"\bone\b\s*([=,:)]|in\b)")
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def nodes(likely: re.Pattern[str]) -> Iterator[tuple[Path, ast.AST]]:
    """Nodes of the files in which a pattern occurs."""
    for file in FILES:
        text = file.read_text(encoding="utf-8")
        if likely.search(text):
            yield from ((file.relative_to(PACKAGE), node) for node in ast.walk(ast.parse(text)))


def test_docstrings_begin_with_their_subject():
    """A first sentence such as 'What moved.' answers a question that no reader has asked."""
    fragments = [
        f"{file}:{getattr(node, 'lineno', 1)} {text.splitlines()[0]}"
        for file, node in nodes(BEGINS)
        if isinstance(node, DOCUMENTED)
        and (text := ast.get_docstring(node))
        and FRAGMENT.match(text)
    ]
    assert not fragments


def test_no_variable_is_called_one():
    """A loop variable says what it is: ``for operator in operators``."""
    nameless = [
        f"{file}:{node.lineno}"
        for file, node in nodes(NAMELESS)
        if (isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id == "one")
        or (isinstance(node, ast.arg) and node.arg == "one")
    ]
    assert not nameless
