"""The gallery: every script runs, is short, says what it is for, and is in the index."""

import runpy
import sys
from pathlib import Path

import pytest

from tests.nightly import some

GALLERY = Path(__file__).resolve().parents[3] / "plots"
SCRIPTS = sorted(GALLERY.glob("*/plot_*.py"))


def test_the_gallery_is_not_empty() -> None:
    """The tests below run over these scripts."""
    assert len(SCRIPTS) >= 10


@pytest.mark.parametrize("script", some(SCRIPTS, 5), ids=lambda path: path.stem)
def test_a_script_draws_its_picture(script: Path, tmp_path: Path, monkeypatch) -> None:
    """It writes one PNG named after itself, which is committed next to it too."""
    monkeypatch.setattr(sys, "argv", [str(script), str(tmp_path)])
    runpy.run_path(str(script), run_name="__main__")
    name = script.stem.removeprefix("plot_") + ".png"
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")
    assert (script.parent / name).exists()


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_a_script_is_short_and_says_what_it_is_for(script: Path) -> None:
    """Sixty lines at most, with what it covers and the question it answers on top."""
    text = script.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 60
    head = text.split('"""')[1]
    assert "\nCovers: " in head
    assert "\nQuestion: " in head
    assert head.rstrip().endswith("?")


def test_the_index_shows_every_picture() -> None:
    """plots/README.md links each script and shows its picture."""
    index = (GALLERY / "README.md").read_text(encoding="utf-8")
    for script in SCRIPTS:
        place = script.relative_to(GALLERY)
        assert f"({place.as_posix()})" in index
        picture = place.with_name(place.stem.removeprefix("plot_") + ".png")
        assert f"({picture.as_posix()})" in index
