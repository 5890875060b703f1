"""The documentation site: every page is listed, what is made at the build comes from the code and the data, words are explained."""

from __future__ import annotations

import json
import re
import runpy
from pathlib import Path

import pytest

import mpsim

ROOT = Path(__file__).resolve().parents[2]
MADE = {"site", "_build"}  # what a build leaves under docs/
SITE = runpy.run_path(str(ROOT / "docs" / "_ext" / "site_pages.py"))
GLOSSARY = (ROOT / "docs" / "reference" / "glossary.md").read_text(encoding="utf-8")
WORDS = (
    "rank, stage, microbatch, chunk, axis, bubble, busbw, algbw, TTFT, TPOT, KV block, KV cache, MFU, HFU, goodput (training), goodput (serving),"
    " step, schedule, layout, recomputation, exposed communication, straggler, collective, prefill, decode, Pareto front, interval, makespan"
).split(", ")


def pages() -> set[str]:
    """Pages of docs/ and reports of validation/, from the root."""
    docs = ROOT / "docs"
    found = [
        path
        for path in (*docs.rglob("*.md"), *docs.rglob("*.ipynb"))
        if not MADE & set(path.relative_to(docs).parts) and path.name != "index.md"
    ]
    found += (ROOT / "validation").glob("*.md")
    return {path.relative_to(ROOT).as_posix() for path in found}


def test_the_index_lists_every_page():
    """Under one of its headings, which are the sections of the site."""
    listed = [name for text in SITE["sections"]().values() for name in SITE["linked"](text)]
    assert pages() - set(listed) == set()
    assert len(listed) == len(set(listed)), "listed twice"


def test_the_landing_page_has_three_pictures_and_the_accuracy_table():
    """Pictures are there; the table is not typed but made of validation/accuracy.json."""
    text = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    pictures = re.findall(r"!\[[^\]]+\]\((.+?)\)", text)
    assert len(pictures) == 3
    assert all((ROOT / "docs" / picture).exists() for picture in pictures)
    assert text.count("<!-- accuracy-table -->") == 1
    committed = json.loads((ROOT / "validation" / "accuracy.json").read_text(encoding="utf-8"))
    pooled = committed["pooled"]
    rows = [line for line in SITE["accuracy_table"]().splitlines() if "dense" in line]
    assert (
        f"**{pooled['rows']:,}** | **{pooled['mean']:.1%}** | **{pooled['median']:.1%}**" in rows[0]
    )
    total = sum(family["rows"] for family in committed["families"].values())
    assert f"**{total:,}**" in SITE["accuracy_table"]()


def test_the_gallery_has_a_page_for_every_script():
    """With its question, its picture and its code."""
    grid, made = SITE["gallery"]()
    scripts = sorted((ROOT / "plots").glob("*/plot_*.py"))
    assert len(made) == len(scripts)
    for script in scripts:
        place = script.relative_to(ROOT).as_posix()
        (page,) = (text for text in made.values() if f"/{place}\n" in text)
        assert re.search(r"!\[.+\]\(/plots/.+\.png\)", page)
    assert grid.count(":::{grid-item-card}") == len(scripts)


def test_the_api_describes_every_public_name_once():
    """`mpsim.__all__` on the first page; a package's page leaves those to it."""
    made = SITE["api_pages"]()
    described = [
        (name, member)
        for name, text in made.items()
        for member in re.findall(
            r"^\.\. auto(?:function|class|exception):: (\w+)$", text, re.MULTILINE
        )
    ]
    assert {member for name, member in described if name == "api/mpsim.rst"} == set(mpsim.__all__)
    assert len(described) == len(set(described)) > 150


def test_a_reader_has_at_most_60_000_words():
    """README and docs/ together, comments aside: what reports and help say is not said again."""
    docs = [
        path
        for path in (ROOT / "docs").rglob("*.md")
        if not MADE & set(path.relative_to(ROOT).parts)
    ]
    texts = [path.read_text(encoding="utf-8") for path in (ROOT / "README.md", *docs)]
    words = [len(re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL).split()) for text in texts]
    assert sum(words) <= 60_000


def entries() -> list[tuple[str, ...]]:
    """Word, what else it is called and its meaning, of every row of the glossary."""
    rows = re.findall(r"^\| (.+?) \| (.*?) \| (.+?) \|$", GLOSSARY, re.MULTILINE)
    return [row for row in rows if row[0] not in ("word", "---")]


@pytest.mark.parametrize("word", WORDS)
def test_the_glossary_has_a_word_of_the_field(word):
    """As the tables and files of mpsim write it."""
    assert word in [entry[0] for entry in entries()]


def test_an_entry_of_the_glossary_is_two_lines_and_there_once():
    """Two lines of a page are some 200 characters; each ends as a sentence."""
    words = [entry[0] for entry in entries()]
    assert len(words) == len(set(words)) > 60
    for word, _, meaning in entries():
        assert len(meaning) <= 200, word
        assert meaning.endswith((".", ")")), word
