"""Constants are complete, sourced, and never pass for more than they are."""

from __future__ import annotations

import pytest

from mpsim.cost import KernelModel
from mpsim.cost.constants import Status, choose_group, constant_groups, hardware_constant
from mpsim.errors import HardwareError
from mpsim.hardware.lookup import accelerator, accelerator_names, link


@pytest.mark.parametrize("stem", ["kernels", "collectives"])
def test_every_constant_has_a_unit_a_source_and_a_date(stem: str) -> None:
    """A number without its origin does not get in; an assumption is not called calibrated."""
    for group in constant_groups(stem).values():
        for constant in group.values():
            assert constant.unit
            assert len(constant.source) > 20
            assert constant.as_of.startswith("202")
            if constant.source.startswith("assumption"):
                assert constant.status is Status.FAMILY_DEFAULT


def test_a_group_has_the_leaves_of_its_file_and_makes_those_that_are_asked_for() -> None:
    """As a mapping it is whole; a leaf is one constant however often it is asked for."""
    group = constant_groups("kernels")["gemm.h100-sxm"]
    assert "knee" in group
    assert "nothing" not in group
    assert group["knee"] is dict(group)["knee"]
    assert group["knee"].name == "kernels.gemm.h100-sxm.knee"
    assert len(dict(group)) == len(group)


@pytest.mark.parametrize("name", accelerator_names())
def test_every_catalog_accelerator_finds_its_constants(name: str) -> None:
    """No accelerator of the catalog is left to the group for all the rest."""
    chip = accelerator(name)
    group = choose_group("kernels", "gemm", chip.name, chip.family)
    assert group.name != "gemm.rest"
    half = "bf16" if "bf16" in chip.peak_flops else "fp16"
    kept = KernelModel(chip, half).peak_fraction(half)
    assert 0 < kept <= group.value("burst_fraction") <= 1


def test_constants_of_a_relative_are_labelled_so() -> None:
    """The H100 PCIe borrows the SXM's constants and says whose they are."""
    group = choose_group("kernels", "gemm", "h100-pcie", "hopper")
    assert group["knee"].status is Status.FAMILY_DEFAULT
    assert "carried over to h100-pcie from gemm.h100-sxm" in group["knee"].source


def test_unknown_hardware_gets_a_labelled_guess_and_an_unknown_prefix_is_refused() -> None:
    """A user's own accelerator works at default constants; a mistake in the code does not."""
    assert choose_group("kernels", "gemm", "mine", "mine")["knee"].status is Status.FAMILY_DEFAULT
    with pytest.raises(HardwareError, match=r"no constants for mine .* under kernels\.nothing"):
        choose_group("kernels", "nothing", "mine", "mine")


def test_catalog_figures_are_datasheet_unless_recalled() -> None:
    """A recalled efficiency is a lead, so it counts as a family default."""
    chip, nic = accelerator("h100-sxm"), link("efa-v2")
    read = hardware_constant(chip, "memory_bandwidth", chip.memory_bandwidth, "B/s")
    lead = hardware_constant(nic, "efficiency", nic.efficiency, "1")
    assert (read.status, read.as_of) == (Status.DATASHEET, "2026-08-22")
    assert lead.status is Status.FAMILY_DEFAULT
