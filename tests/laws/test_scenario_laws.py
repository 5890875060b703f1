"""Laws of whole scenarios: what does not matter changes nothing, what cannot be is refused."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mpsim
from tests.nightly import examples

BASE: dict[str, Any] = {
    "schema": 1,
    "name": "base",
    "model": {"preset": "gpt2-small", "dropout": 0.0, "vocab": 50304},
    "cluster": {"preset": "dgx-h100", "nodes": 2, "nics_per_node": 4},
    "parallelism": {"tp": 2, "pp": 4, "dp": 2, "zero": 1},
    "schedule": {"name": "interleaved-1f1b", "virtual_stages": 3},
    "training": {"global_batch": 16, "micro_batch": 1, "sequence_length": 1024},
    "framework": {"preset": "megatron-core", "bucket_bytes": "4 MB"},
    "simulation": {"engine": "replay", "seed": 0},
}


def _shuffled(data: Any, rng: random.Random) -> Any:
    if not isinstance(data, dict):
        return data
    keys = list(data)
    rng.shuffle(keys)
    return {key: _shuffled(data[key], rng) for key in keys}


def _summary(data: dict[str, Any]) -> dict[str, Any]:
    summary: dict[str, Any] = json.loads(
        mpsim.simulate(mpsim.Scenario.from_mapping(data)).to_json()
    )
    return summary


@settings(max_examples=15, deadline=None)
@given(st.randoms(use_true_random=False))
def test_the_order_of_keys_changes_nothing(rng: random.Random) -> None:
    """Not one byte."""
    assert _summary(_shuffled(BASE, rng)) == _summary(BASE)


def test_the_name_changes_nothing_but_the_name() -> None:
    """Also not the digest."""
    one, other = _summary(BASE), _summary({**BASE, "name": "another"})
    assert other.pop("scenario") == "another"
    assert one.pop("scenario") == "base"
    assert one == other


@settings(max_examples=examples(16, 40), deadline=None)
@given(*(st.sampled_from([1, 2, 3, 4, 8]) for _ in range(4)))
def test_degrees_that_do_not_multiply_to_the_cluster_are_refused(
    tp: int, pp: int, dp: int, cp: int
) -> None:
    """16 accelerators: any other product is an error that prints every factor."""
    data = {**BASE, "parallelism": {"tp": tp, "pp": pp, "dp": dp, "cp": cp}, "schedule": "1f1b"}
    if tp * pp * dp * cp == 16:
        return
    with pytest.raises(mpsim.ScenarioError) as caught:
        mpsim.Scenario.from_mapping(data)
    told = [
        str(problem) for problem in caught.value.problems if problem.key.startswith("parallelism")
    ]
    assert any(f"tp {tp}" in one and f"pp {pp}" in one and "16" in one for one in told), told


@pytest.mark.parametrize("engine", ["simpy", "replay", "auto"])
def test_the_engine_changes_nothing_but_its_name(engine: str) -> None:
    """Equal figures, and the result says which engine ran."""
    one = _summary({**BASE, "simulation": {"engine": engine}})
    assert one.pop("engine") == ("simpy" if engine == "simpy" else "replay")
    other = _summary(BASE)
    other.pop("engine")
    assert one == other


def test_a_result_prints_the_same_lines_as_text_and_html() -> None:
    """Every name and the end of every value; `tests/unit/top/test_sheet.py` has the rest."""
    result = mpsim.simulate(mpsim.Scenario.from_mapping(BASE))
    text, html = repr(result), result._repr_html_()
    rows = [line.split(maxsplit=1) for line in text.splitlines() if line[:1] not in ("", " ")]
    assert len(rows) > 5
    for row in rows:
        assert row[0] in html
        assert row[-1].split()[-1] in html
