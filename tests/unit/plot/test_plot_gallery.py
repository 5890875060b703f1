"""The gallery: every script runs, is short, says what it is for, and is in the index."""

import importlib.util
import json
from pathlib import Path

import pytest

from tests.nightly import some

GALLERY = Path(__file__).resolve().parents[3] / "plots"
SCRIPTS = sorted(GALLERY.glob("*/plot_*.py"))


@pytest.fixture(scope="module")
def gallery():
    """The script that redraws the pictures."""
    file = GALLERY.parent / "scripts" / "gallery.py"
    spec = importlib.util.spec_from_file_location("gallery", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_gallery_is_not_empty() -> None:
    """The tests below run over these scripts."""
    assert len(SCRIPTS) >= 10


@pytest.mark.parametrize("script", some([*SCRIPTS[1:], SCRIPTS[0]], 5), ids=lambda path: path.stem)
def test_a_script_draws_its_picture(script: Path, gallery, tmp_path: Path) -> None:
    """It writes one PNG named after itself, with the numbers of the one that is committed next to it."""
    drawn = gallery.draw(script, tmp_path)
    name = script.stem.removeprefix("plot_") + ".png"
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")
    assert (script.parent / name).exists()
    assert json.loads(gallery.NUMBERS.read_text(encoding="utf-8"))[gallery.name_of(script)] == drawn


def test_the_numbers_are_those_of_the_pictures(gallery) -> None:
    """Every picture has its numbers, and no other is known."""
    known = json.loads(gallery.NUMBERS.read_text(encoding="utf-8"))
    assert list(known) == sorted(map(gallery.name_of, SCRIPTS))


def test_a_figure_is_told_by_its_words_and_the_reach_of_its_data(gallery) -> None:
    """Texts without a digit and ticks say nothing; a number that moved does."""
    from matplotlib.figure import Figure

    def numbers(value: float):
        figure = Figure()
        ax = figure.add_subplot(xlabel="time (s)", title=f"takes {value:.1f} s")
        ax.plot([0, value], [1, 2])
        return gallery.numbers_of(figure)

    assert numbers(3.0) == {"texts": ["takes 3.0 s"], "ends": [[0, 1, 3, 2]], "means": []}
    assert numbers(3.01) != numbers(3.0)


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
