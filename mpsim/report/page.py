"""The page: a document in one HTML file that opens offline and runs only its own script.

The policy of the page forbids every request; its own script is allowed by its digest. Text reaches
the page as text (never as markup), and the document is data between tags that it cannot close. What
there is to read and to see stands in the page before its script runs.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
from importlib import resources
from string import Template
from typing import Final

from mpsim.errors import ScenarioError
from mpsim.memo import remembered
from mpsim.report.markup import article, contents, section
from mpsim.result.words import Figures

LARGEST: Final = 5_000_000
"""Bytes that a page may have."""

_SCRIPTS = ("format.js", "charts.js", "timeline.js", "choices.js", "explore.js", "page.js")


def page(document: Figures, *, live: bool = False) -> str:
    """The page of a document.

    `document`: plain data, see `mpsim.report.document`. `live`: whether it is served by the
    explorer and may ask that server; a file may ask nobody. ScenarioError if it is larger than
    `LARGEST`.

    Returns: HTML.
    """
    script = _script()
    parts, shared = document["parts"], document["shared"]
    together = {"id": "shared", "summary": {}}
    made = [
        f"{part['title']}: scenario {part['digest'][:12]}" if part["digest"] else part["title"]
        for part in parts
    ]
    text = Template(_file("page.html")).substitute(
        title=html.escape(str(document["title"])),
        policy=html.escape(policy(_digest(script), live=live)),
        style=_colours(document["palette"]) + _file("page.css"),
        contents=contents(parts, shared),
        body="".join(section(each, together) for each in shared)
        + "".join(article(part, several=len(parts) > 1) for part in parts),
        made=html.escape(f"mpsim {document['mpsim']}; {'; '.join(made)}"),
        data=_inert(json.dumps(document, allow_nan=False, separators=(",", ":"))),
        script=script,
    )
    if (size := len(text.encode())) > LARGEST:
        raise ScenarioError(
            f"the page would have {size / 1e6:.1f} MB; a page has at most {LARGEST / 1e6:.0f} MB:"
            " give it fewer scenarios"
        )
    return text


def policy(digest: str, *, live: bool) -> str:
    """The content security policy: this script, and where `live` requests to the page's host."""
    asks = "'self'" if live else "'none'"
    return (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; img-src"
        f" data: blob:; connect-src {asks}; base-uri 'none'; form-action 'none'"
    )


def _inert(text: str) -> str:
    """JSON that no tag around it can be closed by: without < and a script's line ends."""
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _digest(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


@remembered(32)
def _file(name: str) -> str:
    return (resources.files("mpsim.report") / "page" / name).read_text(encoding="utf-8")


@remembered(1)
def _script() -> str:
    return "\n".join(['"use strict";', *map(_file, _SCRIPTS)])


def _colours(palette: Figures) -> str:
    """Variables of the style, for light pages and for dark ones."""
    every = {
        f"--{word.replace('.', '-').replace('_', '-')}": pair
        for word, pair in palette["colours"].items()
    }
    every |= {f"--series-{i}": pair for i, pair in enumerate(palette["series"])}
    light, dark = (" ".join(f"{name}: {pair[i]};" for name, pair in every.items()) for i in (0, 1))
    return (
        f":root {{ {light} }}\n@media (prefers-color-scheme: dark) {{"
        f' :root:not([data-theme="light"]) {{ {dark} }} }}\n:root[data-theme="dark"] {{ {dark} }}\n'
    )
