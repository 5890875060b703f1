"""Values at a prompt and in a notebook."""

from __future__ import annotations

import builtins
import dataclasses
import html
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mpsim
from mpsim.errors import MissingExtraError, ScenarioError
from mpsim.scenario.sections import Variation
from mpsim.study import simulate_variation
from mpsim.study.goodput import simulate_goodput
from mpsim.study.plan import plan
from mpsim.study.reliability import Checkpoint, Reliability
from mpsim.study.scaling import scale
from mpsim.table import BRIEF, Section, Sheet, Shown

MOST = 3000  # characters of any representation
TEXTS = st.text("ab <>&\"'01%.,", min_size=1, max_size=40)
SECTIONS = st.builds(
    Section,
    rows=st.lists(st.tuples(TEXTS, TEXTS), max_size=200).map(tuple),
    header=st.sampled_from([(), ("a < b", "c")]),
    title=st.sampled_from(["", "<script>alert(1)</script>"]),
    lines=st.lists(TEXTS, max_size=30).map(tuple),
)
SHEETS = st.builds(Sheet, TEXTS, st.lists(SECTIONS, max_size=5).map(tuple))


@dataclasses.dataclass(frozen=True, slots=True, repr=False)
class Noun(Shown):
    """Something with a sheet."""

    said: Sheet

    def sheet(self) -> Sheet:
        return self.said


def cells(text: str) -> list[str]:
    """Texts that a page of HTML shows, one an element."""
    return [html.unescape(found) for found in re.findall(r">([^<]+)<", text)]


@settings(max_examples=50, deadline=None)
@given(SHEETS)
def test_html_and_text_say_the_same(sheet):
    """Every title, name of a column, cell and sentence is an element of the HTML, in the order of the text."""
    said = [sheet.title]
    for section in sheet.sections:
        names = section.header if section.rows else ()
        said += [section.title, *names, *(cell for row in section.rows for cell in row)]
        said += section.lines
    assert cells(sheet.html()) == [text for text in said if text]
    plain = sheet.text(room=1000)
    assert all(text.strip() in plain for text in said)


@settings(max_examples=50, deadline=None)
@given(SHEETS)
def test_a_representation_is_short_and_says_what_it_leaves_out(sheet):
    """Rows are left out until it is no longer than BRIEF, and their number stands in their place."""
    noun = Noun(sheet)
    for short, whole in ((repr(noun), sheet.text()), (noun._repr_html_(), sheet.html())):
        assert len(short) <= BRIEF
        assert short == whole or " more" in short
        assert "<script>" not in noun._repr_html_()


def test_nothing_that_a_file_says_becomes_markup():
    """A scenario's name is a user's text, and its result shows it escaped."""
    base = mpsim.Scenario.from_mapping(
        {
            "schema": 1,
            "name": "<img src=x onerror=alert(1)>",
            "model": "llama2-7b",
            "cluster": {"preset": "dgx-h100", "nodes": 1},
            "parallelism": {"tp": 8},
            "training": {"global_batch": 8, "sequence_length": 2048},
        }
    )
    result = mpsim.simulate(base)
    for value in (
        base,
        result,
        mpsim.compare(result, result),
        mpsim.sweep(base, {"parallelism.tp": [8]}),
    ):
        assert "<img" not in value._repr_html_(), value
        assert "&lt;img" in base._repr_html_()


@pytest.fixture(scope="module")
def nouns(scenarios):
    """One of everything that a session at a prompt meets."""
    scenario = mpsim.load(scenarios / "quickstart.yaml")
    giant = mpsim.load(scenarios / "llama3-405b-h100-16k.yaml")
    service = mpsim.simulate(mpsim.load(scenarios / "serving" / "llama3-8b-h100.yaml"))
    prepared = mpsim.prepare(giant)
    result, large = mpsim.simulate(scenario), prepared.run()
    swept = mpsim.sweep(scenario, {"parallelism.tp": [1, 2, 4, 8], "training.micro_batch": [1, 2]})
    few = {"parallelism.cp": [1], "training.micro_batch": [1, 2]}
    found = mpsim.search(scenario, {"parallelism.tp": [1, 2], "parallelism.pp": [1, 2], **few})
    lost = simulate_goodput(
        Reliability.of(giant.hardware),
        Checkpoint.of(1e12, giant.hardware.accelerators, in_background=False),
        trials=5,
    )
    return {
        "scenario": giant,
        "prepared": prepared,
        "plan": prepared.plan,
        "program": prepared.program,
        "costs": prepared.costs,
        "result": large,
        "summary": large.summary,
        "breakdown": large.breakdown,
        "timeline": large.timeline,
        "memory": large.memory,
        "utilisation": large.utilisation,
        "links": large.links,
        "kernels": result.kernels,
        "display": result.plot.timeline(),
        "sensitivity": result.sensitivity(),
        "variation": simulate_variation(result, Variation(jitter=0.05, samples=20)),
        "sweep": swept,
        "row": swept.rows[0],
        "search": found,
        "found": found.best,
        "comparison": mpsim.compare(result, large),
        "goodput": lost,
        "plans": plan(scenario, 1e12, {"cluster.nodes": [2, 4]}),
        "plan of one": plan(scenario, 1e12).best,
        "scale": scale(scenario, [16, 32]),
        "service": service,
        "service summary": service.summary,
        "service plan": service.plan,
    }


def test_every_representation_is_shorter_than_three_thousand_characters(nouns):
    """A giant's result too: sixteen thousand ranks do not flood a prompt."""
    for name, noun in nouns.items():
        assert 0 < len(repr(noun)) < MOST, name
        if hasattr(noun, "_repr_html_"):
            assert 0 < len(noun._repr_html_()) < MOST, name


@pytest.mark.parametrize(
    "name",
    "scenario result memory utilisation links sensitivity variation sweep search comparison goodput plans scale service".split(),
)
def test_a_notebook_shows_the_lines_that_a_prompt_prints(nouns, name):
    """HTML and text come from one sheet, so what is in one is in the other."""
    noun = nouns[name]
    assert hasattr(noun, "_repr_html_")
    shown = cells(noun.sheet().html())
    printed = noun.sheet().text(room=10_000)
    assert len(shown) >= 4
    assert all(text.strip() in printed for text in shown)


def test_a_display_shows_its_picture(nouns):
    """The bytes are those of a PNG, and of the file that `save` writes."""
    assert nouns["display"]._repr_png_().startswith(b"\x89PNG")


def test_a_picture_in_a_notebook_is_the_one_in_a_file(nouns, tmp_path):
    """Equal data give equal bytes, wherever they are shown."""
    display = nouns["display"]
    file = display.save(tmp_path / "picture.png")
    assert display._repr_png_() == file.read_bytes()


@pytest.mark.parametrize("name", "sweep search comparison sensitivity goodput plans scale".split())
def test_a_table_of_pandas_has_the_rows_of_the_value(nouns, name):
    """Where there are rows there is a DataFrame, its columns those of the table."""
    pytest.importorskip("pandas")
    table, frame = nouns[name].table(), nouns[name].to_pandas()
    assert len(frame) == len(table)
    assert list(frame.columns) == list(table[0])


def test_a_timeline_of_pandas_holds_every_operation(nouns):
    """One row an operation and stream; the last ends when the step does."""
    pytest.importorskip("pandas")
    timeline = nouns["timeline"]
    frame = timeline.to_pandas()
    assert len(frame) == len(timeline.program.slot)
    assert frame["end_s"].max() == timeline.step_time_s
    assert set(frame["rank"]) == set(timeline.program.rank_name)


def test_requests_of_pandas_end_after_they_began(nouns):
    """One row a request, its moments in order."""
    pytest.importorskip("pandas")
    service = nouns["service"]
    frame = service.to_pandas()
    assert len(frame) == len(service.requests)
    assert (frame["arrival_s"] <= frame["first_token_s"]).all()
    assert (frame["first_token_s"] <= frame["last_token_s"]).all()


def test_without_pandas_one_line_says_what_to_install(nouns, monkeypatch):
    """The error names the extra."""
    real = builtins.__import__

    def refuse(name, *rest):
        if name == "pandas":
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(MissingExtraError) as caught:
        nouns["sweep"].to_pandas()
    assert str(caught.value) == "pandas is not installed; run: pip install 'mpsim[data]'"


def test_the_package_offers_only_what_is_public():
    """`dir` lists the names that are promised, and each of them is there."""
    names = [name for name in dir(mpsim) if not name.startswith("_")]
    assert names == sorted(set(mpsim.__all__))
    assert all(hasattr(mpsim, name) for name in dir(mpsim))


@pytest.mark.parametrize(
    ("values", "key", "value"),
    [
        ({"tp": 4}, "parallelism.tp", 4),
        ({"nodes": 4}, "cluster.nodes", 4),
        ({"micro_batch": 2}, "training.micro_batch", 2),
        ({"parallelism.tp": 4}, "parallelism.tp", 4),
        ({"schedule": "gpipe"}, "schedule.name", "gpipe"),
    ],
)
def test_a_value_is_replaced_by_the_last_part_of_its_key(scenarios, values, key, value):
    """`replace` means what `with_values` means by the dotted key."""
    base = mpsim.load(scenarios / "quickstart.yaml")
    section, _, name = key.partition(".")
    changed = base.replace(**values)
    assert getattr(getattr(changed, section), name) == value
    assert changed.digest == base.with_values({key: value}).digest


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"tpp": 4}, "tpp: unknown key; did you mean 'tp'"),
        ({"preset": "x"}, "preset: stands for model.preset, cluster.preset, framework.preset"),
        ({"tp": "four"}, "parallelism.tp: got 'four'; needed a whole number"),
        ({"tp": 3}, "32 heads do not divide by tp 3"),
    ],
)
def test_what_cannot_be_replaced_is_refused_as_a_file_would_be(scenarios, values, said):
    """One line a mistake: the key, what was got, what is needed."""
    with pytest.raises(ScenarioError) as caught:
        mpsim.load(scenarios / "quickstart.yaml").replace(**values)
    assert said in str(caught.value)
