"""Intervals of all commands: every one belongs to a figure and holds it, its ends are in order and never below zero."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from mpsim.cli import main

SCENARIOS = Path(__file__).resolve().parents[2] / "scenarios"
TRAININGS = sorted(SCENARIOS.glob("*.yaml"))
SERVICES = sorted((SCENARIOS / "serving").glob("*.yaml"))
STEP, SERVICE = SCENARIOS / "quickstart.yaml", SCENARIOS / "serving" / "llama3-8b-h100.yaml"
REQUESTS = "serving.workload.requests"
COMMANDS: dict[str, tuple[object, ...]] = {
    **{f"run {file.stem}": ("run", file) for file in (*TRAININGS, *SERVICES)},
    "run few": ("run", SERVICE, "--set", f"{REQUESTS}=1"),
    "run none that counts": ("run", SERVICE, "--set", "serving.workload.warmup=1000 s"),
    "check": ("check", STEP),
    "check service": ("check", SERVICE),
    "compare": ("compare", SCENARIOS / "nics-4.yaml", SCENARIOS / "nics-8.yaml"),
    "compare services": ("compare", SERVICE, "--vs", "serving.workload.concurrency=8"),
    "sweep": ("sweep", STEP, "--over", "training.micro_batch=1,2", "--jobs", 1),
    "sweep services": ("sweep", SERVICE, "--over", f"{REQUESTS}=1,2,5,9,19,20,40", "--jobs", 1),
    "validate": ("validate", "rows.csv"),
    "validate services": ("validate", "served.csv"),
    "search": ("search", STEP, "--set", "cluster.nodes=1", "--over", "parallelism.cp=1", "--over", "parallelism.tp=1,2"),
    "search services": ("search", SERVICE),
    "plan": ("plan", STEP, "--tokens", "1T"),
    "scale": ("scale", STEP, "--gpus", "16,32"),
    **{f"goodput {n}": ("goodput", STEP, "--days", "0.05", "--trials", n, "--failures", 200) for n in (1, 2, 19, 20, 200)},
}  # fmt: skip
NONE = {"check", "check service"}
WORDS = {"level", "basis", "memory_basis", "of"}
NAMES = {"memory_bytes": ("memory_bytes", "peak_memory_bytes")}
OWNERS = ("predicted", "ratio")
AMOUNT = r"(-?[\d,]+(?:\.\d+)?(?:e[-+]?\d+)?)"
TEXT = re.compile(rf"{AMOUNT} ?([a-zA-Z%/]*)(?: of the time is progress)? \((?:80 % interval |95 % confidence )?{AMOUNT} ?([a-zA-Z%/]*) to {AMOUNT} ?([a-zA-Z%/]*)[);]")  # fmt: skip
SCALES = {"us": 1e-6, "ms": 1e-3, "min": 60.0, "h": 3600.0, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}  # fmt: skip


@pytest.fixture(autouse=True)
def tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Measured rows to validate, in the folder that commands run in."""
    monkeypatch.chdir(tmp_path)
    Path("rows.csv").write_text(f"scenario,measured.step_time,measured.memory\n{STEP},1 s,20 GB\n")
    Path("served.csv").write_text(f"scenario,measured.tpot_ms,measured.ttft\n{SERVICE},9,0.3\n")


class Pair(NamedTuple):
    """A figure and the ends of its interval, where there is one."""

    place: str
    figure: Any
    ends: Any


def pairs(node: object, place: str = "") -> Iterator[Pair]:
    """Every interval of a document with the figure that it belongs to; a KeyError where it belongs to none."""
    if isinstance(node, list):
        for number, item in enumerate(node):
            yield from pairs(item, f"{place}.{number}")
    if not isinstance(node, Mapping):
        return
    for key, value in node.items():
        here = f"{place}.{key}"
        if key == "interval" and isinstance(value, Mapping):
            for name in value.keys() - WORDS:
                own = next((k for k in NAMES.get(name, (name,)) if k in node), None)
                if own is None:  # a search keeps the figure of a row in its summary
                    yield Pair(f"{here}.{name}", (node.get("summary") or {})[NAMES[name][-1]], value[name])  # fmt: skip
                    continue
                figure = node[own]
                yield Pair(f"{here}.{name}", figure["mean"] if isinstance(figure, Mapping) else figure, value[name])  # fmt: skip
        elif key == "interval":
            yield Pair(here, next(node[name] for name in OWNERS if name in node), value)
        elif key.endswith("_interval"):
            yield Pair(here, node[key.removesuffix("_interval")], value)
        elif key.endswith(("_low", "_p5")):
            name, _, end = key.rpartition("_")
            ends = value, node[f"{name}_{'high' if end == 'low' else 'p95'}"]
            yield Pair(here, node[name] if end == "low" else None, None if value is None else ends)
        elif key == "low_s":
            yield Pair(here, node["seconds"], (value, node["high_s"]) if value and node["high_s"] else None)  # fmt: skip
        else:
            yield from pairs(value, here)


def broken(pair: Pair) -> bool:
    """Whether an interval breaks a law; a figure that is not there has none."""
    if pair.ends is None:
        return False
    low, high = pair.ends
    figure = low if pair.figure is None and pair.place.endswith("_p5") else pair.figure
    share = pair.place.endswith(("within_slo_interval", "effective_low", "effective_p5"))
    return figure is None or not 0.0 <= low <= figure <= high or (share and high > 1.0)


def printed(arguments: tuple[object, ...], capsys: pytest.CaptureFixture[str], *more: str) -> str:
    """What a command prints."""
    assert main([*map(str, arguments), *more]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("name", COMMANDS)
def test_every_interval_holds_its_figure(name, capsys):
    """Pairs of figure and interval are found by walking the JSON; one without a figure, or none at all, is a fault too."""
    found = [
        pair
        for line in printed(COMMANDS[name], capsys, "--json").splitlines()
        for pair in pairs(json.loads(line))
    ]
    assert bool(found) != (name in NONE)
    assert [pair for pair in found if broken(pair)] == []


def test_too_few_values_have_no_interval(capsys):
    """One request has no spread, four say nothing of their mean; a share of a few is as wide as they leave it."""
    rows = json.loads(printed(COMMANDS["sweep services"], capsys, "--json"))["rows"]
    one, two, five = (row["summary"] for row in rows[:3])
    for summary in (one, two):
        assert {key: summary["e2e_s"][key] for key in summary["e2e_s"] if "interval" in key} == dict.fromkeys(("mean_interval", "p50_interval", "p90_interval", "p99_interval"))  # fmt: skip
    assert five["e2e_s"]["mean_interval"] is not None
    # Wilson, one of one: 1 / (1 + 1.2816^2) to 1
    assert one["requests_within_slo_interval"] == pytest.approx([1 / (1 + 1.2816**2), 1.0])
    few, enough = (json.loads(printed(COMMANDS[f"goodput {n}"], capsys, "--json")) for n in (19, 20))  # fmt: skip
    assert few["effective_low"] is few["effective_p95"] is None
    assert enough["effective_low"] < enough["effective"] < enough["effective_high"]


def amount(number: str, unit: str, other: str = "") -> float:
    """A printed amount; one without a unit has that of the other end."""
    return float(number.replace(",", "")) * SCALES.get(unit or other, 1.0)


@pytest.mark.parametrize(
    "name", ["run quickstart", "run llama3-8b-h100", "run llama3-70b-h100", "plan", "goodput 200"]
)
def test_every_printed_interval_holds_its_figure(name, capsys, monkeypatch):
    """``932.9 ms (80 % interval 867 ms to 1.038 s)``: what is rounded lies within its rounded ends, to a hair."""
    monkeypatch.setenv("COLUMNS", "400")
    text = " ".join(printed(COMMANDS[name], capsys).split())
    found = TEXT.findall(text)
    assert found
    for figure, unit, low, low_unit, high, high_unit in found:
        ends = amount(low, low_unit, high_unit), amount(high, high_unit, low_unit)
        value = amount(figure, unit, high_unit)
        assert 0.0 <= ends[0] <= ends[1]
        assert ends[0] * 0.999 <= value <= ends[1] * 1.001, (name, figure, unit, low, high)
