"""``mpsim explore``: the page of a scenario with live settings, on this machine only."""

from __future__ import annotations

import webbrowser
from pathlib import Path
from typing import Annotated

from typer import Option

from mpsim.cli.console import note, print_json, print_text
from mpsim.cli.options import AsJson, Reading


def explore(
    file: Path,
    port: Annotated[int, Option(min=0, max=65535)] = 0,
    browser: Annotated[bool, Option("--open")] = False,
    *,
    reading: Reading,
    as_json: AsJson = False,
) -> None:
    """Serve a scenario's page with sliders for model, layout, hardware and schedule, until Ctrl-C.

    Only this machine can reach it, and only who knows the address, which has a token in it.

    FILE: Scenario file.
    --port: Port to listen on; 0: any that is free.
    --open: Open the page in this machine's browser.
    """
    from mpsim.report.explorer import Explorer, Server

    scenario = reading.load(file)
    explorer = Explorer(scenario, unlimited=reading.yes)
    explorer.page()  # a scenario that cannot be simulated, or a missing extra, is told here
    with Server(explorer, port) as server:
        if as_json:
            print_json({"address": server.address})
        else:
            print_text(server.address)
        note("Ctrl-C ends it")
        if browser:
            webbrowser.open_new(server.address)
        try:
            server.serve_forever(poll_interval=0.1)
        except KeyboardInterrupt:
            note("ended")
