"""The golden results of the shipped scenarios: check them, or write them anew and say what moved and which part of the time explains it.

    python scripts/golden.py            # exits 1 if a result moved, with the table of moves
    python scripts/golden.py --write    # the same table, for the body of the commit, and the new file

A figure moved if it differs by more than rounding of another build of numpy could make it.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mpsim

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "scenarios"
GOLDEN = ROOT / "tests" / "scenarios" / "golden.json"
ROUNDING = 1e-9
"""Relative difference that is no move."""

Figures = dict[str, float]


def figures(file: Path) -> Figures:
    """The figures of a shipped scenario that a person acts on: time, MFU or latencies, memory, energy, and every part of the time."""
    summary = mpsim.simulate(mpsim.load(file)).summary
    if "step_time_s" in summary:
        names: tuple[str, ...] = ("step_time_s", "mfu", "peak_memory_bytes", "energy_j_per_step")
        parts = summary["breakdown_s"]
    else:
        names = ("duration_s", "ttft_s", "tpot_s", "output_tokens_per_s")
        parts = summary["account_s"]
    found: Figures = {}
    for name in names:
        value = summary[name]
        if isinstance(value, Mapping):
            numbers = {key: each for key, each in value.items() if isinstance(each, int | float)}
            found |= {f"{name}.{key}": float(each) for key, each in numbers.items()}
        else:
            found[name] = float(value)
    return found | {f"part.{name}": float(value) for name, value in parts.items()}


def moves(before: Mapping[str, Figures], after: Mapping[str, Figures]) -> list[str]:
    """A line a scenario whose figures moved: the first figure, the others by name, and the part of the time that moved most."""
    lines = []
    for name in sorted({*before, *after}):
        if name not in before or name not in after:
            lines.append(f"{name}: {'new' if name in after else 'gone'}")
            continue
        old, new = before[name], after[name]
        moved = [
            key
            for key in sorted({*old, *new})
            if abs(new.get(key, 0.0) - old.get(key, 0.0)) > ROUNDING * _scale(key, old)
        ]
        if not moved:
            continue
        first = next(iter(new))
        line = f"{name}: {first} {old[first]:.6g} -> {new[first]:.6g} ({new[first] / old[first] - 1:+.3%})"
        parts = {
            key: new.get(key, 0.0) - old.get(key, 0.0) for key in moved if key.startswith("part.")
        }
        if parts:
            most = max(parts, key=lambda key: abs(parts[key]))
            line += f"; most in {most.removeprefix('part.')} ({parts[most]:+.4g} s)"
        others = [key for key in moved if not key.startswith("part.") and key != first]
        lines.append(line + (f"; {', '.join(others)} moved too" if others else ""))
    return lines


def _scale(key: str, old: Mapping[str, float]) -> float:
    """Size of a figure; of a part of the time, the whole time."""
    return abs(next(iter(old.values()))) if key.startswith("part.") else abs(old.get(key, 0.0))


def golden() -> dict[str, Figures]:
    """The figures that are kept."""
    kept: dict[str, Any] = json.loads(GOLDEN.read_text(encoding="utf-8"))
    return kept


def main() -> int:
    """Run every shipped scenario and print the moves."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--write", action="store_true", help="keep the new figures")
    write = parser.parse_args().write
    after = {
        file.relative_to(FOLDER).as_posix(): figures(file)
        for file in sorted(FOLDER.rglob("*.yaml"))
    }
    moved = moves(golden() if GOLDEN.exists() else {}, after)
    print("\n".join(moved) or f"{len(after)} scenarios as they were")
    if write:
        GOLDEN.write_text(json.dumps(after, indent=1) + "\n", encoding="utf-8")
        return 0
    return 1 if moved else 0


if __name__ == "__main__":
    sys.exit(main())
