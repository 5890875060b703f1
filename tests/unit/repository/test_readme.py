"""What the README shows."""

from __future__ import annotations

import re
import runpy


def test_the_readme_shows_what_the_code_gives(pytestconfig):
    """Refresh it with: python scripts/readme.py."""
    module = runpy.run_path(str(pytestconfig.rootpath / "scripts" / "readme.py"))
    text = module["PAGE"].read_text(encoding="utf-8")
    assert text == module["render"](text)


def test_every_local_link_leads_somewhere(pytestconfig):
    """A dead link or a missing picture is the first thing a visitor meets."""
    root = pytestconfig.rootpath
    pages = [root / "README.md", root / "CONTRIBUTING.md", *sorted((root / "docs").rglob("*.md"))]
    made = {"site", "_build"}  # by a build of the site, relative to its own root
    pages = [page for page in pages if not made & set(page.relative_to(root).parts)]
    dead = [
        f"{page.relative_to(root)}: {target}"
        for page in pages
        for target in re.findall(r"\]\(([^)#]+)", page.read_text(encoding="utf-8"))
        if "://" not in target and not (page.parent / target).exists()
    ]
    assert dead == []
