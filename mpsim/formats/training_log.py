"""Logs of training runs, line by line: the steps of Megatron-LM, Megatron-Bridge, NeMo, torchtitan,
DeepSpeed, the Trainer of Hugging Face, or JSON lines, and whether memory ran out.

A log is read as it grows: lines of several ranks may be interleaved, a last line may be cut in the
middle, and what is no line of a step is passed over.

References
----------
NVIDIA/Megatron-LM, ``training.py`` (``training_log``) and ``report_memory``; NVIDIA/NeMo,
``progress_printer.py``; pytorch/torchtitan, ``components/metrics.py``; deepspeedai/DeepSpeed,
``utils/timer.py`` (``ThroughputTimer.stop``); huggingface/transformers, ``trainer_callback.py``
(``ProgressCallback``); tqdm, ``std.py`` (``format_meter``).
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from mpsim import structs
from mpsim.errors import FormatError
from mpsim.formats.spans import is_number
from mpsim.formats.words import DATA, table
from mpsim.inputs import open_text
from mpsim.memo import remembered
from mpsim.scenario import Scenario
from mpsim.shipped import say

_NUMBER = r"([0-9][0-9,]*(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?)"
_LONGEST = 20_000  # characters of a line that are looked at
NEEDED = say("formats.a_log")


@structs.dataclass(frozen=True, slots=True)
class _Form:
    """One tool's line: a mark to look for first, and where each figure stands with its unit."""

    tool: str
    stacks: str
    mark: str
    step: re.Pattern[str]
    figures: Mapping[str, tuple[re.Pattern[str], float]]


@structs.dataclass(frozen=True, slots=True)
class LogStep:
    """One step as a log tells of it."""

    step: int  # its number; -1 where a line of memory alone does not belong to one
    seconds: float | None = None  # of the step [s]
    # of one rank; the step's seconds follow from the scenario's tokens
    tokens_per_s: float | None = None
    samples_per_s: float | None = None  # of all ranks
    samples: float | None = None  # of the step, where the line says how many
    memory: float | None = None  # peak of the rank that wrote the line [B]
    form: _Form | None = structs.field(default=None, compare=False)  # of a tool's own lines

    def seconds_in(self, scenario: Scenario) -> float | None:
        """Seconds of the step of a run that the scenario describes; None of another batch, as while
        it grows (--rampup-batch-size).
        """
        step = scenario.training_step
        if self.samples not in (None, step.global_batch):
            return None
        if self.seconds is not None:
            return self.seconds
        if self.tokens_per_s:
            tokens = step.global_batch * step.sequence_length / scenario.hardware.accelerators
            return tokens / self.tokens_per_s
        return step.global_batch / self.samples_per_s if self.samples_per_s else None


@remembered(1)
def _forms() -> tuple[_Form, ...]:
    """Every tool's line."""
    return tuple(
        _Form(
            row["tool"],
            row["stacks"],
            row["mark"],
            re.compile(row["step"]),
            {
                name: (re.compile(words + _NUMBER), unit)
                for name, (words, unit) in row["figures"].items()
            },
        )
        for row in table(DATA, "training-log")["lines"]
    )


_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_OUT_OF_MEMORY = re.compile(r"OutOfMemoryError|(?:CUDA|HIP) out of memory|RESOURCE_EXHAUSTED")


def parse_line(line: str) -> LogStep | None:
    """The step that a line tells of; None where it tells of none.

    Examples
    --------
    >>> line = " iteration 7/ 20 | elapsed time per iteration (ms): 1250.5 | lm loss: 2.1E+00"
    >>> parse_line(line).seconds
    1.2505
    >>> parse_line("step: 3  loss: 8.1  memory: 20.50GiB(25.9%)  tps: 1,024  mfu: 30%").tokens_per_s
    1024.0
    """
    text = _COLOURS.sub("", line[:_LONGEST]).strip()
    if text.startswith("{"):
        return _of_json(text)
    for form in _forms():
        if form.mark in text and (number := form.step.search(text)):
            # a line cut inside a number would say another one: something has to stand behind it
            found = {
                name: float(match[1].replace(",", "")) * unit
                for name, (pattern, unit) in form.figures.items()
                if (match := pattern.search(text))
                and (match.end() < len(text) or line[-1:] == "\n")
            }
            if found and all(0 < value < math.inf for value in found.values()):
                return LogStep(int(number[1][:18]), **found, form=form)
    return None


def _of_json(text: str) -> LogStep | None:
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        return None  # cut in the middle, or no JSON
    known = table(DATA, "training-log")["json"]
    step = next((data[key] for key in known["steps"] if type(data.get(key)) is int), None)
    found = {
        name: float(data[key]) * unit
        for key, (name, unit) in known["figures"].items()
        if is_number(data.get(key)) and data[key] > 0
    }
    return LogStep(step, **found) if found and step is not None else None


@structs.dataclass(frozen=True, slots=True)
class RunLog:
    """A whole log."""

    # in the order of the file; several ranks may have written of one step
    steps: tuple[LogStep, ...]
    ran_out: bool  # whether a rank ran out of memory
    name: str = ""  # of its files
    world: int | None = None  # ranks that it says it ran on

    @property
    def memory(self) -> float | None:
        """Largest peak that any line tells of [B]."""
        return max((step.memory for step in self.steps if step.memory), default=None)

    def unlike(self, scenario: Scenario) -> list[str]:
        """Say that lines are of another tool than the scenario's stack, if that has its own."""
        title = scenario.software.title
        own = [form.tool for form in _forms() if re.search(form.stacks, title)]
        tools = {step.form.tool for step in self.steps if step.form} if own else set()
        return [say("formats.log_tool", tool=t, stack=title) for t in sorted(tools - {*own})]

    def times(self, scenario: Scenario) -> dict[int, float]:
        """Seconds of every step by its number: of the slowest rank that wrote of it [s].

        FormatError if it is a log of other ranks, or of no step with the scenario's batch.
        """
        found: dict[int, float] = {}
        ranks, batch = scenario.world_size, scenario.training_step.global_batch
        if self.world not in (None, ranks):
            raise FormatError(say("formats.log_world", log=self, ranks=ranks))
        for step in self.steps:
            if took := step.seconds_in(scenario):
                found[step.step] = max(took, found.get(step.step, 0.0))
        other = [f"{step.samples:.0f}" for step in self.steps if step.samples]
        if other and not found:
            raise FormatError(say("formats.log_batch", log=self, other=other[-1], batch=batch))
        return found


def read_log(files: Iterable[Path]) -> RunLog:
    """Read the logs of one run. FormatError if no line tells of a step or that memory ran out."""
    files, ran_out, world = tuple(files), False, None
    steps: list[LogStep] = []
    ranks = re.compile(table(DATA, "training-log")["world"])
    for file in files:
        # a crash may leave bytes that are no text
        with open_text(
            file, needed="a log of a training run", error=FormatError, errors="replace"
        ) as stream:
            for line in stream:
                ran_out = ran_out or _OUT_OF_MEMORY.search(line) is not None
                world = world or ((said := ranks.search(line[:_LONGEST])) and int(said[1][:18]))
                if (step := parse_line(line)) is not None:
                    steps.append(step)
    names = ", ".join(map(str, files)) or "no file"
    if not steps and not ran_out:
        raise FormatError(f"{names}: no line tells of a step; needed {NEEDED}")
    return RunLog(tuple(steps), ran_out, names, world)
