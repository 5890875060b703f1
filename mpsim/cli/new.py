"""``mpsim new``: a commented scenario to start from."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from mpsim.cli.complete import templates
from mpsim.cli.console import print_json, print_table, print_text
from mpsim.cli.options import AsJson, check_file, wrong
from mpsim.errors import ScenarioError
from mpsim.output import write_whole


def new(
    file: Annotated[Path | None, Argument(callback=check_file)] = None,
    template: Annotated[str, Option(autocompletion=templates)] = "quickstart",
    list_: bool = False,
    as_json: AsJson = False,
) -> None:
    """Write a commented scenario file to start from.

    FILE: File to write; it must not exist yet.
    --template -t: Template to start from.
    --list: Print the names of the templates.
    """
    from mpsim.scenario.examples import template_names, template_text, template_title

    if list_ and file is not None:
        raise wrong("with --list nothing is written; leave one out", "FILE")
    if list_:
        names = list(template_names())
        if as_json:
            print_json({"templates": names})
        else:
            print_table((name, template_title(name)) for name in names)
        return
    if file is None:
        raise wrong("give a file to write, or --list", "FILE")
    quoted = shlex.quote(str(file))
    text = template_text(template, quoted)
    if os.path.lexists(file):
        raise ScenarioError(f"{file}: exists already; choose another name or remove it first")
    write_whole(file, text)
    if as_json:
        print_json({"file": str(file), "template": template})
    else:
        print_text(f"{file}: written from template {template}; next: mpsim run {quoted}")
