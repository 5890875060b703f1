"""Layers of experts against published timings (validation/data/expert-layers.csv)."""

from __future__ import annotations

import csv

import pytest

import layers

with layers.DATA.open(newline="", encoding="utf-8") as file:
    ROWS = {row["id"]: row for row in csv.DictReader(file)}


@pytest.mark.parametrize("name", [name for name in ROWS if name.startswith("deepgemm")])
def test_exchange_and_grouped_products_take_what_was_measured(name: str) -> None:
    """DeepEP and DeepGEMM on eight H200 (FP8) and B200 (MXFP8), 2,048 to 32,768 tokens a rank: within 10 %."""
    row = ROWS[name]
    seconds = sum(layers.layer(row).values())
    assert 1e3 * seconds == pytest.approx(float(row["measured_ms"]), rel=0.1)


def test_narrow_experts_run_at_a_lower_rate_than_wide_ones() -> None:
    """Per FLOP products of experts 768 wide take longer than of 2,048: a tile of 256 is lost along the shortest side."""
    wide = {**ROWS["veomni-30b"], "ffn_hidden": "2048"}
    narrow, other = (layers.layer(row)["products"] for row in (ROWS["veomni-30b"], wide))
    assert narrow / 768 > 1.05 * other / 2048
