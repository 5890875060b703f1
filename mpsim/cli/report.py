"""``mpsim report``: results as one page that opens in any browser, offline."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

from typer import Option

from mpsim.cli.console import print_json, progress_bar, wrote
from mpsim.cli.options import AsJson, Reading, check_page, values_over, wrong
from mpsim.errors import Problem, ScenarioError
from mpsim.inputs import read_json
from mpsim.output import write_whole
from mpsim.shipped import say

if TYPE_CHECKING:
    from mpsim.report import AnyResult
    from mpsim.scenario import Scenario
    from mpsim.study import Sweep


def report(
    files: list[Path],
    output: Annotated[Path, Option(callback=check_page)] = Path("report.html"),
    title: str = "",
    what_if: list[str] | None = None,
    *,
    reading: Reading,
    as_json: AsJson = False,
) -> None:
    """Write results as one page: where time goes, timeline, memory, links, what was assumed.

    The page needs no network and asks for nothing. With --json its document goes to stdout, too.

    FILES: Scenarios (.yaml), saved results, or what search, sweep or design printed with --json
        (.json); several are set side by side.
    --output -o: Page to write.
    --title: Title of the page; left out: the names of the scenarios.
    --what-if KEY=A,B,C: Values that sliders on the page choose among, every combination simulated;
        repeatable.
    """
    from mpsim.report import page
    from mpsim.report import report as document_of

    results = [_result(file, reading) for file in files]
    sweeps = [_sweep(results, what_if)] if what_if else []
    document = document_of(results, title=title, sweeps=sweeps)
    write_whole(output, page(document))
    wrote(output)
    if as_json:
        print_json(document, stamped=False)


def _result(file: Path, reading: Reading) -> AnyResult | Mapping[str, object]:
    """The result or search that a file holds, or that simulating a scenario file gives."""
    from mpsim.archive import is_archive
    from mpsim.result import Result
    from mpsim.simulate import simulate

    if is_archive(file):
        return cast("AnyResult", Result.load(file))
    if file.suffix == ".json":
        return _stored(file)
    return simulate(reading.load(file))


def _stored(file: Path) -> Mapping[str, object]:
    """The study that a file holds."""
    from mpsim.report import is_study

    data = read_json(
        file,
        needed="what 'mpsim search --json', 'mpsim sweep --json' or 'mpsim design --json' printed",
        error=ScenarioError,
    )
    if not isinstance(data, Mapping) or not is_study(data):
        problem = say("cli.no_study")
        raise ScenarioError([Problem(problem, file=str(file))])
    return data


def _sweep(
    results: list[AnyResult | Mapping[str, object]], what_if: list[str]
) -> tuple[Scenario, Sweep]:
    """The first scenario at every combination of the values of the sliders."""
    from mpsim.study import sweep

    scenario = next((each.scenario for each in results if not isinstance(each, Mapping)), None)
    if scenario is None:
        raise wrong("varies a scenario, and there is none", "--what-if")
    values = values_over(scenario, what_if, option="--what-if")
    with progress_bar(scenario.name) as progress:
        return scenario, sweep(scenario, values, progress=progress)
