"""llm-foundry's published runs: Composer, FSDP1, 8 to 512 GPUs."""

from __future__ import annotations

from pathlib import Path

import pytest

from mpsim.importers.cells import Cells, read_rows
from mpsim.scenario import Scenario
from mpsim.simulate import simulate
from mpsim.training.memory import account_memory
from mpsim.training.planning import make_plan
from mpsim.validate.runs import filled, scenario_of
from mpsim.validate.tables import rule_of

DATA = Path(__file__).resolve().parents[2] / "validation" / "data" / "published-runs.csv"
TRAPS = ("mpt-30b-s8192-a10080gb-8-bf16", "mpt-30b-s8192-h10080gb-8-bf16")


@pytest.fixture(scope="module")
def rows() -> list[dict[str, str]]:
    return [dict(one) for one in read_rows(DATA) if one["family"] == "llm-foundry"]


def test_runs_that_were_measured_fit_their_accelerators(rows: list[dict[str, str]]) -> None:
    """No run is said to need more than its GPU has, but two by less than 1 %, whose times (2.84 x for twice the work) tell that the allocator retried."""
    short = {}
    for row in rows:
        cells = Cells(row)
        rule = rule_of(cells)
        scenario = Scenario.from_mapping(scenario_of(filled(cells, rule).cells, rule))
        memory = account_memory(make_plan(scenario))
        share = float((memory.total / memory.capacities).max())
        if share > 1.0:
            short[row["id"]] = share
    assert set(short) == set(TRAPS)
    assert max(short.values()) < 1.01


@pytest.mark.parametrize("gpus", [8, 16, 32, 64])
def test_small_batches_are_as_slow_as_communication_beside_their_layers_makes_them(
    rows: list[dict[str, str]], gpus: int
) -> None:
    """MPT 13B at 4,096 tokens a GPU communicates for a third of its step, all of it beside kernels: within 4 %, 17 to 21 % too fast without."""
    (row,) = [one for one in rows if one["id"] == f"mpt-13b-s2048-h10080gb-{gpus}-bf16"]
    cells = Cells(row)
    rule = rule_of(cells)
    scenario = Scenario.from_mapping(scenario_of(filled(cells, rule).cells, rule))
    measured = float(row["iter_time_s_derived"])
    assert simulate(scenario).summary["step_time_s"] == pytest.approx(measured, rel=0.04)
