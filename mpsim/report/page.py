"""The page: a document in one HTML file that opens offline, asks nobody for anything and runs nothing but its own script.

The policy of the page forbids every request; its two scripts, its own and that of plotly, are allowed by their digests. plotly comes with its package,
compressed, and the browser unpacks it. Text reaches the page as text (never as markup), and the document is data between tags that it cannot close.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import html
import json
from collections.abc import Mapping
from importlib import resources
from string import Template
from typing import Any, Final

from mpsim.errors import MissingExtraError, ScenarioError
from mpsim.memo import remembered

__all__ = ["LARGEST", "page", "policy"]

LARGEST: Final = 5_000_000
"""Bytes that a page may have."""

_SCRIPTS = ("format.js", "charts.js", "timeline.js", "choices.js", "explore.js", "page.js")


def page(document: Mapping[str, Any], *, live: bool = False) -> str:
    """The page of a document.

    Parameters
    ----------
    document : mapping
        Plain data, see `mpsim.report.document`.
    live : bool
        Whether it is served by the explorer and may ask that server; a file may ask nobody.

    Returns
    -------
    str
        HTML.

    Raises
    ------
    MissingExtraError
        If plotly is not installed.
    ScenarioError
        If it is larger than `LARGEST`.
    """
    script = _script()
    packed, digest = _plotly()
    text = Template(_file("page.html")).substitute(
        title=html.escape(str(document["title"])),
        policy=html.escape(policy(_digest(script), digest, live=live)),
        style=_file("page.css"),
        data=_inert(json.dumps(document, allow_nan=False, separators=(",", ":"))),
        plotly=packed,
        script=script,
    )
    if (size := len(text.encode())) > LARGEST:
        raise ScenarioError(
            f"the page would have {size / 1e6:.1f} MB; a page has at most {LARGEST / 1e6:.0f} MB: give it fewer scenarios"
        )
    return text


def policy(*digests: str, live: bool) -> str:
    """The content security policy: nothing but these scripts, and no request except, where `live`, to where the page came from."""
    scripts = " ".join(f"'sha256-{digest}'" for digest in digests)
    asks = "'self'" if live else "'none'"
    return (
        f"default-src 'none'; script-src {scripts}; style-src 'unsafe-inline'; img-src data: blob:; "
        f"connect-src {asks}; base-uri 'none'; form-action 'none'"
    )


def _inert(text: str) -> str:
    """JSON that no tag around it can be closed by: the same data, without < and what ends a line in scripts."""
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


@remembered(1)
def _plotly() -> tuple[str, str]:
    """plotly's own script, compressed and in base 64, and the digest of what it unpacks to."""
    try:
        package = resources.files("plotly")
    except ModuleNotFoundError as error:
        raise MissingExtraError("plotly", "report") from error
    script = (package / "package_data" / "plotly.min.js").read_text(encoding="utf-8")
    return base64.b64encode(
        gzip.compress(script.encode(), compresslevel=6, mtime=0)
    ).decode(), _digest(script)
