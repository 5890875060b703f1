"""The machine of ASTRA-sim, read and written."""

from __future__ import annotations

import json

import pytest

import mpsim
from mpsim.errors import FormatError
from mpsim.exporters import export
from mpsim.importers import read

NETWORK = """topology: [Switch, Switch]
npus_count: [8, 4]
bandwidth: [400.0, 50.0]
latency: [500.0, 2000.0]
"""
SYSTEM = {"scheduling-policy": "LIFO", "all-reduce-implementation": ["ring"], "local-mem-bw": 1600, "peak-perf": 900}  # fmt: skip
GIB = 2.0**30


@pytest.fixture
def given(tmp_path):
    """A text read as a file, on eight-GPU nodes."""

    def read_(text, name="network.yaml", **options):
        path = tmp_path / name
        path.write_text(text)
        return read(path, cluster="dgx-h100", **options)

    return read_


def test_a_network_is_a_cluster(given):
    """The innermost dimension is a node, the next one joins nodes; GB are 2^30 B/s and latencies ns."""
    cluster = mpsim.Scenario.from_mapping(
        {
            "schema": 1,
            "model": "llama3-8b",
            "training": {"global_batch": 32, "sequence_length": 4096},
            **given(NETWORK).scenario,
        }
    ).hardware
    assert (cluster.nodes, cluster.node.accelerators, cluster.domain_size) == (4, 8, 8)
    assert cluster.node.scale_up.bandwidth == 400 * GIB
    assert (cluster.node.nic.bandwidth, cluster.node.nics) == (50 * GIB, 8)
    assert cluster.node.nic.latency == pytest.approx(2e-6)


def test_switches_that_thin_out_are_a_tree_and_rings_a_torus(given):
    """Three dimensions: half the rate further out is an oversubscription of 2; rings have their lengths and widths."""
    tree = given(
        NETWORK.replace("[Switch, Switch]", "[Switch, Switch, Switch]")
        .replace("[8, 4]", "[8, 4, 2]")
        .replace("50.0]", "50.0, 25.0]")
        .replace("2000.0]", "2000.0, 2500.0]")
    ).scenario["cluster"]
    assert tree["nodes"] == 8
    assert (tree["fabric"]["kind"], tree["fabric"]["oversubscription"]) == ("fat-tree", 2.0)
    assert tree["fabric"]["hop_latency"] == "500 ns"
    torus = given(
        "topology: [FullyConnected, Ring, Ring]\nnpus_count: [4, 4, 2]\nbandwidth: [100, 50, 25]\nlatency: [1, 2, 2]\n"
    ).scenario["cluster"]
    assert torus["fabric"] == {"kind": "torus", "shape": [4, 2], "axes": 2, "widths": [1.0, 0.5]}


def test_a_system_is_an_accelerator(given):
    """TFLOP/s and the rate of the memory; what ASTRA-sim runs is a warning."""
    imported = given(json.dumps(SYSTEM), "system.json")
    chip = imported.scenario["cluster"]["accelerator"]
    assert chip["peak_flops"]["bf16"] == "900 TFLOP/s"
    assert chip["memory_bandwidth"] == f"{1600 * GIB:.12g} B/s"
    assert "all-reduce-implementation" in imported.warnings[0]


@pytest.mark.parametrize(
    ("old", "new", "word"),
    [
        ("[8, 4]", "[8]", "dimensions differ"),
        ("[8, 4]", "[8, 4.5]", "needed numbers above 0"),
        ("[8, 4]", "[8, -4]", "needed numbers above 0"),
        ("Switch, Switch", "Switch, Mesh", "needed Ring, FullyConnected, Switch"),
        ("bandwidth: [400.0, 50.0]", "bandwidth: fast", "needed numbers above 0"),
        ("bandwidth: [400.0, 50.0]\n", "", "needed a list"),
        ("latency: [500.0, 2000.0]", "latency: {a: 1}", "needed a list"),
    ],
)
def test_a_network_without_a_counterpart_is_refused_by_name(old, new, word, given):
    """Dimensions that differ, no numbers, unknown topologies."""
    with pytest.raises(FormatError, match=word):
        given(NETWORK.replace(old, new))


def test_the_machine_of_a_scenario_comes_back(scenarios, tmp_path):
    """Nodes, domains and rates of the network, peak and memory of the system, to the last digit that a quantity has."""
    scenario = mpsim.load(scenarios / "quickstart.yaml")
    network, system = tmp_path / "network.yaml", tmp_path / "system.json"
    network.write_text(export(scenario, "astra-network").text)
    system.write_text(export(scenario, "astra-system").text)
    cluster = read(network, cluster="dgx-h100").scenario["cluster"]
    assert (cluster["nodes"], cluster["domain"]) == (2, 8)
    assert cluster["scale_up"] == {"bandwidth": "450000000000 B/s", "latency": "600 ns"}
    assert cluster["nic"]["bandwidth"] == "50000000000 B/s"
    chip = read(system, cluster="dgx-h100").scenario["cluster"]["accelerator"]
    assert chip["peak_flops"]["bf16"] == "989 TFLOP/s"
    assert mpsim.units.parse_quantity(chip["memory_bandwidth"], mpsim.units.Dimension.BANDWIDTH) == 3.35e12  # fmt: skip


def test_a_torus_has_a_ring_for_each_axis(scenarios):
    """TPU pods are three rings inside and slices outside; a graph has no dimensions."""
    text = export(mpsim.load(scenarios / "palm-540b-tpu-v4.yaml"), "astra-network").text
    assert "topology: [Ring, Ring, Ring, Ring]" in text
    assert "npus_count: [16, 16, 12, 2]" in text
