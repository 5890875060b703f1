"""``mpsim show``: every entry of every catalog prints."""

from __future__ import annotations

import pytest

CATALOGS = ("accelerator", "link", "system", "model", "framework", "schedule")


def test_without_arguments_it_lists_every_catalog(mpsim_cli):
    """One listing is enough to find a name."""
    names = mpsim_cli("show", "--json").json()
    assert tuple(names) == CATALOGS
    assert all(names.values())


@pytest.mark.parametrize("catalog", CATALOGS)
def test_every_name_that_is_listed_can_be_shown(mpsim_cli, catalog):
    """A listed name is a promise."""
    for name in mpsim_cli("show", catalog, "--json").json()[catalog]:
        shown = mpsim_cli("show", catalog, name, "--json")
        assert shown.code == 0, shown.err
        assert shown.json()["figures"]


def test_figures_carry_units_and_recalled_ones_say_so(mpsim_cli):
    """A reader sees at once what was never read in a source."""
    text = mpsim_cli("show", "accelerator", "h100-sxm").out
    assert "3.35 TB/s" in text
    assert "recalled" in next(
        line for line in text.splitlines() if line.startswith("peak_flops.fp64")
    )


def test_an_unknown_name_suggests_the_nearest(mpsim_cli):
    """A typo costs one look."""
    outcome = mpsim_cli("show", "model", "gpt3-157b")
    assert (outcome.code, outcome.out) == (2, "")
    assert "gpt3-175b" in outcome.err


def test_an_unknown_catalog_lists_all_there_is_to_show(mpsim_cli):
    """Questions are named beside catalogs."""
    outcome = mpsim_cli("show", "foo")
    assert (outcome.code, outcome.out) == (2, "")
    for word in (*CATALOGS, "hardware", "kernel", "collective", "fabric"):
        assert word in outcome.err
    assert "did you mean 'fabric'" in mpsim_cli("show", "frabic").err
