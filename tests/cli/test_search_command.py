"""``mpsim search`` and what ``mpsim sweep`` learnt with it."""

from __future__ import annotations

import json
import subprocess
import sys
import time

import pytest

from mpsim.cli.console import INTERRUPTED

OVER = tuple(
    part
    for axis in (
        "parallelism.tp=1,2",
        "parallelism.pp=1,2",
        "parallelism.cp=1",
        "training.micro_batch=1",
    )
    for part in ("--over", axis)
)


def test_mistakes_beside_an_illegal_layout_are_told_together(mpsim_cli, scenarios):
    """A model, a framework and a layout that are wrong: what `check` says, with file and line."""
    wrong = [scenarios / "quickstart.yaml", "--set", "parallelism.tp=3"]
    wrong += ["--set", "framework=megatrn", "--set", "cluster.preset=dgx-h1000"]
    told = mpsim_cli("search", *wrong).err
    assert "unknown framework 'megatrn'" in told
    assert "unknown system 'dgx-h1000'" in told
    assert told == mpsim_cli("check", *wrong).err


def test_a_table_a_front_and_what_became_of_the_rest(mpsim_cli, scenarios, tmp_path):
    """All that a person asks first, and files for the second question."""
    outcome = mpsim_cli(
        "search",
        scenarios / "quickstart.yaml",
        *OVER,
        *("--top", "3", "--csv", tmp_path / "all.csv", "--plot", tmp_path / "front.png"),
    )
    assert outcome.code == 0
    assert "layout" in outcome.out
    assert "no other is better" in outcome.out
    assert "legal layouts" in outcome.out
    assert (tmp_path / "all.csv").exists()
    assert (tmp_path / "front.png").exists()


def test_json_is_one_object(mpsim_cli, scenarios):
    """With the best first and the counts."""
    outcome = mpsim_cli("search", scenarios / "quickstart.yaml", *OVER, "--top", "2", "--json")
    found = json.loads(outcome.out)
    assert len(found["rows"]) == 2
    assert found["rows"][0]["ranked_by_s"] <= found["rows"][1]["ranked_by_s"]
    assert sum(found["counts"].values()) == found["legal"]


def test_quantities_have_units(mpsim_cli, scenarios):
    """60s is a time, 70 apples are no memory."""
    file = scenarios / "quickstart.yaml"
    fine = ("--budget", "60s", "--max-memory", "40 GB", "--max-power", "1 MW", "--json")
    found = json.loads(mpsim_cli("search", file, *OVER, *fine).out)
    assert all(row["memory_bytes"] <= 40e9 for row in found["rows"])
    wrong = mpsim_cli("search", file, "--max-memory", "70 apples")
    assert wrong.code == 2
    assert "--max-memory" in wrong.err


def test_an_interrupt_prints_what_was_found(mpsim_cli, scenarios, monkeypatch):
    """And says so, with the exit code of an interrupt."""
    from mpsim.study.search import trainings

    def interrupt(timer, layouts):
        raise KeyboardInterrupt

    monkeypatch.setattr(trainings, "seconds_of", interrupt)
    outcome = mpsim_cli("search", scenarios / "quickstart.yaml", *OVER)
    assert outcome.code == 130
    assert "legal layouts" in outcome.out
    assert "interrupted" in outcome.err


def test_a_shard_of_a_sweep(mpsim_cli, scenarios):
    """Two halves have as many rows as the whole."""
    over = ("--over", "parallelism.tp=1,2,4", "--json", "--jobs", "1")
    halves = [
        json.loads(mpsim_cli("sweep", scenarios / "quickstart.yaml", *over, "--shard", half).out)[
            "rows"
        ]
        for half in ("1/2", "2/2")
    ]
    assert sum(map(len, halves)) == 3
    assert mpsim_cli("sweep", scenarios / "quickstart.yaml", *over, "--shard", "half").code == 2


@pytest.mark.parametrize("command", ["search", "sweep"])
def test_help_names_every_option_once(mpsim_cli, command):
    """Few flags."""
    assert mpsim_cli(command, "--help").code == 0


def test_a_search_that_is_terminated_prints_the_best_so_far(scenarios, tmp_path):
    """SIGTERM once some layouts were simulated: the best of them, what is not proved, and no traceback."""
    journal = tmp_path / "found.jsonl"
    command = [
        sys.executable,
        "-m",
        "mpsim",
        "search",
        scenarios / "best-layout.yaml",
        "--resume",
        journal,
    ]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as run:
        while run.poll() is None and not (journal.exists() and journal.stat().st_size):
            time.sleep(0.05)
        run.terminate()
        out, err = run.communicate()
    assert run.returncode == INTERRUPTED
    assert out.startswith("best: ")
    assert "not looked at" in out
    assert "Traceback" not in err


def test_the_best_layout_is_written_for_another_tool(mpsim_cli, scenarios, tmp_path):
    """A Megatron launch script that reads back as the layout that was found."""
    script = tmp_path / "best.sh"
    outcome = mpsim_cli(
        "search", scenarios / "quickstart.yaml", *OVER, "--emit", f"megatron={script}", "--json"
    )
    best = json.loads(outcome.out)["rows"][0]["values"]
    assert json.loads(outcome.out)["emitted"][0]["file"] == str(script)
    text = script.read_text()
    assert f"--tensor-model-parallel-size {best['parallelism.tp']}" in text
    assert mpsim_cli("search", scenarios / "quickstart.yaml", "--emit", "megatrn").code == 2


def test_odds_of_fitting_rule_layouts_out(mpsim_cli, scenarios):
    """Every layout that is left fits with the odds that were asked for, and more are ruled out the surer it shall be."""
    found = [
        json.loads(
            mpsim_cli("search", scenarios / "quickstart.yaml", *OVER, "--odds", odds, "--json").out
        )
        for odds in ("0.5", "0.9999")
    ]
    for search, least in zip(found, (0.5, 0.9999), strict=True):
        assert all(row["fits_probability"] >= least - 1e-9 for row in search["rows"])
    kept = [search["counts"].get("memory", 0) for search in found]
    assert kept[0] < kept[1]
    assert mpsim_cli("search", scenarios / "quickstart.yaml", "--odds", "1.5").code == 2
    assert (
        "between 0 and 1" in mpsim_cli("search", scenarios / "quickstart.yaml", "--odds", "1").err
    )


def test_explain_and_also(mpsim_cli, scenarios):
    """Decisions in the text and the JSON; a word that nobody knows is refused with the nearest."""
    words = ("search", scenarios / "quickstart.yaml", *OVER, "--no-front", "--explain")
    outcome = mpsim_cli(*words, "--also", "offload")
    assert outcome.code == 0
    assert "decisions of the best layout" in outcome.out
    told = json.loads(mpsim_cli(*words, "--json").out)
    assert told["decisions"]
    assert told["lines"]
    assert {"key", "value", "cost_s", "proved", "without"} == set(told["decisions"][0])
    wrong = mpsim_cli(*words, "--also", "offlod")
    assert wrong.code == 2
    assert "offload" in wrong.err
