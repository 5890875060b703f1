"""Explanations: faults that are known are named, with their seconds, and a clean step alarms nobody."""

from __future__ import annotations

import dataclasses
import functools
import gzip
import json
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import mpsim
from mpsim.calibrate import calibrate_recorded
from mpsim.engine import run
from mpsim.errors import MpsimError
from mpsim.explain import explain
from mpsim.explain.account import PARTS, Account, account
from mpsim.explain.causes import Expected, causes_of
from mpsim.formats.recorded_step import read_recordings
from mpsim.program import COLLECTIVE, SEND
from tests import faults as trial
from tests import spliced
from tests.nightly import some

REAL = Path(__file__).parents[3] / "validation" / "measured" / "explained"


FITS = {
    "slow_rank": ("for rank {rank} in collectives", "Take rank {rank} out"),
    "slow_link": ("collectives take", "Measure the link alone"),
    "slow_kernel": ("measured over simulated kernels", "Look at which {kind} kernel ran"),
    "lost_overlap": ("of communication is exposed", "Have communication begin earlier"),
    "host_bound": ("while the host launches", "the host's way to the next kernel"),
    "data_stall": ("in the data loader", "Have the loader work ahead"),
    "garbage_collection": ("gaps of up to", "gc.collect()"),
    "extra_recompute": ("inside the backward, 0 ms expected", "training.recompute: none"),
    "clock_drop": ("measured over simulated kernels", "all kernels are slower alike"),
    "synchronisation": ("the host waits", "Take .item()"),
}
"""What evidence shows of each fault, and what its mend says of the same."""


def traces(name: str) -> list[Path]:
    """The recordings of both ranks."""
    return sorted((REAL / name).glob("rank*.json.gz"))


@pytest.fixture(scope="module")
def step() -> tuple[mpsim.Result, list[trial.Kernel]]:
    """The simulated step that is recorded."""
    return trial.simulated()


@pytest.mark.parametrize("fault", trial.FAULTS)
def test_a_fault_is_named_first_with_its_seconds_and_all_sums_to_the_difference(
    fault: str, step: tuple[mpsim.Result, list[trial.Kernel]], tmp_path: Path
) -> None:
    """A fault of a fifth of the step; the causes and the rest are measured minus predicted."""
    result, kernels = step
    chosen = {fault: (0.5 if fault == "slow_link" else 0.2) * result.summary["step_time_s"]}
    files = trial.write(trial.recorded(kernels, chosen, 7), tmp_path)
    said = explain(result, files).to_json()
    truth = trial.seconds_of(kernels, chosen, 7)[fault]
    causes: Any = said["causes"]
    assert causes[0]["cause"] == fault
    assert causes[0]["seconds"] == pytest.approx(truth, rel=0.3)
    shows, mends = FITS[fault]
    rank, ratios = causes[0]["ranks"][0], re.findall(r"(\w+) x([\d.]+)", causes[0]["evidence"])
    kind = max(ratios, key=lambda each: float(each[1]), default=("",))[0]
    assert shows.format(rank=rank) in causes[0]["evidence"]
    assert mends.format(rank=rank, kind=kind) in causes[0]["mend"]
    assert "{" not in causes[0]["mend"]
    told = sum(cause["seconds"] for cause in causes) + said["unexplained_s"]
    assert told == pytest.approx(said["measured_s"] - said["predicted_s"])  # type: ignore[operator]


@pytest.mark.parametrize("fault", ["slow_kernel", "host_bound", "clock_drop", "synchronisation"])
def test_an_export_of_nsight_systems_says_as_much_of_kernels_and_the_host(
    fault: str, step: tuple[mpsim.Result, list[trial.Kernel]], tmp_path: Path
) -> None:
    """One device of four: classes by the names of kernels, waits by the calls of the runtime, and what other ranks would show is said."""
    result, kernels = step
    chosen = {fault: 0.2 * result.summary["step_time_s"]}
    traces = trial.recorded(kernels, chosen, 7)
    said = explain(result, [trial.write_nsys(traces[0], tmp_path / "report.sqlite")])
    truth = trial.seconds_of(kernels, chosen, 7)[fault]
    assert said.causes[0].cause == fault
    assert said.causes[0].seconds == pytest.approx(truth, rel=0.3)
    assert "3 of 4 ranks" in said.unseen[0]


def test_a_clean_step_has_no_cause_above_a_twentieth(
    step: tuple[mpsim.Result, list[trial.Kernel]], tmp_path: Path
) -> None:
    """Noise of a per cent is no fault."""
    result, kernels = step
    for seed in range(3):
        said = explain(result, trial.write(trial.recorded(kernels, {}, seed), tmp_path))
        assert all(cause.seconds < 0.05 * said.measured for cause in said.causes)


@pytest.mark.parametrize("name", sorted(path.name for path in REAL.iterdir() if path.is_dir()))
def test_a_real_recording_is_explained(name: str) -> None:
    """Two gloo ranks in data and tensor parallelism and pipelines: the first cause is the fault, its seconds within 30 % or two standard errors of the truth, a clean one has none above a twentieth of the step."""
    folder = REAL / name
    truth = json.loads((folder / "truth.json").read_text())
    result = mpsim.simulate(mpsim.load(folder / "scenario.yaml"))
    said = explain(result, traces(name))
    if truth["cause"] == "none":
        assert all(cause.seconds < 0.05 * said.measured for cause in said.causes)
        return
    seconds, error = truth.get("injected_s", truth["seconds_per_step"]), truth["standard_error_s"]
    assert said.causes[0].cause == truth["cause"]
    assert list(said.causes[0].ranks) == truth["ranks"]
    if name == "gpipe-two-by-two":  # of it, the order is what the trace shows
        assert "do not come in its order" in said.causes[0].evidence
    else:
        assert said.causes[0].seconds == pytest.approx(seconds, abs=max(0.3 * seconds, 2 * error))


def test_every_moment_of_a_step_counts_once() -> None:
    """The parts of the account sum to the step of every rank, and none is negative."""
    ranks = [s for file in traces("clean") for item in read_recordings(file) for s in item.spans]
    taken = account(ranks)
    assert taken.seconds.shape == (2, 2, len(PARTS))
    assert taken.seconds.min() > -1e-9
    assert taken.seconds.sum(axis=2) == pytest.approx(taken.steps)


@pytest.mark.parametrize(("products", "cause"), [(1.3, "uneven_stages"), (1.0, "slow_rank")])
def test_a_stage_that_computes_longer_is_uneven_or_its_rank_is_slow(
    products: float, cause: str
) -> None:
    """Two stages of 1F1B, the second 30 % longer: with as many more products it has more layers."""
    document = {**trial.SCENARIO, "parallelism": {"pp": 2}, "framework": "megatron-core"}
    result = mpsim.simulate(mpsim.Scenario.from_mapping(document))
    expected = Expected.of(result)
    busy = np.repeat(expected.compute, 2) * [1.0, 1.0, 1.3, 1.3]
    program = result.timeline.program
    slow = (program.rank == 1) & ~np.isin(program.kind, (SEND, COLLECTIVE))
    program = dataclasses.replace(program, duration=program.duration * np.where(slow, 1.3, 1.0))
    step = run(program).step_time_s
    seconds = np.zeros((4, 1, len(PARTS)))
    seconds[:, 0, PARTS.index("busy")] = busy
    seconds[:, 0, PARTS.index("wire")] = step - busy
    calls = np.repeat(expected.products, 2) * [1.0, 1.0, products, products]
    classes = {"gemm calls": calls[:, None], "gemm": busy[:, None], "attention": busy[:, None]}
    taken = Account(
        (0, 1, 2, 3), seconds, np.full((4, 1), step), classes, (np.zeros(0),) * 4, (), True
    )
    first = causes_of(result, taken)[0]
    assert (first.cause, first.ranks) == (cause, (2, 3))
    assert first.seconds == pytest.approx(step - expected.step, rel=1e-6)


def test_mends_are_told_for_every_cause_of_the_table() -> None:
    """A mend is a sentence, whose figures are those that causes give."""
    file = Path(mpsim.__file__).parent / "explain" / "data" / "causes.yaml"
    for words in yaml.safe_load(file.read_text()).values():
        text = words["mend"].format(rank=3, kind="gemm")
        assert text.endswith((".", ")"))
        assert len(text) > 40


def test_damaged_recordings_give_one_clear_error_or_an_answer(tmp_path: Path) -> None:
    """Truncated and mutated traces, their archives, and values that no trace has never end in a traceback of ours, nor in a machine from them."""
    base = REAL / "tp-python-loops"
    packed = (base / "rank0.json.gz").read_bytes()
    whole = gzip.decompress(packed)
    result = mpsim.simulate(mpsim.load(base / "scenario.yaml"))
    draw = random.Random(1)
    keys = (
        "ts",
        "dur",
        "External id",
        "Fwd thread id",
        "ranks",
        "rank",
        "Input Dims",
        "Input type",
    )
    for number in range(24):
        data, ending = bytearray(packed if number % 4 == 3 else whole), ".gz" * (number % 4 == 3)
        if number % 4 == 0:
            data = data[: draw.randrange(1000, len(data))]
        elif number % 4 == 1:
            key, value = draw.choice(keys), draw.choice(("null", "-1", "1e400", "[[null]]", '"x"'))
            places = [each.end() for each in re.finditer(f'"{key}":'.encode(), data)]
            place = draw.choice(places)
            data[place : place + 1] = f"{value},".encode()
        else:
            for _ in range(number // 4 + 1):
                data[draw.randrange(len(data))] = draw.randrange(32, 127)
        file = tmp_path / f"rank0.json{ending}"
        file.write_bytes(bytes(data))
        for ask in (explain, calibrate_recorded):
            try:
                ask(result, [file, base / "rank1.json.gz"])
            except MpsimError as error:
                assert str(file) in str(error) or "no shape" in str(error)


def test_a_log_that_changed_is_explained_as_it_is_now(
    tmp_path: Path, mpsim_cli: Callable[..., Any]
) -> None:
    """The median of steps before and after a change is nobody's step: those since count, and it is said."""
    log = tmp_path / "run.log"
    times = [0.6 + 0.001 * (n % 7) for n in range(60)] + [0.8 + 0.001 * (n % 7) for n in range(40)]
    log.write_text(
        "".join(f'{{"step": {n}, "step_time_s": {each}}}\n' for n, each in enumerate(times))
    )
    outcome = mpsim_cli("explain", str(REAL / "clean" / "scenario.yaml"), str(log), "--json")
    told = json.loads(outcome.out)
    assert told["measured_s"] == pytest.approx(0.803, abs=0.001)
    assert "from step 60 on steps take +33" in told["unseen"][0]


def test_a_log_alone_gives_the_difference(tmp_path: Path, mpsim_cli: Callable[..., Any]) -> None:
    """The median step of a log, no cause, and a sentence that says what to record."""
    log = tmp_path / "run.log"
    log.write_text("".join(f'{{"step": {n}, "step_time_s": 0.6}}\n' for n in range(9)))
    outcome = mpsim_cli("explain", str(REAL / "clean" / "scenario.yaml"), str(log), "--json")
    said = json.loads(outcome.out)
    assert said["measured_s"] == 0.6
    assert said["causes"] == []
    assert "torch.profiler" in said["unseen"][0]


@functools.cache
def clean_step() -> tuple[mpsim.Result, float]:
    """The clean step simulated, and its measured seconds."""
    result = mpsim.simulate(mpsim.load(REAL / "clean" / "scenario.yaml"))
    return result, explain(result, traces("clean")).measured


@pytest.mark.parametrize(
    "how", some(sorted(set(spliced.FAULTS) - {"a hook waits before collectives"}), 6)
)
def test_a_fault_spliced_into_a_real_recording_is_named(how: str, tmp_path: Path) -> None:
    """A quarter of the step in the clean recording of two gloo ranks: the cause is right, and no more seconds than the step got longer by."""
    result, clean = clean_step()
    files = spliced.splice(traces("clean"), how, 0.25 * clean, tmp_path, late=1)
    said = explain(result, files)
    cause, _, one = spliced.FAULTS[how]
    assert said.causes[0].cause == cause
    assert said.causes[0].ranks == ((1,) if one else (0, 1))
    assert said.causes[0].seconds == pytest.approx(said.measured - clean, rel=0.3)


@pytest.mark.parametrize("how", sorted(trial.RUNS))
def test_a_pipeline_that_ran_otherwise_is_named_with_its_seconds(how: str, tmp_path: Path) -> None:
    """Stages with other layers, and fewer microbatches, as against the scenario; what ran as it says has no cause."""
    cause, changes = trial.RUNS[how]
    result = mpsim.simulate(mpsim.Scenario.from_mapping(trial.STAGED))
    step, files = trial.staged(changes, tmp_path, 1)
    said = explain(result, files)
    assert [each.cause for each in said.causes] == ([] if cause == "none" else [cause])
    if said.causes:
        assert said.causes[0].seconds == pytest.approx(step - result.timeline.step_time_s, rel=0.15)


def test_imbalance_of_experts_is_named_with_its_seconds(tmp_path: Path) -> None:
    """In every layer another rank has 60 % more; none is late in all of them."""
    result = mpsim.simulate(mpsim.Scenario.from_mapping(trial.EXPERTS))
    even, _ = trial.experts(0.0, tmp_path, 1)
    step, files = trial.experts(0.6, tmp_path, 1)
    first = explain(result, files).causes[0]
    assert first.cause == "expert_imbalance"
    assert first.seconds == pytest.approx(step - even, rel=0.2)


def test_an_explanation_is_a_part_of_a_page_and_its_picture_shades_what_differs(
    tmp_path: Path, mpsim_cli: Callable[..., Any]
) -> None:
    """Causes with their mends in a table of the report; spans in which operators run again, and the time that the simulated step lacks, lie behind both timelines."""
    folder = REAL / "recompute"
    outcome = mpsim_cli("explain", folder / "scenario.yaml", *traces("recompute"), "--json")
    (tmp_path / "told.json").write_text(outcome.out)
    page = mpsim_cli("report", tmp_path / "told.json", "-o", tmp_path / "page.html", "--json")
    assert "extra recompute" in page.out
    assert "activation checkpointing" in page.out
    told = explain(mpsim.simulate(mpsim.load(folder / "scenario.yaml")), traces("recompute"))
    before, after = told.shaded
    assert float(next(iter(before.values()))[0, 1]) == pytest.approx(told.measured)
    spans = after["extra recompute"]
    assert 0.05 < float((spans[:, 1] - spans[:, 0]).sum()) < told.measured


def test_recordings_before_the_scenario_are_told_to_change_places(mpsim_cli):
    """Not that a recording has no key of a scenario."""
    outcome = mpsim_cli("explain", "rank0.json", str(REAL / "clean" / "scenario.yaml"))
    assert outcome.code == 2
    assert "the scenario comes first" in outcome.err
