"""Broken scenarios: each is refused with a ScenarioError that names the line, the key, and the mend.

Every file of ``broken/`` starts with comments ``# expect LINE KEY: words of the message`` (``-`` for no key).
"""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from mpsim.errors import Problem, ScenarioError
from mpsim.scenario import load

BROKEN = Path(__file__).parent / "broken"
FILES = sorted(BROKEN.glob("*.yaml"), key=lambda path: path.name)
EXPECTATION = re.compile(r"^# expect (\d+) (\S+): (.+)$", re.MULTILINE)
GOOD = """\
schema: 1
model: gpt3-175b
cluster: {preset: dgx-a100-80gb, nodes: 16}
parallelism: {tp: 8, pp: 16}
training: {global_batch: 128, sequence_length: 2048}
"""
LONGEST = 500  # characters of one problem, without the name of the file


def problems_of(path: Path) -> tuple[Problem, ...]:
    """What `load` has against `path`."""
    with pytest.raises(ScenarioError) as caught:
        load(path)
    return caught.value.problems


def said(problem: Problem) -> str:
    """The problem as printed, without its file."""
    return str(problem).removeprefix(problem.file)


def test_there_are_at_least_thirty_broken_scenarios():
    """The collection is not empty by accident."""
    assert len(FILES) >= 30


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_broken_scenario_is_refused_with_line_key_and_mend(path):
    """Every expected problem is reported at its line, under its key, in the expected words."""
    expected = EXPECTATION.findall(path.read_text(encoding="utf-8"))
    assert expected, "the file says what to expect"
    problems = problems_of(path)
    for line, key, words in expected:
        key = key.removeprefix("-")
        found = [one for one in problems if (one.line, one.key) == (int(line), key)]
        assert any(words in one.message for one in found), [said(one) for one in problems]
        assert all(f"{path}:{line}:" in str(one) for one in found)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_no_problem_is_longer_than_a_person_reads(path):
    """A message is a few hundred characters at most, and no more are reported than there are."""
    problems = problems_of(path)
    assert max(len(said(problem)) for problem in problems) <= LONGEST
    assert len(problems) == len(EXPECTATION.findall(path.read_text(encoding="utf-8")))


@pytest.mark.parametrize(
    ("content", "line", "words"),
    [
        (b"", 1, "is empty"),
        (b"# only a comment\n", 1, "is empty"),
        (b"schema: 1\n\x00\x01\x02", 2, "is a binary file"),
        (b"\x89PNG\r\n\x1a\n\x00\x00", 3, "is a binary file"),
        (b"schema: 1\nname: \xff\xfe", 2, "not text in UTF-8"),
        (b"schema: 1\nname: a\x07b\n", 2, "control character 0x07"),
        (b"[" * 500_000, 1, "nested deeper than"),
        (b"{a: " * 100_000, 1, "nested deeper than"),
        (b"- " * 100_000, 1, "nested deeper than"),
    ],
    ids=["empty", "comment", "zeros", "png", "latin1", "bell", "brackets", "braces", "dashes"],
)
def test_what_is_not_text_in_yaml_is_refused_with_its_line(tmp_path, content, line, words):
    """Files that are no scenario at all are one readable problem each."""
    path = tmp_path / "scenario.yaml"
    path.write_bytes(content)
    (problem,) = problems_of(path)
    assert words in problem.message
    assert (problem.file, problem.line) == (str(path), line)


def test_ten_megabytes_are_refused_without_being_read_whole(tmp_path):
    """A file over one megabyte is no scenario."""
    path = tmp_path / "scenario.yaml"
    with path.open("wb") as stream:
        stream.truncate(10_000_000)
    (problem,) = problems_of(path)
    assert "is over 1 MB" in problem.message


def test_a_name_of_a_million_characters_is_not_printed_whole(tmp_path):
    """Neither an unknown key nor an unknown preset floods the terminal."""
    path = tmp_path / "scenario.yaml"
    path.write_text(GOOD.replace("gpt3-175b", "m" * 300_000) + "k" * 1000 + ": 1\n")
    problems = problems_of(path)
    assert len(problems) == 2
    assert max(len(said(problem)) for problem in problems) <= LONGEST


def test_a_thousand_mistakes_are_cut_short(tmp_path):
    """Only the first mistakes are listed, and the rest is counted."""
    path = tmp_path / "scenario.yaml"
    path.write_text(GOOD + "".join(f"zzz{index}: 1\n" for index in range(1000)))
    problems = problems_of(path)
    assert len(problems) <= 31
    assert any("970 more mistakes" in problem.message for problem in problems)


def test_missing_file_and_folder_are_refused(tmp_path):
    """A path that cannot be read says why."""
    assert "no such file" in str(problems_of(tmp_path / "none.yaml")[0])
    assert "is a folder" in str(problems_of(tmp_path)[0])


def test_include_loop_of_two_files_names_both(tmp_path):
    """The chain of includes is printed."""
    (tmp_path / "a.yaml").write_text(GOOD + "include: b.yaml\n")
    (tmp_path / "b.yaml").write_text("include: a.yaml\n")
    (problem,) = problems_of(tmp_path / "a.yaml")
    assert "a.yaml -> b.yaml -> a.yaml" in problem.message
    assert problem.file.endswith("b.yaml")


def test_a_mistake_in_an_included_file_is_reported_there(tmp_path):
    """File and line are those of the include, not of the file that includes it."""
    (tmp_path / "base.yaml").write_text("schema: 1\nparallelism: {tp: -1}\n")
    (tmp_path / "top.yaml").write_text(
        GOOD.replace("parallelism: {tp: 8, pp: 16}\n", "") + "include: base.yaml\n"
    )
    (problem,) = problems_of(tmp_path / "top.yaml")
    assert (Path(problem.file).name, problem.line, problem.key) == (
        "base.yaml",
        2,
        "parallelism.tp",
    )


@pytest.mark.parametrize(
    "name", ["unknown-key", "repeated-key", "alias-bomb", "tab-indentation", "product-of-degrees"]
)
def test_command_line_exits_2_with_nothing_on_stdout(mpsim_cli, name):
    """A broken scenario is bad input: exit 2, the problem on stderr, no traceback, no result."""
    path = BROKEN / f"{name}.yaml"
    line = EXPECTATION.search(path.read_text(encoding="utf-8"))[1]
    done = mpsim_cli("run", path, "--json")
    assert (done.code, done.out) == (2, ""), done.err
    assert "Traceback" not in done.err
    assert f":{line}:" in done.err


def test_the_process_of_a_broken_scenario_ends_with_2():
    """What a shell sees of the first of them."""
    command = [sys.executable, "-m", "mpsim", "run", str(BROKEN / "unknown-key.yaml"), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert "Traceback" not in done.stderr


def test_thousands_of_mistakes_are_counted_not_printed(tmp_path):
    """A key that is repeated on 4,000 lines is 50 lines and a count; all of them are in `problems`."""
    path = tmp_path / "scenario.yaml"
    path.write_text(GOOD + "schema: 1\n" * 4000)
    with pytest.raises(ScenarioError) as caught:
        load(path)
    lines = str(caught.value).splitlines()
    assert (len(lines), lines[-1]) == (51, "and 3,950 more mistakes")
    assert len(caught.value.problems) == 4000
