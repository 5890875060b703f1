"""Pages in a real browser: what it shows is what the JSON says, it asks nobody, and it complains of nothing."""

from __future__ import annotations

import itertools
import json
import threading

import pytest

import mpsim
from mpsim.report import page, report
from mpsim.report.explorer import Explorer, Server
from mpsim.serving import make_service, run_service
from tests.browser.browser import Browser, browser

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def pages(tmp_path_factory, scenarios):
    """A folder with a page of one step, of two steps and of a service."""
    folder = tmp_path_factory.mktemp("pages")
    quick = mpsim.load(scenarios / "quickstart.yaml")
    steps = [mpsim.simulate(quick), mpsim.simulate(quick.with_values({"training.micro_batch": 2}))]
    served = mpsim.load(scenarios / "serving" / "llama3-8b-h100.yaml")
    documents = {
        "step": report(steps[:1]),
        "pair": report(steps),
        "service": report([run_service(served, make_service(served))]),
    }
    for name, document in documents.items():
        (folder / f"{name}.html").write_text(page(document), encoding="utf-8")
    return folder, documents


@pytest.fixture(scope="module")
def window():
    """A headless browser."""
    with browser() as driver:
        yield Browser(driver)


@pytest.mark.parametrize("name", ["step", "pair", "service"])
def test_the_page_draws_itself_without_a_complaint(pages, window, name):
    """Every figure is drawn, the console holds no error, and nothing was asked of anybody."""
    folder, documents = pages
    window.open((folder / f"{name}.html").as_uri())
    blocks = [
        block["block"]
        for part in [*documents[name]["parts"], {"sections": documents[name]["shared"]}]
        for section in part["sections"]
        for block in section["blocks"]
    ]
    charts = sum(block in ("bars", "lines", "heat") for block in blocks)
    drawings = window.run(
        "return [...document.querySelectorAll('.plot > svg')].map((svg) => svg.querySelector('.area').getBBox().width)"
    )
    assert len(drawings) == charts
    assert min(drawings) > 100
    assert window.run("return document.querySelectorAll('canvas').length") == blocks.count(
        "timeline"
    )
    assert window.complaints() == []
    assert window.requests() == []


@pytest.mark.parametrize("name", ["step", "pair", "service"])
def test_numbers_on_the_page_are_those_of_the_json(pages, window, name):
    """Each headline figure that the page shows is the number of ``run --json``, to the last digit."""
    folder, documents = pages
    window.open((folder / f"{name}.html").as_uri())
    shown = window.run(
        "return [...document.querySelectorAll('article')].map((part) =>"
        " [...part.querySelectorAll('[data-key]')].map((node) => [node.dataset.key, node.dataset.value, node.textContent]))"
    )
    assert len(shown) == len(documents[name]["parts"])
    for figures, part in zip(shown, documents[name]["parts"], strict=True):
        assert len(figures) > 5
        for key, value, text in figures:
            number = part["summary"]
            for word in key.split("."):
                number = number[word]
            assert float(value) == number, key
            assert text


def test_the_timeline_zooms_and_answers_keys(pages, window):
    """Keys step through bars and say which; zooming shows less time and draws bars one by one."""
    folder, _documents = pages
    window.open((folder / "step.html").as_uri())
    window.run("document.querySelector('.lanes').focus()")
    window.press("ArrowRight")
    first = window.text(".readout")
    assert " from " in first
    window.press("ArrowRight")
    assert window.text(".readout") != first
    before = window.run("return TIMELINES[0].to - TIMELINES[0].from")
    for _ in range(6):
        window.press("+")
    window.settle()
    assert window.run("return TIMELINES[0].to - TIMELINES[0].from") < before / 100
    assert window.run("return TIMELINES[0].drawn") == "bars"
    window.press("Home")
    window.settle()
    assert window.run("return TIMELINES[0].to - TIMELINES[0].from") == before
    assert window.complaints() == []


def test_pointing_at_a_chart_says_its_numbers(pages, window):
    """The pointer over a bar shows its name and number; a drag over a line zooms, a double click shows all again."""
    folder, _documents = pages
    window.open((folder / "step.html").as_uri())
    point = (
        "const svg = document.querySelector(arguments[0] + ' .plot > svg'), area = svg.querySelector('.area').getBoundingClientRect();"
        "const to = (type, share) => svg.dispatchEvent(new PointerEvent(type, { bubbles: true, pointerType: 'mouse',"
        " clientX: area.left + share * area.width, clientY: area.top + 10 }));"
    )
    window.run(f"{point} to('pointermove', 0.05)", "figure.bars")
    assert "mean\nforward" in window.text("figure.bars .tip")
    view = "return document.querySelector('figure.lines .area').getAttribute('viewBox')"
    before = window.run(f"{view}")
    window.run(
        f"{point} to('pointerdown', 0.2); to('pointermove', 0.4); to('pointerup', 0.4)",
        "figure.lines",
    )
    assert window.run(f"{view}") != before
    window.run(
        "document.querySelector('figure.lines svg').dispatchEvent(new MouseEvent('dblclick'))"
    )
    again = [float(number) for number in window.run(f"{view}").split()]
    assert again == pytest.approx([float(number) for number in before.split()])
    assert window.complaints() == []


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_has_contrast(pages, window, theme):
    """Text stands out from what is behind it by 4.5 to 1 or more (WCAG 2, AA), light and dark."""
    folder, _ = pages
    window.open((folder / "step.html").as_uri(), theme=theme)
    ratios = window.contrasts("h1, h2, h3, p, dt, dd, a, summary, button, td, th, li")
    assert ratios
    assert min(ratios.values()) >= 4.5, sorted(ratios.items(), key=lambda item: item[1])[:3]


def test_a_phone_scrolls_in_one_direction(pages, window):
    """On a screen of 390 pixels nothing of the page is wider than the screen."""
    folder, _ = pages
    for name in ("step", "pair", "service"):
        window.open((folder / f"{name}.html").as_uri(), width=390)
        assert window.run("return document.documentElement.scrollWidth") <= 390, name


def test_everything_has_a_name(pages, window):
    """Buttons, figures, regions and tables say what they are to those who do not see them."""
    folder, _ = pages
    window.open((folder / "step.html").as_uri())
    unnamed = window.run(
        "return [...document.querySelectorAll('button, [role], table')].filter((node) =>"
        " !(node.getAttribute('aria-label') || node.textContent.trim())).map((node) => node.outerHTML.slice(0, 80))"
    )
    assert unnamed == []
    assert window.run("return document.documentElement.lang") == "en"
    levels = window.run(
        "return [...document.querySelectorAll('h1,h2,h3')].map((node) => Number(node.tagName[1]))"
    )
    assert levels[0] == 1
    assert all(after - before <= 1 for before, after in itertools.pairwise(levels))


def test_a_hostile_name_runs_nothing(tmp_path, window, scenarios):
    """A name made of tags and markup is shown as it is."""
    evil = (
        "</script><script>window.hacked=1</script><img src=x onerror='window.hacked=1'><b>bold</b>"
    )
    scenario = mpsim.load(scenarios / "quickstart.yaml", set=[f"name={json.dumps(evil)}"])
    file = tmp_path / "evil.html"
    file.write_text(page(report([mpsim.simulate(scenario)])), encoding="utf-8")
    window.open(file.as_uri())
    assert window.text("#title") == evil
    assert window.run("return window.hacked === undefined")
    assert window.run("return document.querySelectorAll('main img, main b').length") == 0
    assert window.complaints() == []


def test_a_hundred_thousand_bars_are_drawn_within_the_pixels_of_a_screen(tmp_path, window):
    """However many bars a timeline has, what is drawn at once is bounded."""
    scenario = mpsim.Scenario.from_mapping(
        {
            "schema": 1,
            "name": "many",
            "model": {"layers": 32, "hidden": 1024, "heads": 16, "vocab": 32000},
            "cluster": {"preset": "dgx-a100-80gb", "nodes": 4},
            "parallelism": {"pp": 32},
            "schedule": "1f1b",
            "training": {"global_batch": 1024, "sequence_length": 1024},
        }
    )
    result = mpsim.simulate(scenario)
    text = page(report([result]))
    assert len(text.encode()) < 5_000_000
    file = tmp_path / "many.html"
    file.write_text(text, encoding="utf-8")
    window.open(file.as_uri())
    assert window.run("return TIMELINES[0].block.count") > 100_000
    assert window.run("return TIMELINES[0].drawn") == "cells"
    window.run("TIMELINES[0].show(TIMELINES[0].end * 0.5, TIMELINES[0].end * 0.5002)")
    window.settle()
    assert window.run("return TIMELINES[0].drawn") == "bars"
    assert 0 < window.run("return TIMELINES[0].visible()[1]") <= 2500
    assert window.complaints() == []


@pytest.fixture
def explored(scenarios):
    """An explorer of GPT-3 at work."""
    explorer = Explorer(mpsim.load(scenarios / "gpt3-175b-a100.yaml"))
    with Server(explorer) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def _move(window, key, value):
    """Move a setting as a hand would, and wait for the answer."""
    before = window.run("return document.documentElement.dataset.answered || '0'")
    window.run(
        "const node = document.querySelector(`#settings [data-key='${arguments[0]}']`);"
        "const own = DOCUMENT.live.sliders.find((slider) => slider.key === arguments[0]);"
        "node.value = String(own.values.indexOf(arguments[1])); node.dispatchEvent(new Event('input'));",
        *(key, value),
    )
    window.wait(f"return (document.documentElement.dataset.answered || '0') !== '{before}'")
    window.settle()


def test_the_explorer_shows_what_run_prints(explored, window, scenarios):
    """Moved settings show the figures of ``run --json`` with the same ``--set``; only the explorer itself is asked."""
    window.open(explored.address)
    _move(window, "parallelism.pp", "8")
    _move(window, "cluster.nic.bandwidth", "50 GB/s")
    values = {"parallelism.pp": 8, "cluster.nic.bandwidth": "50 GB/s", "parallelism.dp": None}
    alone = mpsim.simulate(mpsim.load(scenarios / "gpt3-175b-a100.yaml").with_values(values))
    shown = window.run("return document.querySelector('[data-key=step_time_s]').dataset.value")
    assert float(shown) == alone.summary["step_time_s"]
    asked = {url.removeprefix(explored.address) for url in window.requests()}
    assert asked == {"answer"}
    assert window.complaints() == []


def test_settings_that_do_not_go_together_are_told_on_the_page(explored, window):
    """The page keeps what it showed and says what is wrong."""
    window.open(explored.address)
    shown = window.text("[data-key=step_time_s]")
    _move(window, "parallelism.tp", "512")
    assert "parallelism" in window.text("#settings .warning")
    assert window.text("[data-key=step_time_s]") == shown
    assert window.complaints() == []


def test_sliders_of_a_report_give_the_answers_of_single_runs(tmp_path, window, scenarios):
    """What-if: each place of a slider shows what the command line prints for it."""
    scenario = mpsim.load(scenarios / "quickstart.yaml")
    swept = mpsim.sweep(scenario, {"parallelism.tp": [1, 2, 4], "training.micro_batch": [1, 2]})
    text = page(report([mpsim.simulate(scenario)], sweeps=[(scenario, swept)]))
    file = tmp_path / "what-if.html"
    file.write_text(text, encoding="utf-8")
    window.open(file.as_uri())
    for place, tp in enumerate([1, 2, 4]):
        window.run(
            "const node = document.querySelector(`.choices [data-key='parallelism.tp']`);"
            "node.value = String(arguments[0]); node.dispatchEvent(new Event('input'));",
            place,
        )
        shown = window.run(
            "return document.querySelector('.choices dd[data-key=step_time_s]').dataset.value"
        )
        alone = mpsim.simulate(scenario.with_values({"parallelism.tp": tp}))
        assert float(shown) == alone.summary["step_time_s"]
    assert window.complaints() == []


def test_the_policy_holds(pages, window):
    """What the page forbids itself is refused by the browser: requests and other scripts; the tests above would see both."""
    folder, _ = pages
    window.open((folder / "step.html").as_uri())
    asked = window.run(
        "return fetch('http://127.0.0.1:9/').then(() => 'answered', (error) => error.name)"
    )
    assert asked == "TypeError"
    window.run("document.body.append(make('img', { src: 'http://127.0.0.1:9/picture.png' }))")
    window.run(
        "const node = document.createElement('script'); node.textContent = 'window.other = 1'; document.body.append(node)"
    )
    assert window.run("return window.other === undefined")
    told = window.complaints()
    assert sum("Content Security Policy" in line for line in told) >= 3, told
    assert window.requests() == ["http://127.0.0.1:9/picture.png"]  # tried, and blocked
