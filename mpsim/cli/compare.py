"""``mpsim compare``: two results side by side."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mpsim.cli.options import AsJson, Overrides, Sets, load_scenario

if TYPE_CHECKING:
    from mpsim.errors import ScenarioError
    from mpsim.study import Comparison

__all__ = ["compare"]


def compare(
    a: Annotated[
        Path, typer.Argument(metavar="A", help="Scenario (.yaml), or a stored result (.json).")
    ],
    b: Annotated[Path, typer.Argument(metavar="B", help="What to set against it.")],
    sets: Sets = None,
    overrides: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Set two results side by side and say which part of the step explains the difference."""
    from mpsim.archive import is_archive
    from mpsim.cli.console import print_json
    from mpsim.study import compare as compare_results

    if (sets or overrides) and all(path.suffix == ".json" or is_archive(path) for path in (a, b)):
        raise typer.BadParameter(
            "both are stored results, which nothing can change; leave it out, or give a scenario",
            param_hint="--set" if sets else "--override",
        )
    first, second = (_result(file, sets, overrides) for file in (a, b))
    comparison = compare_results(first, second)
    if as_json:
        print_json(comparison.to_json())
    else:
        _print(comparison)


def _result(
    file: Path, sets: list[str] | None, overrides: list[str] | None
) -> Mapping[str, object]:
    """The summary that a result file holds, or that simulating a scenario file gives."""
    from mpsim.archive import Archive, is_archive

    if is_archive(file):
        summary: Any = Archive(file).of("Result").part("summary", object)
        return _checked(file, summary)
    if file.suffix == ".json":
        return _stored(file)
    from mpsim.simulate import simulate

    return simulate(load_scenario(file, sets=sets, overrides=overrides)).summary


def _stored(file: Path) -> Mapping[str, object]:
    """The summary in a result file, checked."""
    import json

    try:
        lines = [line for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
        stored = json.loads(lines[0]) if len(lines) == 1 else json.loads("\n".join(lines))
    except OSError as error:
        raise _no_result(file, f"cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError):
        raise _no_result(file, "is not one JSON object") from None
    if not isinstance(stored, Mapping):
        raise _no_result(file, "is not a JSON object")
    inner = stored.get("summary")
    return _checked(file, inner if isinstance(inner, Mapping) else stored)


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
    from mpsim.errors import Problem, ScenarioError

    mend = "give the object that 'mpsim run --json' printed for one scenario"
    return ScenarioError([Problem(f"{message}; {mend}", key=key, file=str(file))])


def _print(comparison: Comparison) -> None:
    from mpsim.cli.console import print_table, print_text

    rows = [
        (
            figure.name,
            _figure(figure.a),
            _figure(figure.b),
            _figure(figure.difference),
            _share(figure.relative),
            _range(figure.intervals, 0),
            _range(figure.intervals, 1),
        )
        for figure in (*comparison.figures, *comparison.parts)
        if figure.a or figure.b
    ]
    header = (
        "",
        f"A: {comparison.a}",
        f"B: {comparison.b}",
        "B - A",
        "of A",
        "80 % of A",
        "80 % of B",
    )
    print_table(rows, header=header, right=(1, 2, 3, 4, 5, 6))
    print_text(comparison.explanation)


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.5g}"


def _range(intervals: tuple[Sequence[float], Sequence[float]] | None, place: int) -> str:
    return "" if intervals is None else " - ".join(map(_figure, intervals[place]))


def _share(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:+.1f} %"
