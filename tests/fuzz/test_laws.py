"""Laws of random scenarios, and the scenarios that once broke one.

A long run: ``python scripts/fuzz_laws.py --count 2000`` (docs/explanation/reliability.md lists the laws).
"""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest
import yaml

from tests.fuzz.laws import LAWS, broken
from tests.fuzz.scenarios import draw_scenario
from tests.nightly import NIGHTLY

CORPUS = sorted(Path(__file__).parents[1].joinpath("corpus").glob("scenario-*.yaml"))


def test_there_are_fifteen_laws() -> None:
    """As many as the page on reliability says hold."""
    assert len(LAWS) == 15
    assert all(law.__doc__ for law in LAWS.values())


def test_a_seed_names_a_scenario() -> None:
    """Equal seeds draw equal scenarios, and most of them are sound."""
    assert draw_scenario(Random(7)) == draw_scenario(Random(7))
    refused = sum("check" in broken_or_refused(draw_scenario(Random(seed))) for seed in range(40))
    assert refused < 20


def broken_or_refused(data: dict[str, Any]) -> str:
    """``check`` where a scenario is refused."""
    import mpsim

    try:
        mpsim.Scenario.from_mapping(data)
    except mpsim.MpsimError:
        return "check"
    return ""


@pytest.mark.parametrize("path", CORPUS, ids=lambda path: path.stem)
def test_what_once_broke_a_law_keeps_all_of_them(path: Path) -> None:
    """Each file says in its first line what was wrong with it."""
    assert path.read_text().startswith("# ")
    assert broken(yaml.safe_load(path.read_text())) == {}


@pytest.mark.parametrize("seed", range(200 if NIGHTLY else 12))
def test_every_law_holds_for_every_scenario(seed: int) -> None:
    """All fifteen at once, so that a scenario is simulated once."""
    assert broken(draw_scenario(Random(seed))) == {}
