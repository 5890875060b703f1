"""``mpsim compare``: two results side by side."""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from mpsim.cli.console import print_answer, print_json, print_sheet, print_text, wrote
from mpsim.cli.options import AsJson, Plot, Reading, count, keys, pairs, wrong
from mpsim.errors import CalibrationError, FormatError, MpsimError, Problem, ScenarioError
from mpsim.inputs import DOCUMENT, parse_json, read_text, shown
from mpsim.stamp import stamp

if TYPE_CHECKING:
    from mpsim.result import Result
    from mpsim.serving import ServiceResult


def compare(
    a: Annotated[Path, Argument(metavar="A")],
    b: Annotated[list[Path] | None, Argument(metavar="B")] = None,
    vs: Annotated[list[str] | None, Option(autocompletion=keys)] = None,
    tokens: Annotated[float | None, Option(parser=count)] = None,
    *,
    reading: Reading,
    plot: Plot = None,
    as_json: AsJson = False,
) -> None:
    """Compare results, or a recorded step with the simulated one: what explains the difference.

    A: Scenario (.yaml), or a stored result (.json).
    B: Scenarios or results to compare with A; or recordings of the step, one file per rank or a
        folder of them.
    --vs KEY=VALUE: Compare A with itself under these values instead of a second file, e.g.
        cluster.nic.bandwidth='200 Gb/s'; repeatable.
    --tokens COUNT: Plan training on this many tokens with each, e.g. 1T, and compare the plans too.
    """
    from mpsim.archive import is_archive
    from mpsim.study import compare as compare_results

    others = b or []
    pairs(vs, option="--vs", needed="KEY=VALUE")  # one value a key: a second one would win unsaid
    if any(map(_is_recording, others)):
        if vs:
            raise wrong("a recording is set beside one scenario; change that with --set", "--vs")
        _beside_recording(a, others, reading, plot, as_json=as_json)
        return
    if not others and not vs:
        raise wrong("got one result; needed another one, or --vs KEY=VALUE", "B")
    if vs and (a.suffix == ".json" or is_archive(a)):
        raise wrong(f"{a} is a stored result, which nothing can change; give a scenario", "--vs")
    stored = [path.suffix == ".json" or is_archive(path) for path in (a, *others)]
    if (reading.sets or reading.overrides) and all(stored):
        raise wrong(
            "both are stored results, which nothing can change; leave it out, or give a scenario",
            "--set" if reading.sets else "--override",
        )
    first = _result(a, reading)
    sides = [_result(file, reading) for file in others]
    if vs:
        sides.append(_result(a, reading, *vs))
    comparisons = [compare_results(first, side, tokens=tokens) for side in sides]
    if as_json:
        told, *more = [comparison.to_json() for comparison in comparisons]
        print_json({**told, "others": more} if more else told)
    else:
        for number, comparison in enumerate(comparisons):
            if number:
                print_text("")
            print_sheet(comparison.sheet())
    if plot is not None:
        from mpsim.plot import comparison_chart

        words = ", ".join(comparison.variant.replace("\n", ", ") for comparison in comparisons)
        title = f"{comparisons[0].a} against {words}: parts of the step"
        wrote(comparison_chart(*comparisons).titled(title).save(plot))


def _is_recording(path: Path) -> bool:
    """Whether a file is a recording of a step, or a folder, which can hold nothing else here."""
    from mpsim.archive import is_archive
    from mpsim.formats.nsys import is_sqlite
    from mpsim.formats.registry import recognise

    if path.is_dir() or is_sqlite(path):
        return True
    if not path.is_file() or is_archive(path) or path.suffix in (".yaml", ".yml"):
        return False
    try:
        return recognise(path).name == "kineto"
    except MpsimError:
        return False


def _beside_recording(
    scenario: Path, recordings: list[Path], reading: Reading, plot: Path | None, *, as_json: bool
) -> None:
    """Set the recorded step beside the simulated one of the scenario."""
    from mpsim.formats.recorded_step import read_recordings, recorded_step
    from mpsim.simulate import simulate_step
    from mpsim.study.recorded import compare_recorded

    if scenario.suffix not in (".yaml", ".yml"):
        raise wrong("a recording is set beside a scenario; give its .yaml first", "A")
    loaded = reading.load(scenario)
    if loaded.serves:
        raise ScenarioError(f"{scenario}: serves; a recorded step is set beside a training step")
    try:
        recorded = recorded_step([item for path in recordings for item in read_recordings(path)])
    except CalibrationError as error:  # damaged files are bad input here
        raise FormatError(str(error)) from error
    comparison = compare_recorded(simulate_step(loaded), recorded)
    print_answer(comparison, as_json=as_json)
    if plot is not None:
        from mpsim.plot import timelines_chart

        titles = (f"simulated: {comparison.scenario}", f"recorded by {comparison.recording}")
        wrote(timelines_chart(titles, (comparison.simulated, comparison.recorded)).save(plot))


def _result(
    file: Path, reading: Reading, *changes: str
) -> Result | ServiceResult | Mapping[str, object]:
    """The summary that a result file holds, or the result of simulating a scenario file."""
    from mpsim.archive import Archive, is_archive

    if is_archive(file):
        with warnings.catch_warnings(record=True) as said:  # that another mpsim wrote it
            warnings.simplefilter("always")
            summary = Archive(file).of("Result").part("summary", dict)
        return _warned(_checked(file, summary), [str(warning.message) for warning in said])
    if file.suffix == ".json":
        return _stored(file)
    from mpsim.simulate import simulate

    return simulate(reading.load(file, *changes))


def _stored(file: Path) -> Mapping[str, object]:
    """The summary in a result file, checked."""
    text = read_text(file, needed="a result in JSON", error=ScenarioError, largest=DOCUMENT)
    try:
        stored = parse_json(text, file, error=ScenarioError)
    except ScenarioError:
        raise _no_result(file, "is not one JSON object") from None
    if not isinstance(stored, Mapping):
        raise _no_result(file, "is not a JSON object")
    inner, version = stored.get("summary"), stored.get("mpsim", stamp())
    summary = _checked(file, inner if isinstance(inner, Mapping) else stored)
    other = f"{file} is of mpsim {shown(version)}, this is {stamp()}: it is shown as it is there"
    return _warned(summary, [other] if version != stamp() else [])


def _warned(summary: Mapping[str, object], more: list[str]) -> Mapping[str, object]:
    """A summary with further warnings."""
    known = summary.get("warnings")
    return {**summary, "warnings": [*(known if isinstance(known, list) else ()), *more]}


def _checked(file: Path, summary: Mapping[str, object]) -> Mapping[str, object]:
    """A summary whose times are times."""
    from mpsim.study.comparison import needed_keys

    needed = needed_keys(summary)
    missing = [key for key in needed if key not in summary]
    if missing:
        raise _no_result(file, f"is not a result: it lacks {', '.join(missing)}")
    whole, account = needed[-3] if summary.get("job") == "serving" else needed[1], needed[-1]
    parts = summary[account]
    _check_time(file, whole, summary[whole], least=sys.float_info.min)
    if not isinstance(parts, Mapping):
        raise _no_result(
            file, f"got {str(parts)[:60]!r}; needed a mapping of parts to seconds", account
        )
    for name, time in parts.items():
        _check_time(file, f"{account}.{name}", time)
    return summary


def _check_time(file: Path, key: str, value: object, least: float = 0.0) -> None:
    if isinstance(value, bool) or not (isinstance(value, int | float) and math.isfinite(value)):
        raise _no_result(file, f"got {str(value)[:60]!r}; needed a number of seconds", key)
    if value < least:
        words = "more than 0" if least else "0 or more"
        raise _no_result(file, f"got {value:g}; needed {words} seconds", key)


def _no_result(file: Path, message: str, key: str = "") -> ScenarioError:
    mend = "give the object that 'mpsim run --json' printed for one scenario"
    return ScenarioError([Problem(f"{message}; {mend}", key=key, file=str(file))])
