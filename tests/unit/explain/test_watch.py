"""A watched log: changes are found, noise and outliers are none, and reading goes on where it was."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import mpsim
from mpsim.errors import FormatError
from mpsim.explain.watch import Watch, follow
from tests import noise

QUICK = mpsim.load("scenarios/quickstart.yaml")
MEGATRON = " iteration {step}/ 999 | consumed samples: 1 | elapsed time per iteration (ms): {ms:.1f} | lm loss: 1\n"


def fed(times: list[float]) -> Watch:
    """A watch that took these steps."""
    watch = Watch(1.0)
    for number, seconds in enumerate(times):
        watch.take(number, seconds, None)
    return watch


def test_a_step_longer_by_three_per_cent_is_found_within_thirty() -> None:
    """Noise of 1 %: the change lies near the step where it began, with its size."""
    for seed in range(10):
        draw = random.Random(seed)
        watch = fed([draw.gauss(1.0 if n < 200 else 1.03, 0.01) for n in range(230)])
        assert len(watch.changes) == 1
        assert abs(watch.changes[0].step - 200) < 25
        assert watch.changes[0].share == pytest.approx(0.03, abs=0.02)


@pytest.mark.parametrize("known", [100, 200])
def test_three_per_cent_is_found_in_noise_of_two(known: int) -> None:
    """Within thirty steps in eight of ten runs, of which a hundred steps are known."""
    found = 0
    for seed in range(20):
        draw = random.Random(seed)
        watch = fed([draw.gauss(1.0 if n < known else 1.03, 0.02) for n in range(known + 30)])
        found += bool(watch.changes)
    assert found >= 16


@pytest.mark.parametrize("every", [1, 10, 50])
def test_a_change_is_dated_in_steps_however_many_a_line_has(every: int) -> None:
    """Twenty lines at 1 s and as many at 1.4 s: the change begins where the twentieth line ends."""
    draw, watch = random.Random(3), Watch(1.0)
    for line in range(1, 41):
        watch.take(line * every, draw.gauss(1.0 if line <= 20 else 1.4, 0.004), None)
    assert [change.step for change in watch.changes] == [20 * every + 1]
    assert watch.told()["lines_until_judged"] > 0  # those before the change count no more


def test_lines_of_five_steps_show_three_per_cent_in_a_few() -> None:
    """Lines that print means, noise of 1 %: within thirty steps in six of ten logs, within fifty in nine; before, nothing."""
    found = []
    for seed in range(20):
        draw, watch = random.Random(seed), Watch(1.0)
        for step in range(5, 251, 5):
            mean = sum(draw.gauss(1.0 if step <= 200 else 1.03, 0.01) for _ in range(5)) / 5
            if watch.take(step, mean, None) is not None:
                found.append(step)
    assert min(found) > 200
    assert sum(step <= 230 for step in found) >= 12
    assert len(found) >= 18


def test_a_log_whose_steps_jump_is_watched_on() -> None:
    """A run that goes on two million steps later shows no change of itself, and the next one is found."""
    draw = random.Random(2)
    watch = fed([draw.gauss(1.0, 0.01) for _ in range(100)])
    later = [draw.gauss(1.0 if n < 100 else 1.03, 0.01) for n in range(130)]
    changes = [watch.take(2_000_000 + n, seconds, None) for n, seconds in enumerate(later)]
    assert not any(changes[:100])
    assert any(changes[100:])


@pytest.mark.parametrize("every", [1, 5])
def test_a_clock_that_shows_two_values_tells_a_change_in_a_handful_of_lines(every: int) -> None:
    """Fifty equal lines and longer ones after them: neither the first alone is a change, nor is there a variance to divide by."""
    watch = Watch(1.0)
    changes = [watch.take(line * every, 1.1 if line >= 50 else 1.0, None) for line in range(60)]
    found = [line for line, change in enumerate(changes) if change is not None]
    assert len(found) == 1
    assert 50 < found[0] < 56


def test_noise_and_single_slow_steps_are_no_change() -> None:
    """Three thousand steps with a checkpoint, three times as long, in each five hundred."""
    draw = random.Random(5)
    watch = fed([draw.gauss(1.0, 0.01) * (3 if n % 500 == 0 else 1) for n in range(3_000)])
    assert watch.changes == []


@pytest.mark.nightly
@pytest.mark.parametrize("kind", noise.KINDS)
def test_at_most_one_false_alarm_in_a_hundred_thousand_steps(kind: str) -> None:
    """A hundred thousand steps of each kind of noise, half of them in starts of three hundred; two alarms are what chance may add."""
    assert sum(len(fed(times).changes) for times in noise.logs(kind)) <= 2


@pytest.mark.parametrize("kind", ["normal", "skewed", "correlated"])
def test_starts_alarm_nobody(kind: str) -> None:
    """Thirty starts of three hundred steps each, the first ones slow: noise with a long tail, or whose steps resemble the one before, is no change either."""
    alarms = 0
    for seed in range(30):
        draw, before, times = random.Random(seed), 0.0, []
        sigma = (0.002, 0.005, 0.01, 0.02, 0.05)[seed % 5]
        for n in range(300):
            off = draw.expovariate(1) - 1 if kind == "skewed" else draw.gauss(0, 1)
            before = off + (0.3 * before if kind == "correlated" else 0.0)
            times.append(max(0.1, 1 + sigma * before) * (8, 1.5, 1.1, 1)[min(n, 3)])
        alarms += len(fed(times).changes)
    assert alarms == 0


def test_the_mean_of_the_next_thousand_is_known_after_twenty() -> None:
    """Within a per cent."""
    draw = random.Random(2)
    assert fed([draw.gauss(2.0, 0.02) for _ in range(20)]).told()["step_time_s"] == pytest.approx(
        2.0, rel=0.01
    )


def test_reading_goes_on_where_it_was_through_cuts_and_rotation(tmp_path: Path) -> None:
    """A line without its end waits for it; a state that was kept does not read twice; a new file is read from its start."""
    log, state = tmp_path / "train.log", tmp_path / "state.json"
    lines = [MEGATRON.format(step=n, ms=1000 + n) for n in range(30)]
    log.write_text("".join(lines[:10]) + lines[10][:70])
    watch = Watch(1.0)
    list(follow(watch, log, QUICK))
    assert watch.last == 9
    watch.save(state)
    log.write_text("".join(lines[:20]))
    again = Watch.load(state)
    again.inode = log.stat().st_ino
    list(follow(again, log, QUICK))
    assert (again.last, len(again.times)) == (19, 20)
    log.unlink()
    (tmp_path / "new").write_text("".join(lines[20:22]))
    (tmp_path / "new").rename(log)
    list(follow(again, log, QUICK))
    assert (again.last, len(again.times)) == (21, 22)
    state.write_text("{")
    with pytest.raises(FormatError, match="no state"):
        Watch.load(state)


def test_the_command_tells_the_rest_of_the_run(
    tmp_path: Path, mpsim_cli: Callable[..., Any]
) -> None:
    """Half of a hundred steps of a second are left: 50 s; memory that grew by a quarter is told."""
    log = tmp_path / "train.jsonl"
    log.write_text(
        "".join(
            f'{{"step": {n}, "step_time_s": 1.0, "memory_bytes": {4e9 + 2e7 * n}}}\n'
            for n in range(51)
        )
    )
    outcome = mpsim_cli(
        "watch", str(log), "--scenario", "scenarios/quickstart.yaml", "--steps", "100", "--json"
    )
    told = json.loads(outcome.out)
    assert told["eta_s"] == pytest.approx(50.0)
    assert told["memory_grows"] == pytest.approx(0.25)
    assert told["changes"] == []


def test_every_turn_of_a_progress_bar_is_read(tmp_path: Path) -> None:
    """Bars stand in one line, the next over the last."""
    log, watch = tmp_path / "run.log", Watch(2.0)
    bars = [f"\r {n}%|#  | {n}/100 [00:20<03:00,  2.{n:02}s/it]" for n in (1, 2, 3)]
    log.write_bytes("".join([*bars, "\r      \r{'loss': 2.1, 'epoch': 0.1}\n"]).encode())
    list(follow(watch, log, QUICK))
    assert watch.times == [2.01, 2.02, 2.03]
