"""A training log watched as it grows: whether the run is as it should be, when it changed, and how
long it will take.

At every step the latest ones are laid against those before them, for every moment at which a change
could have begun (the generalised likelihood ratio, GLR). What counts of a step is the normal score
of its rank: a long tail, a checkpoint or a rounded clock then change nothing in the law of the
noise. The largest ratio is a change if it passes the limit that goes with the rate of false alarms
asked for: one in about sqrt(2 pi) exp(b^2 / 2) / (0.735 b) steps for a limit of b sigma (Siegmund
and Venkatraman). Steps that follow each other alike wander further than independent ones: the
variance of a mean counts with the correlation of what remains, over all lags at which there is one.
Where a log prints means of many steps few lines hold a change: the latest lines that are all slower
than every one before count by the share of orders in which they are the last.

References
----------
D. Siegmund and E. S. Venkatraman, "Using the generalized likelihood ratio statistic for sequential
detection of a change-point", Annals of Statistics 23, 1995.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np

from mpsim import structs
from mpsim.arrays import Floats
from mpsim.errors import FormatError
from mpsim.formats.training_log import NEEDED, parse_line
from mpsim.inputs import open_regular, read_text
from mpsim.memo import remembered
from mpsim.output import write_whole
from mpsim.result.residuals import HALF_WIDTH
from mpsim.scenario import Scenario

_LEARN: Final = 20  # steps that a level is learnt from
_KEPT: Final = 400
# first steps that count only if they are not slower than the median by this
_WARM_UP, _SLOW = 5, 1.2
_RATE: Final = 5e-6  # false alarms per step: half of the one in 100,000 that is promised
_FEW: Final = 15  # fewest steps on the earlier side of a change
_LAGS: Final = 8  # a lag for so many steps, over which steps may resemble each other
_ALIKE: Final = 0.8  # most correlation of one step with the next that counts
_LEAST: Final = 0.01  # share of a step below which a change is learnt and not told
_GROWS: Final = 0.02  # share by which memory grows before it is told
_LINE: Final = 1 << 20
_ROUNDING: Final = 1e-12  # share of a variance that sums of floats may leave of none


@structs.dataclass(frozen=True, slots=True)
class Change:
    """A step from which on the run is faster or slower, and by which share of a step."""

    step: int
    share: float
    before_s: float
    after_s: float


@structs.dataclass(slots=True)
class Watch:
    """State of a watched log: small, and all that a restart needs."""

    predicted: float  # step that the scenario should take [s]
    place: int = 0  # bytes read of the file
    inode: int = 0  # which file that was
    last: int = -1
    times: list[float] = structs.field(default_factory=list)
    memory: list[float] = structs.field(default_factory=list)
    changes: list[Change] = structs.field(default_factory=list)

    def take(self, number: int, seconds: float | None, memory: float | None) -> Change | None:
        """Take a step; the change that it shows, if it shows one."""
        if memory:
            self.memory = [*self.memory[:1], max([memory, *self.memory[-1:]])]
        # memory alone, another rank's line of the same step, or steps run again after a restart
        if seconds is None or number <= self.last:
            return None
        # of which the line is the mean; a restart leaves a gap that it is not the mean of
        width = number - self.last if self.last >= 0 else 1
        steps, self.last = min(width, _LEARN), number
        self.times = [*self.times[-_KEPT + 1 :], seconds]
        count = _changed(np.array(self.times), steps)
        if not count:
            return None
        earlier, after = self.times[:-count], self.times[-count:]
        before, now = statistics.median(earlier), statistics.median(after)
        change = Change(max(1, number - count * width + 1), now / before - 1, before, now)
        self.times = after
        if abs(change.share) < _LEAST:
            return None
        self.changes.append(change)
        return change

    def told(self, steps: int | None = None, usd_per_s: float | None = None) -> dict[str, object]:
        """Tell the mean step with its 80 % interval, and how long the rest takes."""
        if not self.times:
            raise FormatError(f"no step yet with the scenario's batch; needed {NEEDED}")
        middle = statistics.median(self.times)
        # steps that compile and fill caches come once
        times = [
            each for n, each in enumerate(self.times) if n >= _WARM_UP or each < _SLOW * middle
        ]
        mean = statistics.fmean(times)
        spread = statistics.stdev(times) if len(times) > 1 else 0.1 * mean
        wander = _alike(np.array(times) - mean) if spread and len(times) >= _FEW else 1.0
        half = HALF_WIDTH * spread * math.sqrt(wander / len(times))
        known: dict[str, object] = {
            "step": self.last,
            "step_time_s": mean,
            "interval": [mean - half, mean + half],
            "predicted_s": self.predicted,
            "slower": mean / self.predicted - 1,
        }
        if steps is not None:
            left = max(0, steps - self.last)
            known |= {
                "eta_s": left * mean,
                "eta_interval_s": [left * (mean - half), left * (mean + half)],
            }
            known |= {} if usd_per_s is None else {"usd_left": left * mean * usd_per_s}
        grown = self.memory[-1] / self.memory[0] - 1 if len(self.memory) > 1 else 0.0
        known["memory_grows"] = grown if grown > _GROWS else 0.0
        known["lines_until_judged"] = max(0, _LEARN + 1 - len(self.times))
        known["changes"] = [structs.asdict(change) for change in self.changes]
        return known

    def save(self, file: Path) -> None:
        """Keep the state for a restart."""
        write_whole(file, json.dumps(structs.asdict(self)))

    @classmethod
    def load(cls, file: Path) -> Watch:
        """The state that `save` kept. FormatError if the file is damaged."""
        try:
            data: Any = json.loads(read_text(file, needed="a watch's state", error=FormatError))
            changes = [Change(**change) for change in data["changes"]]
            return cls(**{**data, "changes": changes})
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise FormatError(f"{file}: is no state of 'mpsim watch'; give another file") from error


@remembered(16)
def _limit(rate: float) -> float:
    """Limit of the ratio, in sigma, that noise passes so often per line."""
    limit = 5.0
    for _ in range(9):
        limit = math.sqrt(2 * math.log(0.735 * limit / (math.sqrt(2 * math.pi) * rate)))
    return limit


@remembered(2)
def _scores(count: int) -> Floats:
    """Normal scores of half ranks, of so many steps."""
    normal = statistics.NormalDist().inv_cdf
    return np.array([0.0, *(normal(half / (2 * count + 2)) for half in range(1, 2 * count + 2))])


def _changed(times: Floats, steps: int) -> int:
    """How many of the latest lines, of so many steps each, belong to a change; 0 without one."""
    count = len(times)
    if count <= _LEARN:
        return 0
    ordered = np.sort(times)
    # the mean of the ranks of steps that the clock cannot tell apart
    ranks = (np.searchsorted(ordered, times) + np.searchsorted(ordered, times, "right") + 1) / 2
    scores = _scores(count)[np.rint(2 * ranks).astype(int)]
    scores = scores - scores.mean()
    whole = float(scores @ scores)
    if not whole:
        return 0
    earlier = np.arange(_FEW, count)
    # share of the variance that a change at each place explains
    sums = np.cumsum(scores)[_FEW - 1 : -1]
    shares = sums**2 * count / (earlier * (count - earlier)) / whole
    place = int(shares.argmax())
    share, split = float(shares[place]), int(earlier[place])
    rate = steps * _RATE
    if _passes(share, count, 1.0, rate) and _passes(share, count, _wander(scores, split), rate):
        return count - split
    split = _apart(times)
    if split and _rare(split, count, _wander(scores, split), rate):
        return count - split
    return 0


def _wander(scores: Floats, split: int) -> float:
    """How many times more means vary than independent lines, a change at `split` taken out."""
    rest = scores.copy()
    rest[:split] -= rest[:split].mean()
    rest[split:] -= rest[split:].mean()
    return _alike(rest)


def _passes(share: float, count: int, wander: float, rate: float) -> bool:
    """Whether a change that explains this share of the variance passes the limit, where means vary
    `wander` times as much as those of independent steps. Two values alone have no variance left to
    weigh a change by: their order decides.
    """
    if 1 - share < _ROUNDING:
        return False
    free = count - 2
    ratio = share / (1 - share) / wander
    return free * math.log1p(ratio) > _limit(rate) ** 2


def _apart(times: Floats) -> int:
    """How many of the earlier lines are all faster, or all slower, than every one after; of several
    such places the one nearest the middle, 0 where there is none.
    """
    least, most = np.minimum.accumulate, np.maximum.accumulate
    slower = least(times[::-1])[::-1][1:] > most(times)[:-1]
    faster = most(times[::-1])[::-1][1:] < least(times)[:-1]
    places = np.flatnonzero(slower | faster) + 1
    places = places[places >= _FEW]
    return int(places[np.abs(places - len(times) / 2).argmin()]) if len(places) else 0


def _rare(split: int, count: int, wander: float, rate: float) -> bool:
    """Whether chance alone seldom orders lines like this: 2 in C(n, k) orders of n lines have the k
    latest at one end; lines that resemble each other count as fewer.
    """
    n, k = count / wander, (count - split) / wander
    orders = math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
    return math.log(2) - orders < math.log(rate)


def _alike(rest: Floats) -> float:
    """By how much the mean of such steps varies more than that of independent ones."""
    count, whole = len(rest), float(rest @ rest)
    if whole < _ROUNDING * count:  # a rounded clock that shows two values
        return 1.0
    lags = [float(rest[lag:] @ rest[:-lag]) / whole for lag in range(1, count // _LAGS + 1)]
    # means were taken out, so that what remains resembles itself less than the steps did
    lags = [lag + (1 + 3 * max(lag, 0.0)) / count for lag in lags]
    first = min(max(lags[0], 0.0), _ALIKE)
    sums = 1 + 2 * (np.cumsum(lags) - np.sqrt(np.arange(1, len(lags) + 1) / count))
    return max((1 + first) / (1 - first), float(sums.max()))


def follow(watch: Watch, log: Path, scenario: Scenario) -> Iterator[Change]:
    """Read what the log of a scenario's run has grown by since the last time, and yield the changes
    in it; a rotated or shortened file is read from its start, a line without its end next time.

    FormatError if it cannot be read.
    """
    with open_regular(log, needed="a log of a training run", error=FormatError) as stream:
        size, inode = log.stat().st_size, log.stat().st_ino
        if inode != watch.inode or size < watch.place:
            watch.inode, watch.place = inode, 0
        stream.seek(watch.place)
        while (raw := stream.readline(_LINE)) and raw.endswith((b"\n", b"\r")):
            watch.place += len(raw)
            # a progress bar returns to the start of its line; without a time nothing is taken
            lines = [line.decode("utf-8", "replace") for line in raw.splitlines(keepends=True)]
            for step in filter(None, map(parse_line, lines)):
                change = watch.take(step.step, step.seconds_in(scenario) or None, step.memory)
                if change is not None:
                    yield change
