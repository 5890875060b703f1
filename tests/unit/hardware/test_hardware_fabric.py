"""Tiers of switches, tori, and the graph drawn from them, checked with a maximum-flow algorithm."""

import itertools
import math

import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpsim.errors import HardwareError
from mpsim.hardware import (
    Fabric,
    FabricKind,
    build_cluster,
    system,
    system_names,
    tiers_of,
    torus_distance,
    torus_shape,
)
from mpsim.hardware.graph import cluster_graph

KINDS = [kind for kind in FabricKind if kind is not FabricKind.GRAPH]  # a graph needs links


def cluster_of(kind, *, nodes=5, over=1.0, nics=8):
    """H100 nodes in a fabric of `kind`."""
    return build_cluster(
        accelerator="h100-sxm",
        accelerators_per_node=8,
        nodes=nodes,
        nics_per_node=nics,
        nic="ib-ndr",
        fabric_kind=kind,
        oversubscription=over,
    )


def flow(graph, source, target):
    """Most that fits through from one vertex to another [B/s]."""
    return nx.maximum_flow_value(graph, source, target)


@pytest.mark.parametrize("name", system_names())
def test_two_nodes_of_any_system_reach_each_other_at_the_rate_of_their_nics(name):
    """The network alone carries a node's full NIC capacity between the first and the last node."""
    usual = system(name)
    cluster = system(name, nodes=max(2, min(usual.nodes, 300)))
    graph = cluster_graph(cluster, scale_up=False)
    got = flow(graph, ("node", 0), ("node", cluster.nodes - 1))
    assert got == pytest.approx(cluster.node.nic_bandwidth)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("nodes", [2, 5, 33, 130])
def test_every_kind_of_fabric_carries_a_node_at_full_rate(kind, nodes):
    """Without oversubscription one pair of nodes is limited by its NICs alone."""
    graph = cluster_graph(cluster_of(kind, nodes=nodes))
    assert flow(graph, ("node", 0), ("node", nodes - 1)) == pytest.approx(400e9)


@pytest.mark.parametrize("kind", [FabricKind.RAIL_OPTIMIZED, FabricKind.FAT_TREE])
@pytest.mark.parametrize("over", [1.0, 2.0, 4.0])
def test_half_against_half_gets_the_bisection_divided_by_the_oversubscription(kind, over):
    """All nodes of full leaves sending to all nodes of others get nodes x NICs / oversubscription."""
    probe = cluster_of(kind, nodes=2, over=over)
    leaf = tiers_of(probe.fabric, nodes=10_000, nics=8, bandwidth=50e9)[0].nodes
    graph = cluster_graph(cluster_of(kind, nodes=2 * leaf, over=over))
    for node in range(2 * leaf):
        here = (("source", 0), ("node", node)) if node < leaf else (("node", node), ("sink", 0))
        graph.add_edge(*here, capacity=math.inf)
    assert flow(graph, ("source", 0), ("sink", 0)) == pytest.approx(leaf * 400e9 / over)


@pytest.mark.parametrize("kind", KINDS)
def test_each_direction_of_a_link_has_its_own_equal_capacity(kind):
    """Capacities are per direction: every edge has its mirror image."""
    graph = cluster_graph(cluster_of(kind, nodes=40))
    assert graph.number_of_edges() > 0
    assert all(graph[b][a]["capacity"] == data["capacity"] for a, b, data in graph.edges(data=True))


def test_a_rack_adds_nvlink_between_its_trays_only():
    """Two trays of a rack get NICs plus 4 x 900 GB/s; the network alone joins trays of two racks."""
    cluster = system("gb200-nvl72", nodes=36)
    nics, nvlink = 4 * 50e9, 4 * 900e9
    rack = cluster_graph(cluster).subgraph([("node", 0), ("node", 17), ("scale-up", 0)])
    assert flow(rack, ("node", 0), ("node", 17)) == nvlink
    network = cluster_graph(cluster, scale_up=False)
    assert flow(network, ("node", 0), ("node", 17)) == nics
    assert flow(network, ("node", 0), ("node", 18)) == nics


def test_trays_of_a_rack_can_relay_for_each_other():
    """Between racks a tray may use the NICs of its whole rack: its NICs and what NVLink takes there."""
    graph = cluster_graph(system("gb200-nvl72", nodes=36))
    assert flow(graph, ("node", 0), ("node", 18)) == min(18 * 4 * 50e9, 4 * 50e9 + 4 * 900e9)


def test_a_chip_of_a_torus_sends_over_all_its_links():
    """In a 4x4x4 torus of TPU v4 (6 links of 50 GB/s) two chips reach each other at 300 GB/s."""
    pod = build_cluster(accelerator="tpu-v4", accelerators_per_node=4, nodes=16)
    graph = cluster_graph(pod)
    chips = graph.subgraph([vertex for vertex in graph if vertex[0] == "accelerator"])
    assert len(chips) == 64
    assert all(data["capacity"] == 50e9 for _, _, data in chips.edges(data=True))
    assert flow(chips, ("accelerator", 0), ("accelerator", 42)) == pytest.approx(300e9)


def test_a_node_alone_has_no_links():
    """What is inside a node is not drawn."""
    graph = cluster_graph(system("dgx-h100"))
    assert list(graph) == [("node", 0)]


@pytest.mark.parametrize(
    ("nodes", "switches"),
    [
        (64, [16, 8]),
        (128, [32, 16]),
        (256, [64, 32]),
        (512, [128, 128, 64]),
        (1024, [256, 256, 128]),
    ],
)
def test_switch_counts_are_those_of_the_superpod_reference(nodes, switches):
    """NVIDIA DGX SuperPOD (NDR, 64-port switches): leaf, spine and core switches by node count."""
    tiers = system("dgx-h100", nodes=nodes).tiers
    assert [tier.switches for tier in tiers] == switches


def test_a_scalable_unit_is_one_leaf_of_every_rail():
    """32 DGX H100 on 64-port NDR switches, 20 DGX A100 on 40-port HDR switches."""
    assert system("dgx-h100", nodes=64).tiers[0].nodes == 32
    assert system("dgx-a100-80gb", nodes=64).tiers[0].nodes == 20


def test_a_fat_tree_leaf_holds_the_nodes_whose_nics_fill_half_of_it():
    """64 ports, half down, 8 NICs a node: four nodes a leaf."""
    assert cluster_of("fat-tree", nodes=16).tiers[0].nodes == 4


def test_nodes_that_share_one_leaf_need_no_spine_unless_they_have_rails():
    """Four nodes: one leaf in a fat tree; eight rails and a spine to cross them otherwise."""
    assert [tier.name for tier in cluster_of("fat-tree", nodes=4).tiers] == ["leaf"]
    assert [tier.name for tier in cluster_of("rail-optimized", nodes=4).tiers] == ["leaf", "spine"]


def test_dragonfly_groups_are_cabled_to_each_other_without_a_core():
    """Beyond one group the spines of groups are joined directly: four switches on the way."""
    top = cluster_of("dragonfly+", nodes=1000).tiers[-1]
    assert (top.name, top.switches, top.hops, top.units) == ("groups", 0, 4, 1)


@settings(max_examples=50)
@given(
    kind=st.sampled_from([k for k in KINDS if k is not FabricKind.TORUS]),
    nodes=st.integers(2, 200_000),
    nics=st.integers(1, 32),
    radix=st.integers(4, 144),
    over=st.floats(1, 16),
)
def test_tiers_grow_until_one_unit_reaches_every_node(kind, nodes, nics, radix, over):
    """Reach, hops and oversubscription never shrink upwards; the top is one unit without up-links."""
    fabric = Fabric(kind=kind, radix=radix, oversubscription=over)
    tiers = tiers_of(fabric, nodes=nodes, nics=nics, bandwidth=50e9)
    assert tiers[-1].units == 1
    assert tiers[-1].nodes >= nodes
    assert tiers[-1].up_bandwidth == 0
    for low, high in itertools.pairwise(tiers):
        assert low.nodes <= high.nodes
        assert low.hops < high.hops
        assert low.oversubscription <= high.oversubscription
        assert low.up_bandwidth > 0


def test_a_torus_is_as_cubic_as_its_size_allows():
    """4096 chips are 16x16x16 (a TPU v4 pod), 256 on two axes 16x16 (v5e), a prime a ring."""
    assert torus_shape(4096, 3) == (16, 16, 16)
    assert torus_shape(256, 2) == (16, 16)
    assert torus_shape(8960, 3) == (28, 20, 16)
    assert torus_shape(13, 3) == (13, 1, 1)


@settings(max_examples=50)
@given(st.integers(1, 20_000), st.integers(1, 4))
def test_a_torus_shape_multiplies_to_its_members(members, axes):
    """No member is lost or invented."""
    shape = torus_shape(members, axes)
    assert len(shape) == axes
    assert math.prod(shape) == members


@pytest.mark.parametrize("shape", [(1, 1, 1), (4, 1, 1), (5, 3, 2), (4, 4, 4)])
def test_the_mean_distance_in_a_torus_is_what_counting_gives(shape):
    """The closed form equals the mean over all pairs of the shortest way round each axis."""
    ways = [sum(min(d, n - d) for d, n in zip(p, shape, strict=True)) for p in
            itertools.product(*map(range, shape))]  # fmt: skip
    assert torus_distance(shape) == pytest.approx(sum(ways) / len(ways))


def test_a_torus_fabric_pays_the_mean_distance():
    """64 nodes are 4x4x4: three axes of mean distance one."""
    assert cluster_of("torus", nodes=64).hops(64) == 3.0
    assert cluster_of("torus", nodes=64).node_bandwidth(64) == 400e9


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"radix": 3}, "radix is 3"),
        ({"radix": -1}, "radix"),
        ({"axes": 0}, "axes is 0"),
        ({"hop_latency": -1.0}, "hop_latency"),
    ],
)
def test_fabrics_refuse_nonsense(change, message):
    """A switch of three ports, a torus without axes and a negative latency are mistakes."""
    with pytest.raises(HardwareError, match=message):
        Fabric(kind=FabricKind.FAT_TREE, **change)


def test_a_torus_of_nothing_is_refused():
    """Members and axes are counted from one."""
    with pytest.raises(HardwareError, match="1 member and 1 axis"):
        torus_shape(0, 3)
