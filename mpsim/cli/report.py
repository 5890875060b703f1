"""``mpsim report``: results as one page that opens in any browser, offline."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mpsim.cli.options import AllowInclude, AsJson, Overrides, Sets, load_scenario
from mpsim.cli.paths import check_page

if TYPE_CHECKING:
    from mpsim.report import AnyResult

__all__ = ["report"]


def report(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE",
            help="Scenarios (.yaml) or saved results; several are set side by side.",
        ),
    ],
    output: Annotated[
        Path,
        typer.Option("--output", "-o", metavar="FILE", callback=check_page, help="The page."),
    ] = Path("report.html"),
    title: Annotated[
        str, typer.Option("--title", help="Of the page; left out: the names of the scenarios.")
    ] = "",
    sets: Sets = None,
    overrides: Overrides = None,
    allow_include: AllowInclude = False,
    as_json: AsJson = False,
) -> None:
    """Write results as one page to mail or to keep: where the time goes, the timeline, memory, links, what was assumed.

    The page needs no network and asks for nothing. With --json its document goes to stdout, too.
    """
    from mpsim.cli.console import print_json, wrote
    from mpsim.output import write_whole
    from mpsim.report import page
    from mpsim.report import report as document_of

    results = [_result(file, sets, overrides, allow_include=allow_include) for file in files]
    document = document_of(results, title=title)
    write_whole(output, page(document))
    wrote(output)
    if as_json:
        print_json(document, stamped=False)


def _result(
    file: Path, sets: list[str] | None, overrides: list[str] | None, *, allow_include: bool
) -> AnyResult:
    """The result that a file holds, or that simulating a scenario file gives."""
    from mpsim.archive import is_archive
    from mpsim.result import Result
    from mpsim.simulate import simulate

    if is_archive(file):
        return Result.load(file)
    return simulate(
        load_scenario(file, sets=sets, overrides=overrides, allow_include=allow_include)
    )
