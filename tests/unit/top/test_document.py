"""Strict YAML: numbers as numbers, repeated keys refused, and the place of every key."""

import contextlib
import json
import sys
import textwrap
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from mpsim import document, shipped
from mpsim.document import Document, parse_scalar, read_document
from mpsim.errors import Problem, ScenarioError
from mpsim.shipped import load_catalog


def load_document(path) -> Document:
    """Read one YAML file; every mistake in it is an error."""
    document = read_document(path)
    if document.problems:
        raise ScenarioError(document.problems)
    return document


@pytest.fixture(params=["C", "python"])
def loader(request, monkeypatch):
    """Both parsers of PyYAML, for machines without libyaml."""
    chosen = {"C": getattr(yaml, "CSafeLoader", yaml.SafeLoader), "python": yaml.SafeLoader}
    monkeypatch.setattr(document, "_Loader", chosen[request.param])
    untyped = type("_Untyped", (chosen[request.param],), {"yaml_implicit_resolvers": {}})
    monkeypatch.setattr(shipped, "_untyped", lambda: untyped)
    return request.param


@pytest.fixture
def written(tmp_path):
    """Write a text to a file and give its path."""

    def write(text):
        path = tmp_path / "file.yaml"
        path.write_text(textwrap.dedent(text), encoding="utf-8")
        return path

    return write


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e9", 1e9),
        ("1.0e9", 1e9),
        ("1e-6", 1e-6),
        ("1E+3", 1e3),
        (".5", 0.5),
        ("5.", 5.0),
        ("-3", -3),
        ("+2", 2),
        ("010", 10),
        ("0x10", 16),
        ("0o17", 15),
        ("1_000", 1000),
        ("12:30", "12:30"),
        ("1:30.5", "1:30.5"),
        ("on", "on"),
        ("yes", "yes"),
        ("No", "No"),
        ("true", True),
        ("False", False),
        ("~", None),
        ("null", None),
        ("", None),
        ("'true'", "true"),
        ("'1'", "1"),
        ("2026-01-01", "2026-01-01"),
        ("400 Gb/s", "400 Gb/s"),
        ("=", "="),
        ("1e", "1e"),
        ("[1, a]", [1, "a"]),
        ("{a: 1}", {"a": 1}),
    ],
)
def test_plain_values_are_those_of_yaml_1_2(loader, text, value):
    """Exponents make floats, only true and false are booleans, nothing is base 60, octal or a date."""
    read = parse_scalar(text)
    assert read == value
    assert type(read) is type(value)


def test_every_key_has_its_place(loader, written):
    """Lines and columns count from 1; items of lists are keys too."""
    read = load_document(
        written("""\
            a:
              b: 1
              c: [x, y]
            d:
              - e: 2
        """)
    )
    assert read.data == {"a": {"b": 1, "c": ["x", "y"]}, "d": [{"e": 2}]}
    assert read.places == {
        "": (1, 1),
        "a": (1, 1),
        "a.b": (2, 3),
        "a.c": (3, 3),
        "a.c.0": (3, 7),
        "a.c.1": (3, 10),
        "d": (4, 1),
        "d.0": (5, 5),
        "d.0.e": (5, 5),
    }


def test_the_place_of_what_was_not_written_is_that_of_its_parent():
    """A missing key is reported where it should stand."""
    read = Document({}, {"": (1, 1), "a": (2, 1)}, "f")
    assert read.place("a.b.c") == (2, 1)
    assert read.place("z") == (1, 1)
    assert Document({}, {}, "f").place("a") == (0, 0)


def test_a_problem_is_located_once():
    """A key gets file, line and column; what has a file keeps it; another file's key gets that file."""
    read = Document({}, {"": (1, 1), "a": (2, 1), "b": (7, 3)}, "f", files={"b": "g"})
    assert read.locate(Problem("m", key="a.x")) == Problem("m", "a.x", "f", 2, 1)
    assert read.locate(Problem("m", key="b")) == Problem("m", "b", "g", 7, 3)
    assert read.locate(Problem("m", key="a", file="h")) == Problem("m", "a", "h")


def test_all_repeated_keys_are_reported_with_both_lines(loader, written):
    """A repeated key never wins in silence, whatever its depth."""
    path = written("""\
        a: 1
        b: {c: 1, c: 2}
        a: 3
    """)
    with pytest.raises(ScenarioError) as caught:
        load_document(path)
    first, second = caught.value.problems
    assert (first.key, first.line) == ("b.c", 2)
    assert (second.key, second.line) == ("a", 3)
    assert "first on line 1, again on line 3" in second.message


def test_a_file_with_repeated_keys_can_still_be_read_for_other_mistakes(loader, written):
    """read_document keeps such problems, and the first value."""
    read = read_document(written("a: 1\na: 2\nb: .nan\n"))
    assert read.data["a"] == 1
    assert [problem.key for problem in read.problems] == ["a", "b"]


@pytest.mark.parametrize("number", [".nan", ".inf", "-.Inf", "1e999"])
def test_numbers_that_are_not_finite_are_refused(loader, written, number):
    """Not a number and infinity have no place in a file."""
    with pytest.raises(ScenarioError, match="needed a finite number"):
        load_document(written(f"a: {number}"))


@pytest.mark.parametrize("digits", ["9" * 401, "1" + "0" * 5000, "0." + "3" * 5000])
def test_absurdly_long_numbers_stay_text(loader, digits):
    """No number is read that Python refuses to convert; the schema then refuses the text."""
    assert parse_scalar(digits) == digits


def test_anchors_repeat_a_value_and_merge_keys_fill_in(loader, written):
    """An alias is the value again; '<<' brings keys that the mapping itself overrides."""
    read = load_document(
        written("""\
            base: &base {p: 1, q: 2}
            same: *base
            more:
              <<: *base
              q: 3
        """)
    )
    assert read.data["same"] == {"p": 1, "q": 2}
    assert read.data["more"] == {"p": 1, "q": 3}
    assert read.places["more.q"] == (5, 3)
    assert read.places["more.p"] == (1, 14)


def test_the_first_of_several_merged_mappings_wins(loader, written):
    """As the merge key is defined: earlier mappings override later ones."""
    read = load_document(written("a: &a {k: 1}\nb: &b {k: 2, l: 3}\nc: {<<: [*a, *b]}\n"))
    assert read.data["c"] == {"k": 1, "l": 3}


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("a: [1,\nb: 2", 3, "brackets"),
        ("a: 'x\nb: 1", 2, "close the quote"),
        ("a: b: c", 1, "quote a value that holds ': '"),
        ("a:\n\tb: 1", 2, "indented with a tab: use spaces"),
        ("a: *x", 1, "no complete '&x' before it"),
        ("a: 1\n---\nb: 2", 2, "a second document"),
        ("- 1", 1, "got a list at the top"),
        ("just words", 1, "got plain text at the top"),
        ("? [a]\n: 1", 1, "a key must be one word"),
        ("a: !!python/name:os.system x", 1, "is not allowed"),
        ("a: 1\nb: {<<: 3}", 2, "'<<' merges a mapping"),
        ("", 1, "is empty"),
    ],
)
def test_a_syntax_mistake_is_one_problem_with_its_line(written, text, line, words):
    """Whatever YAML cannot read is a ScenarioError, never an exception of the parser."""
    path = written(text)
    with pytest.raises(ScenarioError) as caught:
        load_document(path)
    (problem,) = caught.value.problems
    assert words in problem.message
    assert (problem.line, problem.file) == (line, str(path))
    assert problem.column > 0


def test_an_alias_bomb_is_refused_after_as_many_values_as_a_scenario_has(loader, written):
    """Expansion stops at the limit: nine levels of ten would be a billion values."""
    lines = ["a0: &a0 [x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 10)]
    with pytest.raises(ScenarioError, match="once its aliases are expanded"):
        load_document(written("\n".join(lines)))


def test_nesting_stops_at_the_limit_and_not_at_the_stack(loader):
    """Half a megabyte of brackets is refused at the 49th."""
    with pytest.raises(ScenarioError, match="nested deeper than"):
        parse_scalar("[" * 500_000)
    assert parse_scalar("[" * 48 + "]" * 48) is not None
    assert sys.getrecursionlimit() >= 1000


def test_a_byte_order_mark_is_no_part_of_the_first_key(tmp_path):
    """Editors on Windows write one."""
    path = tmp_path / "file.yaml"
    path.write_bytes(b"\xef\xbb\xbfa: 1\r\nb: 2\r\n")
    assert load_document(path).data == {"a": 1, "b": 2}


def test_a_control_character_after_accents_has_its_own_place(loader, tmp_path):
    """Columns count characters, not bytes."""
    path = tmp_path / "file.yaml"
    path.write_bytes("a: 1\nb: éé\x07\n".encode())
    with pytest.raises(ScenarioError) as caught:
        load_document(path)
    assert (caught.value.problems[0].line, caught.value.problems[0].column) == (2, 6)


def test_shipped_catalogs_are_read_strictly_and_once():
    """A second call gives the same objects, without reading again."""
    first = dict(load_catalog("mpsim.workload.catalog"))
    assert first
    assert all(dict(load_catalog("mpsim.workload.catalog"))[name] is first[name] for name in first)


TEXT = st.text(st.characters(max_codepoint=0xD7FF, exclude_characters="\x7f"), max_size=6)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(min_value=-(10**18), max_value=10**18)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(TEXT, VALUES, min_size=1, max_size=3))
@settings(max_examples=50)
def test_what_a_strict_writer_wrote_is_read_back(data):
    """JSON is YAML: any data written as JSON comes back the same."""
    assert parse_scalar(json.dumps(data)) == data


@given(st.text(max_size=60))
@settings(max_examples=50)
def test_any_text_is_read_or_refused_with_a_problem(text):
    """No text makes the reader raise anything but a ScenarioError."""
    with contextlib.suppress(ScenarioError):
        parse_scalar(text)


def test_a_quoted_merge_key_is_a_key():
    """Only a plain '<<' merges."""
    assert parse_scalar("{'<<': 1}") == {"<<": 1}
    assert parse_scalar("<<") == "<<"


SHIPPED_IN = Path(document.__file__).parents[1]
SHIPPED = sorted(SHIPPED_IN.glob("mpsim/**/*.yaml"))


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_a_shipped_file_reads_as_a_person_would_have_it_read(loader, path):
    """The quick reader of shipped files gives what the strict one does, in the same order and types; neither finds a mistake."""
    package = ".".join(path.relative_to(SHIPPED_IN).parent.parts)
    assert repr(shipped.read_shipped.__wrapped__(package, path.name)) == repr(
        load_document(path).data
    )


def test_shipped_files_are_found_and_read_once():
    """The check above covers every package that ships YAML; what two callers get is the same object."""
    assert len(SHIPPED) > 30
    first, second = (dict(load_catalog("mpsim.hardware.catalog")) for _ in range(2))
    assert first["links"] is second["links"]
