"""A shortlist: layouts to launch for twenty steps, what their logs say, and the ranking of all its
layouts that follows.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mpsim import structs
from mpsim.errors import FormatError, ScenarioError
from mpsim.formats import export
from mpsim.formats.training_log import RunLog, read_log
from mpsim.framework import framework_line
from mpsim.inputs import read_bytes
from mpsim.output import safe_name, write_whole
from mpsim.result.residuals import Setting
from mpsim.scenario import Scenario
from mpsim.shipped import read_shipped, say
from mpsim.study.search.belief import Belief, Ran
from mpsim.study.search.found import Found
from mpsim.study.search.outcome import Search
from mpsim.table import Section, Sheet, Shown
from mpsim.units import Dimension, format_quantity, percent

STEPS = 20  # steps of a launch
_POOL = 400  # layouts that are ranked again
SHORTLIST = "shortlist.json"
"""File of a shortlist's folder that says what was launched, and of which layouts."""


class Launch(NamedTuple):
    """How a line of software is launched."""

    format: str  # format, file: of its configuration
    file: str
    command: str

    @classmethod
    def of(cls, scenario: Scenario) -> Launch:
        """The launch of a scenario's software. ScenarioError if none is written."""
        names, known = framework_line(scenario.framework.preset), _words()["lines"]
        found = next((known[name] for name in names if name in known), None)
        if found is None:
            raise ScenarioError(say("study.no_launch", line=names[0], known=", ".join(known)))
        return cls(**found)


def _words() -> Mapping[str, Any]:
    """Launches by line of software; the job and the README of a folder, to be filled in."""
    words: Mapping[str, Any] = read_shipped("mpsim.study.data", "launches.yaml")
    return words


@structs.dataclass(frozen=True, slots=True)
class Candidate:
    """One layout to launch."""

    row: Found  # as it was simulated
    shows: str  # what its launch is to show
    odds: float  # of fitting


@structs.dataclass(frozen=True, slots=True, repr=False)
class Shortlist(Shown):
    """Layouts to launch, and all that they say something of."""

    scenario: Scenario
    candidates: tuple[Candidate, ...]
    pool: tuple[Found, ...]  # simulated layouts, the best first

    def sheet(self) -> Sheet:
        """A line for each candidate."""
        rows = tuple(
            (str(n), *_figures(item.row), percent(item.odds), item.row.name, item.shows)
            for n, item in enumerate(self.candidates, start=1)
        )
        header = ("#", "step", "memory", "fits", "layout", "shows")
        return Sheet("", (Section(rows, header, (1, 2, 3)),))

    def to_json(self) -> dict[str, object]:
        """Plain data."""
        return {
            "scenario": self.scenario.name,
            "candidates": [
                {**item.row.to_json(), "shows": item.shows, "fits_probability": item.odds}
                for item in self.candidates
            ],
        }

    def write(self, folder: Path) -> list[Path]:
        """Write a folder for each candidate, a README, and what `read_runs` needs."""
        written, lines = [], [_words()["readme"].format(name=self.scenario.name, steps=STEPS)]
        names: list[str] = []
        lost: dict[str, None] = {}
        for number, item in enumerate(self.candidates, start=1):
            degrees = "-".join(f"{a}{item.row.values[f'parallelism.{a}']}" for a in ("tp", "pp"))
            names.append(safe_name(f"{number}-{degrees}"))
            step, memory = _figures(item.row)
            lines.append(
                f"| `{names[-1]}` | {item.row.name} | {step} | {memory} | {percent(item.odds)} |"
                f" {item.shows} |\n"
            )
            chosen = self.scenario.with_values(item.row.values)
            exported = export(chosen, Launch.of(chosen).format)
            lost |= {str(loss): None for loss in exported.lost}
            for file, text in self._files(item.row, exported.text):
                written.append(folder / names[-1] / file)
                written[-1].parent.mkdir(parents=True, exist_ok=True)
                write_whole(written[-1], text)
        lines += [
            "\nThe files cannot hold these; see to them:\n\n",
            *(f"- {loss}\n" for loss in lost),
        ]
        pool = [_plain(row) for row in self.pool]
        places = [self.pool.index(item.row) for item in self.candidates]
        data = {
            "digest": self.scenario.digest,
            "pool": pool,
            "launched": dict(zip(names, places, strict=True)),
        }
        for file, text in (("README.md", "".join(lines)), (SHORTLIST, json.dumps(data))):
            write_whole(folder / file, text)
            written.append(folder / file)
        return written

    def _files(self, row: Found, text: str) -> Iterator[tuple[str, str]]:
        chosen = self.scenario.with_values(row.values)
        launch, words = Launch.of(chosen), _words()
        each = min(row.accelerators, chosen.hardware.node.accelerators)
        nodes = row.accelerators // each
        sizes = {"nodes": nodes, "each": each}
        # Megatron-LM reports every hundredth step unless it is told
        yield (
            launch.file,
            text.replace("--train-iters 20", f"--train-iters {STEPS} --log-interval 1"),
        )
        title = f"{STEPS} steps of {row.name}"
        command = launch.command.format(world=words["world"].format(**sizes), steps=STEPS)
        yield "run.sh", words["job"].format(title=title, command=command, **sizes)


def shortlist(scenario: Scenario, search: Search, count: int) -> Shortlist:
    """Choose layouts to launch: see `mpsim.study.search.belief.Belief.choose`; the simplest that
    ties is among them. ScenarioError if nothing was simulated.
    """
    front = set(map(id, search.front))
    pool = tuple(row for n, row in enumerate(search.rows) if n < _POOL or id(row) in front)
    Launch.of(scenario)  # refused before anything is chosen
    if not pool:
        raise ScenarioError(f"{search.why_nothing}; nothing to put on a shortlist")
    belief = belief_of(pool)
    chosen = belief.choose(count)
    simplest = next((n for n, row in enumerate(pool) if row is search.simplest), chosen[0])
    if simplest not in chosen and len(chosen) > 2:
        alike = [n for n, at in enumerate(chosen) if _family(pool[at]) == _family(pool[simplest])]
        chosen[alike[-1] if alike and alike[-1] else -1] = simplest  # the first has to run
    odds, best = belief.fits, belief.best
    words = {
        simplest: "whether the simplest that ties is as fast",
        chosen[0]: "the level of time and memory: it is sure to run",
        max(chosen, key=lambda n: odds[n]): "the level of time and memory: it is sure to run",
    }
    words = {
        max(chosen, key=lambda n: best[n]): "whether the likeliest winner fits and is as fast",
        **words,
    }
    usual = "what its tp x pp costs here"
    candidates = [Candidate(pool[n], words.get(n, usual), float(odds[n])) for n in chosen]
    return Shortlist(scenario, tuple(candidates), pool)


def belief_of(pool: Sequence[Found]) -> Belief:
    """Belief about layouts before any ran."""
    settings = [row.setting for row in pool if row.setting is not None]
    assert len(settings) == len(pool)
    figures = [(row.step_time_s, row.memory_bytes, row.filled) for row in pool]
    return Belief(settings, *np.array(figures).T)


def _plain(row: Found) -> dict[str, object]:
    setting = None if row.setting is None else row.setting.to_json()
    own = ("step_time_s", "memory_bytes", "accelerators", "tokens", "filled")
    return {"values": dict(row.values), "setting": setting, **structs.named(row, *own)}


def shown_step(seconds: float) -> str:
    """A step with its unit; a dash where nothing is expected to run."""
    return format_quantity(seconds, Dimension.TIME, digits=4) if seconds < 1e9 else "-"


def _family(row: Found) -> tuple[object, object]:
    return row.values["parallelism.tp"], row.values["parallelism.pp"]


def _figures(row: Found) -> tuple[str, str]:
    return shown_step(row.step_time_s), f"{row.memory_bytes / 1e9:.1f} GB"


_WARM_UP = 5  # steps that compile, fill caches and open connections
_PAYS = 0.01  # expected shortening of the step above which another launch pays


@structs.dataclass(frozen=True, slots=True, repr=False)
class Tried(Shown):
    """All layouts ranked again after some of them ran."""

    scenario: str
    pool: tuple[Found, ...]
    belief: Belief
    launched: Mapping[str, Ran]  # what each folder's log says; folders without a log are left out
    warnings: tuple[str, ...] = ()  # of logs

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
            "warnings": list(self.warnings),
        }

    def sheet(self) -> Sheet:
        """The ranking, what was learnt, and whether another run would pay."""
        best, fits, expected = self.belief.best, self.belief.fits, self.belief.expected
        ran = {each.place: each for each in self.launched.values()}
        order = self.order
        listed = [*order[:8], *(n for n in order[8:] if n in ran)]  # what ran is what one can take
        rows = tuple(
            (
                shown_step(expected[n]),
                percent(best[n]),
                percent(fits[n]),
                _told(ran.get(n)),
                self.pool[n].name,
            )
            for n in listed
        )
        ranking = Section(rows, ("step", "P(best)", "P(fits)", "ran", "layout"), (0, 1, 2))
        learnt = tuple(
            (name, f"x{np.exp(mean):.3f}", f"+-{percent(spread)}", f"+-{percent(before)}")
            for name, (mean, spread, before) in self.belief.learnt().items()
        )
        row, gain = self.following
        pays = "pays" if gain > _PAYS else "would not pay"
        lines = [
            *(f"warning: {warning}" for warning in self.warnings),
            f"another run {pays}: {row.name} is expected to shorten the step by {percent(gain)}",
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
        raise FormatError(say("study.other_scenario", file=folder / SHORTLIST, name=scenario.name))
    pool = tuple(_found(item) for item in data["pool"])
    launched, told = dict[str, Ran](), dict[str, None]()
    for name, place in data["launched"].items():
        logs = sorted((folder / safe_name(name)).glob("*.log"))
        if logs:
            log = read_log(logs)
            told |= dict.fromkeys(log.unlike(scenario))
            launched[name] = _ran(scenario, pool[place], place, log)
    if not launched:
        raise FormatError(say("study.no_logs", folder=folder, names=", ".join(data["launched"])))
    belief = belief_of(pool).after(*launched.values())
    return Tried(scenario.name, pool, belief, launched, tuple(told))


def _ran(scenario: Scenario, row: Found, place: int, log: RunLog) -> Ran:
    """Median step after the warm-up and peak memory of a log; no time where memory ran out."""
    if log.ran_out:
        return Ran(place, None)
    times = [took for _, took in sorted(log.times(scenario.with_values(row.values)).items())]
    if not times:
        raise FormatError(say("study.no_steps_logged", log=log.name, steps=STEPS))
    warm = times[_WARM_UP:] if len(times) > 2 * _WARM_UP else times[1:] or times
    return Ran(place, statistics.median(warm), log.memory)


def _stored(file: Path) -> Mapping[str, Any]:
    needed = "the folder that 'mpsim search --shortlist' wrote"
    try:
        data = json.loads(read_bytes(file, needed=needed, error=FormatError))
        _found(data["pool"][0])
        places = [data["pool"][place] for place in data["launched"].values() if place >= 0]
        if "digest" not in data or len(places) != len(data["launched"]):
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
        filled=float(data["filled"]),
    )


def _told(ran: Ran | None) -> str:
    if ran is None:
        return ""
    return "out of memory" if ran.seconds is None else shown_step(ran.seconds)
