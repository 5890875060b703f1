"""``mpsim compare``: two results side by side."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mpsim.cli.options import AsJson, Overrides, Sets, load_scenario

if TYPE_CHECKING:
    from mpsim.study import Comparison

__all__ = ["compare"]


def compare(
    a: Annotated[Path, typer.Argument(help="Scenario (.yaml), or a stored result (.json).")],
    b: Annotated[Path, typer.Argument(help="What to set against it.")],
    sets: Sets = None,
    overrides: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Set two results side by side and say which part of the step explains the difference."""
    from mpsim.cli.console import print_json
    from mpsim.study import compare as compare_results

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
    if file.suffix == ".json":
        return _stored(file)
    from mpsim.result import simulate

    return simulate(load_scenario(file, sets=sets, overrides=overrides)).summary


def _stored(file: Path) -> Mapping[str, object]:
    import json

    from mpsim.errors import Problem, ScenarioError

    try:
        lines = [line for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
        stored = json.loads(lines[0]) if len(lines) == 1 else json.loads("\n".join(lines))
    except OSError as error:
        raise ScenarioError(
            [Problem(f"cannot be read: {error.strerror}", file=str(file))]
        ) from error
    except ValueError:
        mend = "give the object that 'mpsim run --json' printed for one scenario"
        raise ScenarioError([Problem(f"is not one JSON object; {mend}", file=str(file))]) from None
    if not isinstance(stored, Mapping):
        raise ScenarioError([Problem("is not a JSON object; give a result", file=str(file))])
    summary = stored.get("summary")
    return summary if isinstance(summary, Mapping) else stored


def _print(comparison: Comparison) -> None:
    from mpsim.cli.console import print_table, print_text

    rows = [
        (one.name, _figure(one.a), _figure(one.b), _figure(one.difference), _share(one.relative))
        for one in (*comparison.figures, *comparison.parts)
        if one.a or one.b
    ]
    header = ("", f"A: {comparison.a}", f"B: {comparison.b}", "B - A", "of A")
    print_table(rows, header=header, right=(1, 2, 3, 4))
    print_text(comparison.explanation)


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.5g}"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:+.1f} %"
