"""Hosts of accelerators."""

from __future__ import annotations

from collections import Counter

import pytest

from mpsim.errors import HardwareError
from mpsim.hardware import Host, accelerator_names, host_of, recalled, system
from mpsim.shipped import load_catalog


def test_every_host_serves_accelerators_that_exist_and_none_has_two() -> None:
    """A misspelled name would leave its accelerator with the generic host in silence."""
    entries = dict(load_catalog("mpsim.hardware.catalog"))["hosts"]
    served = Counter(name for entry in entries.values() for name in entry["accelerators"])
    assert set(served) <= set(accelerator_names())
    assert max(served.values()) == 1


def test_links_to_the_host_double_with_every_generation_of_pci_express() -> None:
    """8, 16 and 32 GT/s over 16 lanes, of which copies sustain the same share."""
    rates = [
        host_of(system(name, nodes=1)).link_bandwidth
        for name in ("dgx-2", "dgx-a100-80gb", "dgx-h100")
    ]
    assert rates[1] / rates[0] == pytest.approx(2.0)
    assert rates[2] / rates[1] == pytest.approx(2.0)


def test_an_accelerator_without_a_host_of_its_own_has_the_generic_one() -> None:
    """TPUs are in no entry."""
    host = host_of(system("tpu-v4-pod", nodes=1))
    assert host.name == "generic"
    assert "link_efficiency" in recalled(host)


def test_a_sustained_rate_is_no_surer_than_its_share() -> None:
    """Where the share is recalled, so is the bandwidth that a copy is priced by."""
    host = host_of(system("tpu-v4-pod", nodes=1))
    assert {"link_bandwidth", "memory_bandwidth"} <= set(recalled(host))
    assert host.sources["link_bandwidth"] == host.sources["link_efficiency"]


def test_a_host_without_bandwidth_is_refused() -> None:
    """It would take forever."""
    with pytest.raises(HardwareError, match="nvme_read is not above 0"):
        Host(name="x", title="x", link=1, memory=1, nvme_read=0, nvme_write=1)
