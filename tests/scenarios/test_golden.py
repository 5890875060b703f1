"""Results of the shipped scenarios move only when somebody means them to, and the move is explained."""

import runpy

import pytest


@pytest.fixture(scope="module")
def script(pytestconfig):
    """The functions of the script."""
    return runpy.run_path(str(pytestconfig.rootpath / "scripts" / "golden.py"))


def test_every_shipped_scenario_gives_its_golden_result(script):
    """If this fails on purpose: ``python scripts/golden.py --write``, and the table it prints into the body of the commit."""
    files = sorted(script["FOLDER"].rglob("*.yaml"))
    after = {
        file.relative_to(script["FOLDER"]).as_posix(): script["figures"](file) for file in files
    }
    assert script["moves"](script["golden"](), after) == []


def test_a_move_names_the_part_of_the_time_that_explains_it(script):
    """Of 2 s more, 1.5 are the bubble; memory moved too; a file that is new is said to be."""
    before = {"a.yaml": {"step_time_s": 10.0, "memory": 5.0, "part.bubble": 1.0, "part.forward": 9}}
    after = {
        "a.yaml": {"step_time_s": 12.0, "memory": 6.0, "part.bubble": 2.5, "part.forward": 9.5},
        "b.yaml": {"step_time_s": 1.0},
    }
    first, second = script["moves"](before, after)
    assert first == (
        "a.yaml: step_time_s 10 -> 12 (+20.000%); most in bubble (+1.5 s); memory moved too"
    )
    assert second == "b.yaml: new"
    assert script["moves"](before, before) == []
