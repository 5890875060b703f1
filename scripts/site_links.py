"""Follow every link inside a built site: ``python scripts/site_links.py docs/_build/html``.

A link leads to a file of the site, and with a fragment to something that has this name; the script prints those that do not and exits with 1.
"""

from __future__ import annotations

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Page(HTMLParser):
    """Names and links of one page."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = {"", "top"}
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note `id` and `name` as names, `href` and `src` as links."""
        for key, value in attrs:
            if value is not None and (key == "id" or (tag == "a" and key == "name")):
                self.names.add(value)
            elif value is not None and key in ("href", "src"):
                self.links.append(value)


def broken(site: Path) -> list[str]:
    """Lines ``page: link`` of links that lead nowhere, of a folder of HTML pages."""
    pages = {}
    for path in sorted(site.rglob("*.html")):
        if "_static" in path.parts:  # a theme's templates
            continue
        pages[path] = Page()
        pages[path].feed(path.read_text(encoding="utf-8"))
    lost = []
    for path, page in pages.items():
        for link in dict.fromkeys(page.links):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            there = target.exists()
            if there and target in pages and unquote(parts.fragment) not in pages[target].names:
                there = False
            if not there:
                lost.append(f"{path.relative_to(site)}: {link}")
    return lost


if __name__ == "__main__":
    lines = broken(Path(sys.argv[1]).resolve())
    print("\n".join(lines) or "every link leads somewhere")
    sys.exit(bool(lines))
