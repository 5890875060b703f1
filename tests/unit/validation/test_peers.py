"""Adapters of peers: which runs are refused before a peer is asked, and what becomes of answers."""

from __future__ import annotations

import runpy
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from mpsim.scenario import Scenario

ROOT = Path(__file__).resolve().parents[3]
RUN = {
    "schema": 1,
    "model": {"preset": "gpt3-175b"},
    "cluster": {"preset": "dgx-a100-80gb", "nodes": 16},
    "parallelism": {"tp": 8, "pp": 8, "dp": 2},
    "training": {
        "global_batch": 64,
        "micro_batch": 1,
        "sequence_length": 2048,
        "precision": "bf16",
    },
    "framework": {"preset": "megatron-2021"},
}


@pytest.fixture(scope="module")
def peers() -> dict[str, Any]:
    """The script as a module; it imports no peer before it is told where they are."""
    return runpy.run_path(str(ROOT / "validation" / "peers.py"))


def _with(section: str, **changes: object) -> Scenario:
    return Scenario.from_mapping({**RUN, section: {**RUN[section], **changes}})  # type: ignore[dict-item]


def test_what_a_peer_has_no_words_for_is_refused_before_it_is_asked(peers: dict[str, Any]) -> None:
    """Chips without a file, narrow formats, offload; all else reaches the peer."""

    class Echo(peers["Peer"]):  # type: ignore[misc]
        name, folder, module = "echo", "echo", "json"
        chips = {"a100-sxm-80": "file"}  # noqa: RUF012

        def seconds(self, scenario: Scenario) -> float:
            if scenario.training_step.global_batch == 32:
                raise AssertionError("not that many")
            return 2.0

    echo = Echo(ROOT)
    assert echo.answer(Scenario.from_mapping(RUN)) == 2.0
    refused = peers["RefusedError"]
    with pytest.raises(refused, match="no file of this chip"):
        echo.answer(_with("cluster", preset="dgx-h100"))
    with pytest.raises(refused, match="fp8"):
        echo.answer(_with("training", precision="fp32"))
    with pytest.raises(refused, match="its own check: not that many"):
        echo.answer(_with("training", global_batch=32))


def test_errors_of_two_runs_by_hand(peers: dict[str, Any]) -> None:
    """2 for 1.6 and 3 for 4: +25 and -25 %; mean 25, no bias, none within 10 %."""
    figures = peers["errors"]([(2.0, 1.6), (3.0, 4.0)])
    assert figures == pytest.approx(
        {"rows": 2, "mean": 0.25, "median": 0.25, "bias": 0.0, "within": 0.0}
    )


def test_the_page_names_every_peer_and_what_it_refuses(peers: dict[str, Any]) -> None:
    """One line a peer, one a family, and the reasons with their counts."""
    run = peers["Run"]("a", "fam", Scenario.from_mapping(RUN), 2.0, 2.2)
    page = peers["page"]({"Other": [(run, 3.0)]}, {"Other": Counter({"experts": 4})}, 5)
    assert "| Other | 1 | 50.0 | 50.0 | +50.0 | 0.0 | 10.0 | 10.0 | +10.0 |" in page
    assert "| fam | 1 | 10.0 | 50.0 (1) |" in page
    assert "Other: 4 runs: experts (4)." in page
