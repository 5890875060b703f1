"""The reference page of framework presets."""

from __future__ import annotations

import runpy


def test_the_page_is_what_code_and_catalog_say(pytestconfig):
    """Regenerate it with: python scripts/framework_reference.py."""
    module = runpy.run_path(str(pytestconfig.rootpath / "scripts" / "framework_reference.py"))
    assert module["PAGE"].read_text(encoding="utf-8") == module["render"]()


def test_every_field_has_words(pytestconfig):
    """A field nobody explained is a field nobody can set."""
    module = runpy.run_path(str(pytestconfig.rootpath / "scripts" / "framework_reference.py"))
    rows = [line for line in module["render"]().splitlines() if line.startswith("| `")]
    assert all(line.rsplit("|", 2)[1].strip() for line in rows)
