"""The result of a service is saved, read again, drawn and compared as that of a step is."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import mpsim
from mpsim.result import JobResult
from mpsim.serving import ServiceResult

SCENARIO = Path(__file__).parents[3] / "scenarios" / "serving" / "llama3-8b-h100.yaml"


@pytest.fixture(scope="module")
def result() -> ServiceResult:
    """A service with a few requests."""
    scenario = mpsim.load(SCENARIO).with_values({"serving.workload.requests": 20})
    served = mpsim.simulate(scenario)
    assert isinstance(served, ServiceResult)
    return served


@pytest.fixture(scope="module")
def again(result: ServiceResult, tmp_path_factory: pytest.TempPathFactory) -> JobResult:
    """The same, through a file."""
    path = tmp_path_factory.mktemp("saved") / "service.mpsim"
    result.save(path)
    return mpsim.Result.load(path)


def test_a_saved_service_is_read_by_the_loader_of_every_result(result, again) -> None:
    """Figures, requests and iterations are those of the run."""
    assert isinstance(again, ServiceResult)
    assert isinstance(again, mpsim.Result)
    assert again.to_json() == result.to_json()
    assert again.scenario.digest == result.scenario.digest
    for name in ("arrival", "started", "first", "last"):
        assert np.array_equal(getattr(again.served, name), getattr(result.served, name))
    assert np.array_equal(again.requests.prompt, result.requests.prompt)


def test_what_was_read_is_worked_out_as_before(result, again) -> None:
    """The summary of an archive is that of the version that wrote it; here both are the same."""
    fresh = ServiceResult(again.scenario, again.plan, again.requests, again.served)
    assert fresh.to_json() == result.to_json()


def test_equal_services_are_equal_files(result, again, tmp_path) -> None:
    """An archive holds no moment and no path."""
    result.save(tmp_path / "a.mpsim")
    again.save(tmp_path / "b.mpsim")
    assert (tmp_path / "a.mpsim").read_bytes() == (tmp_path / "b.mpsim").read_bytes()


def test_a_service_that_was_read_draws_and_writes_its_trace(again, tmp_path) -> None:
    """The pictures need no simulation."""
    assert again.save_plots(tmp_path)
    again.write_trace(tmp_path / "trace.json")
    assert (tmp_path / "trace.json").stat().st_size > 0


def test_a_service_that_was_read_is_compared_with_another(result, again) -> None:
    """With itself nothing differs."""
    comparison = mpsim.compare(result, again)
    assert all(not part.difference for part in comparison.parts)


def test_the_report_of_a_saved_service_is_that_of_the_run(result, mpsim_cli, tmp_path) -> None:
    """`mpsim report` takes the archive in place of the scenario."""
    result.save(tmp_path / "service.mpsim")
    page = tmp_path / "page.html"
    mpsim_cli("report", str(tmp_path / "service.mpsim"), "-o", str(page))
    assert re.search("llama3-8b-h100", page.read_text("utf-8"))
