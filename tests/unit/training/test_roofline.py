"""Roofline: kernels of a step add up to its account, and none beats the peaks."""

from pathlib import Path

import pytest

from mpsim.scenario.scenario import load
from mpsim.simulate import simulate_step
from mpsim.training.roofline import roofline

SCENARIOS = Path(__file__).resolve().parents[3] / "scenarios"


@pytest.mark.parametrize("name", ["quickstart", "mixtral-8x7b-h100", "gpt3-175b-a100"])
def test_kernels_are_below_the_roofs_and_sum_to_the_step(name: str) -> None:
    """No point lies above a roof, all work is the executed FLOPs of the summary, and all time is the computing of the breakdown."""
    result = simulate_step(load(SCENARIOS / f"{name}.yaml"))
    kernels, summary = roofline(result.plan), result.summary
    assert (kernels.achieved <= max(kernels.peaks.values())).all()
    assert (kernels.bandwidth_share <= 1.0).all()
    assert (kernels.achieved <= kernels.intensity * kernels.bandwidth * (1 + 1e-9)).all()
    executed = kernels.flops.sum() * result.plan.layout.mesh.world
    assert executed == pytest.approx(summary["executed_flops_per_step"], rel=1e-9)
    parts = ("forward", "backward", "weight_gradient", "recompute")
    computing = sum(result.breakdown[part] for part in parts)
    # the breakdown has copies of gradients too, and kernels that lose to transfers beside them
    assert kernels.seconds.sum() == pytest.approx(computing, rel=0.03)
    assert kernels.seconds.sum() <= computing * (1 + 1e-9)


def test_every_kernel_is_one_point_a_part() -> None:
    """Names and parts are pairs that occur once; recomputation is a part of its own."""
    scenario = load(SCENARIOS / "quickstart.yaml").with_values({"training.recompute": "full"})
    kernels = roofline(simulate_step(scenario).plan)
    pairs = [*zip(kernels.names, kernels.parts, strict=True)]
    assert len(set(pairs)) == len(pairs)
    assert {"forward", "backward", "weight_gradient", "recompute"} == set(kernels.parts)
    again = pairs.index(("fc1", "recompute"))
    assert kernels.seconds[again] == pytest.approx(kernels.seconds[pairs.index(("fc1", "forward"))])
