"""Lines of code that each package may have: ``python scripts/budget.py [--write]``.

``ci/budget.toml`` names the lines of every package. Where a package is still above its aim, `now` holds what it may have today: a ratchet that ``--write``
turns down to what there is, never up. A commit that goes above changes the number by hand, and says in its body what went in exchange.
"""

from __future__ import annotations

import argparse
import sys
import tomllib
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
FILE = ROOT / "ci" / "budget.toml"
TOGETHER = {"importers": "formats", "exporters": "formats"}  # one task, one budget


class Budget(NamedTuple):
    """Lines that a package may have today, and those that it shall have."""

    now: int
    aim: int


def count_lines(root: Path = ROOT / "mpsim") -> dict[str, int]:
    """Lines of every package, of the files beside them as `top`."""
    lines: dict[str, int] = {}
    for file in root.rglob("*.py"):
        inside = file.relative_to(root).parts
        package = inside[0] if len(inside) > 1 else "top"
        package = TOGETHER.get(package, package)
        lines[package] = lines.get(package, 0) + file.read_bytes().count(b"\n")
    return lines


def read_budget(text: str) -> dict[str, Budget]:
    """Budgets by package."""
    entries = tomllib.loads(text)["lines"]
    return {
        name: Budget(entry.get("now", entry["aim"]), entry["aim"])
        for name, entry in entries.items()
    }


def find_faults(lines: dict[str, int], budget: dict[str, Budget]) -> list[str]:
    """One sentence for each package that has no budget, no lines, or more lines than its budget."""
    strangers = lines.keys() ^ budget.keys()
    return [
        f"{name}: stands in only one of mpsim/ and {FILE.name}" for name in sorted(strangers)
    ] + [
        f"{name}: {lines[name]:,} lines, {budget[name].now:,} allowed; take away {lines[name] - budget[name].now:,}, "
        f"or raise it in ci/{FILE.name} and say in the commit what went"
        for name in sorted(lines.keys() & budget.keys())
        if lines[name] > budget[name].now
    ]


def write_budget(text: str, lines: dict[str, int]) -> str:
    """The file with every ratchet turned down to the lines there are; one that reached its aim goes."""
    budget = read_budget(text)
    written = text[: text.index("[lines]")] + "[lines]\n"
    for name, entry in budget.items():
        now = min(entry.now, max(lines[name], entry.aim))
        ratchet = f"now = {now}, " if now > entry.aim else ""
        written += f"{name} = {{ {ratchet}aim = {entry.aim} }}\n"
    return written


def main() -> None:
    """Print the table, and fail where a package is above its budget."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="turn the ratchets down")
    arguments = parser.parse_args()
    text, lines = FILE.read_text(encoding="utf-8"), count_lines()
    if arguments.write:
        text = write_budget(text, lines)
        FILE.write_text(text, encoding="utf-8")
    budget = read_budget(text)
    print(f"{'package':<12}{'lines':>9}{'now':>9}{'aim':>9}")
    for name, entry in budget.items():
        print(f"{name:<12}{lines.get(name, 0):>9,}{entry.now:>9,}{entry.aim:>9,}")
    allowed, aims = (sum(column) for column in zip(*budget.values(), strict=True))
    print(f"{'all':<12}{sum(lines.values()):>9,}{allowed:>9,}{aims:>9,}")
    if faults := find_faults(lines, budget):
        sys.exit("\n".join(faults))


if __name__ == "__main__":
    main()
