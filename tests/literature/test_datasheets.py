"""The catalog against vendors' published figures, transcribed here apart from the catalog.

Sources: [1] stas00/ml-engineering, compute/accelerator/README.md and network/README.md (snapshot 2026-08-22);
[2] ai-dynamo/aiconfigurator, systems/*.yaml (snapshot 2026-08-21); [3] docs.cloud.google.com/tpu/docs;
[4] awsdocs-neuron.readthedocs-hosted.com; [5] docs.olcf.ornl.gov, frontier_user_guide.
Peaks are dense TFLOP/s, memory rates GB/s.
"""

import pytest

from mpsim.hardware import accelerator, link, system

# name, dense peaks [TFLOP/s], memory bandwidth [GB/s], TDP [W], vendor's memory label [GB]
CHIPS = [
    ("v100-sxm2-32", {"fp16": 125, "fp32": 15.7}, 900, 300, 32),  # [1]
    ("a100-sxm-40", {"bf16": 312, "fp16": 312, "tf32": 156, "int8": 624}, 1555, 400, 40),  # [1]
    ("a100-sxm-80", {"bf16": 312, "fp16": 312, "tf32": 156, "int8": 624}, 2039, 400, 80),  # [1] [2]
    ("a100-pcie-80", {"bf16": 312}, 1935, 300, 80),  # [1]
    ("h100-sxm", {"bf16": 989, "tf32": 494.5, "fp8": 1979, "int8": 1979}, 3350, 700, 80),  # [1] [2]
    ("h100-pcie", {"bf16": 756, "fp8": 1513}, 2000, 350, 80),  # [1]
    ("h20", {"bf16": 148, "fp8": 296}, 4000, 400, 96),
    ("h200-sxm", {"bf16": 989, "fp8": 1979}, 4800, 700, 141),  # [1] [2]
    ("b200-sxm", {"bf16": 2250, "fp8": 4500, "fp4": 9000}, 8000, 1000, 180),  # [1] [2]
    ("b300-sxm", {"bf16": 2250, "fp8": 4500, "int8": 153.5}, 8000, 1100, 288),  # [1] [2], int8 [2]
    ("gb200", {"bf16": 2500, "fp8": 5000, "fp4": 10000}, 8000, 1200, 186),  # [1] [2]
    ("gb300", {"bf16": 2500, "fp8": 5000, "fp4": 15000, "int8": 165}, 8000, 1400, 288),  # [1] [2]
    ("l40s", {"bf16": 362, "fp8": 733}, 864, 350, 48),  # [1] [2]
    ("t4", {"fp16": 65, "fp32": 8.1, "int8": 130}, 320, 70, 16),
    ("l20", {"bf16": 119.5}, 864, 275, 48),
    ("l40", {"bf16": 181, "fp8": 362}, 864, 300, 48),
    ("l4", {"bf16": 121, "fp8": 242}, 300, 72, 24),  # [2]
    ("a10", {"bf16": 125}, 600, 150, 24),
    ("a10g", {"bf16": 70}, 600, 300, 24),
    ("a40", {"bf16": 149.7}, 696, 300, 48),
    ("rtx-a6000", {"bf16": 154.8}, 768, 300, 48),
    ("rtx3090", {"bf16": 71}, 936, 350, 24),
    ("rtx5090", {"bf16": 209.5, "fp8": 419}, 1792, 575, 32),
    ("mi300x", {"bf16": 1307, "fp8": 2615}, 5300, 750, 192),  # [1]
    ("mi325x", {"bf16": 1307, "fp8": 2615}, 6000, 1000, 256),  # [1]
    ("mi355x", {"bf16": 2516, "fp8": 5033, "fp4": 10066}, 8000, 1400, 288),  # [1]
    ("gaudi2", {"bf16": 432, "fp8": 865}, 2460, 600, 96),  # [1]
    (
        "gaudi3",
        {"bf16": 1677, "fp8": 1677},
        3700,
        900,
        128,
    ),  # [1]: as shipped, not the 1835 of the paper
    ("tpu-v3", {"bf16": 123}, 900, 262, 32),  # [3]
    ("tpu-v4", {"bf16": 275, "int8": 275}, 1200, 192, 32),  # [3]
    ("tpu-v5e", {"bf16": 197, "int8": 393}, 819, None, 16),  # [3]
    ("tpu-v5p", {"bf16": 459, "int8": 918}, 2765, None, 95),  # [3]
    ("tpu-v6e", {"bf16": 918, "int8": 1836}, 1638, None, 32),  # [3]
    ("tpu-v7x", {"bf16": 2307, "fp8": 4614}, 7380, None, 192),  # [3] [1]
    ("trainium1", {"bf16": 190, "fp8": 190}, 880, None, 32),  # [4]
    ("trainium2", {"bf16": 667, "fp8": 1299}, 2900, None, 96),  # [4]
]

# name, per direction and accelerator (scale-up) or port (NIC) [GB/s]
LINKS = [
    ("nvlink2", 150),  # [1] 6 x 25
    ("nvlink3", 300),  # [1] 12 x 25
    ("nvlink4", 450),  # [1] 18 x 25
    ("nvlink5", 900),  # [1] 18 x 50
    ("xgmi-mi300x", 448),  # [1] 7 x 64
    ("pcie4-x16", 31.5),  # [1]
    ("pcie5-x16", 63),  # [1]
    ("ib-hdr", 25),  # [1] 200 Gb/s
    ("ib-ndr", 50),  # [1] 400 Gb/s
    ("ib-xdr", 100),  # [1] 800 Gb/s
    ("efa-v2", 12.5),  # [1] 100 Gb/s
    ("slingshot11", 25),  # [1] 200 Gb/s
    ("ici-v5p", 600),  # [3] 1200 both ways
    ("neuronlink-v3-ultra", 640),  # [1] 4 x 128 + 2 x 64
]

# name, accelerator, per node, network per accelerator [GB/s]
SYSTEMS = [
    ("dgx-1v", "v100-sxm2-32", 8, 6.25),
    ("dgx-a100-80gb", "a100-sxm-80", 8, 25),
    ("dgx-h100", "h100-sxm", 8, 50),  # [1]
    ("dgx-b300", "b300-sxm", 8, 100),  # [1]
    ("gb200-nvl72", "gb200", 4, 50),
    ("aws-p4d", "a100-sxm-40", 8, 6.25),  # [1]
    ("aws-p5", "h100-sxm", 8, 50),  # [1]
    ("aws-p5en", "h200-sxm", 8, 50),  # [1]
    ("azure-nd-mi300x-v5", "mi300x", 8, 50),
    ("gcp-a3-high", "h100-sxm", 8, 12.5),  # [1]
    ("gcp-a3-mega", "h100-sxm", 8, 25),  # [1]: 1600 Gb/s, the headline adds the front-end NIC
    ("frontier", "mi250x-gcd", 8, 12.5),  # [5]
    ("tpu-v5p-pod", "tpu-v5p", 4, 6.25),  # [3]
    ("aws-trn2", "trainium2", 16, 25),  # [1]
]


@pytest.mark.parametrize(("name", "peaks", "bandwidth", "tdp", "label"), CHIPS)
def test_accelerators_have_the_published_figures(name, peaks, bandwidth, tdp, label):
    """Dense peaks, memory rate and power limit equal the published ones."""
    chip = accelerator(name)
    assert {precision: chip.peak(precision) / 1e12 for precision in peaks} == pytest.approx(peaks)
    assert chip.memory_bandwidth == pytest.approx(bandwidth * 1e9)
    assert tdp is None or chip.tdp_w == tdp
    # The label counts something between decimal and binary; the driver keeps a few per cent of it.
    assert 0.94 * label * 1e9 <= chip.memory_bytes <= 1.01 * label * 2**30


@pytest.mark.parametrize(("name", "bandwidth"), LINKS)
def test_links_have_the_published_rate_per_direction(name, bandwidth):
    """Half of the bidirectional total, in bytes."""
    assert link(name).bandwidth == pytest.approx(bandwidth * 1e9)


@pytest.mark.parametrize(("name", "chip", "per_node", "network"), SYSTEMS)
def test_systems_have_the_published_network(name, chip, per_node, network):
    """Accelerators of a node and what each gets of its NICs."""
    node = system(name).node
    assert (node.accelerator.name, node.accelerators) == (chip, per_node)
    assert node.nic_bandwidth_per_accelerator == pytest.approx(network * 1e9)


def test_a_gcd_is_half_an_mi250x():
    """[5]: software sees two devices of half of 383 TFLOP/s, 128 GB and 3277 GB/s."""
    chip = accelerator("mi250x-gcd")
    assert chip.peak("bf16") == 383e12 / 2
    assert chip.memory_bandwidth == pytest.approx(3277e9 / 2)
    assert chip.memory_bytes == pytest.approx(64 * 2**30, rel=0.001)


def test_the_torchtitan_board_is_an_h100_with_slower_memory_and_a_lower_cap():
    """pytorch/torchtitan benchmarks: 96 GB HBM2e at 2.4 TB/s, 500 W."""
    board, usual = accelerator("h100-sxm-96-500w"), accelerator("h100-sxm")
    assert (board.memory_bandwidth, board.tdp_w) == (2400e9, 500)
    assert dict(board.peak_flops) == dict(usual.peak_flops)


def test_mi300x_pairs_get_one_seventh_of_the_total():
    """[1]: 448 GB/s only when all eight talk, 64 to one peer."""
    node = system("mi300x-8").node
    assert node.scale_up.shape == "mesh"
    assert node.scale_up.bandwidth / (node.domain - 1) == 64e9


def test_capped_nvlinks_keep_eight_of_their_links():
    """A800 and H800 have 400 GB/s both ways: 8 links of 25 GB/s."""
    for name in ("nvlink3-a800", "nvlink4-h800"):
        assert link(name).bandwidth == 8 * 25e9
        assert link(name).links == 8


def test_the_table_has_what_a_program_can_allocate():
    """PyTorch prints 79.18 GiB for an H100 80GB, 0.5 GiB under the driver's total: 80e9 B would refuse it."""
    assert 79.18 * 2**30 < accelerator("h100-sxm").memory_bytes < 80 * 2**30
