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

import mpsim
from mpsim.cli.app import COMMANDS, application
from mpsim.explain.watch import Watch
from mpsim.formats import export
from mpsim.study.search import Search
from mpsim.study.search.shortlist import shortlist

SCENARIO: dict[str, Any] = {
    "schema": 1,
    "name": "small",
    "model": {"preset": "gpt2-large", "layers": 12},
    "cluster": {"preset": "dgx-h100", "nodes": 2},
    "parallelism": {"tp": 2, "pp": 2},
    "training": {"global_batch": 64, "sequence_length": 1024},
    "sweep": {"training.micro_batch": [1, 2]},
    "overrides": {
        "wide": {"parallelism.tp": 4},
        "older": {"cluster.preset": "dgx-a100-80gb"},
    },
    "design": {
        "jobs": {"train": {"tokens": "10B"}},
        "choices": {"cluster.nodes": [1, 2]},
    },
}
WRITING = (
    *("plot", "plots", "trace", "csv", "emit", "resume", "as_json", "long", "output", "title"),
    *("yes", "allow_include", "jobs", "out", "list_", "help", "keep_on", "memory_snapshot"),
)
"""Options that say where and how long the answer is written, who computes it, or what is permitted."""
ELSEWHERE = ("new", "explore", "measure")
"""Commands that answer with a file, a page or measurements of this machine."""
GEMM, CORE = "kernel gemm=512x512x512 --on h100-sxm", "kernel attention=2x4096x32x128 --on h100-sxm"
SHORT = "kernel attention=1x64x32x128 --on h100-sxm"
SUM, SWITCHES = "collective all_reduce='1 MiB' --on dgx-h100", "fabric dgx-h100 --nodes 64"
RECORDED = "--scenario small.yaml --from rank0.json.gz -o box.yaml"
READING = {"sets": "--set training.micro_batch=2", "overrides": "--override wide"}
CLUSTERS = "small.yaml --set training.global_batch=8 --set cluster.accelerators_per_node=4"
CHECKPOINTS = {
    "interval": "--interval '40 min'",
    "storage": "--storage '1 MB/s'",
    "background": "--blocking --storage '100 MB/s'",
    "restart": "--restart '3 h'",
    "failures": "--failures 30",
}

SEARCHED: dict[str, list[object]] = {"parallelism.tp": [2], "parallelism.cp": [1]}
BASES = {
    "run": "small.yaml",
    "plan": "small.yaml --set model.layers=4 --tokens 1T",
    "goodput": "small.yaml --days 20 --trials 5",
    "design": f"{CLUSTERS} --no-upgrades",
    "scale": "small.yaml --gpus 16..32",
    "compare": "small.yaml --vs training.micro_batch=2",
    "sweep": "small.yaml",
    "schedule": "1f1b --pp 4 --microbatches 8",
    "search": "small.yaml --over parallelism.cp=1 --over parallelism.zero=0 --over parallelism.pp=1",
    "report": "small.yaml",
    "check": "small.yaml",
    "export": "megatron small.yaml",
    "import": "megatron args.sh --cluster dgx-h100",
    "validate": "measured.csv --scenario small.yaml",
    "explain": "small.yaml rank0.json.gz",
    "watch": "train.jsonl --scenario small.yaml",
    "calibrate": "sums.csv --only system='OCI BM.GPU.H100.8' --on h100-sxm -o box.yaml",
    "show": GEMM,
}
"""A question to each command."""
OPTIONS: dict[str, dict[str, str | tuple[str, str]]] = {
    "run": {**READING, "engine": "--engine simpy", "sensitivity": "--sensitivity"},
    "plan": {
        **READING,
        **CHECKPOINTS,
        "tokens": "--tokens 2T",
        "over": "--over cluster.nodes=4,8",
        "deadline": "--deadline '1 min'",
        "budget_usd": "--budget-usd 1",
        "search": "--search '10 s'",
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
    "design": {
        **READING,
        "sets": "--set model.layers=6",  # a search has layouts of its own
        "overrides": "--override older",
        "search": ("small.yaml --no-upgrades", "--search '1 ms'"),
        "upgrades": (CLUSTERS, "--no-upgrades"),
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
    "search": {
        **READING,
        "over": "--over parallelism.tp=1",
        "also": "--also order",
        "objective": "--objective cost",
        "pools": "--pools",
        "top": "--top 2",
        "max_memory": "--max-memory '3 GB'",
        "max_price": "--max-price '20 USD/h'",
        "max_power": "--max-power '20 kW'",
        "odds": ("small.yaml --set 'cluster.accelerator.memory=9 GB'", "--odds 0.9999"),
        "budget": "--budget '1 ms'",
        "front": "--no-front",
        "explain": "--explain",
        "shortlist": "--shortlist 3 -o listed",
        "with_runs": "--with-runs launched",
    },
    "report": {**READING, "what_if": "--what-if training.micro_batch=1,2"},
    "check": READING,
    "export": READING,
    "import": {
        "onto": "--onto flow.yaml",
        "ranks": "--ranks 64",
        "cluster": "--cluster dgx-a100-80gb",
    },
    "explain": READING,
    "watch": {
        **READING,
        "file": "--scenario wide.yaml",
        "steps": "--steps 99",
        "state": "--state kept.json",
    },
    "validate": {**READING, "runs": "--runs runs.jsonl", "scenario": "--scenario wide.yaml"},
    "calibrate": {
        "on": "--on h200-sxm",
        "only": "--only collective=all_gather",
        "name": "--name mine",
        "recorded": (
            "--scenario small.yaml --from train.jsonl -o box.yaml",
            "--from rank0.json.gz",
        ),
        "scenario": (RECORDED, "--scenario a100.yaml"),
        "sets": (RECORDED, "--set cluster.preset=dgx-a100-80gb"),
        "overrides": (RECORDED, "--override older"),
    },
    "show": {
        "on": "--on a100-sxm-80",
        "precision": "--precision fp8",
        "direction": "--pass wgrad",
        "attention_kernel": (CORE, "--attention flash3"),
        "kv_heads": (SHORT, "--kv-heads 4"),
        "value_dim": (CORE, "--value-dim 64"),
        "window": (CORE, "--window 128"),
        "full": (CORE, "--full"),
        "ranks": (SUM, "--ranks 32"),
        "burst": (SUM, "--burst --ranks 32"),
        "library": (SUM, "--library gloo"),
        "calibration": (SUM, "--calibration curves.yaml"),
        "nodes": (SWITCHES, "--nodes 128"),
    },
}
"""What each option of a command is moved to, and from which question where it is another one."""


def options(command: str) -> set[str]:
    """Names of the options of a command that are no `WRITING`."""
    group: Any = typer.main.get_command(application())
    listed = group.get_command(None, command).params
    known = {each.name for each in listed if each.param_type_name == "option"}
    return known - set(WRITING) - ({"cluster"} if command in ("sweep", "design") else set())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a scenario, and prices."""
    folder = tmp_path_factory.mktemp("options")
    (folder / "small.yaml").write_text(yaml.safe_dump(SCENARIO))
    (folder / "wide.yaml").write_text(yaml.safe_dump({**SCENARIO, "parallelism": {"tp": 4}}))
    (folder / "flow.yaml").write_text(
        yaml.safe_dump({**SCENARIO, "simulation": {"network": "flow"}})
    )
    older = {**SCENARIO, "cluster": {"preset": "dgx-a100-80gb", "nodes": 4}}
    (folder / "a100.yaml").write_text(yaml.safe_dump(older))
    (folder / "prices.yaml").write_text("h100-sxm: 1 USD/h\n")
    (folder / "other.yaml").write_text("v100-sxm2-16: 1 USD/h\n")
    (folder / "measured.csv").write_text("training.global_batch,step_time\n64,0.3 s\n")
    published = Path(__file__).parents[2] / "validation" / "data" / "collectives.csv"
    (folder / "sums.csv").write_bytes(published.read_bytes())
    trace = published.parents[1] / "measured" / "explained" / "clean" / "rank0.json.gz"
    (folder / trace.name).write_bytes(trace.read_bytes())
    (folder / "train.jsonl").write_text('{"step": 3, "step_time_s": 0.4}\n')
    kept = Watch(1.0, times=[2.0])  # of another log: counts beside this one
    kept.save(folder / "kept.json")
    launched = folder / "launched"
    search = mpsim.search(mpsim.load(folder / "small.yaml"), SEARCHED, front=False)
    assert isinstance(search, Search)
    shortlist(mpsim.load(folder / "small.yaml"), search, 1).write(launched)
    (next(launched.glob("1-*")) / "run.log").write_text("CUDA out of memory")
    (folder / "args.sh").write_text(export(mpsim.load(folder / "small.yaml"), "megatron").text)
    return folder


@pytest.fixture(scope="module")
def known() -> dict[str, Any]:
    """Answers to the questions without further options."""
    return {}


def test_every_option_is_moved() -> None:
    """The table has the options of each command, and no others; only commands that answer elsewhere are left out."""
    assert set(COMMANDS) == {*BASES, *ELSEWHERE}
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

    entry = OPTIONS[command][option]
    asked, moved = entry if isinstance(entry, tuple) else (BASES[command], entry)
    if (command, asked) not in known:
        known[command, asked] = answer(asked)
        assert known[command, asked][0] == 0, known[command, asked]
    code, out, err = answer(f"{asked} {moved}")
    if code == 2:
        assert moved.split()[0] in err or moved.split()[1].partition("=")[0] in err
    else:
        assert json.loads(out) != json.loads(known[command, asked][1])


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("goodput small.yaml --failures 0 --repair '2 d'", "--repair"),
        ("goodput small.yaml --failures 0 --spares 3", "--spares"),
        ("plan small.yaml --tokens 1T --failures 0 --restart '2 h'", "--restart"),
        ("sweep small.yaml --over training.micro_batch=1,1", "--over"),
        ("sweep small.yaml --over training.micro_batch=1 --over training.micro_batch=2", "--over"),
        ("sweep small.yaml --over parallelism.tp=1,2 --set parallelism.tp=2", "--set"),
        ("run small.yaml --set training.micro_batch=2 --set training.micro_batch=4", "--set"),
        ("compare small.yaml --vs parallelism.tp=2 --vs parallelism.tp=4", "parallelism.tp"),
        ("compare small.yaml --set parallelism.tp=2 --vs parallelism.tp=4", "parallelism.tp"),
        ("search small.yaml --over parallelism.tp=1 --over parallelism.tp=2", "--over"),
        ("report small.yaml --what-if parallelism.tp=1 --what-if parallelism.tp=2", "--what-if"),
        ("plan small.yaml --tokens 1T --over cluster.nodes=2 --over cluster.nodes=4", "--over"),
        ("plan small.yaml --tokens 1T --prices other.yaml", "--prices"),
        (
            "schedule seq-1f1b --pp 2 --microbatches 4 --option segments=2 --option segments=4",
            "--option",
        ),
    ],
)
def test_of_two_that_meet_none_wins_in_silence(
    words: str,
    named: str,
    folder: Path,
    mpsim_cli: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A key given twice, a value given twice, prices of nothing that is used, and what counts after failures where nothing fails are refused."""
    monkeypatch.chdir(folder)
    outcome = mpsim_cli(*shlex.split(words), "--json")
    assert outcome.code == 2
    assert named in outcome.err


def test_an_offer_beside_own_prices_is_told(
    folder: Path, mpsim_cli: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prices of a file count, and a warning says that the kind of offer does not."""
    monkeypatch.chdir(folder)
    words = "plan small.yaml --tokens 1T --prices prices.yaml --offer spot --json"
    warnings = json.loads(mpsim_cli(*shlex.split(words)).out)["warnings"]
    assert "--prices counts, not --offer spot; leave one of them out" in warnings
