"""The catalog: every figure has a source and a date, and names that are wrong are met with near ones."""

import re

import pytest

from mpsim.errors import HardwareError
from mpsim.hardware import (
    LinkShape,
    accelerator,
    accelerator_names,
    link,
    link_names,
    parse_accelerator,
    parse_link,
    recalled,
    source_of,
    system,
    system_names,
)

DATED = re.compile(r"\(20\d\d-\d\d-\d\d\)$")
NVIDIA_2X_TRAPS = {  # bidirectional totals of the vendor, GB/s per accelerator
    "nvlink2": 300,
    "nvlink3": 600,
    "nvlink4": 900,
    "nvlink5": 1800,
    "xgmi-mi300x": 896,
    "ici-v5e": 400,
    "ici-v5p": 1200,
    "pcie4-x16": 63,
    "pcie5-x16": 126,
}


@pytest.mark.parametrize("name", ["mi355x", "trainium3"])
def test_scales_of_nvfp4_are_of_one_vendor(name):
    """MI355X and Trainium3 multiply FP4 with a scale for 32 elements (MX), none for 16: NVFP4 runs on Blackwell."""
    chip = accelerator(name)
    assert chip.multiplies("mxfp8")
    assert not chip.multiplies("nvfp4")
    assert accelerator("b200-sxm").multiplies("nvfp4")
    with pytest.raises(HardwareError, match=f"{name} has no nvfp4"):
        chip.peak("nvfp4")


@pytest.mark.parametrize("name", accelerator_names())
def test_every_accelerator_figure_has_a_source_and_a_date(name):
    """Whatever figure one asks about, the answer says where it was read and on which day."""
    chip = accelerator(name)
    figures = [f"peak_flops.{p}" for p in chip.peak_flops]
    figures += [
        "memory_bytes",
        "memory_bandwidth",
        "tdp_w",
        "idle_w",
        "compute_units",
        "price_per_hour",
    ]
    assert all(DATED.search(source_of(chip, figure)) for figure in figures)


@pytest.mark.parametrize("name", link_names())
def test_every_link_figure_has_a_source_and_a_date(name):
    """Bandwidth, latency and efficiency of every link say where they were read."""
    assert all(
        DATED.search(source_of(link(name), f)) for f in ("bandwidth", "latency", "efficiency")
    )


@pytest.mark.parametrize("name", system_names())
def test_every_system_builds_and_has_a_source_and_a_date(name):
    """Every system of the catalog makes a cluster of consistent parts with provenance."""
    cluster = system(name)
    assert cluster.name == name
    assert all(DATED.search(text) for text in cluster.sources.values())
    assert cluster.accelerators == cluster.nodes * cluster.node.accelerators


def _fields(item):
    return {field.split(".")[0] for field in item.sources if field != "*"}


def test_sources_name_only_figures_that_exist():
    """A source or a recalled mark for a misspelled figure would label nothing."""
    for chip in map(accelerator, accelerator_names()):
        assert _fields(chip) <= set(type(chip).__dataclass_fields__), chip.name
        precisions = {
            key.partition(".")[2] for key in chip.sources if key.startswith("peak_flops.")
        }
        assert precisions <= set(chip.peak_flops), chip.name
    for one in map(link, link_names()):
        assert _fields(one) <= set(type(one).__dataclass_fields__), one.name


def test_recalled_figures_are_labelled():
    """What nobody has read says so: the A100 40GB memory rate is from memory, its memory size is not."""
    chip = accelerator("a100-sxm-40")
    assert recalled(chip) == ("memory_bandwidth",)
    assert source_of(chip, "memory_bandwidth").startswith("recalled, unverified")
    assert "recalled" not in source_of(chip, "memory_bytes")


@pytest.mark.parametrize("name", accelerator_names())
def test_the_usual_scale_up_link_exists_and_is_no_nic(name):
    """Every accelerator names a scale-up link of the catalog."""
    usual = accelerator(name).scale_up
    assert usual in link_names()
    assert link(usual).shape is not LinkShape.NETWORK


@pytest.mark.parametrize("name", accelerator_names())
def test_every_accelerator_trains_in_a_16_bit_precision_and_idles_below_its_cap(name):
    """A simulation needs a 16-bit peak; idle power is a part of the limit; fp8 is never slower."""
    chip = accelerator(name)
    assert {"bf16", "fp16"} & set(chip.peak_flops)
    assert 0 < chip.idle_w < chip.tdp_w
    sixteen = max(chip.peak_flops.get(p, 0.0) for p in ("bf16", "fp16"))
    assert chip.peak_flops.get("fp8", sixteen) >= sixteen


@pytest.mark.parametrize(("name", "both_ways"), NVIDIA_2X_TRAPS.items())
def test_bandwidths_are_per_direction(name, both_ways):
    """The vendor's bidirectional total is twice what the catalog holds (NVLink 4: 450, not 900)."""
    assert link(name).bandwidth == both_ways / 2 * 1e9


def test_only_switches_from_the_third_generation_reduce():
    """NVSwitch reduces from Hopper on; Ampere's, meshes, tori, hosts and NICs do not."""
    reducing = {name for name in link_names() if link(name).in_network_reduction}
    assert reducing == {"nvlink4", "nvlink4-h800", "nvlink5", "nvlink6"}


def test_a100_fp8_is_refused_and_the_message_names_what_it_has():
    """A precision the chip lacks raises instead of being guessed."""
    with pytest.raises(HardwareError, match="a100-sxm-80 has no fp8; it has bf16, fp16, fp32"):
        accelerator("a100-sxm-80").peak("fp8")


def test_v100_has_neither_bf16_nor_tf32():
    """Volta's tensor cores know fp16 only."""
    assert not {"bf16", "tf32", "fp8"} & set(accelerator("v100-sxm2-32").peak_flops)


@pytest.mark.parametrize(
    ("ask", "wrong", "right"),
    [
        (accelerator, "h100-sxn", "h100-sxm"),
        (accelerator, "A800", "a800-sxm-80"),
        (link, "nvlnk4", "nvlink4"),
        (system, "dgx-h10", "dgx-h100"),
    ],
)
def test_a_wrong_name_is_met_with_the_nearest(ask, wrong, right):
    """The message names what was probably meant."""
    with pytest.raises(HardwareError, match=f"{wrong}.*did you mean.*{right}"):
        ask(wrong)


def test_one_entry_is_one_value():
    """Entries are read once and shared."""
    assert accelerator("h100-sxm") is accelerator("h100-sxm")


CHIP = {
    "title": "Mine",
    "vendor": "Me",
    "family": "hopper",
    "year": 2027,
    "compute_units": 100,
    "peak_flops": {"bf16": "1 PFLOP/s"},
    "memory": "100 GB",
    "memory_bandwidth": "4 TB/s",
    "tdp": "500 W",
    "idle": "50 W",
    "source": "my datasheet",
    "as_of": "2026-11-21",
}


def test_a_chip_of_ones_own_is_read_from_a_mapping():
    """The catalog's format serves users who describe a chip that is not in it."""
    chip = parse_accelerator("mine", CHIP)
    assert chip.peak("bf16") == 1e15
    assert chip.memory_bytes == 100e9
    assert source_of(chip, "tdp_w") == "my datasheet (2026-11-21)"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"memoryy": "1 GB"}, "mine: unknown key 'memoryy'; did you mean 'memory'"),
        ({"memory": "100"}, "mine: memory: got '100' .no unit."),
        ({"memory": None}, "mine: memory is missing"),
        ({"memory_bandwidth": "4 TFLOP/s"}, "mine: memory_bandwidth: got"),
        ({"year": "soon"}, "mine: year is 'soon', needed a whole number"),
        ({"year": True}, "mine: year is True, needed a whole number"),
        ({"peak_flops": {"bf16": 1e15}}, r"mine: peak_flops.bf16: got"),
        ({"peak_flops": {}}, "mine: peak_flops is empty"),
        ({"peak_flops": "fast"}, "mine: peak_flops is 'fast', needed a mapping"),
        ({"tdp": "0 W"}, "mine: tdp_w is 0, needed a finite number above 0"),
        ({"as_of": None}, "mine: as_of is missing"),
        ({"recalled": "tdp"}, "mine: recalled is 'tdp', needed a list"),
        ({"figures": {"tdp": {"source": "x"}}}, "mine: figures.tdp: as_of is missing"),
    ],
)
def test_a_mistake_in_an_entry_names_the_entry_and_the_key(change, message):
    """Every mistake says which entry and key, what was got and what is needed."""
    with pytest.raises(HardwareError, match=message):
        parse_accelerator("mine", CHIP | change)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"shape": "swittch"}, "shape is 'swittch'; did you mean 'switch'"),
        ({"efficiency": 1.2}, "efficiency is 1.2, needed at most 1"),
        ({"efficiency": "high"}, "efficiency is 'high', needed a number"),
        ({"bandwidth": "0 GB/s"}, "bandwidth is 0"),
        ({"in_network_reduction": 1}, "in_network_reduction is 1, needed true or false"),
        ({"latency": "1 GB"}, "latency: got '1 GB'"),
    ],
)
def test_a_mistake_in_a_link_names_the_key(change, message):
    """Links are read as strictly as accelerators."""
    entry = {"title": "L", "shape": "switch", "bandwidth": "1 GB/s", "latency": "1 us"}
    entry |= {"source": "s", "as_of": "2026-11-21"}
    with pytest.raises(HardwareError, match=message):
        parse_link("mine", entry | change)


def test_an_entry_that_is_no_mapping_is_refused():
    """A number where an entry belongs is a mistake with the entry's name."""
    with pytest.raises(HardwareError, match="mine: got 3, needed a mapping"):
        parse_link("mine", 3)
