"""A training log watched as it grows: whether the run is as it should be, when it changed, and how long it will take.

Steps are judged by their logarithm against the level since the last change. Two cumulative sums (CUSUM), of what is above it and of what is below by more than half the least change, raise
an alarm at `_LIMIT` sigma. Outliers (a checkpoint, a validation) are clipped at `_CLIP` sigma, so that none of them is a change. Sigma is robust: 1.4826 times the median absolute deviation.

The law of false alarms: with a drift of k sigma and a limit of h sigma a two-sided CUSUM of normal noise alarms once in about exp(2 k b) / (4 k^2) steps, b = h + 1.166 (Siegmund); k = 0.5 and
h = 11 give about 190,000.

References
----------
E. S. Page, "Continuous Inspection Schemes", Biometrika 41, 1954. D. Siegmund, "Sequential Analysis", Springer, 1985, section 2.
"""

from __future__ import annotations

import dataclasses
import json
import math
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np

from mpsim.errors import FormatError
from mpsim.formats.training_log import LogStep, parse_line
from mpsim.inputs import open_regular, read_text
from mpsim.output import write_whole

__all__ = ["Change", "Watch", "follow"]

_LEARN: Final = 20  # steps that a level is learnt from
_KEPT: Final = 400
_WARM_UP, _SLOW = (
    5,
    1.2,
)  # first steps that count only if they are not slower than the median by this
_DRIFT, _LIMIT, _CLIP = 0.5, 11.0, 4.0  # sigma
_UNSURE: Final = 3.0
_ALIKE: Final = 0.8  # most correlation of one step with the next that counts
_LEAST: Final = 0.01  # share of a step below which a change is learnt and not told
_FLOOR: Final = 0.004  # least sigma: clocks of logs have three digits
_GROWS: Final = 0.02  # share by which memory grows before it is told
_LINE: Final = 1 << 20


@dataclasses.dataclass(frozen=True, slots=True)
class Change:
    """A step from which on the run is faster or slower, and by which share of a step."""

    step: int
    share: float
    before_s: float
    after_s: float


@dataclasses.dataclass(slots=True)
class Watch:
    """State of a watched log: small, and all that a restart needs.

    Parameters
    ----------
    predicted : float
        Step that the scenario should take [s].
    place, inode : int
        Bytes read of the file, and which file that was.
    """

    predicted: float
    place: int = 0
    inode: int = 0
    last: int = -1
    times: list[float] = dataclasses.field(default_factory=list)
    sums: list[float] = dataclasses.field(default_factory=lambda: [0.0, 0.0])
    since: list[int] = dataclasses.field(default_factory=lambda: [0, 0])
    memory: list[float] = dataclasses.field(default_factory=list)
    changes: list[Change] = dataclasses.field(default_factory=list)

    def take(self, number: int, seconds: float | None, memory: float | None) -> Change | None:
        """Take a step; the change that it shows, if it shows one."""
        if memory:
            self.memory = [*self.memory[:1], max([memory, *self.memory[-1:]])]
        # memory alone, another rank's line of the same step, or steps run again after a restart
        if seconds is None or number <= self.last:
            return None
        self.last = number
        self.times = [*self.times[-_KEPT + 1 :], seconds]
        known = self.times[: -1 - self._pending]
        if len(known) < _LEARN:
            return None
        level, sigma = self._level(known)
        off = max(-_CLIP, min(_CLIP, (math.log(seconds) - level) / sigma))
        for side, sign in enumerate((1.0, -1.0)):
            self.sums[side] = max(0.0, self.sums[side] + sign * off - _DRIFT)
            self.since[side] = self.since[side] + 1 if self.sums[side] else 0
        if max(self.sums) < _LIMIT:
            return None
        count = self.since[self.sums.index(max(self.sums))]
        after, before = self.times[-count:], math.exp(level)
        now = statistics.median(after)
        change = Change(number - count + 1, now / before - 1, before, now)
        self.times, self.sums, self.since = after, [0.0, 0.0], [0, 0]
        if abs(change.share) < _LEAST:
            return None
        self.changes.append(change)
        return change

    @property
    def _pending(self) -> int:
        """Latest steps that may belong to a change which is not told yet."""
        return min(max(self.since), len(self.times) // 2)

    @staticmethod
    def _level(times: list[float]) -> tuple[float, float]:
        """Mean of the logarithms without outliers, and the sigma of independent steps that would wander as these do."""
        logs = np.log(times)
        middle = float(np.median(logs))
        spread = max(_FLOOR, 1.4826 * float(np.median(abs(logs - middle))))
        off = np.clip(logs - middle, -_CLIP * spread, _CLIP * spread)
        level = float(off.mean())
        sigma = max(spread, float(off.std()))
        # steps that follow each other alike make longer excursions than independent ones
        alike = float(np.mean((off[1:] - level) * (off[:-1] - level))) / max(float(off.var()), _FLOOR**2)  # fmt: skip
        alike = min(max(alike, 0.0), _ALIKE)
        sigma *= math.sqrt((1 + alike) / (1 - alike))
        # of few steps neither level nor spread is known well
        return middle + level, sigma * (1 + _UNSURE / math.sqrt(len(times)))

    def told(self, steps: int | None = None, usd_per_s: float | None = None) -> dict[str, object]:
        """Tell the mean step with its 80 % interval, against the scenario, and how long the rest takes."""
        if not self.times:
            raise FormatError("no line tells of a step yet; nothing to watch")
        middle = statistics.median(self.times)
        # steps that compile and fill caches come once
        times = [
            each for n, each in enumerate(self.times) if n >= _WARM_UP or each < _SLOW * middle
        ]
        mean = statistics.fmean(times)
        spread = statistics.stdev(times) if len(times) > 1 else 0.1 * mean
        half = 1.2816 * spread / math.sqrt(len(times))
        known: dict[str, object] = {"step": self.last, "step_time_s": mean, "interval": [mean - half, mean + half], "predicted_s": self.predicted, "slower": mean / self.predicted - 1}  # fmt: skip
        if steps is not None:
            left = max(0, steps - self.last)
            known |= {"eta_s": left * mean, "eta_interval_s": [left * (mean - half), left * (mean + half)]}  # fmt: skip
            known |= {} if usd_per_s is None else {"usd_left": left * mean * usd_per_s}
        grown = self.memory[-1] / self.memory[0] - 1 if len(self.memory) > 1 else 0.0
        known["memory_grows"] = grown if grown > _GROWS else 0.0
        known["changes"] = [dataclasses.asdict(change) for change in self.changes]
        return known

    def save(self, file: Path) -> None:
        """Keep the state for a restart."""
        write_whole(file, json.dumps(dataclasses.asdict(self)))

    @classmethod
    def load(cls, file: Path) -> Watch:
        """The state that `save` kept.

        Raises
        ------
        FormatError
            If the file is damaged.
        """
        try:
            data: Any = json.loads(read_text(file, needed="a watch's state", error=FormatError))
            changes = [Change(**change) for change in data["changes"]]
            return cls(**{**data, "changes": changes})
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise FormatError(f"{file}: is no state of 'mpsim watch'; give another file") from error


def follow(watch: Watch, log: Path, seconds: Callable[[LogStep], float | None]) -> Iterator[Change]:
    """Read what a log has grown by since the last time, and yield the changes in it; a rotated or shortened file is read from its start, a line without its end next time.

    Raises
    ------
    FormatError
        If it cannot be read.
    """
    with open_regular(log, needed="a log of a training run", error=FormatError) as stream:
        size, inode = log.stat().st_size, log.stat().st_ino
        if inode != watch.inode or size < watch.place:
            watch.inode, watch.place = inode, 0
        stream.seek(watch.place)
        while (raw := stream.readline(_LINE)) and raw.endswith((b"\n", b"\r")):
            watch.place += len(raw)
            step = parse_line(raw.decode("utf-8", "replace"))
            took = None if step is None else seconds(step)
            if step is not None and (took or step.memory):
                change = watch.take(step.step, took, step.memory) if took else None
                if not took:
                    watch.memory = [
                        *watch.memory[:1],
                        max(step.memory or 0.0, *watch.memory[-1:], 0.0),
                    ]
                if change is not None:
                    yield change
