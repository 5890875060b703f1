"""Energy in the tables of sweeps and searches: shown where hardware changes, left out where layouts do."""

from __future__ import annotations

import pytest

import mpsim

SCENARIO = "scenarios/quickstart.yaml"
TDP = "cluster.accelerator.tdp"


@pytest.fixture(scope="module")
def caps() -> mpsim.Sweep:
    """Caps from the board's limit to where both time and energy grow."""
    return mpsim.sweep(mpsim.load(SCENARIO), {TDP: ["700 W", "500 W", "300 W"]})


def test_a_sweep_of_caps_shows_energy_and_names_the_least(caps: mpsim.Sweep) -> None:
    """J a token at the boards and at the meter; the row with least at the meter where it is not the fastest."""
    text = repr(caps)
    assert "J/token" in text
    assert "at meter" in text
    least = caps.thriftiest
    assert least is not None
    assert least.number("meter_energy_j_per_token") == min(
        row.number("meter_energy_j_per_token") for row in caps
    )


def test_a_sweep_of_layouts_keeps_its_room() -> None:
    """Layouts of one cluster have no columns of energy in the text; the CSV has them."""
    layouts = mpsim.sweep(mpsim.load(SCENARIO), {"parallelism.tp": [1, 2]})
    assert "J/token" not in repr(layouts)
    assert "energy_j_per_token" in layouts.to_csv()


FEW = {"parallelism.tp": [2], "parallelism.cp": [1], "training.micro_batch": [1, 2]}


def test_a_search_over_caps_knows_the_energy_of_the_best_of_each() -> None:
    """The best layout under each cap has its energy, beyond the first of the ranking too."""
    found = mpsim.search(mpsim.load(SCENARIO), over={TDP: ["700 W", "500 W"], **FEW}, top=1)
    best = found.best_by_value[TDP]
    energies = {cap: row.flat()["energy_j_per_token"] for cap, row in best.items()}
    assert energies["500 W"] < energies["700 W"]  # type: ignore[operator]
