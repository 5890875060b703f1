"""Prices of chips in the catalog, like for like, and the spread around them."""

from __future__ import annotations

import math
import runpy

import pytest

from mpsim.hardware import accelerator, accelerator_names
from mpsim.shipped import read_shipped


@pytest.fixture(scope="module")
def market(pytestconfig):
    """The script that brings offers to the middle provider."""
    return runpy.run_path(str(pytestconfig.rootpath / "scripts" / "market.py"))


def test_the_catalog_has_the_level_of_each_chip(market) -> None:
    """Refresh it with: python scripts/market.py --write."""
    levels, spread = market["prices"]()
    own = {name: accelerator(name).price_per_hour for name in accelerator_names()}
    assert {name: price for name, price in own.items() if price is not None} == levels
    assert read_shipped("mpsim.study.data", "prices.yaml")["spread"] == spread


def test_who_lists_which_chip_moves_no_price(market) -> None:
    """Two providers, one twice as dear: a chip that only the dear one lists costs half of its price more than the middle asks."""
    asked = {
        "old": {"near": 1.0, "far": 2.0, "mid": 1.4},
        "new": {"near": 2.0, "far": 4.0, "mid": 2.8},
        "rare": {"far": 4.0},
    }
    offers = [
        (chip, who, math.log(usd)) for chip, each in asked.items() for who, usd in each.items()
    ]
    levels, _ = market["levels_of"](offers)
    assert levels["new"] / levels["old"] == pytest.approx(2.0, rel=1e-3)
    assert levels["rare"] < 3.5
