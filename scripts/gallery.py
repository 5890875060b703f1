"""Redraw the gallery by its scripts, and write the numbers that its pictures show: python scripts/gallery.py [--check] [NAME...]

plots/numbers.json has the texts with a digit in them, the range of the data and the means of heat maps of each picture. With --check, pictures that show other
numbers than the file says are named and the exit status is 1; they are redrawn all the same.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.text import Text

ROOT = Path(__file__).resolve().parents[1]
GALLERY = ROOT / "plots"
NUMBERS = GALLERY / "numbers.json"


def numbers_of(figure: Figure) -> dict[str, Any]:
    """Texts of a figure that hold a digit, the ends of the data of each of its axes, and means of what is coloured, to four digits."""
    texts = {text.get_text() for text in figure.findobj(Text)}
    ticks = {text.get_text() for axes in figure.axes for text in _tick_labels(axes)}
    return {
        "texts": sorted(text for text in texts - ticks if any(map(str.isdigit, text))),
        "ends": [
            [float(f"{end:.4g}") for end in axes.dataLim.extents]
            for axes in figure.axes
            if np.isfinite(axes.dataLim.extents).all()
        ],
        "means": [
            float(f"{np.nanmean(np.asarray(collection.get_array(), dtype=float)):.4g}")
            for axes in figure.axes
            for collection in axes.collections
            if collection.get_array() is not None
        ],
    }


def _tick_labels(axes: Any) -> list[Text]:
    """Labels of ticks, which say nothing that the data do not."""
    return [*axes.get_xticklabels(which="both"), *axes.get_yticklabels(which="both")]


@contextlib.contextmanager
def saved_figures() -> Iterator[list[Figure]]:
    """The figures that are saved meanwhile."""
    figures: list[Figure] = []
    save = Figure.savefig

    def savefig(figure: Figure, *arguments: Any, **options: Any) -> None:
        save(figure, *arguments, **options)
        figures.append(figure)

    Figure.savefig = savefig  # type: ignore[method-assign] # for a while
    try:
        yield figures
    finally:
        Figure.savefig = save  # type: ignore[method-assign]


def draw(script: Path, folder: Path) -> dict[str, Any]:
    """Run a script of the gallery, which writes its picture into a folder, and say which numbers it shows."""
    arguments, sys.argv = sys.argv, [str(script), str(folder)]
    try:
        with saved_figures() as figures:
            runpy.run_path(str(script), run_name="__main__")
    finally:
        sys.argv = arguments
    (figure,) = figures
    return numbers_of(figure)


def name_of(script: Path) -> str:
    """The picture of a script, as numbers.json calls it."""
    return f"{script.parent.name}/{script.stem.removeprefix('plot_')}"


def main() -> None:
    """Redraw all pictures or some, and write or compare their numbers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="fail where numbers differ")
    parser.add_argument("names", nargs="*", metavar="NAME", help="of pictures, such as step/heat")
    arguments = parser.parse_args()
    known = json.loads(NUMBERS.read_text(encoding="utf-8")) if NUMBERS.exists() else {}
    scripts = {name_of(script): script for script in sorted(GALLERY.glob("*/plot_*.py"))}
    drawn = {
        name: draw(script, script.parent)
        for name, script in scripts.items()
        if name in arguments.names or not arguments.names
    }
    changed = [name for name, numbers in drawn.items() if known.get(name) != numbers]
    if arguments.check and changed:
        sys.exit(f"other numbers than plots/numbers.json has: {', '.join(changed)}")
    kept = {name: numbers for name, numbers in (known | drawn).items() if name in scripts}
    text = json.dumps(dict(sorted(kept.items())), indent=1, ensure_ascii=False)
    NUMBERS.write_text(text + "\n", encoding="utf-8")
    print(f"{len(drawn)} pictures drawn; other numbers than before: {', '.join(changed) or 'none'}")


if __name__ == "__main__":
    main()
