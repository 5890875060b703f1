"""Importers against samples of every format: what must come out of each stands in ``samples/expected.json``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mpsim.formats import Imported
from mpsim.formats import registry as formats
from mpsim.formats.ledger import flat

SAMPLES = Path(__file__).parent / "samples"
EXPECTED = json.loads((SAMPLES / "expected.json").read_text())
RECORDINGS = ("kineto", "hlo", "chakra")
"""Formats of recordings and programs, which test_recordings.py looks at."""
CASES = {name: case for name, case in EXPECTED.items() if case["format"] not in RECORDINGS}


def options(case):
    """Options of the command that a case needs, as keywords of `read`."""
    given = case.get("options", [])
    words = dict(zip(given[::2], given[1::2], strict=True))
    ranks = {"ranks": int(words["--ranks"])} if "--ranks" in words else {}
    return ranks | ({"cluster": words["--cluster"]} if "--cluster" in words else {})


def dotted(data, key):
    """Value of a dotted key; None where it is absent."""
    for part in key.split("."):
        data = data.get(part) if isinstance(data, dict) else None
    return data


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("how", ["named", "auto"])
def test_every_sample_says_what_it_must(name, how):
    """Exact counts of parameters, keys of the scenario, rows of benchmarks."""
    case = CASES[name]
    format_ = case["format"] if how == "named" else "auto"
    read = formats.read(SAMPLES / name, format=format_, **options(case))
    if isinstance(read, Imported):
        assert read.model_parameters == case.get("parameters", read.model_parameters)
        scenario = (
            {"model.preset": dotted(read.scenario, "model")}
            if isinstance(read.scenario.get("model"), str)
            else {}
        )
        for key, value in case.get("scenario", {}).items():
            assert scenario.get(key) == value or dotted(read.scenario, key) == value, key
    else:
        assert len(read.rows) == case["points"]
        row = dict(case.get("point", {"row": 0}))
        number = row.pop("row")
        assert {key: read.rows[number][key] for key in row} == row


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if "points" not in case])
def test_every_key_is_in_exactly_one_list(name):
    """Nothing of a file is dropped in silence, and nothing is told twice."""
    read = formats.read(SAMPLES / name, **options(CASES[name]))
    mapped = {item.source for item in read.mapped}
    assert mapped.isdisjoint(read.ignored)
    if name.endswith(".json"):
        assert mapped | set(read.ignored) == flat(json.loads((SAMPLES / name).read_text())).keys()


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if "points" not in case])
def test_what_is_written_is_read_back(name, tmp_path):
    """The commented YAML holds the scenario that was imported."""
    from mpsim.document import read_document
    from mpsim.formats.scenarios import written

    read = formats.read(SAMPLES / name, **options(CASES[name]))
    out = tmp_path / "out.yaml"
    out.write_text(written(read))
    plain = json.loads(json.dumps(read.scenario))
    assert read_document(out).data == {"schema": 1, **plain}
