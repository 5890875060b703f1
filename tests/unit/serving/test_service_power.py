"""Power of services: what caps slow, what they draw."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

import mpsim
from mpsim.hardware import system
from mpsim.serving.planning import make_service
from mpsim.serving.prices import Products
from mpsim.serving.rates import rates_of

SCENARIO = "scenarios/serving/llama3-8b-h100.yaml"


@pytest.fixture(scope="module")
def capped() -> dict[str, Any]:
    """The shipped service at 700 and at 500 W."""
    scenario = mpsim.load(SCENARIO)
    return {
        watts: mpsim.simulate(
            scenario.with_values({"cluster.accelerator.tdp": watts})
        ).summary
        for watts in ("700 W", "500 W")
    }  # fmt: skip


def test_a_cap_slows_prompts_and_spares_decoding(capped: dict[str, Any]) -> None:
    """H100 at 500 W keeps 0.82 of its products: prompts take up to 1 / 0.82 of their time, decoding the same."""
    full, low = capped["700 W"]["account_s"], capped["500 W"]["account_s"]
    assert 1.1 < low["prefill"] / full["prefill"] < 1.25
    assert low["decode"] / full["decode"] == pytest.approx(1.0, rel=1e-3)


def test_a_cap_saves_energy_of_a_service(capped: dict[str, Any]) -> None:
    """Fewer joules an output token, and more than decoding alone at idle power would take."""
    full, low = (capped[watts]["energy_j_per_output_token"] for watts in ("700 W", "500 W"))
    assert 0.0 < low < full


def test_a_cap_scales_the_rates_of_products_and_leaves_that_of_memory() -> None:
    """Every format's products and the attention of prompts by 0.82; weights and caches are read as fast as before."""
    cluster = system("dgx-h100", nodes=1)
    chip = dataclasses.replace(cluster.accelerator, tdp_w=500.0)
    slow = dataclasses.replace(cluster, node=dataclasses.replace(cluster.node, accelerator=chip))
    low = rates_of(slow)
    full = rates_of(cluster)
    assert low.bandwidth == full.bandwidth == chip.memory_bandwidth
    assert low.prompt_share / full.prompt_share == pytest.approx(0.82, abs=0.005)
    few, many = np.array([1.0]), np.array([65536.0])
    for linear in make_service(mpsim.load(SCENARIO)).work.linears:
        usual, capped = (Products(c, full) for c in (cluster, slow))
        assert capped.seconds(linear, few) == pytest.approx(usual.seconds(linear, few), rel=0.01)
        longer = usual.seconds(linear, many) / capped.seconds(linear, many)
        assert longer == pytest.approx(0.82, abs=0.01)
