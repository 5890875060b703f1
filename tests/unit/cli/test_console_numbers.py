"""Numbers that a command prints: none is beyond what JSON has."""

from __future__ import annotations

import math

import pytest

from mpsim.cli.console import print_json
from mpsim.errors import ScenarioError


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_what_is_no_number_is_bad_input_and_not_printed(value, capsys):
    """Prices and counts that are each allowed can multiply to more than a number holds: exit code 2, no traceback."""
    with pytest.raises(ScenarioError, match="more than 308 digits; give smaller prices"):
        print_json({"usd": value})
    assert not capsys.readouterr().out
