"""The explorer: its answers are those of single runs, and its server answers nobody else."""

import contextlib
import http.client
import json
import re
import socket
import threading

import pytest
import yaml

import mpsim
from mpsim.errors import ScenarioError
from mpsim.report.explorer import HOST, Explorer, Server


@pytest.fixture(scope="module")
def explorer(scenarios):
    return Explorer(mpsim.load(scenarios / "gpt3-175b-a100.yaml"))


@pytest.fixture(scope="module")
def server(explorer):
    """A server at work on a free port."""
    with Server(explorer) as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def _places(explorer, **chosen):
    """Places of all settings, some moved: keys with ``__`` for the dot."""
    places = [setting.start for setting in explorer.settings]
    for key, value in chosen.items():
        at = next(
            i for i, each in enumerate(explorer.settings) if each.key == key.replace("__", ".")
        )
        places[at] = explorer.settings[at].values.index(value)
    return places


def _ask(server, path, *, method="POST", body=None, length=None, **headers):
    """Status, text and headers of a reply."""
    text = (json.dumps(body) if body is not None else "").encode()
    connection = http.client.HTTPConnection(HOST, server.server_port, timeout=60)
    with contextlib.closing(connection):
        connection.putrequest(method, path, skip_host="Host" in headers)
        for name, value in {**headers, "Content-Length": str(length or len(text))}.items():
            connection.putheader(name, value)
        connection.endheaders(text)
        reply = connection.getresponse()
        return reply.status, reply.read().decode(), dict(reply.headers)


def test_settings_start_where_the_scenario_is(explorer):
    """With nothing moved the scenario is the one that was written, to the digest."""
    assert explorer.point(_places(explorer)) is explorer.scenario
    assert {"model", "layout", "hardware", "schedule and software"} == {
        each.group for each in explorer.settings
    }
    starts = {each.key: each.values[each.start] for each in explorer.settings}
    assert starts["parallelism.pp"] == 16
    assert starts["cluster.nic.bandwidth"] == "25 GB/s"
    assert starts["schedule.name"] == "interleaved-1f1b"


@pytest.mark.parametrize(
    ("chosen", "values"),
    [
        ({"parallelism__pp": 8}, {"parallelism.pp": 8, "parallelism.dp": None}),
        (
            {"cluster__nic__bandwidth": "50 GB/s", "training__recompute": "selective"},
            {"cluster.nic.bandwidth": "50 GB/s", "training.recompute": "selective"},
        ),
        ({"schedule__name": "1f1b"}, {"schedule.name": "1f1b", "schedule.virtual_stages": None}),
    ],
)
def test_answers_are_those_of_single_runs(explorer, chosen, values):
    """A moved setting gives what ``run --json`` gives with the same ``--set``, to the last digit."""
    answer = explorer.answer(_places(explorer, **chosen))
    alone = mpsim.simulate(explorer.scenario.with_values(values))
    assert answer["part"]["summary"] == json.loads(alone.to_json())


def test_settings_that_do_not_go_together_are_told(explorer):
    """An impossible layout is an answer that says why, as ``check`` would."""
    answer = explorer.answer(_places(explorer, parallelism__tp=512))
    assert set(answer) == {"error"}
    assert "parallelism" in answer["error"]


@pytest.mark.parametrize("places", [[], [0] * 99, [-1], ["0"], [True], [1.0], [10**9]])
def test_places_that_are_none_are_refused(explorer, places):
    """Only whole numbers within the lists that were offered name values."""
    full = [*places, *_places(explorer)[len(places) :]] if 0 < len(places) < 5 else places
    with pytest.raises(ScenarioError, match="needed"):
        explorer.values(full)


def test_a_saved_scenario_is_the_one_that_was_shown(explorer, tmp_path):
    """The saved file, read again, has the digest of what was shown."""
    places = _places(explorer, parallelism__pp=8, cluster__nodes=64, schedule__name="zb-h1")
    file = tmp_path / "saved.yaml"
    file.write_text(explorer.scenario_file(places), encoding="utf-8")
    assert mpsim.load(file).digest == explorer.point(places).digest


def test_every_schedule_that_is_offered_can_be_tried(explorer):
    """No schedule is refused for chunks that nobody chose."""
    (setting,) = [each for each in explorer.settings if each.key == "schedule.name"]
    for name in setting.values:
        try:
            explorer.point(_places(explorer, schedule__name=name))
        except ScenarioError as error:
            assert "virtual_stages" not in str(error), name


def test_the_page_asks_its_own_server_only(server):
    """The page of the explorer may ask where it came from, and nobody else."""
    status, text, headers = _ask(server, f"/{server.token}/", method="GET")
    assert status == 200
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]+)"', text)
    assert "connect-src &#x27;self&#x27;" in policy
    assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]
    assert headers["Cache-Control"] == "no-store"
    assert server.token not in text


def test_a_question_is_answered(server, explorer):
    """A question with the token and places has the part of a document for an answer, and says how long it took."""
    status, text, _ = _ask(server, f"/{server.token}/answer", body={"places": _places(explorer)})
    answer = json.loads(text)
    assert status == 200
    assert answer["part"]["summary"] == json.loads(mpsim.simulate(explorer.scenario).to_json())
    assert answer["seconds"] > 0


def test_saving_gives_files(server, explorer):
    """The scenario is YAML, the report a page that asks nobody; mistakes are told in JSON."""
    places = _places(explorer, parallelism__pp=8)
    _, text, _ = _ask(server, f"/{server.token}/scenario", body={"places": places})
    assert yaml.safe_load(text)["parallelism"]["pp"] == 8
    _, text, _ = _ask(server, f"/{server.token}/report", body={"places": places})
    assert "connect-src &#x27;none&#x27;" in text
    wrong = _places(explorer, parallelism__tp=512)
    _, text, _ = _ask(server, f"/{server.token}/scenario", body={"places": wrong})
    assert "parallelism" in json.loads(text)["error"]


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("/", {}, 404),
        ("/answer", {}, 404),
        ("/{token}x/answer", {}, 404),
        ("/{token}/../answer", {}, 404),
        ("/{token}/shutdown", {}, 404),
        ("/{token}/answer", {"Host": "evil.example"}, 403),
        ("/{token}/answer", {"Host": "localhost:1"}, 403),
        ("/{token}/answer", {"Origin": "http://evil.example"}, 403),
        ("/{token}/answer", {"Origin": "null"}, 403),
    ],
)
def test_nobody_else_is_answered(server, explorer, path, headers, status):
    """Without the token nothing is found; a page of another site that knows it, or calls this machine by another name, is refused."""
    found = _ask(
        server, path.format(token=server.token), body={"places": _places(explorer)}, **headers
    )
    assert found[0] == status
    assert "summary" not in found[1]


@pytest.mark.parametrize(
    "body", [None, [], {}, {"places": "all"}, {"places": [0]}, {"values": {"model": "x"}}]
)
def test_questions_that_are_none_are_refused(server, body):
    """Whatever is sent in place of places does no harm and is told."""
    status, text, _ = _ask(server, f"/{server.token}/answer", body=body)
    assert status in (200, 400)
    assert "needed" in text
    assert "part" not in text[:20]


def test_a_long_question_is_not_read(server):
    """A question of more than 64 KiB, or without a length, is refused."""
    assert _ask(server, f"/{server.token}/answer", length=10**9)[0] == 400
    assert _ask(server, f"/{server.token}/answer", length="many")[0] == 400


def test_it_listens_on_this_machine_only(server):
    """The socket is bound to the loopback interface, on which no other machine arrives."""
    assert server.socket.family == socket.AF_INET
    assert server.server_address[0] == "127.0.0.1"


def test_tokens_differ(explorer):
    """Every start has a token of its own, of 128 random bits."""
    with Server(explorer) as first, Server(explorer) as second:
        assert first.token != second.token
        assert len(first.token) >= 22


def test_a_later_question_passes_an_earlier_one(explorer):
    """While one answer is worked out, of those that wait only the last is."""
    answers = _asked_at_once(explorer, ["a", "a", "a"])
    assert sum("superseded" in answer for answer in answers) == 2
    assert sum("part" in answer for answer in answers) == 1


def test_two_tabs_do_not_supersede_each_other(explorer):
    """Each gets the answer to its own last question."""
    answers = _asked_at_once(explorer, ["c", "d", "d"])
    assert sum("superseded" in answer for answer in answers) == 1
    assert sum("part" in answer for answer in answers) == 2


def _asked_at_once(explorer, tabs):
    """Answers to questions of tabs that came while another one was worked out."""
    answers = []
    with explorer._working:
        threads = [
            threading.Thread(target=lambda tab=tab: answers.append(explorer.answer(_places(explorer), tab=tab)))
            for tab in tabs
        ]  # fmt: skip
        for thread in threads:
            thread.start()
        while sum(explorer._last.get(tab, 0) for tab in set(tabs)) < len(tabs):
            pass
    for thread in threads:
        thread.join()
    return answers
