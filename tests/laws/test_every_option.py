"""No option without effect: what a command is told changes a figure of its answer, is refused with the reason, or is named in the warnings."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from mpsim.cli.app import application

SCENARIO: dict[str, Any] = {
    "schema": 1,
    "name": "small",
    "model": "gpt2-large",
    "cluster": {"preset": "dgx-h100", "nodes": 4},
    "parallelism": {"tp": 2, "pp": 2},
    "training": {"global_batch": 64, "sequence_length": 1024},
    "sweep": {"training.micro_batch": [1, 2]},
    "overrides": {"wide": {"parallelism.tp": 4}},
}
WRITING = (
    *("plot", "plots", "trace", "csv", "emit", "resume", "as_json", "long", "output", "title"),
    *("yes", "allow_include", "jobs", "cluster"),
)
"""Options that say where and how long the answer is written, who computes it, or what is permitted."""
READING = {"sets": "--set training.micro_batch=2", "overrides": "--override wide"}
CHECKPOINTS = {
    "interval": "--interval '40 min'",
    "storage": "--storage '1 MB/s'",
    "background": "--blocking --storage '100 MB/s'",
    "restart": "--restart '3 h'",
    "failures": "--failures 30",
}

BASES = {
    "run": "small.yaml",
    "plan": "small.yaml --tokens 1T",
    "goodput": "small.yaml --days 20 --trials 5",
    "scale": "small.yaml --gpus 16..32",
    "compare": "small.yaml --vs training.micro_batch=2",
    "sweep": "small.yaml",
    "schedule": "1f1b --pp 4 --microbatches 8",
}
"""A question to each command."""
OPTIONS: dict[str, dict[str, str]] = {
    "run": {**READING, "engine": "--engine simpy", "sensitivity": "--sensitivity"},
    "plan": {
        **READING,
        **CHECKPOINTS,
        "tokens": "--tokens 2T",
        "over": "--over cluster.nodes=4,8",
        "deadline": "--deadline '1 min'",
        "budget_usd": "--budget-usd 1",
        "search": "--search '1 s'",
        "offer": "--offer spot",
        "prices": "--prices prices.yaml",
        "region": "--region fra",
        "pue": "--pue 1.5",
    },
    "goodput": {
        **READING,
        **CHECKPOINTS,
        "days": "--days 40",
        "size": "--size '20 TB'",
        "repair": "--repair '30 d' --failures 300 --spares 0",
        "spares": "--spares 0 --failures 300",
        "trials": "--trials 9",
        "seed": "--seed 7",
    },
    "scale": {**READING, "gpus": "--gpus 16..64", "mode": "--mode weak"},
    "compare": {**READING, "vs": "--vs training.micro_batch=4", "tokens": "--tokens 1T"},
    "sweep": {**READING, "over": "--over parallelism.tp=2,4", "shard": "--shard 1/2"},
    "schedule": {
        "pp": "--pp 2",
        "microbatches": "--microbatches 16",
        "times": "--times 1,2,1",
        "virtual": "--virtual 2",
        "p2p": "--p2p 0.5",
        "memory": "--memory 2",
        "overlap": "--overlap serial",
        "options": "--option depth=2",
    },
}
"""What each option of a command is moved to."""


def options(command: str) -> set[str]:
    """Names of the options of a command that are no `WRITING`."""
    group: Any = typer.main.get_command(application())
    known = {option.name for option in group.get_command(None, command).params}
    return known - set(WRITING) - {"file", "files", "a", "b", "name", "help"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a scenario, and prices."""
    folder = tmp_path_factory.mktemp("options")
    (folder / "small.yaml").write_text(yaml.safe_dump(SCENARIO))
    (folder / "prices.yaml").write_text("h100-sxm: 1 USD/h\n")
    return folder


@pytest.fixture(scope="module")
def known() -> dict[str, Any]:
    """Answers to the questions without further options."""
    return {}


def test_every_option_is_moved() -> None:
    """The table has the options of each command, and no others."""
    assert {command: set(table) for command, table in OPTIONS.items()} == {
        command: options(command) for command in BASES
    }


@pytest.mark.parametrize(
    ("command", "option"),
    [(command, option) for command, table in OPTIONS.items() for option in table],
)
def test_an_option_acts_or_is_refused_or_is_told(
    command: str,
    option: str,
    folder: Path,
    known: dict[str, Any],
    mpsim_cli: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The JSON of the answer is another one, or the option is refused by its name."""
    monkeypatch.chdir(folder)

    def answer(words: str) -> Any:
        outcome = mpsim_cli(command, *shlex.split(words), "--json")
        return outcome.code, outcome.out, outcome.err

    if command not in known:
        known[command] = answer(BASES[command])
        assert known[command][0] == 0, known[command]
    moved = OPTIONS[command][option]
    code, out, err = answer(f"{BASES[command]} {moved}")
    if code == 2:
        assert moved.split()[0] in err or moved.split()[1].partition("=")[0] in err
    else:
        assert json.loads(out) != json.loads(known[command][1])
