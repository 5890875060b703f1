"""The explorer: a scenario, the settings of it that can be moved, what becomes of it; its server.

The server listens on the loopback interface only, and answers to nobody who does not know its
token, or who calls it by another name (a page of another site that has its own name point to this
machine). A question names places of the settings it was given, and nothing else.
"""

from __future__ import annotations

import contextlib
import http.server
import json
import re
import secrets
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

import yaml

from mpsim import structs
from mpsim.errors import MpsimError, ScenarioError
from mpsim.framework import SelectiveRecompute, framework_names
from mpsim.hardware import system_names
from mpsim.limits import unlimited
from mpsim.memo import Memo
from mpsim.report.blocks import plain, setting_text
from mpsim.report.choices import Slider
from mpsim.report.document import AnyResult, Page, document, page_of, report
from mpsim.report.markup import article, contents, page
from mpsim.result.words import Figures
from mpsim.scenario import Scenario
from mpsim.schedule import schedule, schedule_names
from mpsim.shipped import read_shipped
from mpsim.simulate import simulate
from mpsim.units import Dimension, format_exact
from mpsim.workload import model_names

_INTERLEAVED = 2  # chunks of a rank below which nothing is interleaved
_POWERS = tuple(2**n for n in range(10))
_LENGTHS = tuple(2**n for n in range(9, 18))
_SHARES = (0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0)
_FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)
_CHUNKS = (1, 2, 3, 4, 5, 6, 8)
_RECOMPUTE = ("none", "selective", "full")
_MOST_NODES = 65_536
_TABS = 64
_LABELS = read_shipped("mpsim.report.data", "page.yaml")["labels"]
"""Words for settings that their section alone names; others have the words of their key."""


@structs.dataclass(frozen=True, slots=True)
class Setting:
    """One setting that can be moved."""

    key: str  # dotted, as `Scenario.with_values` takes it
    group: str  # word under which it stands on the page
    values: tuple[object, ...]
    start: int  # place of the scenario's own value

    def slider(self) -> Slider:
        """The setting as the page shows it."""
        label = _LABELS.get(self.key, re.sub("[._]", " ", self.key.partition(".")[2]))
        return Slider(self.key, list(map(setting_text, self.values)), self.start, self.group, label)


def settings(scenario: Scenario) -> list[Setting]:
    """Settings that the explorer offers: model, layout, hardware, schedule or load."""
    parts = (
        *_model(scenario),
        *(_service(scenario) if scenario.serves else _layout(scenario)),
        *_hardware(scenario),
        *(() if scenario.serves else _schedule(scenario)),
    )
    return [setting for setting in parts if len(setting.values) > 1]


def _numbers(key: str, group: str, own: int, choices: Sequence[float]) -> Setting:
    """Whole numbers in order, the scenario's own among them."""
    values = sorted({own, *(round(choice) for choice in choices if round(choice) >= 1)})
    return Setting(key, group, tuple(values), values.index(own))


def _degrees(key: str, group: str, own: int, most: int) -> Setting:
    """Degrees of an axis that divide up to `most` ranks."""
    return _numbers(key, group, own, [degree for degree in _POWERS if degree <= most])


def _words(key: str, group: str, own: object, choices: Sequence[object]) -> Setting:
    """Words, the scenario's own among them."""
    values = [own, *choices] if own not in choices else list(choices)
    return Setting(key, group, tuple(values), values.index(own))


def _model(scenario: Scenario) -> Iterator[Setting]:
    group = "model"
    if scenario.model.preset is not None:
        yield _words("model.preset", group, scenario.model.preset, model_names())
    layers = scenario.transformer.layers
    yield _numbers("model.layers", group, layers, [share * layers for share in _SHARES])
    if scenario.training is not None:
        length = scenario.training.sequence_length
        yield _numbers("training.sequence_length", group, length, _LENGTHS)


def _layout(scenario: Scenario) -> Iterator[Setting]:
    group, own, training = "layout", scenario.parallelism, scenario.training_step
    most = scenario.world_size
    for axis in ("tp", "pp", "cp"):
        yield _degrees(f"parallelism.{axis}", group, getattr(own, axis), most)
    if scenario.transformer.moe is not None:
        experts = scenario.transformer.moe.experts
        yield _degrees("parallelism.ep", group, own.ep, min(experts, most))
    yield _words("parallelism.sequence_parallel", group, own.sequence_parallel, (False, True))
    yield _words("parallelism.zero", group, own.zero, (0, 1, 2, 3))
    yield _numbers("training.micro_batch", group, training.micro_batch, _POWERS[:5])
    batch = training.global_batch
    yield _numbers("training.global_batch", group, batch, [factor * batch for factor in _FACTORS])
    yield _words("training.recompute", group, training.recompute, _recompute(scenario))


def _recompute(scenario: Scenario) -> Sequence[str]:
    """Recomputations in the framework's words: selective is one where it means per-op."""
    selective = scenario.software.kernels.recompute_selective
    is_per_op = selective is SelectiveRecompute.PER_OP
    return ("none", selective.value, "full") if is_per_op else _RECOMPUTE


def _service(scenario: Scenario) -> Iterator[Setting]:
    group, own, serving = "layout", scenario.parallelism, scenario.service
    if not serving.disaggregated:
        for axis in ("tp", "pp"):
            yield _degrees(f"parallelism.{axis}", group, getattr(own, axis), scenario.world_size)
    load = serving.workload
    if load.concurrency is not None:
        users = [factor * load.concurrency for factor in _FACTORS]
        yield _numbers("serving.workload.concurrency", "load", load.concurrency, users)
    if load.rate is not None:
        rates = tuple(sorted({load.rate, *(factor * load.rate for factor in _FACTORS)}))
        yield Setting("serving.workload.rate", "load", rates, rates.index(load.rate))


def _hardware(scenario: Scenario) -> Iterator[Setting]:
    group, cluster = "hardware", scenario.hardware
    if scenario.cluster.preset in system_names():
        yield _words("cluster.preset", group, scenario.cluster.preset, system_names())
    nodes = [factor * cluster.nodes for factor in _FACTORS]
    fitting = [count for count in nodes if count <= _MOST_NODES]
    yield _numbers("cluster.nodes", group, cluster.nodes, fitting)
    links = {"nic": cluster.node.nic, "scale_up": cluster.node.scale_up}
    for name, link in links.items():
        key = f"cluster.{name}.bandwidth"
        rates = [format_exact(factor * link.bandwidth, Dimension.BANDWIDTH) for factor in _FACTORS]
        yield Setting(key, group, tuple(rates), _FACTORS.index(1.0))


def _schedule(scenario: Scenario) -> Iterator[Setting]:
    group, own = "schedule and software", scenario.schedule
    if own.name is not None:
        names = [name for name in schedule_names() if name not in ("auto", "forward-only")]
        yield _words("schedule.name", group, own.name, names)
    yield _numbers("schedule.virtual_stages", group, own.chunks, _CHUNKS)
    yield _words("framework.preset", group, scenario.framework.preset, framework_names())


class Explorer:
    """Answers to settings of a scenario, one at a time; `unlimited`: however much they take."""

    def __init__(self, scenario: Scenario, *, unlimited: bool = False) -> None:
        self.scenario = scenario
        self._unlimited = unlimited
        # in the order in which places name their values
        self.settings: list[Setting] = settings(scenario)
        self._working = threading.Lock()
        self._last = Memo[str, int](_TABS)  # number of the question that came last of each tab

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
        """Values that differ from the scenario's own, by dotted key. `places`: place of the value
        of each of `settings`. ScenarioError if they are not places of these settings.
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
        """The scenario with these settings; data parallelism follows from the cluster where
        anything was moved. ScenarioError if they do not go together.
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

    def answer(
        self, places: Sequence[object], *, whole: bool = False, tab: str = ""
    ) -> dict[str, object]:
        """Simulate the scenario with these settings.

        `whole`: whether with what takes longer than a slider may wait. `tab`: who asks: a later
        question supersedes those of the same tab alone.

        Returns dict: ``part`` of a document, and its ``html`` and ``contents``; or ``error``, why
        there is none; or ``superseded`` where a later question has come meanwhile.
        """
        self._last[tab] = number = self._last.get(tab, 0) + 1
        with self._working:
            if number != self._last.get(tab, number):
                return {"superseded": True}
            try:
                part: Page = page_of(self._simulate(self.point(places)), whole=whole)
            except MpsimError as error:
                return {"error": str(error)}
        inside = {"html": article(part, several=False), "contents": contents([part], [])}
        return {"part": part, **inside}

    def scenario_file(self, places: Sequence[object]) -> str:
        """The scenario with these settings as the text of a scenario file."""
        data: Figures = self.point(places).source.data
        return yaml.safe_dump(_without_none(data), sort_keys=False, allow_unicode=True, width=100)

    def report(self, places: Sequence[object]) -> str:
        """The report of the scenario with these settings, a page to mail."""
        with self._working:
            return page(report([self._simulate(self.point(places))]))


def _without_none(data: Figures) -> dict[str, object]:
    """A document without keys that were taken away, or that name the files it came from."""
    return {
        key: _without_none(value) if isinstance(value, Mapping) else value
        for key, value in data.items()
        if value is not None and key != "include"
    }


HOST: Final = "127.0.0.1"  # the one interface it listens on

_LONGEST = 65_536  # bytes of a question
_SECRET = 16  # bytes of the token
_FRAMES = "frame-ancestors 'none'"


class Server(http.server.ThreadingHTTPServer):
    """Serves the page of an explorer. `port`: 0 for any that is free."""

    daemon_threads = True  # an answer under way does not hold up the end

    def __init__(self, explorer: Explorer, port: int = 0) -> None:
        super().__init__((HOST, port), _Handler)
        self.explorer = explorer
        self.token = secrets.token_urlsafe(_SECRET)

    def handle_error(self, request: object, client_address: object) -> None:
        """A page that was closed meanwhile is no error; others are told in one line."""
        error = sys.exception()
        if not isinstance(error, ConnectionError | TimeoutError):
            sys.stderr.write(f"mpsim explore: {type(error).__name__}: {error}\n")

    @property
    def address(self) -> str:
        """Where the page is, with the token."""
        return f"http://{HOST}:{self.server_port}/{self.token}/"


class _Handler(http.server.BaseHTTPRequestHandler):
    """Answers one request."""

    server: Server
    server_version, sys_version = "mpsim", ""
    protocol_version = "HTTP/1.1"
    timeout = 60  # s that a connection may say nothing

    def do_GET(self) -> None:
        if self._known("") and self._may():
            self._send(200, "text/html; charset=utf-8", self.server.explorer.page())

    def do_POST(self) -> None:
        answers: Mapping[str, Callable[[Figures], object]] = {
            "answer": self._answer,
            "scenario": lambda asked: self.server.explorer.scenario_file(asked["places"]),
            "report": lambda asked: self.server.explorer.report(asked["places"]),
        }
        asked = self._read()
        name = self.path.rpartition("/")[2]
        if not (self._known(name if name in answers else "answer") and self._may()):
            return
        if asked is None:
            self._refuse(400, "needed a JSON object with places")
            return
        try:
            answer = answers[name](asked)
        except MpsimError as error:
            answer = {"error": str(error)}
        if isinstance(answer, str):
            self._send(200, "text/plain; charset=utf-8", answer)
        else:
            self._send(200, "application/json", json.dumps(answer, allow_nan=False))

    def _answer(self, asked: Figures) -> dict[str, object]:
        since = time.perf_counter()
        whole, tab = asked.get("whole") is True, str(asked.get("tab", ""))
        answer = self.server.explorer.answer(asked["places"], whole=whole, tab=tab)
        return {**answer, "seconds": time.perf_counter() - since}

    def _read(self) -> Figures | None:
        """The question; None if it is none."""
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal() or int(length) > _LONGEST:
            self.close_connection = True
            return None
        try:
            asked = json.loads(self.rfile.read(int(length)))
        except (ValueError, RecursionError):
            return None
        valid = isinstance(asked, dict) and isinstance(asked.get("places"), list)
        return asked if valid else None

    def _known(self, name: str) -> bool:
        """Whether the path has the token; all else is not found."""
        given = self.path.encode("utf-8", "replace")
        if secrets.compare_digest(given, f"/{self.server.token}/{name}".encode()):
            return True
        self._refuse(404, "not found")
        return False

    def _may(self) -> bool:
        """Whether it was called by its own name, and not from a page of another site."""
        own = f"{HOST}:{self.server.server_port}"
        origin = self.headers.get("Origin")
        if self.headers.get("Host") == own and origin in (None, f"http://{own}"):
            return True
        self._refuse(403, "asked for by another name")
        return False

    def _refuse(self, status: int, text: str) -> None:
        self._send(status, "text/plain; charset=utf-8", text)

    def _send(self, status: int, kind: str, text: str) -> None:
        content = text.encode()
        self.send_response(status)
        for name, value in (
            ("Content-Type", kind),
            ("Content-Length", str(len(content))),
            ("Content-Security-Policy", _FRAMES),
            ("Cache-Control", "no-store"),
            ("Referrer-Policy", "no-referrer"),
            ("X-Content-Type-Options", "nosniff"),
        ):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *arguments: object) -> None:
        """Nothing: the token is in every path."""
