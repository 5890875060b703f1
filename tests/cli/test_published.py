"""The bench of published tables: what it prints, and how it fails."""

from __future__ import annotations

from pathlib import Path

import pytest

import published
from tests.conftest import Outcome

COLLECTIVES = """system,gpu,nodes,gpus,link,nic,collective,bytes,time_us,notes
a,A100 SXM,1,8,NVLink3 NVSwitch,none,all_reduce,1048576,60,
a,A100 SXM,1,8,NVLink3 NVSwitch,none,all_reduce,1073741824,8000,
b,A900,1,8,NVLink3 NVSwitch,none,all_reduce,1048576,60,
"""
SCHEDULES = """schedule,pp,microbatches,virtual_stages,tF,tB,tW,makespan,overlap_block
1F1B,4,8,1,1,1,1,33,none
GPipe,4,8,1,1,1,1,34,none
"""


@pytest.fixture
def bench_cli(capsys):
    """Run the script in this process."""

    def run(*words):
        capsys.readouterr()
        code = published.main([str(word) for word in words])
        return Outcome(code, *capsys.readouterr())

    return run


@pytest.fixture
def collectives(tmp_path: Path) -> Path:
    """Two rows that can be predicted and one of a GPU that nobody knows."""
    file = tmp_path / "collectives.csv"
    file.write_text(COLLECTIVES)
    return file


@pytest.fixture
def schedules(tmp_path: Path) -> Path:
    """A right and a wrong row of an oracle."""
    file = tmp_path / "schedules.csv"
    file.write_text(SCHEDULES)
    return file


def test_json_is_one_object_with_families_and_rows(bench_cli, collectives, schedules) -> None:
    """Several files make one report, rows in their order."""
    outcome = bench_cli(collectives, schedules, "--json")
    report = outcome.json()
    assert outcome.code == 0
    assert [row["id"] for row in report["rows"]] == ["1", "2", "3", "1", "2"]
    assert {family["kind"] for family in report["families"]} == {"collective", "schedule"}
    skipped = report["rows"][2]
    assert (skipped["predicted"], skipped["error"]) == (None, None)
    assert "A900" in skipped["skipped_because"]
    assert report["rows"][4]["mismatched"] == ["makespan"]


def test_the_same_files_give_the_same_bytes(bench_cli, collectives) -> None:
    """Nothing in the report depends on time or chance."""
    first, second = (bench_cli(collectives, "--json").out for _ in range(2))
    assert first == second != ""


def test_tables_name_the_worst_rows_and_the_reasons(bench_cli, collectives, schedules) -> None:
    """A person sees families, what is furthest off, what differs, and why rows were skipped."""
    out = bench_cli(collectives, schedules).out
    assert "a all_reduce" in out
    assert "furthest off:" in out
    assert "1 rows of GPipe differ in makespan" in out
    assert "1 x gpu 'A900' is not known" in out


def test_plots_are_written(bench_cli, collectives, tmp_path: Path) -> None:
    """Two pictures of the kind that was validated."""
    outcome = bench_cli(collectives, "--plots", tmp_path / "plots")
    names = sorted(file.name for file in (tmp_path / "plots").iterdir())
    assert outcome.code == 0
    assert names == ["collective-agreement.png", "collective-error.png"]


@pytest.mark.parametrize("content", ["a,b\n1,2\n", ""])
def test_a_file_of_no_known_kind_is_bad_input(bench_cli, tmp_path: Path, content: str) -> None:
    """Exit code 2, the file's name, nothing on stdout."""
    file = tmp_path / "odd.csv"
    file.write_text(content)
    outcome = bench_cli(file, "--json")
    assert (outcome.code, outcome.out) == (2, "")
    assert "odd.csv" in outcome.err.replace("\n", "").replace("│", "").replace(" ", "")


def test_a_missing_file_is_bad_input(bench_cli, tmp_path: Path) -> None:
    """Exit code 2 and no traceback."""
    outcome = bench_cli(tmp_path / "none.csv")
    assert (outcome.code, outcome.out) == (2, "")
    assert "Traceback" not in outcome.err


def test_a_bug_is_told_from_a_row_that_cannot_be_predicted(
    bench_cli, collectives, monkeypatch
) -> None:
    """A row that meets a bug is skipped with its name, and stderr says so; the others are predicted."""
    from bench import collectives as module

    model = module._model

    def broken(gpu, *rest):
        if gpu == "A900":
            raise ValueError("oops")
        return model(gpu, *rest)

    monkeypatch.setattr(module, "_model", broken)
    outcome = bench_cli(collectives, "--json")
    assert "1 rows met a bug of mpsim, such as 3" in outcome.err
    assert outcome.json()["rows"][2]["skipped_because"].endswith("ValueError: oops")
    assert outcome.json()["rows"][0]["predicted"]
