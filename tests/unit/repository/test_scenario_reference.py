"""The reference page of the scenario file."""

from __future__ import annotations

import runpy


def test_the_page_is_what_the_schema_says(pytestconfig):
    """Regenerate it with: python scripts/scenario_reference.py."""
    module = runpy.run_path(str(pytestconfig.rootpath / "scripts" / "scenario_reference.py"))
    assert module["PAGE"].read_text(encoding="utf-8") == module["render"]()
