"""Goodput: closed forms, accounts that sum, published statistics, and the command."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from mpsim.cli.app import execute
from mpsim.errors import ScenarioError
from mpsim.hardware import system
from mpsim.study.goodput import PARTS, _Trial, simulate_goodput
from mpsim.study.reliability import (
    Checkpoint,
    Reliability,
    daly_interval,
    expected_share,
    young_interval,
)

HOUR = 3600.0


def fails(
    mean: float, *, hardware: float = 0.5, spares: int = 1000, repair: float = 0.0
) -> Reliability:
    """Interruptions every `mean` seconds on average, a restart of two minutes."""
    return Reliability(
        hardware_rate=hardware / mean,
        job_rate=(1 - hardware) / mean,
        restart=120.0,
        repair=repair,
        spares=spares,
    )


def test_without_failures_only_checkpoints_cost() -> None:
    """The share is T / (T + C), exactly where whole segments fit."""
    never = Reliability(hardware_rate=0, job_rate=0, restart=1, repair=1, spares=0)
    outcome = simulate_goodput(
        never, Checkpoint(size=1e12, blocking=100.0), interval=900.0, days=1000 / 86400, trials=2
    )
    assert outcome.shares[:, 0] == pytest.approx([0.9, 0.9])
    assert outcome.interruptions.tolist() == [0, 0]


@pytest.mark.parametrize("interval", [300.0, 1200.0, 5000.0])
def test_simulation_agrees_with_dalys_expectation(interval: float) -> None:
    """Over many failures the mean share is Daly's closed form within its confidence."""
    reliability, checkpoint = fails(2 * HOUR), Checkpoint(size=1e12, blocking=30.0)
    outcome = simulate_goodput(reliability, checkpoint, interval=interval, days=60, trials=40)
    expected = expected_share(reliability, checkpoint, interval)
    low, high = outcome.confidence
    assert low - 0.003 < expected < high + 0.003


def test_dalys_interval_is_best_and_close_to_youngs() -> None:
    """Shorter and longer intervals are expected to do worse; Young's differs by little when checkpoints are cheap."""
    reliability, checkpoint = fails(3 * HOUR), Checkpoint(size=1e12, blocking=40.0)
    best = daly_interval(40.0, 3 * HOUR)
    share = expected_share(reliability, checkpoint, best)
    assert share > expected_share(reliability, checkpoint, 0.7 * best)
    assert share > expected_share(reliability, checkpoint, 1.4 * best)
    assert young_interval(40.0, 3 * HOUR) == pytest.approx(best, rel=0.06)


@pytest.mark.parametrize("spares", [0, 3])
def test_every_second_of_every_trial_is_accounted_for(spares: int) -> None:
    """The shares of each trial sum to one, waits for nodes included."""
    reliability = fails(4 * HOUR, spares=spares, repair=6 * HOUR)
    outcome = simulate_goodput(
        reliability, Checkpoint(size=1e12, blocking=60.0, lag=200.0), days=20, trials=20
    )
    assert outcome.shares.sum(axis=1) == pytest.approx(np.ones(20), abs=1e-12)
    assert (outcome.shares >= 0).all()
    assert list(outcome.mean) == list(PARTS)


def test_spares_end_the_waiting() -> None:
    """Without spares the job waits a repair for each failed node; with enough it never does."""
    checkpoint = Checkpoint(size=1e12, blocking=60.0)
    waits = [
        simulate_goodput(
            fails(4 * HOUR, hardware=1.0, spares=spares, repair=12 * HOUR),
            checkpoint,
            days=20,
            trials=20,
        ).mean["waiting for nodes"]
        for spares in (0, 2, 50)
    ]
    assert waits[0] > waits[1] > waits[2] == 0.0


def test_only_failed_hardware_takes_a_node() -> None:
    """Without spares every failed node is awaited for its repair of an hour; a job that crashes by itself restarts where it ran."""
    checkpoint = Checkpoint(size=1e12, blocking=10.0)
    crashes = simulate_goodput(
        fails(12 * HOUR, hardware=0.0, spares=0, repair=HOUR), checkpoint, trials=20, seed=3
    )
    assert crashes.mean["waiting for nodes"] == 0
    broken = simulate_goodput(
        fails(12 * HOUR, hardware=1.0, spares=0, repair=HOUR), checkpoint, days=300, trials=4
    )
    # cycles of 12 h to a failure, an hour of repair, 2 minutes to restart (which a failure in one of 360 cuts short)
    assert broken.mean["waiting for nodes"] == pytest.approx(1 / (12 + 1 + 1 / 30), rel=0.1)


def test_a_lag_costs_its_share_of_the_time_between_interruptions() -> None:
    """To first order an interruption every 10,000 s loses 500 s more: 5 % of the progress."""
    reliability = fails(10_000.0)
    at_once, later = (
        expected_share(reliability, Checkpoint(size=1e12, blocking=10.0, lag=lag), 600.0)
        for lag in (0.0, 500.0)
    )
    assert later == pytest.approx(0.95 * at_once)


def test_a_checkpoint_in_the_background_never_blocks_longer_than_its_write() -> None:
    """1 TB at 1 TB/s is stored in 1 s, sooner than 8 accelerators copy it to their hosts; at 1 GB/s it blocks for that copy alone."""
    fast, slow = (
        Checkpoint.of(1e12, 8, storage=storage, in_background=True) for storage in (1e12, 1e9)
    )
    assert (fast.blocking, fast.lag) == (1.0, 1.0)
    assert 1.0 < slow.blocking < slow.lag == 1000.0


def test_a_checkpoint_that_is_not_stored_yet_does_not_save_anything() -> None:
    """A lag loses more work, and none of the blocking time."""
    reliability = fails(2 * HOUR)
    prompt = simulate_goodput(
        reliability, Checkpoint(size=1, blocking=10.0), interval=600.0, trials=50
    )
    late = simulate_goodput(
        reliability, Checkpoint(size=1, blocking=10.0, lag=500.0), interval=600.0, trials=50
    )
    assert late.mean["lost work"] > 1.3 * prompt.mean["lost work"]


def test_published_interruptions_of_a_16384_gpu_job_leave_over_nine_tenths_effective() -> None:
    """One interruption in about 3.1 hours from the rates of components; above 90 % effective time with hourly spares."""
    cluster = system("dgx-h100", nodes=2048)
    reliability = Reliability.of(cluster, spares=16)
    assert reliability.mean_time_between / HOUR == pytest.approx(3.1, rel=0.03)
    checkpoint = Checkpoint.of(405e9 * 14, cluster.accelerators, storage=2e12, in_background=False)
    outcome = simulate_goodput(reliability, checkpoint, days=54, trials=20)
    assert outcome.effective > 0.90
    assert outcome.interruptions.mean() == pytest.approx(419, rel=0.1)


def test_the_answer_says_which_spares_it_rests_on() -> None:
    """One node in a hundred stands by where nobody says, at least one: a quarter more of four nodes, which no price counts."""
    assumed = Reliability.of(system("dgx-h100", nodes=4))
    outcome = simulate_goodput(assumed, Checkpoint(size=1, blocking=10.0), trials=5)
    assert outcome.to_json()["spares"] == 1
    assert "1 spare node beside the job's, in no price" in outcome.sheet().text()


def test_equal_seeds_give_equal_results_and_others_do_not() -> None:
    """Trials are drawn from the seed alone."""
    reliability, checkpoint = fails(HOUR), Checkpoint(size=1, blocking=10.0)
    first, again, other = (
        simulate_goodput(reliability, checkpoint, trials=5, seed=seed).shares for seed in (1, 1, 2)
    )
    assert (first == again).all()
    assert (first != other).any()


def test_more_trials_begin_with_the_same_ones() -> None:
    """A longer study extends a shorter one."""
    reliability, checkpoint = fails(HOUR), Checkpoint(size=1, blocking=10.0)
    few = simulate_goodput(reliability, checkpoint, trials=3).shares
    assert (simulate_goodput(reliability, checkpoint, trials=6).shares[:3] == few).all()


def test_mistakes_are_refused() -> None:
    """Negative rates, storage without bandwidth, checkpoints slower than their interval."""
    with pytest.raises(ScenarioError, match="restart is -1"):
        Reliability(hardware_rate=0, job_rate=0, restart=-1, repair=0, spares=0)
    with pytest.raises(ScenarioError, match="storage"):
        Checkpoint.of(1e12, 8, storage=0.0, in_background=True)
    with pytest.raises(ScenarioError, match="needed a longer interval"):
        simulate_goodput(fails(HOUR), Checkpoint(size=1, blocking=1.0, lag=900.0), interval=60.0)
    assert daly_interval(10.0, math.inf) == math.inf


def test_the_command_prints_shares_and_json(capsys: pytest.CaptureFixture[str]) -> None:
    """Both forms come from one simulation."""
    arguments = ["goodput", "scenarios/quickstart.yaml", "--days", "3", "--trials", "5"]
    assert execute([*arguments, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert sum(printed["shares"].values()) == pytest.approx(1.0)
    assert execute(arguments) == 0
    assert "of the time is progress" in capsys.readouterr().out
    assert execute([*arguments, "--interval", "30"]) == 2


def test_more_interruptions_than_anybody_waits_for_are_refused() -> None:
    """A slip in days, trials or failures ends at once, with what would mend it."""
    with pytest.raises(ScenarioError, match="fewer days or trials, or less frequent failures"):
        simulate_goodput(fails(HOUR), Checkpoint(size=1e12, blocking=1.0), days=1e30)


def test_trials_that_had_ended_are_kept_when_the_study_is_cut_short(monkeypatch) -> None:
    """The third trial is interrupted: the other two are what the same seed gives alone; before the first has ended there is nothing."""
    reliability, checkpoint = fails(2 * HOUR), Checkpoint(size=1e12, blocking=30.0)
    two = simulate_goodput(reliability, checkpoint, days=2, trials=2)
    spent, left = _Trial.spent, [2]

    def cut(trial: _Trial) -> object:
        if not left[0]:
            raise KeyboardInterrupt
        left[0] -= 1
        return spent(trial)

    monkeypatch.setattr(_Trial, "spent", cut)
    outcome = simulate_goodput(reliability, checkpoint, days=2, trials=9)
    assert outcome.interrupted
    assert outcome.to_json()["trials"] == 2
    np.testing.assert_array_equal(outcome.shares[0], two.shares[0])
    np.testing.assert_array_equal(outcome.interruptions, two.interruptions)
    with pytest.raises(KeyboardInterrupt):
        simulate_goodput(reliability, checkpoint, days=2, trials=9)
