"""Refresh what README.md shows: the quickstart's output and pictures, and the accuracy table (``python scripts/readme.py``).

A test holds the README's text to it, so that it never shows figures that the code no longer gives.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
from pathlib import Path

from mpsim.cli import main

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "README.md"
IMAGES = ROOT / "docs" / "images"
ACCURACY = ROOT / "validation" / "sc21.md"
PEERS = ROOT / "validation" / "peers.json"


def quickstart() -> str:
    """What ``mpsim run scenarios/quickstart.yaml`` prints."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        code = main(["run", str(ROOT / "scenarios" / "quickstart.yaml")])
    if code:
        raise SystemExit(f"the quickstart ended with exit code {code}")
    return f"```text\n{printed.getvalue().rstrip()}\n```"


def accuracy() -> str:
    """The table of the validation page and its closing line; columns beyond the error are left there."""
    text = ACCURACY.read_text(encoding="utf-8")
    rows = [line.split("|")[1:6] for line in text.splitlines() if line.startswith("|")]
    table = "\n".join(f"|{'|'.join(row)}|" for row in rows)
    return f"{table}\n\n{text.rstrip().splitlines()[-1]}"


def peers() -> str:
    """Other simulators beside mpsim, each on the rows that it can express."""
    lines = [
        "| simulator | measured steps it can express | its mean error | mpsim's on the same |",
        "| --- | ---: | ---: | ---: |",
    ]
    for name, scores in json.loads(PEERS.read_text(encoding="utf-8")).items():
        theirs, ours = scores["peer"], scores["mpsim"]
        lines.append(f"| {name} | {theirs['rows']} | {theirs['mean']:.1%} | {ours['mean']:.1%} |")
    return "\n".join(lines)


def render(text: str) -> str:
    """`text` with all blocks as they are now."""
    blocks = (
        ("quickstart-output", quickstart()),
        ("accuracy-table", accuracy()),
        ("peers-table", peers()),
    )
    for name, block in blocks:
        marked = re.compile(rf"(<!-- {name} -->).*?(<!-- end -->)", re.DOTALL)
        text, count = marked.subn(
            lambda found, block=block: f"{found[1]}\n{block}\n{found[2]}", text
        )
        if count != 1:
            raise SystemExit(f"README.md has {count} blocks marked {name}; needed one")
    return text


def draw() -> None:
    """Write the pictures of the quickstart that the README shows."""
    import mpsim

    result = mpsim.simulate(mpsim.load(ROOT / "scenarios" / "quickstart.yaml"))
    result.plot.timeline().save(IMAGES / "timeline.png")
    result.plot.attribution().save(IMAGES / "attribution.png")


if __name__ == "__main__":
    draw()
    PAGE.write_text(render(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
