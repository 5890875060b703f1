"""``mpsim show fabric``: counts as printed, of systems and of scenario files."""

from __future__ import annotations

import json
import math

import networkx as nx
import pytest

from mpsim.cli import main
from mpsim.hardware import build_cluster, system
from mpsim.hardware.fabric import FabricKind
from mpsim.hardware.graph import cluster_graph
from mpsim.hardware.inventory import inventory_of

SCENARIO = """\
schema: 1
model: gpt-1.7b
cluster: {preset: dgx-h100, nodes: 48, fabric: {kind: torus, shape: [4, 4, 3], cable_price: 500, switch_power: 1 kW}}
training: {global_batch: 384, sequence_length: 2048}
"""


@pytest.mark.parametrize(
    ("nodes", "switches"),
    [(64, [16, 8]), (128, [32, 16]), (256, [64, 32]), (512, [128, 128, 64]),
     (1024, [256, 256, 128]), (2048, [512, 512, 256])],
)  # fmt: skip
def test_a_superpod_has_the_switches_and_cables_of_its_reference(nodes, switches, capsys):
    """NVIDIA DGX SuperPOD (NDR), table of nodes, leaf, spine, core; as many cables of each kind as there are NICs."""
    assert main(["show", "fabric", "dgx-h100", "--nodes", str(nodes), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert [tier["switches"] for tier in shown["tiers"]] == switches
    assert [tier["cables"] for tier in shown["tiers"]] == [8 * nodes] * len(switches)
    assert shown["bisection"] == shown["full_bisection"] == nodes // 2 * 400e9


def test_a_scenario_file_is_counted_priced_and_drawn(tmp_path, capsys):
    """A torus of 4x4x3: three cables a node; prices where given; a picture where asked for."""
    file, picture = tmp_path / "torus.yaml", tmp_path / "torus.png"
    file.write_text(SCENARIO, encoding="utf-8")
    assert main(["show", "fabric", str(file), "--plot", str(picture)]) == 0
    text = capsys.readouterr().out
    assert "144 cables" in text
    assert "72,000 USD" in text
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_a_fabric_of_nothing_known_is_refused(capsys):
    """A name that is neither a system nor a file."""
    assert main(["show", "fabric", "dgx-h101"]) == 2
    assert "did you mean" in capsys.readouterr().err


@pytest.mark.parametrize("kind", [kind for kind in FabricKind if kind is not FabricKind.GRAPH])
@pytest.mark.parametrize("over", [1.0, 3.0])
def test_the_bisection_is_the_maximum_flow_between_halves(kind, over):
    """Of as many full leaves on either side, on every kind of fabric."""
    probe = build_cluster(accelerator="h100-sxm", accelerators_per_node=8, nodes=600, nic="ib-ndr",
                          fabric_kind=kind, oversubscription=over)  # fmt: skip
    leaf = probe.tiers[0].nodes if probe.tiers else 4
    leaf = 4 if kind == FabricKind.SINGLE_SWITCH else leaf
    cluster = build_cluster(accelerator="h100-sxm", accelerators_per_node=8, nodes=2 * leaf,
                            nic="ib-ndr", fabric_kind=kind, oversubscription=over)  # fmt: skip
    if kind is FabricKind.RAIL_ONLY and over > 1:
        assert cluster.tiers[-1].units == 1
    graph = cluster_graph(cluster)
    for node in range(2 * leaf):
        ends = (("all", 0), ("node", node)) if node < leaf else (("node", node), ("all", 1))
        graph.add_edge(*ends, capacity=math.inf)
    most = nx.maximum_flow_value(graph, ("all", 0), ("all", 1))
    assert inventory_of(cluster).bisection == pytest.approx(most)


def test_two_planes_have_twice_the_switches_of_half_the_rate():
    """A leaf of 64 ports of 400 Gb/s is one of 128 ports of 200 Gb/s, of which each plane has its own."""
    one, two = (
        build_cluster(accelerator="h100-sxm", accelerators_per_node=8, nodes=1024, nic="ib-ndr",
                      fabric_kind=kind)
        for kind in ("rail-optimized", "dual-plane")
    )  # fmt: skip
    assert two.tiers[0].nodes == 2 * one.tiers[0].nodes
    assert two.tiers[0].cables == 2 * one.tiers[0].cables
    assert len(two.tiers) < len(one.tiers)
    assert inventory_of(two).bisection == inventory_of(one).bisection


def test_rails_alone_need_no_spine_to_join_them():
    """32 nodes: eight leaves, one a rail, and nothing above."""
    alone = build_cluster(accelerator="h100-sxm", accelerators_per_node=8, nodes=64, nic="ib-ndr",
                          fabric_kind="rail-only")  # fmt: skip
    assert [tier.switches for tier in alone.tiers] == [16, 8]
    assert [tier.switches for tier in system("dgx-h100", nodes=32).tiers] == [8, 4]
    small = build_cluster(accelerator="h100-sxm", accelerators_per_node=8, nodes=32, nic="ib-ndr",
                          fabric_kind="rail-only")  # fmt: skip
    assert [tier.switches for tier in small.tiers] == [8]


def test_one_of_a_thing_is_not_several(mpsim_cli):
    """1 hop, not 1 hops."""
    text = mpsim_cli("show", "fabric", "dgx-h100", "--nodes", 2).out
    assert ", 1 hop between far nodes" in text
    assert "hops between" in mpsim_cli("show", "fabric", "dgx-h100", "--nodes", 64).out
