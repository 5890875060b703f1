"""``mpsim show``: every entry of every catalog prints."""

from __future__ import annotations

import pytest

from tests.nightly import NIGHTLY

CATALOGS = ("accelerator", "link", "system", "model", "framework", "optimizer", "schedule")


def test_without_arguments_it_lists_every_catalog(mpsim_cli):
    """One listing is enough to find a name."""
    names = mpsim_cli("show", "--json").json()
    assert tuple(names) == CATALOGS
    assert all(names.values())


@pytest.mark.parametrize("catalog", CATALOGS)
def test_every_name_that_is_listed_can_be_shown(mpsim_cli, catalog):
    """A listed name is a promise: in CI the first and every ninth, all of which `tests/unit/top/test_description.py` describes."""
    names = mpsim_cli("show", catalog, "--json").json()[catalog]
    for name in names if NIGHTLY else names[::9]:
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


@pytest.mark.parametrize(
    ("arguments", "option"),
    [
        (("model", "gpt3-175b"), "--plot p.png"),
        (("model", "gpt3-175b"), "--on h100-sxm"),
        ((), "--burst"),
        (("kernel", "gemm=64x64x64", "--on", "h100-sxm"), "--ranks 8"),
        (("collective", "all_reduce=1 MiB", "--on", "dgx-h100"), "--precision fp8"),
        (("fabric", "dgx-h100"), "--library nccl"),
    ],
)
def test_an_option_of_another_question_is_refused(mpsim_cli, arguments, option):
    """Nothing that was asked for is dropped in silence."""
    outcome = mpsim_cli("show", *arguments, *option.split())
    assert (outcome.code, outcome.out) == (2, "")
    assert option.split()[0] in outcome.err
    assert "leave it out" in outcome.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("kernel",), "got nothing; needed one of: gemm=MxNxK"),
        (("kernel", "gem=3", "--on", "h100-sxm"), "got kernel 'gem'; did you mean 'gemm'"),
        (
            ("kernel", "gemm=64x64x0", "--on", "h100-sxm"),
            "whole numbers of 1 or more as gemm=MxNxK",
        ),
        (("collective", "al_reduce=1 MiB", "--on", "dgx-h100"), "did you mean 'all_reduce'"),
        (("collective", "all_reduce=3", "--on", "dgx-h100"), "got '3' (no unit)"),
        (("fabric", "dgx-h100", "--nodes", "9" * 20), "--nodes"),
    ],
)
def test_a_question_that_cannot_be_asked_says_how_it_could(mpsim_cli, arguments, words):
    """The nearest name, the form, the unit."""
    outcome = mpsim_cli("show", *arguments)
    assert (outcome.code, outcome.out) == (2, "")
    assert words in outcome.err
