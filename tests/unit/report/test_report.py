"""The report: its document by its numbers, its page by what it may do and ask for."""

import base64
import gzip
import hashlib
import html.parser
import json
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mpsim
from mpsim.errors import ScenarioError
from mpsim.report import LARGEST, document, page, page_of, report
from mpsim.report.blocks import chart_of, plain
from mpsim.report.choices import what_if
from mpsim.report.lanes import lanes_of, lives_of, packed
from mpsim.scenario import Scenario
from mpsim.serving import make_service, run_service
from mpsim.study.search import search

EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(2)>&\"' --> <!--"
"""A name that would end the data of a page and begin a script of its own."""


def _small(**more):
    return mpsim.Scenario.from_mapping(
        {
            "schema": 1,
            "name": more.pop("name", "small"),
            "model": {"layers": 8, "hidden": 1024, "heads": 16, "vocab": 32000},
            "cluster": {"preset": "dgx-a100-80gb", "nodes": 2},
            "parallelism": {"tp": 2, "pp": 4},
            "training": {"global_batch": 16, "sequence_length": 1024},
            **more,
        }
    )


@pytest.fixture(scope="module")
def result():
    return mpsim.simulate(_small())


@pytest.fixture(scope="module")
def service(scenarios):
    scenario = mpsim.load(scenarios / "serving" / "llama3-8b-h100.yaml")
    return run_service(scenario, make_service(scenario))


class Skeleton(html.parser.HTMLParser):
    """Tags of a page with their attributes, and the text of scripts."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.scripts, self._inside = [], {}, None
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self._inside = dict(attrs).get("id", "own") if tag == "script" else None

    def handle_endtag(self, tag):
        self._inside = None

    def handle_data(self, data):
        if self._inside is not None:
            self.scripts[self._inside] = self.scripts.get(self._inside, "") + data


def _blocks(parts):
    return [block for part in parts for section in part["sections"] for block in section["blocks"]]


def test_the_document_holds_the_summary_that_run_prints(result):
    """Every figure of ``run --json`` is in the page, unrounded."""
    inside = json.loads(Skeleton(page(report([result]))).scripts["document"])
    assert inside["parts"][0]["summary"] == json.loads(result.to_json())


def test_headline_figures_are_read_from_the_summary(result):
    """A headline figure has a key, not a number of its own, and the summary has that key."""
    (block,) = [each for each in _blocks(report([result])["parts"]) if each["block"] == "figures"]
    for item in block["items"]:
        value = result.summary
        for key in item["key"].split("."):
            value = value[key]
        assert isinstance(value, int | float)
        assert "value" not in item


def test_parts_of_the_bars_are_the_breakdown(result):
    """The first bar of the parts of the step is ``breakdown_s``."""
    bars = next(each for each in _blocks(report([result])["parts"]) if each["block"] == "bars")
    shown = sum(part["values"][0] for part in bars["parts"])
    assert shown == pytest.approx(result.summary["step_time_s"], rel=1e-6)


def test_a_service_has_its_latencies_and_batches(service):
    """A service's page shows the percentiles of its summary and what is under way over time."""
    part = report([service])["parts"][0]
    assert part["summary"] == json.loads(service.to_json())
    titles = [section["title"] for section in part["sections"]]
    assert {"Latency", "Batches over time", "Where the time goes"} <= set(titles)
    table = next(block for block in _blocks([part]) if block["block"] == "table")
    first = next(row for row in table["rows"] if row[0] == "time to first token")
    assert first[1] == service.summary["ttft_s"]["mean"]


def test_every_chart_says_in_words_what_it_shows(result, service):
    """No figure is without a sentence for those who do not see it."""
    for block in _blocks(report([result, service])["parts"]):
        if block["block"] in ("bars", "lines", "heat", "timeline"):
            assert len(block["alt"]) > 20, block["title"]


def test_several_results_are_set_side_by_side(result):
    """The differences shown are those of ``mpsim compare``."""
    other = mpsim.simulate(_small(name="other", parallelism={"tp": 4, "pp": 2}))
    (section,) = report([result, other])["shared"]
    table = next(block for block in section["blocks"] if block["block"] == "table")
    row = next(row for row in table["rows"] if row[0] == "step time")
    assert [cell["value"] for cell in row[1:3]] == [
        each.summary["step_time_s"] for each in (result, other)
    ]
    compared = mpsim.compare(result, other)
    assert row[3] == next(each for each in compared.figures if each.name == "step_time_s").relative


def test_names_are_text_wherever_they_come_from():
    """A name full of tags ends no script, begins none, and reads the same in the data."""
    result = mpsim.simulate(_small(name=EVIL))
    text = page(report([result]))
    skeleton = Skeleton(text)
    assert json.loads(skeleton.scripts["document"])["title"] == EVIL
    assert set(skeleton.scripts) == {"document", "own"}
    assert not [attrs for _, attrs in skeleton.tags if any(key.startswith("on") for key in attrs)]
    assert "alert(1)</script>" not in text


@settings(max_examples=10)
@given(st.text())
def test_any_title_comes_back_as_it_was(title):
    """Whatever the title, the page has two scripts and the same document."""
    text = page(document([], title=title or "x"))
    skeleton = Skeleton(text)
    assert len([tag for tag, _ in skeleton.tags if tag == "script"]) == 2
    assert json.loads(skeleton.scripts["document"])["title"] == (title or "x")


def test_the_page_asks_nobody_for_anything(result):
    """No tag of the page has an address but those inside of it, and its policy forbids every request."""
    skeleton = Skeleton(page(report([result])))
    addresses = [
        value
        for _, attrs in skeleton.tags
        for key, value in attrs.items()
        if key in ("src", "href", "action", "srcset", "data", "poster")
    ]
    assert all(address.startswith(("#", "data:")) for address in addresses)
    (policy,) = [
        attrs["content"]
        for _, attrs in skeleton.tags
        if "Content-Security-Policy" in attrs.values()
    ]
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == rules["connect-src"] == "'none'"
    assert not re.search(r"https?:|unsafe-eval|\*", policy)
    assert "unsafe" not in rules["script-src"]


def test_the_policy_names_the_scripts_of_the_page(result):
    """Its own script has the digest that the policy allows, and no other is there."""
    skeleton = Skeleton(page(report([result])))
    (policy,) = [
        attrs["content"]
        for _, attrs in skeleton.tags
        if "content" in attrs and "script-src" in attrs["content"]
    ]
    digest = base64.b64encode(hashlib.sha256(skeleton.scripts["own"].encode()).digest()).decode()
    assert re.findall(r"'sha256-([^']+)'", policy) == [digest]


def test_a_page_is_at_most_five_megabytes(result):
    """One result takes less than half of what a page may have; what does not fit is refused with the mend."""
    assert len(page(report([result])).encode()) < LARGEST / 2
    with pytest.raises(ScenarioError, match="fewer scenarios"):
        page(document([], title="x" * LARGEST))


def test_equal_results_give_equal_pages(result):
    """The same scenario gives the same bytes."""
    again = mpsim.simulate(_small())
    assert page(report([result])) == page(report([again]))


@given(st.lists(st.integers(0, 2**31 - 1), max_size=60))
def test_packed_columns_come_back(numbers):
    """Differences in planes of bytes give the whole numbers back, as the page's script adds them up."""
    planes = np.frombuffer(gzip.decompress(base64.b64decode(packed(np.array(numbers)))), np.uint8)
    steps = planes.reshape(4, -1).T.copy().view("<i4").ravel()
    assert np.cumsum(steps, dtype=np.int64).tolist() == numbers


def _column(lanes, name):
    planes = np.frombuffer(gzip.decompress(base64.b64decode(lanes.columns[name])), np.uint8)
    return np.cumsum(planes.reshape(4, -1).T.copy().view("<i4").ravel(), dtype=np.int64)


def test_lanes_end_where_the_step_ends(result):
    """Bars of a lane follow each other, and the last ends with the step to a nanosecond."""
    lanes = lanes_of(result)
    lane, start, length = (_column(lanes, name) for name in ("lane", "start", "length"))
    assert lanes.unit_s == 1e-9
    assert (start + length).max() == pytest.approx(result.timeline.step_time_s / 1e-9, abs=1)
    same = lane[1:] == lane[:-1]
    assert (start[1:] >= start[:-1])[same].all()


def test_lives_begin_with_the_queue_and_end_with_the_last_token(service):
    """Each request has a lane, whose bars follow each other without a gap from its arrival on and are called what a service does."""
    lanes, served = lives_of(service), service.served
    lane, start, length = (_column(lanes, name) for name in ("lane", "start", "length"))
    assert sorted(set(lane)) == list(range(len(lanes.names)))
    same = lane[1:] == lane[:-1]
    assert (abs((start + length)[:-1] - start[1:])[same] <= 1).all()
    requests = np.array([int(name) for name in lanes.names])
    begins = np.array([start[lane == place].min() for place in range(len(requests))])
    came = served.arrival[requests]
    assert begins * lanes.unit_s == pytest.approx(came - came[0], abs=2 * lanes.unit_s)
    seen = {lanes.labels[lanes.events[kind]] for kind in set(_column(lanes, "event").tolist())}
    assert {"prefill", "decode"} <= seen <= {"queue", "prefill", "transfer", "decode"}


def test_more_bars_than_fit_leave_out_transfers_then_ranks_and_say_so(result):
    """Transfers of some ranks go first, then ranks; the first and the last stay, and a sentence says so."""
    whole = lanes_of(result)
    half, few = lanes_of(result, most=whole.count // 2), lanes_of(result, most=10)
    assert not whole.left_out
    assert half.left_out == "communication is shown of 1 of 4 ranks"
    assert {"pp 0", "pp 1", "pp 2", "pp 3", "pp 0 tp"} <= set(half.names)
    assert few.left_out.startswith("2 of 4 ranks are shown")
    assert few.names[0] == "pp 0"
    assert few.names[-1] == "pp 3"


def test_exposed_bars_sum_to_the_account(result):
    """Hatched bars of an axis sum to what the account says is exposed, to a nanosecond a bar."""
    lanes = lanes_of(result)
    event, length = (_column(lanes, name) for name in ("event", "length"))
    for axis in ("tp", "pp", "dp"):
        mine = event == lanes.events.index(f"exposed {axis}")
        mean = length[mine].sum() * lanes.unit_s / 4
        expected = result.summary["breakdown_s"][f"exposed_{axis}"]
        assert mean == pytest.approx(expected, abs=lanes.unit_s * max(1, mine.sum()))


def test_settings_are_told_apart_by_who_made_them(result):
    """What was written is not called assumed, and what was left open is."""
    (section,) = [
        each for each in report([result])["parts"][0]["sections"] if each["id"] == "assumed"
    ]
    left_open, _, written = (
        {row[0]: row[1] for row in block["rows"]} for block in section["blocks"]
    )
    assert written["parallelism.tp"] == "2"
    assert left_open["parallelism.cp"] == "1"
    assert not set(written) & set(left_open)


def test_what_a_framework_settles_is_of_its_preset(result):
    """The sharding of FSDP is told as the preset's, not as a default of ours."""
    data = {**result.scenario.source.data, "framework": "torch-fsdp2", "parallelism": {"tp": 2}}
    shards = page_of(mpsim.simulate(Scenario.from_mapping(data)), whole=False)
    (section,) = [each for each in shards["sections"] if each["id"] == "assumed"]
    origins = {row[0]: row[1:] for row in section["blocks"][1]["rows"]}
    assert origins["parallelism.zero"] == ["3", "preset torch-fsdp2"]


def test_quick_pages_leave_out_what_takes_long(result):
    """An answer to a slider has no timeline and no sensitivity, and the same headline."""
    quick, whole = page_of(result, whole=False), page_of(result)
    later = {"timeline", "bubbles", "memory-over-time", "kernels", "links", "sensitivity"}
    assert later == {each["id"] for each in whole["sections"]} - {
        each["id"] for each in quick["sections"]
    }
    assert quick["summary"] == whole["summary"]


def test_charts_are_there_without_a_script(result, service):
    """Every chart of the document is a drawing in the page, and every headline figure stands there, to the last digit."""
    document = report([result, service])
    skeleton = Skeleton(page(document))
    kinds = ("bars", "lines", "heat", "timeline")
    charts = [block for block in _blocks(document["parts"]) if block["block"] in kinds]
    drawn = [attrs for tag, attrs in skeleton.tags if tag == "svg" and "data-frame" in attrs]
    assert len(drawn) == len(charts) > 15
    for attrs, chart in zip(drawn, charts, strict=True):
        assert attrs["aria-label"] == f"{chart['title']}. {chart['alt']}"
    shown = {a["data-key"]: a["data-value"] for _, a in skeleton.tags if "data-key" in a}
    assert float(shown["step_time_s"]) == result.summary["step_time_s"]
    assert float(shown["ttft_s.p99"]) == service.summary["ttft_s"]["p99"]


def test_numbers_of_tables_are_those_of_their_charts(result):
    """The table under the parts of the step holds each number of the document, to the last digit."""
    document = report([result])
    bars = next(block for block in _blocks(document["parts"]) if block["block"] == "bars")
    skeleton = Skeleton(page(document))
    shown = [
        float(a["data-value"]) for tag, a in skeleton.tags if tag == "td" and "data-value" in a
    ]
    whole = np.array([part["values"] for part in bars["parts"]]).T.ravel()
    assert shown[: len(whole)] == pytest.approx(whole.tolist(), rel=0, abs=0)


def test_a_chart_comes_back_from_plain_data(result, service):
    """Whatever a page draws is in its document: a chart made of plain data is drawn as the first was."""
    for block in _blocks(report([result, service])["parts"]):
        if block["block"] in ("bars", "lines", "heat"):
            assert plain(chart_of(block)) == block


def test_what_if_answers_are_those_of_single_runs(result):
    """Every combination under the sliders has the figures that the same scenario gives by itself, digit for digit."""
    scenario = _small()
    values = {"parallelism.tp": [1, 2, 3], "cluster.nic.bandwidth": ["100 Gb/s", "200 Gb/s"]}
    page_data = report([result], sweeps=[(scenario, mpsim.sweep(scenario, values))])
    (choices,) = [block for section in page_data["shared"] for block in section["blocks"]]
    assert [slider["key"] for slider in choices["sliders"]] == list(values)
    assert [slider["values"][slider["start"]] for slider in choices["sliders"]] == ["2", "200 Gb/s"]
    assert len(choices["answers"]) == 6
    for answer in choices["answers"]:
        chosen = {
            key: each[place]
            for (key, each), place in zip(values.items(), answer["places"], strict=True)
        }
        if chosen["parallelism.tp"] == 3:
            assert answer["summary"] is None
            assert answer["reason"]
            continue
        alone = json.loads(mpsim.simulate(scenario.with_values(chosen)).to_json())
        for key, value in answer["summary"].items():
            if key != "interval":
                assert value == alone[key], key


def test_too_many_combinations_are_refused(result):
    """A page does not hold more answers than it can, and says so before anything is written."""
    rows = [({"parallelism.tp": n}, dict(result.summary), "") for n in range(2001)]
    with pytest.raises(ScenarioError, match="at most 2,000"):
        what_if(rows, lead="")


def test_a_search_shows_its_front_and_best(result):
    """The page of a search has the layouts of its JSON: names, step times, memory, what became of the others."""
    found = mpsim.search(_small(), {"parallelism.tp": [1, 2], "parallelism.cp": [1]}, top=3)
    data = json.loads(json.dumps(found.to_json()))
    part = report([data])["parts"][0]
    blocks = {block["block"]: block for block in _blocks([part])}
    _, front, leaders = blocks["lines"]["series"]
    assert leaders["labels"] == [row.name for row in found.leaders]
    assert leaders["x"] == [row.step_time_s for row in found.leaders]
    assert leaders["y"] == [row.memory_bytes for row in found.leaders]
    assert len(front["x"]) == len(found.front)
    answers = blocks["choices"]["answers"]
    assert [answer["summary"]["step_time_s"] for answer in answers] == [
        row.step_time_s for row in found.leaders
    ]


def test_a_sweep_shows_its_rows_and_reasons():
    """The page of a sweep has each row's figures and reason, and sliders over the same rows."""
    swept = mpsim.sweep(_small(), {"parallelism.tp": [1, 2, 3]})
    data = json.loads(json.dumps(swept.to_json()))
    part = report([data])["parts"][0]
    blocks = {block["block"]: block for block in _blocks([part])}
    table = blocks["table"]["rows"]
    assert [row[1] for row in table[:2]] == [row.summary["step_time_s"] for row in swept.rows[:2]]
    assert table[2][-1] == swept.rows[2].reason
    assert [answer["summary"] is None for answer in blocks["choices"]["answers"]] == [
        False,
        False,
        True,
    ]


def test_a_search_for_services_shows_the_best(scenarios):
    """The page of a search for services has the figures of its JSON, and sliders over the services it kept."""
    scenario = mpsim.load(
        scenarios / "serving" / "llama3-8b-h100.yaml", set=["serving.workload.requests=20"]
    )
    found = search(scenario, {"parallelism.tp": [1, 2]}, top=2)
    data = json.loads(json.dumps(found.to_json()))
    blocks = _blocks(report([data])["parts"])
    best = next(block for block in blocks if block.get("title") == "The best")
    each = [row[4] for row in best["rows"]]
    assert each == [row.summary["output_tokens_per_s_per_accelerator"] for row in found.leaders]


@pytest.mark.parametrize("spoil", ["rows", "front", "counts"])
def test_what_is_no_search_is_refused(spoil):
    """An object that lacks what a search has is refused, and so is a study whose rows are none."""
    data = {
        "scenario": "x",
        "objective": "time",
        "rows": [{}],
        "front": [],
        "counts": {},
        "legal": 0,
        "complete": True,
    }
    del data[spoil]
    with pytest.raises(ScenarioError, match="no study"):
        report([data])
    with pytest.raises(ScenarioError, match="a row of the"):
        report(
            [{"scenario": "x", "keys": [], "ties": [], "rows": [{"values": 3, "summary": None}]}]
        )


def test_bubble_by_cause_sums_to_the_bubble(result):
    """The line at the mean rank is the part of the account that is the bubble, and so is the mean of the bars."""
    bars = next(
        block
        for block in _blocks(report([result])["parts"])
        if block.get("title") == "Bubble by cause"
    )
    share = result.summary["breakdown_s"]["bubble"] / result.summary["step_time_s"]
    assert bars["limits"][0]["value"] == pytest.approx(share, rel=1e-6)
    whole = np.sum([part["values"] for part in bars["parts"]], axis=0)
    sizes = result.program.class_size
    assert whole @ sizes / sizes.sum() == pytest.approx(share, rel=1e-6)


def test_variation_is_shown_where_it_is_given():
    """Percentiles of the drawn steps are those of the summary; without a variation there is no such section."""
    varied = mpsim.simulate(
        _small(variation={"samples": 20, "jitter": 0.05, "slow": [{"ranks": [0], "speed": 0.9}]})
    )
    (section,) = [
        each for each in report([varied])["parts"][0]["sections"] if each["id"] == "variation"
    ]
    expected = varied.summary["variation"]["percentiles"]
    assert [row[1] for row in section["blocks"][0]["rows"]] == [
        each["seconds"] for each in expected
    ]


def test_no_kernel_is_over_the_roof(result):
    """Each point of the roofline is under the line of its precision or of memory."""
    (block,) = [b for b in _blocks(report([result])["parts"]) if b.get("title") == "Roofline"]
    tops = [np.array([s["x"], s["y"]]) for s in block["series"] if "mark" not in s]
    points = [(s["x"], s["y"]) for s in block["series"] if "mark" in s]
    assert tops
    for x, y in np.concatenate(points, axis=1).T:
        assert y <= 1.001 * max(np.interp(x, *top) for top in tops)


@pytest.mark.parametrize(
    ("given", "held"),
    [
        (np.array([1 / 3, 1e-30, 0.0]), [0.3333333, 1e-30, 0.0]),
        (np.array([np.nan, 1.0, np.inf]), [None, 1.0, None]),
        (np.array([[1, 2], [3, 4]]), [[1, 2], [3, 4]]),
        (np.array([[0.5], [np.nan]]), [[0.5], [None]]),
        (np.array([True]), [True]),
        (np.array([]), []),
        ((float("inf"), 1 / 3, "a", None), [None, 1 / 3, "a", None]),
    ],
)
def test_numbers_of_charts_are_plain_data(given, held):
    """Arrays are lists of seven digits; what is not finite is none; single numbers keep all digits."""
    assert plain(given) == held
