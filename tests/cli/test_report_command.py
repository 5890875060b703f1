"""``mpsim report``: the file it writes, what it prints, and what it refuses."""

import json
import re

import pytest

import mpsim


def _document(path):
    text = path.read_text(encoding="utf-8")
    data = re.search(
        r'<script type="application/json" id="document">(.*?)</script>', text, re.DOTALL
    )
    return json.loads(data.group(1))


def test_the_page_holds_what_run_prints(mpsim_cli, scenarios, tmp_path):
    """``report`` and ``run --json`` of the same file say the same, and stdout stays free."""
    file = tmp_path / "page.html"
    made = mpsim_cli(
        "report", scenarios / "quickstart.yaml", "-o", file, "--set", "training.micro_batch=2"
    )
    assert (made.code, made.out) == (0, "")
    assert made.err == f"wrote {file}\n"
    ran = mpsim_cli(
        "run", scenarios / "quickstart.yaml", "--json", "--set", "training.micro_batch=2"
    ).json()
    del ran["mpsim"]
    assert _document(file)["parts"][0]["summary"] == ran


def test_json_is_the_document_of_the_page(mpsim_cli, scenarios, tmp_path):
    """``--json`` prints the document that the page holds."""
    file = tmp_path / "page.html"
    made = mpsim_cli("report", scenarios / "quickstart.yaml", "-o", file, "--json")
    assert made.json() == _document(file)


def test_a_saved_result_is_shown_as_it_was_saved(mpsim_cli, scenarios, tmp_path):
    """An archive needs no scenario and is not simulated again."""
    result = mpsim.simulate(mpsim.load(scenarios / "quickstart.yaml"))
    result.save(tmp_path / "saved.mpsim")
    made = mpsim_cli("report", tmp_path / "saved.mpsim", "-o", tmp_path / "page.html")
    assert made.code == 0
    assert _document(tmp_path / "page.html")["parts"][0]["summary"] == json.loads(result.to_json())


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["-o", "page.txt"], "needed a name that ends in .html or .htm"),
        (["-o", "nowhere/page.html"], "there is no folder 'nowhere'"),
        (["-o", "page.html", "--set", "parallelism.tp=7"], "parallelism"),
    ],
)
def test_a_mistake_writes_nothing(mpsim_cli, scenarios, tmp_path, monkeypatch, arguments, told):
    """A name that is no page's, a folder that is not there, a scenario that is wrong: exit code 2 and no file."""
    monkeypatch.chdir(tmp_path)
    made = mpsim_cli("report", scenarios / "quickstart.yaml", *arguments)
    assert made.code == 2
    assert told in made.err
    assert not list(tmp_path.iterdir())
