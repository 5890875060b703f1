"""Logs of training runs: one line of each tool, and what is cut or foreign."""

from __future__ import annotations

from pathlib import Path

import pytest

from mpsim.errors import FormatError
from mpsim.formats.training_log import LogStep, parse_line, read_log
from mpsim.scenario import Scenario

LINES = {
    " [2026-01-01 10:00:00] iteration       10/     100 | consumed samples: 160 | elapsed time per iteration (ms): 1234.5 | lm loss: 2": LogStep(10, 1.2345),
    "[Rank 0] (after 10 iterations) memory (MB) | allocated: 1.0 | max allocated: 2.0 | reserved: 1.0 | max reserved: 1024.0\n": LogStep(10, memory=2.0**30),
    "Training epoch 0, iteration 10/99 | global_step: 10 | train_step_timing in s: 5.432 | consumed_samples: 1": LogStep(10, 5.432),
    "Epoch 0: : 10%|# | 10/100 [00:58<08:42, global_step=9.000, train_step_timing in s=5.43]": LogStep(9, 5.43),
    "[rank0]:[titan] - root - INFO - \x1b[31mstep: 10 \x1b[32m loss: 8.1 \x1b[33mmemory:  2.00GiB(2.6%) \x1b[34mtps: 1,234 \x1b[35mmfu: 45%\x1b[0m": LogStep(10, tokens_per_s=1234.0, memory=2.0**31),
    "[timer.py:260:stop] global_step=50, RunningAvgSamplesPerSec=12.0, CurrSamplesPerSec=12.5, MemAllocated=4.3GB, MaxMemAllocated=2.0GB": LogStep(50, samples_per_s=12.5, memory=2.0**31),
    "[default0]:  2%|▏         | 12/500 [00:31<1:21:13,  2.61s/it]": LogStep(12, 2.61),
    '{"step": 3, "step_time_s": 1.5, "memory_bytes": 1000}': LogStep(3, 1.5, memory=1000.0),
}  # fmt: skip


@pytest.mark.parametrize(("line", "step"), LINES.items())
def test_a_line_of_each_tool_is_read(line: str, step: LogStep) -> None:
    """Step, time or rate, and memory."""
    assert parse_line(line) == step


@pytest.mark.parametrize(
    "line",
    [
        " 98%|####8| 49/50 [00:09<00:00,  1.61s/it]\x1b[A",  # nested: an evaluation
        "Loading checkpoint shards: 100%|####| 4/4 [00:10<00:00,  2.61s/it]",
        " 10%|#    | 50/500 [00:10<02:00,  5.20it/s]",
        "{'loss': 2.1, 'grad_norm': 0.3, 'learning_rate': 1e-05, 'epoch': 0.02}",
    ],
)
def test_bars_that_are_no_steps_are_passed_over(line: str) -> None:
    """Evaluations, loading, rates above one a second, and what the Trainer says between bars."""
    assert parse_line(line) is None


def _log(path: Path, samples: list[int], *, ranks: int) -> Path:
    """Steps of a second for 8 samples each, as Megatron-LM logs them."""
    rest = "elapsed time per iteration (ms): {ms:.1f} | global batch size: {samples:5d} | loss: 2"
    lines = [
        f" iteration {n}/ 9 | {rest.format(ms=125.0 * count, samples=count)} |"
        for n, count in enumerate(samples, start=1)
    ]
    path.write_text("\n".join([f"using world size: {ranks}, data-parallel size: 8", *lines, ""]))
    return path


def test_a_log_of_another_run_is_refused_and_steps_of_other_batches_do_not_count(
    tmp_path: Path,
) -> None:
    """Half the batch takes half as long: its log would make a layout the best. A batch that grows has steps that count at its end."""
    data = {"schema": 1, "model": "gpt2-small", "cluster": {"preset": "dgx-h100", "nodes": 1}}
    data["training"] = {"global_batch": 64, "sequence_length": 1024}
    scenario = Scenario.from_mapping(data)
    grown = read_log([_log(tmp_path / "grown.log", [16, 32, 64, 64], ranks=8)])
    assert grown.times(scenario) == {3: 8.0, 4: 8.0}
    with pytest.raises(
        FormatError, match=r"half.log: its steps have 32 samples, .*global_batch=32"
    ):
        read_log([_log(tmp_path / "half.log", [32, 32], ranks=8)]).times(scenario)
    with pytest.raises(
        FormatError, match=r"two.log: is of a run on 16 ranks, and the scenario has 8"
    ):
        read_log([_log(tmp_path / "two.log", [64, 64], ranks=16)]).times(scenario)


@pytest.mark.parametrize("line", LINES)
def test_a_line_cut_anywhere_says_the_same_or_nothing(line: str) -> None:
    """A number that is cut in the middle is not taken for a smaller one."""
    whole = parse_line(line)
    assert whole is not None
    for length in range(len(line.strip())):
        cut = parse_line(line[:length])
        if cut is not None and "{" not in line:
            for name in ("seconds", "tokens_per_s", "samples_per_s", "memory"):
                assert getattr(cut, name) in (None, getattr(whole, name))


def test_memory_that_ran_out_is_told_and_a_file_of_something_else_is_refused(
    tmp_path: Path,
) -> None:
    """A log without steps counts if it says why."""
    log = tmp_path / "run.log"
    log.write_text("[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1 GiB\n")
    assert read_log([log]).ran_out
    log.write_text("hello\n")
    with pytest.raises(FormatError, match=r"no line tells of a step.*trainer_state\.json"):
        read_log([log])
