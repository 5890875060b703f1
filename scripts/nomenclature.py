"""Write the classes of the package into docs/reference/nomenclature.md, one line each; with ``--check``, only say whether they are there.

A class is public when its name has no underscore in front and its module's ``__all__`` names it. Its line is the first sentence of its docstring.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "reference" / "nomenclature.md"
HEADING = "## Classes"


def public_classes() -> Iterator[tuple[str, str, str]]:
    """Package, name and first sentence of every public class."""
    for path in sorted((ROOT / "mpsim").rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        named = set(_exported(tree))
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and node.name in named:
                text = " ".join((ast.get_docstring(node) or "").split("\n\n")[0].split())
                place = path.relative_to(ROOT).with_suffix("").as_posix().replace("/", ".")
                yield place.removesuffix(".__init__"), node.name, text


def _exported(tree: ast.Module) -> Iterator[str]:
    for node in tree.body:
        names = [
            target.id for target in getattr(node, "targets", ()) if isinstance(target, ast.Name)
        ]
        if isinstance(node, ast.Assign) and "__all__" in names:
            yield from ast.literal_eval(node.value)


def page() -> str:
    """The page with its classes up to date."""
    words = PAGE.read_text(encoding="utf-8").split(f"\n{HEADING}\n")[0].rstrip()
    lines = [
        words,
        "",
        HEADING,
        "",
        "Written by `python scripts/nomenclature.py` from the classes' own docstrings.",
        "",
    ]
    package = ""
    for module, name, text in sorted(
        public_classes(), key=lambda row: (row[0].split(".")[:2], row)
    ):
        if (here := ".".join(module.split(".")[:2])) != package:
            package = here
            lines += [
                *([""] if lines[-1] else []),
                f"### {package}",
                "",
                "| class | module | meaning |",
                "| --- | --- | --- |",
            ]
        lines.append(f"| {name} | `{module}` | {text.replace('|', chr(92) + '|')} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    """Write the page, or compare it."""
    if "--check" in sys.argv[1:]:
        return int(PAGE.read_text(encoding="utf-8") != page())
    PAGE.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
