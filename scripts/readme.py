"""Refresh what README.md shows: the quickstart's output and pictures, and the accuracy table (``python scripts/readme.py``).

A test holds the README's text to it, so that it never shows figures that the code no longer gives.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import re
from pathlib import Path

from mpsim.cli import main

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "README.md"
IMAGES = ROOT / "docs" / "images"
VALIDATION = ROOT / "validation"
ACCURACY = VALIDATION / "sc21.md"
PEERS = VALIDATION / "peers.json"


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


def trust() -> str:
    """Errors of everything that was measured, runs that nobody listed first, from the reports of the bench."""
    lines = [
        "| what | measured | mean absolute error | report |",
        "| --- | ---: | ---: | --- |",
    ]
    for what, rows, hidden, *_ in _rows("accuracy.md", "names hidden: mean"):
        lines.append(f"| step time, {what} | {rows} | {hidden} | [steps](validation/accuracy.md) |")
    what, rows, mean, *_ = _rows("plans.md", "interval holds")[-1]
    lines.append(
        f"| GPU-hours of whole trainings, {what} | {rows} | {mean} | [trainings](validation/plans.md) |"
    )
    served = _rows("serving.md", "quantity")
    for quantity, words in (
        ("throughput", "tokens/s of services"),
        ("tpot", "time per output token of services"),
        ("ttft", "time to first token of services"),
    ):
        scored = [(int(row[5]), row[6]) for row in served if row[3] == quantity and row[6]]
        count = sum(predicted for predicted, _ in scored)
        mean = sum(predicted * float(error.rstrip("%")) for predicted, error in scored) / count
        lines.append(f"| {words} | {count} | {mean:.0f}% | [services](validation/serving.md) |")
    return "\n".join(lines)


def _rows(page: str, column: str) -> list[list[str]]:
    """Cells of the first table of a report whose head names `column`."""
    lines = (VALIDATION / page).read_text(encoding="utf-8").splitlines()
    start = next(at for at, line in enumerate(lines) if line.startswith("|") and column in line)
    body = itertools.takewhile(lambda line: line.startswith("|"), lines[start + 2 :])
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in body]


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
        ("trust-table", trust()),
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
