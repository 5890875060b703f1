"""Which price counts, what a limit that nothing keeps comes to, and interruptions where nothing fails."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import mpsim

ROOT = Path(__file__).resolve().parents[3]
STEP = ROOT / "scenarios" / "quickstart.yaml"
STATED = ("--set", "cluster.price_per_hour=2 USD/h")


@pytest.fixture
def planned(mpsim_cli):
    """The JSON of ``mpsim plan`` for the quickstart."""

    def run(*options: object) -> dict[str, Any]:
        outcome = mpsim_cli("plan", STEP, "--tokens", "3B", "--json", *options)
        figures: dict[str, Any] = json.loads(outcome.out)
        return {**figures, "code": outcome.code}

    return run


def test_a_stated_price_is_the_scenarios(planned) -> None:
    """Its source is the key, its range itself; public offers say nothing of it."""
    rate = planned(*STATED)["usd_per_gpu_hour"]
    assert (rate["usd_per_hour"], rate["low"], rate["high"]) == (2.0, 2.0, 2.0)
    assert (rate["offer"], rate["source"]) == ("scenario", "cluster.price_per_hour")


@pytest.mark.parametrize(
    ("options", "offer", "reason"),
    [
        (("--offer", "spot"), "spot", "--offer spot counts, not cluster.price_per_hour"),
        (("--offer", "reserved-3y"), "scenario", "no reserved-3y offer of h100-sxm is known"),
        (("--prices", "own.yaml"), "file", "--prices counts, not cluster.price_per_hour"),
    ],
)
def test_two_prices_say_which_wins(
    planned, tmp_path, monkeypatch, options: tuple[str, ...], offer: str, reason: str
) -> None:
    """An offer and a file beside what the scenario states."""
    monkeypatch.chdir(tmp_path)
    Path("own.yaml").write_text("h100-sxm: 1 USD/h\n")
    figures = planned(*STATED, *options)
    assert figures["usd_per_gpu_hour"]["offer"] == offer
    assert any(reason in warning for warning in figures["warnings"])


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("h100-sxmm: 2 USD/h", "no accelerator 'h100-sxmm'; did you mean 'h100-sxm'"),
        ("a100-sxm-80: 2 USD/h", "has no price of h100-sxm; it has a100-sxm-80"),
    ],
)
def test_prices_that_match_nothing_are_refused(mpsim_cli, tmp_path, line: str, reason: str) -> None:
    """A name that no accelerator has, and a list without the one that is planned."""
    file = tmp_path / "prices.yaml"
    file.write_text(f"{line}\n")
    outcome = mpsim_cli("plan", STEP, "--tokens", "3B", "--prices", file)
    assert outcome.code == 2
    assert reason in outcome.err


def test_a_deadline_that_no_plan_keeps_is_a_failure(planned) -> None:
    """Exit 1, with the plan that comes nearest to read all the same."""
    late, kept = planned("--deadline", "1 min"), planned("--deadline", "60 d")
    assert (late["code"], late["possible"]) == (1, False)
    assert (kept["code"], kept["possible"]) == (0, True)


def test_nothing_fails_where_no_rate_is_left(planned) -> None:
    """`--failures 0` leaves no interruption, of software neither; three times the rates interrupt three times as often an hour."""
    none, once, thrice = (planned("--failures", scale) for scale in (0, 1, 3))
    assert none["interruptions"] == 0
    each = [figures["interruptions"] / figures["days"] for figures in (once, thrice)]
    assert each[1] == pytest.approx(3 * each[0])


def test_a_sequence_beyond_learned_positions_is_refused() -> None:
    """GPT-3's table has 2,048 rows; one that is given more takes the sequence."""
    scenario = mpsim.load(ROOT / "scenarios" / "gpt3-175b-a100.yaml")
    longer = {"training.sequence_length": 4096}
    with pytest.raises(mpsim.ScenarioError, match=r"set model\.max_positions to 4096"):
        scenario.with_values(longer)
    assert scenario.with_values({**longer, "model.max_positions": 4096}).training is not None


def test_a_stored_result_of_another_mpsim_is_told(mpsim_cli, tmp_path, monkeypatch) -> None:
    """Among the warnings of the comparison, by the side that it is of."""
    result = mpsim.simulate(mpsim.load(STEP))
    with monkeypatch.context() as patched:
        patched.setattr("mpsim.stamp.stamp", lambda: "0.0.1+0")
        result.save(tmp_path / "old.mpsim")
    told = json.loads(mpsim_cli("compare", tmp_path / "old.mpsim", STEP, "--json").out)["warnings"]
    assert any("was saved by mpsim 0.0.1+0" in text for text in told)


def test_blocks_of_cache_that_memory_has_no_room_for_are_refused(mpsim_cli) -> None:
    """Too many, and too few for a request; by `check` as by `run`."""
    file = ROOT / "scenarios" / "serving" / "llama3-8b-h100.yaml"
    for blocks, reason in (
        ("1000000000", "memory has room for"),
        ("4", "do not fit into the cache"),
    ):
        for command in ("check", "run"):
            outcome = mpsim_cli(command, file, "--set", f"serving.kv_blocks={blocks}")
            assert outcome.code == 2
            assert reason in outcome.err
