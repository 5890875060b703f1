"""The explorer: a scenario whose settings are moved, and what becomes of it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from mpsim.errors import MpsimError, ScenarioError
from mpsim.limits import unlimited
from mpsim.report.blocks import plain
from mpsim.report.document import AnyResult, Page, document, page_of, report
from mpsim.report.markup import article, contents
from mpsim.report.page import page
from mpsim.report.settings import Setting, settings
from mpsim.scenario import Scenario
from mpsim.schedule import schedule
from mpsim.simulate import simulate

__all__ = ["Explorer"]


_INTERLEAVED = 2  # chunks of a rank below which nothing is interleaved


class Explorer:
    """Answers to settings of a scenario, one at a time.

    Parameters
    ----------
    unlimited : bool
        Whether to compute whatever is asked, however much memory and time it takes.

    Attributes
    ----------
    settings : list of Setting
        In the order in which places name their values.
    """

    def __init__(self, scenario: Scenario, *, unlimited: bool = False) -> None:
        self.scenario = scenario
        self._unlimited = unlimited
        self.settings: list[Setting] = settings(scenario)
        self._working = threading.Lock()
        self._last = 0  # number of the request that came last

    def page(self) -> str:
        """The page with the settings and the scenario as it was written."""
        part = page_of(self._simulate(self.scenario), whole=False)
        sliders = [plain(setting.slider()) for setting in self.settings]
        told = document([part], live={"sliders": sliders})
        return page(told, live=True)

    def _simulate(self, scenario: Scenario) -> AnyResult:
        with unlimited() if self._unlimited else contextlib.nullcontext():
            return simulate(scenario)

    def values(self, places: Sequence[object]) -> dict[str, object]:
        """Values that differ from the scenario's own, by dotted key.

        Parameters
        ----------
        places : sequence of int
            Place of the value of each of `settings`.

        Raises
        ------
        ScenarioError
            If they are not places of these settings.
        """
        if len(places) != len(self.settings):
            raise ScenarioError(f"got {len(places)} settings; needed {len(self.settings)}")
        chosen: dict[str, object] = {}
        for setting, place in zip(self.settings, places, strict=True):
            if type(place) is not int or not 0 <= place < len(setting.values):
                raise ScenarioError(
                    f"{setting.key}: got place {place!r}; needed 0 to {len(setting.values) - 1}"
                )
            if place != setting.start:
                chosen[setting.key] = setting.values[place]
        return chosen

    def point(self, places: Sequence[object]) -> Scenario:
        """The scenario with these settings; data parallelism follows from the cluster where anything was moved.

        Raises
        ------
        ScenarioError
            If they do not go together.
        """
        chosen = self.values(places)
        if not chosen:
            return self.scenario
        follows: dict[str, object] = {} if self.scenario.serves else {"parallelism.dp": None}
        if "schedule.name" in chosen:  # a schedule has chunks of its own, or as many as there were
            free = schedule(str(chosen["schedule.name"])).chunks is None
            chunks = max(self.scenario.schedule.chunks, _INTERLEAVED)
            follows["schedule.virtual_stages"] = chunks if free else None
        return self.scenario.with_values({**follows, **chosen})

    def answer(self, places: Sequence[object], *, whole: bool = False) -> dict[str, Any]:
        """Simulate the scenario with these settings.

        Parameters
        ----------
        whole : bool
            Whether with what takes longer than a slider may wait.

        Returns
        -------
        dict
            ``part`` of a document, and its ``html`` and ``contents``; or ``error``, why there is none; or ``superseded`` where a later question has come meanwhile.
        """
        self._last = number = self._last + 1
        with self._working:
            if number != self._last:
                return {"superseded": True}
            try:
                part: Page = page_of(self._simulate(self.point(places)), whole=whole)
            except MpsimError as error:
                return {"error": str(error)}
        inside = {"html": article(part, several=False), "contents": contents([part], [])}
        return {"part": part, **inside}

    def scenario_file(self, places: Sequence[object]) -> str:
        """The scenario with these settings as the text of a scenario file."""
        data: Mapping[str, Any] = self.point(places).source.data
        return yaml.safe_dump(_without_none(data), sort_keys=False, allow_unicode=True, width=100)

    def report(self, places: Sequence[object]) -> str:
        """The report of the scenario with these settings, a page to mail."""
        with self._working:
            return page(report([self._simulate(self.point(places))]))


def _without_none(data: Mapping[str, Any]) -> dict[str, Any]:
    """A document without keys that were taken away, or that name the files it came from."""
    return {
        key: _without_none(value) if isinstance(value, Mapping) else value
        for key, value in data.items()
        if value is not None and key != "include"
    }
