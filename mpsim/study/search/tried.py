"""Logs of a shortlist's launches, and the ranking of all its layouts that follows."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mpsim import structs
from mpsim.errors import FormatError
from mpsim.formats.training_log import read_log
from mpsim.inputs import read_bytes
from mpsim.output import safe_name
from mpsim.result.residuals import Setting
from mpsim.scenario import Scenario
from mpsim.sheet import Section, Sheet, Shown
from mpsim.study.search.belief import Belief, Ran
from mpsim.study.search.found import Found
from mpsim.study.search.shortlist import SHORTLIST, STEPS, belief_of, shown_step
from mpsim.units import percent

_WARM_UP = 5  # steps that compile, fill caches and open connections
_PAYS = 0.01  # expected shortening of the step above which another launch pays


@structs.dataclass(frozen=True, slots=True, repr=False)
class Tried(Shown):
    """All layouts ranked again after some of them ran."""

    scenario: str
    pool: tuple[Found, ...]
    belief: Belief
    launched: Mapping[str, Ran]  # what each folder's log says; folders without a log are left out

    @property
    def order(self) -> list[int]:
        """Layouts by odds of being the fastest that fits, then by expected time."""
        best, expected = self.belief.best, self.belief.expected
        return sorted(range(len(self.pool)), key=lambda n: (-round(float(best[n]), 3), expected[n]))

    @property
    def following(self) -> tuple[Found, float]:
        """The layout to launch next, and the share it is expected to save of the best step."""
        place = self.belief.choose(1, [ran.place for ran in self.launched.values()])
        return self.pool[place[0]], self.belief.gain(place[0]) if place else 0.0

    def to_json(self) -> dict[str, object]:
        """Plain data."""
        best, fits, expected = self.belief.best, self.belief.fits, self.belief.expected
        row, gain = self.following
        return {
            "scenario": self.scenario,
            "runs": [
                {
                    "folder": name,
                    "layout": dict(self.pool[ran.place].values),
                    "measured_s": ran.seconds,
                    "memory_bytes": ran.memory,
                    "predicted_s": self.pool[ran.place].step_time_s,
                }
                for name, ran in self.launched.items()
            ],
            "learnt": {
                name: {"factor": float(np.exp(mean)), "sigma": spread, "sigma_before": before}
                for name, (mean, spread, before) in self.belief.learnt().items()
            },
            "rows": [
                {
                    "layout": dict(self.pool[n].values),
                    "expected_s": float(expected[n]) if expected[n] < 1e9 else None,
                    "p_best": float(best[n]),
                    "p_fits": float(fits[n]),
                }
                for n in self.order[:20]
            ],
            "next": {"layout": dict(row.values), "gain": gain, "pays": gain > _PAYS},
        }

    def sheet(self) -> Sheet:
        """The ranking, what was learnt, and whether another run would pay."""
        best, fits, expected = self.belief.best, self.belief.fits, self.belief.expected
        ran = {each.place: each for each in self.launched.values()}
        rows = tuple(
            (
                shown_step(expected[n]),
                percent(best[n]),
                percent(fits[n]),
                _told(ran.get(n)),
                self.pool[n].name,
            )
            for n in self.order[:8]
        )
        ranking = Section(rows, ("step", "P(best)", "P(fits)", "ran", "layout"), (0, 1, 2))
        learnt = tuple(
            (name, f"x{np.exp(mean):.3f}", f"+-{percent(spread)}", f"+-{percent(before)}")
            for name, (mean, spread, before) in self.belief.learnt().items()
        )
        row, gain = self.following
        pays = "pays" if gain > _PAYS else "would not pay"
        lines = [
            f"another run {pays}: {row.name} is expected to shorten the step by {percent(gain)}"
        ]
        if self.belief.surprised:
            lines.append(
                "who ran and who ran out contradicts the predicted memory: trust P(fits) little"
            )
        header = ("slope of measured over predicted", "factor", "now", "before")
        return Sheet("", (ranking, Section(learnt, header, (1, 2, 3), lines=tuple(lines))))


def read_runs(scenario: Scenario, folder: Path) -> Tried:
    """Read what the launches of a shortlist logged, and rank its layouts again. FormatError if the
    folder holds no shortlist of this scenario, or no log says anything.
    """
    data = _stored(folder / SHORTLIST)
    if data["digest"] != scenario.digest:
        raise FormatError(
            f"{folder / SHORTLIST}: is of another scenario than {scenario.name}; needed the file as"
            " it was when --shortlist wrote the folder"
        )
    pool = tuple(_found(item) for item in data["pool"])
    launched: dict[str, Ran] = {}
    for name, place in data["launched"].items():
        logs = sorted((folder / safe_name(name)).glob("*.log"))
        if logs:
            launched[name] = _ran(scenario, pool[place], place, logs)
    if not launched:
        raise FormatError(
            f"{folder}: none of {', '.join(data['launched'])} has a log; needed run.log in the"
            " folder of each layout that ran"
        )
    belief = belief_of(pool, data["room"]).after(*launched.values())
    return Tried(scenario.name, pool, belief, launched)


def _ran(scenario: Scenario, row: Found, place: int, logs: Sequence[Path]) -> Ran:
    """Median step after the warm-up and peak memory of a log; no time where memory ran out."""
    log = read_log(logs)
    if log.ran_out:
        return Ran(place, None)
    times = [took for _, took in sorted(log.times(scenario.with_values(row.values)).items())]
    if not times:
        raise FormatError(
            f"{logs[0]}: no line has the time of a step; needed those of {STEPS} steps"
        )
    warm = times[_WARM_UP:] if len(times) > 2 * _WARM_UP else times[1:] or times
    return Ran(place, statistics.median(warm), log.memory)


def _stored(file: Path) -> Mapping[str, Any]:
    needed = "the folder that 'mpsim search --shortlist' wrote"
    try:
        data = json.loads(read_bytes(file, needed=needed, error=FormatError))
        _found(data["pool"][0])
        places = [data["pool"][place] for place in data["launched"].values() if place >= 0]
        if not {"digest", "room"} <= data.keys() or len(places) != len(data["launched"]):
            raise ValueError(sorted(data))
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
        raise FormatError(f"{file}: is damaged; needed {needed}") from error
    return data  # type: ignore[no-any-return]


def _found(data: Mapping[str, Any]) -> Found:
    setting = Setting.from_json(data["setting"])
    step = float(data["step_time_s"])
    return Found(
        data["values"],
        step,
        step,
        float(data["memory_bytes"]),
        int(data["accelerators"]),
        int(data["tokens"]),
        None,
        setting=setting,
    )


def _told(ran: Ran | None) -> str:
    if ran is None:
        return ""
    return "out of memory" if ran.seconds is None else shown_step(ran.seconds)
