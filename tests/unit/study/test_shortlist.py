"""A shortlist: diverse layouts to launch, and what their logs say of those that did not run."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

import mpsim
from mpsim.errors import FormatError
from mpsim.result.residuals import Setting
from mpsim.study.search import Search
from mpsim.study.search.belief import Belief, Ran
from mpsim.study.search.shortlist import SHORTLIST, Shortlist, read_runs, shortlist

DEGREES = [(1, 1), (1, 2), (2, 1), (2, 2), (4, 1), (8, 1)]


def believed(memory: list[float] | None = None) -> Belief:
    """Six layouts of one stack whose steps are predicted to be equally long."""
    settings = [
        Setting(
            {
                "framework": ("torch-ddp", "pytorch"),
                "accelerator": ("h100-sxm", "hopper"),
                "format": ("bf16", "wide"),
                "length": ("short",),
                "model": ("dense",),
                "layout": (f"tp {tp}, pp {pp}, cp 1, ep 1, dp 8",),
                "rest": ("1 a microbatch, zero 1, 1f1b, recompute none",),
            },
            16,
        )
        for tp, pp in DEGREES
    ]
    held = np.array(memory or [40e9] * len(DEGREES))
    return Belief(settings, np.ones(len(DEGREES)), held, held / 80e9)


def test_a_slope_of_tensor_parallel_is_found_from_runs_and_carried_to_what_never_ran() -> None:
    """Steps 5 % longer with each doubling of tp: tp 8 is expected longer than the longest that ran, and tp 1 with a pipeline much as tp 1."""
    ran = [Ran(0, 1.0), Ran(2, 1.05), Ran(4, 1.1025)]
    after = believed().after(*ran)
    slope, _, _ = after.learnt()["tensor parallel"]
    assert 0.01 < slope < math.log(1.05)
    assert 1.06 < after.expected[5] < 1.05**3
    assert after.expected[1] == pytest.approx(1.0, abs=0.04)
    # runs that are not as it seems say as little of tp
    assert abs(believed().after(*ran[:1]).learnt()["tensor parallel"].mean) < 0.002


def test_a_level_is_learnt_and_its_spread_narrows() -> None:
    """Two layouts a fifth slower than predicted make all slower, and what all share surer."""
    after = believed().after(Ran(0, 1.2), Ran(1, 1.2))
    level = after.learnt()["level"]
    assert 0.1 < level.mean < math.log(1.2)
    assert level.spread < level.before
    assert (after.expected[2:] > 1.1).all()


def test_what_was_known_of_memory_before_is_of_before_any_peak_was_told() -> None:
    """Peaks a tenth above predictions make memory surer than it was, however many were told."""
    before, after = (
        believed().after(*ran).learnt()["memory"]
        for ran in ([], [Ran(n, 1.0, 44e9) for n in range(4)])
    )
    assert after.spread < 0.8 * after.before
    assert after.before == before.before == pytest.approx(before.spread, rel=0.05)


def test_what_ran_out_of_memory_lowers_the_odds_of_what_is_as_full() -> None:
    """Memory errs alike in all layouts of a stack."""
    before = believed([70e9, 70e9, 40e9, 40e9, 40e9, 20e9])
    after = before.after(Ran(0, None))
    assert after.fits[0] == 0.0
    assert after.fits[1] < 0.7 * before.fits[1]
    assert after.fits[5] > 0.95


def test_odds_of_being_the_best_are_shared_by_those_that_may_fit() -> None:
    """They sum to 1, and a layout that ran slower than another has none."""
    after = believed().after(Ran(0, 1.0), Ran(1, 1.2))
    assert after.best.sum() == pytest.approx(1.0)
    assert after.best[1] == 0.0


def test_the_first_to_launch_is_likely_to_run_and_families_differ() -> None:
    """Full layouts come after one that is sure to say how fast the stack is; no tp x pp is launched twice while others are left."""
    belief = believed([79e9, 30e9, 79e9, 60e9, 50e9, 50e9])
    chosen = belief.choose(4)
    assert belief.fits[chosen[0]] > 0.9
    assert len({DEGREES[n] for n in chosen}) == 4


@pytest.fixture(scope="module")
def scenario() -> mpsim.Scenario:
    """A small model on two nodes."""
    return mpsim.Scenario.from_mapping({
        "schema": 1, "name": "small", "model": "gpt2-large", "cluster": {"preset": "dgx-h100", "nodes": 2},
        "training": {"global_batch": 64, "sequence_length": 1024},
    })  # fmt: skip


@pytest.fixture(scope="module")
def chosen(scenario: mpsim.Scenario) -> Shortlist:
    """Three of its layouts."""
    over = {"parallelism.cp": [1], "parallelism.zero": [1], "parallelism.tp": [1, 2], "parallelism.pp": [1, 2]}  # fmt: skip
    search = mpsim.search(scenario, over, front=False)
    assert isinstance(search, Search)
    return shortlist(scenario, search, 3)


def log(folder: Path, seconds: float) -> None:
    """What Megatron-LM prints of twenty steps, the first two of them slow, the last cut in the middle."""
    lines = [
        f" iteration {n}/ 20 | elapsed time per iteration (ms): {1e3 * seconds * (4 if n < 3 else 1):.3f} | lm loss: 1\n"
        for n in range(1, 21)
    ]
    (folder / "run.log").write_text("".join(lines)[:-60])


def test_launched_runs_are_read_back_and_rank_all_layouts(
    scenario: mpsim.Scenario, chosen: Shortlist, tmp_path: Path
) -> None:
    """Steps a tenth longer than predicted make those of most other layouts longer; a run out of memory never is the best."""
    chosen.write(tmp_path)
    folders = list(json.loads((tmp_path / SHORTLIST).read_text())["launched"])
    for folder, item in zip(folders[:2], chosen.candidates, strict=False):
        assert "--train-iters 20 --log-interval 1" in (tmp_path / folder / "launch.sh").read_text()
        log(tmp_path / folder, 1.1 * item.row.step_time_s)
    (tmp_path / folders[2] / "run.log").write_text("torch.OutOfMemoryError: CUDA out of memory.\n")
    tried = read_runs(scenario, tmp_path)
    others = [n for n in range(len(tried.pool)) if tried.belief.fits[n] > 0.0]
    ratio = tried.belief.expected[others] / tried.belief.seconds[others]
    assert 1.05 < np.median(ratio) < 1.15
    assert tried.launched[folders[2]].seconds is None
    assert tried.belief.best[tried.launched[folders[2]].place] == 0.0
    assert tried.launched[folders[0]].seconds == pytest.approx(
        1.1 * chosen.candidates[0].row.step_time_s, rel=1e-3
    )
    # whatever ran is in the table: it is what one can take without another run
    assert "out of memory" in tried.sheet().text()


def test_a_log_of_another_tool_is_told_once(
    scenario: mpsim.Scenario, chosen: Shortlist, tmp_path: Path
) -> None:
    """Lines of torchtitan in runs of Megatron-LM count, with one warning that names both; lines of its own have none."""
    chosen.write(tmp_path)
    folders = list(json.loads((tmp_path / SHORTLIST).read_text())["launched"])
    log(tmp_path / folders[0], 1.0)
    assert not read_runs(scenario, tmp_path).warnings
    for folder in folders[1:]:
        lines = (f"step: {n}  loss: 8.1  memory: 20.50GiB(25.9%)  tps: 1,024\n" for n in range(9))
        (tmp_path / folder / "run.log").write_text("".join(lines))
    tried = read_runs(scenario, tmp_path)
    (told,) = tried.warnings
    assert "lines of the log are those of torchtitan, and framework is Megatron-Core" in told
    assert told in tried.sheet().text()


def test_a_folder_of_another_scenario_or_without_logs_is_refused(
    scenario: mpsim.Scenario, chosen: Shortlist, tmp_path: Path
) -> None:
    """Logs say nothing of another model."""
    chosen.write(tmp_path)
    with pytest.raises(FormatError, match="has a log"):
        read_runs(scenario, tmp_path)
    with pytest.raises(FormatError, match="of another scenario"):
        read_runs(scenario.with_values({"training.global_batch": 128}), tmp_path)
    (tmp_path / SHORTLIST).write_text('{"digest": 1')
    with pytest.raises(FormatError, match="is damaged"):
        read_runs(scenario, tmp_path)


def test_odds_of_fitting_are_those_of_the_verdict() -> None:
    """Lists of an optimizer are reserved and not needed: what fits without them is as likely to run before a shortlist as in it."""
    framework = {"preset": "torch-fsdp2", "root_unit": False, "step_scratch": 64}
    scenario = mpsim.Scenario.from_mapping({
        "schema": 1, "name": "listed", "model": "gpt2-large", "cluster": {"preset": "dgx-h100", "nodes": 1},
        "training": {"global_batch": 64, "sequence_length": 1024}, "framework": framework,
    })  # fmt: skip
    over: dict[str, list[object]] = {f"parallelism.{axis}": [1] for axis in ("tp", "pp", "cp")}
    over |= {"parallelism.zero": [3], "training.micro_batch": [2], "training.recompute": ["none"]}
    search = mpsim.search(scenario, over, front=False, max_memory=11e9)
    assert isinstance(search, Search)
    listed = shortlist(scenario, search, 2)
    assert any(row.memory_bytes > 1.1 * 11e9 for row in listed.pool)
    for item in listed.candidates:
        assert item.odds == pytest.approx(item.row.fits_probability, abs=0.03)
