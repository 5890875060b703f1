"""The reference page of the command line."""

from __future__ import annotations

import runpy


def test_the_page_has_every_command_and_option(pytestconfig):
    """Regenerate its tables with: python scripts/cli_reference.py."""
    module = runpy.run_path(str(pytestconfig.rootpath / "scripts" / "cli_reference.py"))
    text = module["PAGE"].read_text(encoding="utf-8")
    assert text == module["render"](text)


def test_every_option_of_every_command_explains_itself(mpsim_cli):
    """What the application offers is what the page was made from, and none goes without words."""
    import typer

    from mpsim.cli.app import COMMANDS, application

    group = typer.main.get_command(application())
    assert list(group.commands) == list(COMMANDS)
    silent = [
        (name, one.opts) for name, command in group.commands.items() for one in command.params if not one.help
    ]  # fmt: skip
    assert silent == []
