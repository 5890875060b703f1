"""An explanation: measured, predicted, and the causes of what lies between them."""

from __future__ import annotations

import functools
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from mpsim import structs
from mpsim.arrays import Floats
from mpsim.engine.cover import Cover
from mpsim.errors import FormatError
from mpsim.explain.account import account
from mpsim.explain.causes import Cause, causes_of
from mpsim.explain.watch import Watch
from mpsim.formats.imported import Recorded
from mpsim.formats.recorded_step import (
    RecordedStep,
    median_step,
    read_recordings,
    recorded_step,
)
from mpsim.formats.spans import Spans
from mpsim.formats.training_log import read_log
from mpsim.result import Result
from mpsim.table import Section, Sheet, Shown
from mpsim.units import Dimension, format_quantity, percent

Progress = Callable[[int, int], None]
_MARKS = {"data_stall": "loader", "extra_recompute": "recompute", "synchronisation": "sync"}
_LOGS = (".log", ".txt", ".out", ".err", ".jsonl")


@structs.dataclass(frozen=True, slots=True, repr=False)
class Explanation(Shown):
    """Why a recorded step is longer than the simulated one."""

    scenario: str
    # measured, predicted: of one step: the mean of those recorded, and simulated [s]
    measured: float
    predicted: float
    causes: tuple[Cause, ...]  # in falling order; with `unexplained` they sum to the difference
    unseen: tuple[str, ...]  # what the recording cannot show
    recorded: RecordedStep | None  # the step of median length; None of a log
    # mapping of str to float64[n, 2], by cause: when what a trace shows was on in that step [s]
    shown: Mapping[str, Floats] = structs.field(default_factory=dict)

    @property
    def shaded(self) -> tuple[Mapping[str, Floats], Mapping[str, Floats]]:
        """Spans of the simulated and the recorded step that only one of them has [s]."""
        longer = self.measured - self.predicted
        ends = np.array([sorted((self.measured, self.predicted))])
        word = f"only recorded: {_time(longer, signed=True)}" if longer > 0 else "only simulated"
        more = {
            each.cause.replace("_", " "): self.shown[each.cause]
            for each in self.causes
            if each.cause in self.shown
        }
        return ({word: ends} if longer > 0 else {}), more or ({} if longer > 0 else {word: ends})

    @property
    def unexplained(self) -> float:
        """Difference that no cause accounts for [s]."""
        return self.measured - self.predicted - sum(cause.seconds for cause in self.causes)

    def to_json(self) -> dict[str, object]:
        """Plain data."""
        return {
            "scenario": self.scenario,
            "measured_s": self.measured,
            "predicted_s": self.predicted,
            "causes": [{**cause._asdict(), "ranks": list(cause.ranks)} for cause in self.causes],
            "unexplained_s": self.unexplained,
            "unseen": list(self.unseen),
        }

    def sheet(self) -> Sheet:
        """One screen: the difference, its causes with evidence, and what to do."""
        rows = [("predicted", _time(self.predicted), "", "")]
        rows += [
            (
                each.cause.replace("_", " "),
                _time(each.seconds, signed=True),
                _of(each.ranks),
                each.evidence,
            )
            for each in self.causes
        ]
        rows += [
            ("unexplained", _time(self.unexplained, signed=True), "", ""),
            (
                "measured",
                _time(self.measured),
                "",
                percent(self.measured / self.predicted - 1, signed=True),
            ),
        ]
        mends = [f"{each.cause.replace('_', ' ')}: {each.mend}" for each in self.causes]
        unseen = [f"the recording does not show {each}" for each in self.unseen]
        table = Section(tuple(rows), ("cause", "step", "ranks", "evidence"), (1,))
        return Sheet("", (table, Section(lines=(*mends, *unseen))))


def explain(
    result: Result, files: Sequence[Path], *, progress: Progress | None = None
) -> Explanation:
    """Explain recordings of one job: a file a rank, folders of them, or its log, which has no
    causes.

    `result`: of the scenario that was recorded. `progress`: called with (files read, files in all).
    FormatError if nothing was recorded, or files are of several tools or twice of one rank;
    CalibrationError if a file is damaged.
    """
    if all(map(is_log, files)):
        seconds, unseen = log_step(result, files)
        unseen += ["causes: a log has no timeline; record a step with torch.profiler on each rank"]
        name, simulated = result.scenario.name, float(result.timeline.step_time_s)
        return Explanation(name, seconds, simulated, (), tuple(unseen), None)
    recordings = _read(files, progress)
    recorded, ranks = recorded_step(recordings), _ranks(recordings)
    taken = account(ranks)
    every, unseen = result.scenario.hardware.accelerators, []
    if len(ranks) < every:
        unseen.append(
            f"{every - len(ranks)} of {every} ranks: to wait for one of them looks like a slow link"
        )
    if not any(len(spans.marks.get("gemm", ())) for spans in ranks):
        unseen.append("names of kernels: which class is slow, and what runs again")
    if not any(spans.steps for spans in ranks):
        unseen.append("where steps begin (ProfilerStep): all of the recording counts as one")
    predicted = float(result.timeline.step_time_s)
    causes = tuple(causes_of(result, taken))
    shown = {cause: _shown(ranks, mark) for cause, mark in _MARKS.items()}
    return Explanation(
        result.scenario.name,
        float(taken.steps.mean()),
        predicted,
        causes,
        tuple(unseen),
        recorded,
        shown,
    )


def _shown(ranks: Sequence[Spans], mark: str) -> Floats:
    """When any rank had a mark in the step of median length, from its begin [n, 2]."""
    found = [np.zeros((0, 2))]
    if (step := median_step(ranks)) is not None:
        for spans in ranks:
            start, end = spans.steps[step]
            _, since, until = Cover(*spans.marks.get(mark, found[0]).T).cut(
                *np.array([[start], [end]])
            )
            found.append(np.column_stack([since, until]) - start)
    cover = Cover(*np.concatenate(found).T)
    return np.column_stack([cover.start, cover.end])


def is_log(file: Path) -> bool:
    """Whether a file is a log by its name, and no recording."""
    return file.is_file() and file.suffix in _LOGS


class LogStep(NamedTuple):
    """The step of a log since it last changed, and what does not count in words."""

    seconds: float
    unseen: list[str]


def log_step(result: Result, files: Sequence[Path]) -> LogStep:
    """The median step of a log since its last change. FormatError if no line has a step's time."""
    watch = Watch(float(result.timeline.step_time_s))
    log = read_log(files)
    for number, seconds in sorted(log.times(result.scenario).items()):
        watch.take(number, seconds, None)
    if not watch.times:
        raise FormatError(f"{files[0]}: no line has the time of a step; nothing to explain")
    unseen = [
        f"one level: from step {last.step:,} on steps take {percent(last.share, signed=True)}, and"
        " those alone count (mpsim watch)"
        for last in watch.changes[-1:]
    ]
    return LogStep(statistics.median(watch.times), [*unseen, *log.unlike(result.scenario)])


def read_ranks(files: Sequence[Path]) -> list[Spans]:
    """Read the spans of every rank, in the order of ranks."""
    return _ranks(_read(files, None))


def _read(files: Sequence[Path], progress: Progress | None) -> list[Recorded]:
    recordings: list[Recorded] = []
    for number, file in enumerate(files, start=1):
        recordings += read_recordings(file)
        if progress is not None:
            progress(number, len(files))
    if len({each.format for each in recordings}) > 1:
        raise FormatError(f"{files[0]}: and the others are of several tools; give those of one")
    return recordings


def _ranks(recordings: Sequence[Recorded]) -> list[Spans]:
    return sorted(
        (spans for each in recordings for spans in each.spans),
        key=lambda spans: (spans.rank is None, spans.rank or 0, spans.name),
    )


_time = functools.partial(format_quantity, dimension=Dimension.TIME)


def _of(ranks: tuple[int, ...]) -> str:
    return ", ".join(map(str, ranks[:4])) + (" ..." if len(ranks) > 4 else "")
