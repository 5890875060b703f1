"""Keys that change nothing are told by `check` and `run`, once for each reason, and only where somebody gave them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import mpsim
from mpsim.errors import ScenarioError
from mpsim.scenario import Scenario
from mpsim.scenario.unused import unused

ROOT = Path(__file__).resolve().parents[3]
SERVICE = ROOT / "scenarios" / "serving" / "llama3-8b-h100.yaml"
STEP = ROOT / "scenarios" / "quickstart.yaml"


def test_keys_with_one_reason_are_one_sentence() -> None:
    """A service names the two keys of training steps together; what is as it would be anyway is not named."""
    keys = ("simulation.network=flow", "simulation.interference=true", "simulation.engine=auto")
    (sentence,) = unused(mpsim.load(SERVICE, set=keys))
    assert sentence.startswith("not used: simulation.interference, simulation.network: ")


@pytest.mark.parametrize("file", [SERVICE, STEP], ids=["service", "step"])
def test_a_resolved_scenario_is_told_nothing_that_nobody_wrote(file: Path) -> None:
    """Every preset is spelled out in it, with figures that the catalog has too."""
    assert unused(Scenario.from_mapping(mpsim.load(file).resolved())) == []


def test_a_part_of_a_mixed_cluster_is_told_at_its_place() -> None:
    """The power of a node of the second stage."""
    parts = [{"count": 2}, {"count": 2, "node_power": "9 kW"}]
    (sentence,) = unused(mpsim.load(STEP).with_values({"cluster.stages": parts}))
    assert sentence.startswith("not used: cluster.stages.1.node_power: ")


@pytest.mark.parametrize(
    ("precision", "told"), [("bf16", True), ("fp8_rowwise", True), ("fp8", False)]
)
def test_who_casts_counts_where_a_tensor_has_one_scale(precision: str, told: bool) -> None:
    """Scales of rows and blocks are found by kernels of their own, whatever the stack."""
    changes = {"training.precision": precision, "framework.narrow_casts": "norms"}
    words = " ".join(unused(mpsim.load(STEP).with_values(changes)))
    assert ("framework.narrow_casts: training.precision is not fp8" in words) is told


def test_check_tells_what_run_warns_of(mpsim_cli) -> None:
    """`mpsim check --json` has the sentence that `mpsim run --json` has among its warnings."""
    setting = ("--json", "--set", "cluster.node_power=9 kW")
    derived = json.loads(mpsim_cli("check", str(STEP), *setting).out)["derived"]
    warnings = json.loads(mpsim_cli("run", str(STEP), *setting).out)["warnings"]
    assert set(derived["warnings"]) <= set(warnings)


@pytest.mark.parametrize(
    ("file", "key", "value", "reason"),
    [
        (STEP, "cluster.accelerator.tdp", "60 W", "tdp is 60 W, needed at least the 70 W"),
        (SERVICE, "cluster.stages", [{"count": 1}], "nodes that differ"),
        (SERVICE, "parallelism.order", "dp-tp-cp-ep-pp", "only training knows"),
        (SERVICE, "serving.workload.burstiness", 0.5, "set arrival to gamma"),
        (SERVICE, "serving.workload.prompt", {"tokens": 9, "spread": 1.0}, "set kind to lognormal"),
        (STEP, "cluster.fabric", {"kind": "graph", "graph": "a.gml", "links": [["node 0", "node 1", "1 GB/s"]]}, "leave one out"),
    ],
)  # fmt: skip
def test_what_cannot_act_where_it_stands_is_refused(
    file: Path, key: str, value: object, reason: str
) -> None:
    """A cap that the board cannot keep, nodes and orders that services do not have, shapes of another distribution."""
    with pytest.raises(ScenarioError, match=reason):
        mpsim.simulate(mpsim.load(file).with_values({key: value}))


def test_a_setting_given_twice_is_refused() -> None:
    """The last one does not win in silence."""
    with pytest.raises(ScenarioError, match=r"got cluster\.nodes twice"):
        mpsim.load(STEP, set=["cluster.nodes=2", "cluster.nodes=4"])
