"""The nomenclature page: every public class of the package with one line."""

from __future__ import annotations

import runpy
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[3] / "scripts" / "nomenclature.py"


def test_the_page_has_every_public_class() -> None:
    """Mended by ``python scripts/nomenclature.py``, which also brings the meanings up to date."""
    names = runpy.run_path(str(SCRIPT))

    def classes(page: str) -> set[tuple[str, ...]]:
        table = page.split(names["HEADING"])[1]
        return {tuple(line.split("|")[1:3]) for line in table.splitlines() if line.startswith("|")}

    written, wanted = names["PAGE"].read_text(encoding="utf-8"), names["page"]()
    assert classes(written) == classes(wanted), "run 'python scripts/nomenclature.py'"


def test_a_class_says_what_it_is() -> None:
    """No public class without a docstring."""
    classes = runpy.run_path(str(SCRIPT))["public_classes"]()
    assert [name for _, name, text in classes if not text] == []
