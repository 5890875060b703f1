"""NCCL's own choice and estimate: published graph values, switch points and times computed from its source."""

from __future__ import annotations

import pytest

from mpsim.cost import CollectiveModel
from mpsim.cost.nccl import VERSIONS, Choice, NcclGroup, candidates, choose
from mpsim.cost.nccl_graph import Graph, ring_graph, switch_graph, tree_speed
from mpsim.errors import HardwareError
from mpsim.hardware.lookup import system
from mpsim.parallel.group import GroupShape

MIB, GIB = 2.0**20, 2.0**30
LINKS = {"volta": 6, "ampere": 12, "hopper": 18, "blackwell": 18}


def group(
    architecture: str, ranks: int, nodes: int = 1, nic: float = 50e9, version: str = VERSIONS[0]
) -> NcclGroup:
    return NcclGroup(
        architecture,
        ranks,
        nodes,
        LINKS[architecture],
        nic_bandwidth=nic,
        switches_sum=architecture in ("hopper", "blackwell"),
        version=version,
    )


@pytest.mark.parametrize(
    ("ranks", "nodes", "size", "algorithm", "protocol", "microseconds"),
    [
        (8, 1, MIB, "Ring", "LL", 28.0),
        (8, 1, 16 * MIB, "NVLS", "Simple", 86.7),
        (8, 1, 4 * GIB, "NVLS", "Simple", 15_815),
        (32, 4, 4 * GIB, "NVLSTree", "Simple", 22_970),
    ],
)
def test_all_reduce_on_h100_takes_what_nccl_computes(
    ranks: int, nodes: int, size: float, algorithm: str, protocol: str, microseconds: float
) -> None:
    """Values computed by hand from the constants of 2.30.7."""
    choice = choose("all_reduce", size, group("hopper", ranks, nodes))
    assert (choice.algorithm, choice.protocol) == (algorithm, protocol)
    assert float(choice.seconds(size)) * 1e6 == pytest.approx(microseconds, rel=2e-3)


@pytest.mark.parametrize(("architecture", "first"), [("hopper", 5), ("blackwell", 6)])
def test_switches_take_over_all_reduce_where_they_were_seen_to(
    architecture: str, first: int
) -> None:
    """NCCL 2.27.7 was seen to use NVLS from 5 GPUs on H200 and from 6 on B200 (ml-engineering)."""
    used = [
        n
        for n in range(2, 9)
        if choose("all_reduce", 8 * GIB, group(architecture, n, version="2.27.7")).algorithm
        == "NVLS"
    ]
    assert used == list(range(first, 9))


@pytest.mark.parametrize(
    ("architecture", "ranks", "nodes", "nic", "channels", "speed"),
    [
        ("ampere", 8, 1, 0.0, 12, 20),
        ("hopper", 8, 1, 0.0, 12, 30),
        ("hopper", 4, 1, 0.0, 12, 30),
        ("blackwell", 8, 1, 0.0, 16, 45),
        ("ampere", 16, 2, 25e9, 8, 24),
        ("hopper", 16, 2, 50e9, 8, 45),
        ("hopper", 256, 32, 50e9, 8, 45),
        ("blackwell", 32, 4, 50e9, 8, 48),
    ],
)
def test_rings_are_those_of_the_graph_search(
    architecture: str, ranks: int, nodes: int, nic: float, channels: int, speed: float
) -> None:
    """Channels and GB/s of a channel, as derived from the search for 8-GPU nodes."""
    g = group(architecture, ranks, nodes)
    found = ring_graph(g.table("graph"), nodes, g.per_node, g.inside_rate, nic)
    assert found == Graph(channels, speed * 1e9, speed * 1e9)


def test_trees_and_switches_are_those_of_the_graph_search() -> None:
    """NVLS 8 x 40/60 on a Hopper node, 8 x 80/90 on Blackwell, 8 x 40/48 across; trees 48/45 and 30/24."""
    hopper, blackwell = group("hopper", 8), group("blackwell", 8)
    for g, inside, across in ((hopper, 40e9, 60e9), (blackwell, 80e9, 90e9)):
        assert switch_graph(g.table("graph"), 1, 8, g.inside_rate, 0) == Graph(8, inside, across)
    table, rate = hopper.table("graph"), hopper.inside_rate
    assert switch_graph(table, 4, 8, rate, 50e9) == Graph(8, 40e9, 48e9)
    assert tree_speed(table, 2, Graph(8, 45e9, 45e9), rate) == 48e9
    older = group("ampere", 16, 2)
    ring = Graph(8, 24e9, 24e9)
    assert tree_speed(older.table("graph"), 2, ring, older.inside_rate) == 30e9


@pytest.mark.parametrize(
    ("architecture", "ranks", "nodes", "nic", "bus"),
    [
        ("ampere", 8, 1, 0.0, 240),
        ("hopper", 8, 1, 0.0, 476),
        ("hopper", 4, 1, 0.0, 360),
        ("blackwell", 8, 1, 0.0, 720),
        ("hopper", 16, 2, 50e9, 462),
        ("hopper", 64, 8, 50e9, 364),
        ("blackwell", 32, 4, 50e9, 384),
    ],
)
def test_peak_bus_bandwidth_of_all_reduce_is_what_nccl_expects(
    architecture: str, ranks: int, nodes: int, nic: float, bus: float
) -> None:
    """GB/s; measured peaks are within 5 % of these."""
    choice = choose("all_reduce", 1024 * GIB, group(architecture, ranks, nodes, nic))
    assert choice.bandwidth * 2 * (ranks - 1) / ranks / 1e9 == pytest.approx(bus, rel=5e-3)


def test_what_can_be_chosen_depends_on_collective_and_place() -> None:
    """Broadcast: rings only; LL128 needs NVLink; NVLS stays on a node; PAT needs one GPU a node."""

    def names(kind: str, g: NcclGroup) -> set[str]:
        return {one.algorithm for one in candidates(kind, g)}

    assert names("broadcast", group("hopper", 8)) == {"Ring"}
    assert names("all_reduce", group("hopper", 16, 2)) == {"Ring", "Tree", "NVLSTree"}
    assert names("all_gather", group("hopper", 8)) == {"Ring", "NVLS"}
    assert names("all_gather", group("hopper", 16, 2)) == {"Ring"}
    assert names("reduce_scatter", group("hopper", 16, 16)) == {"Ring", "PAT"}
    pcie = NcclGroup("ampere", 8, 1, 0, pcie_bandwidth=24e9)
    assert {one.protocol for one in candidates("all_reduce", pcie)} == {"LL", "Simple"}


def test_unknown_architectures_and_releases_are_answered_with_the_nearest() -> None:
    """Tables exist for three releases."""
    with pytest.raises(HardwareError, match="hopper"):
        NcclGroup("hoper", 8, 1, 18)
    with pytest.raises(HardwareError, match="do not know"):
        NcclGroup("hopper", 8, 1, 18, version="1.0")


def test_older_releases_expect_nvls_sooner_on_the_wire() -> None:
    """2.18 gave the NVLink hop of NVLS 23 us, later ones 25."""

    def latency(version: str) -> float:
        found = candidates("all_reduce", group("hopper", 8, version=version))
        return next(one.latency for one in found if one.algorithm == "NVLS")

    assert latency("2.18.5") == pytest.approx(23e-6)
    assert latency("2.30.7") == pytest.approx(25e-6)


def test_the_model_answers_which_algorithm_and_protocol_run() -> None:
    """From a cluster and a group shape; small, large, across nodes, untuned and not NVIDIA's."""
    model = CollectiveModel(system("dgx-h100", nodes=4))
    node, across = GroupShape(8, 8, 1), GroupShape(32, 8, 4)
    assert model.choice("all_reduce", MIB, node) == ("Ring", "LL")
    assert model.choice("all_reduce", GIB, node) == ("NVLS", "Simple")
    assert model.choice("all_reduce", GIB, across) == ("NVLSTree", "Simple")
    assert model.choice("barrier", 0.0, node)[1] == "LL"
    assert model.choice("all_to_all", 1024.0, node) == ("P2P", "LL")
    assert model.choice("all_to_all", GIB, node) == ("P2P", "Simple")
    assert model.choice("all_reduce", GIB, GroupShape(1, 1, 1)) == ("none", "none")
    torus = CollectiveModel(system("tpu-v5p-pod"))
    assert torus.choice("all_gather", GIB, GroupShape(4, 4, 1)) == ("torus rings", "none")
    assert isinstance(choose("all_gather", MIB, group("hopper", 8)), Choice)


@pytest.mark.parametrize(
    ("protocol", "tree", "ring"),
    [
        # 6.8 + 2 (7 x 0.6 + 2 x 5.0) and 6.6 + 56 x 1.0 (a post to the NIC is longer than a hop of 0.6) + 6 x 2.7
        ("LL", 35.2, 78.8),
        # 14.0 + 2 (7 x 1.25 + 2 x 8.5) and 14.0 + 56 x 1.9 + 6 x 4.0
        ("LL128", 65.5, 144.4),
        # 8.4 + 2 (7 x 4.0 + 2 x 14.0) and 8.4 + 56 x 3.4 (three posts take 3.0) + 6 x 14.0
        ("Simple", 120.4, 282.8),
    ],
)
def test_latencies_of_an_all_reduce_across_nodes_are_sums_of_hops(
    protocol: str, tree: float, ring: float
) -> None:
    """Of 4 nodes of 8 a tree goes up and down 7 hops in a node and log2(4) between; of a ring's 62 steps 6 cross, 3 in each of its two rounds [us]."""
    made = {
        choice.algorithm: choice.latency * 1e6
        for choice in candidates("all_reduce", group("hopper", 32, 4))
        if choice.protocol == protocol
    }
    assert made["Tree"] == pytest.approx(tree)
    assert made["Ring"] == pytest.approx(ring)


@pytest.mark.parametrize(
    ("kind", "ranks", "nodes", "algorithm", "latency"),
    [
        ("all_reduce", 8, 1, "NVLS", 25.0),
        # 25 in the switch, then log2(4) hops of 20.9 up and as many down
        ("all_reduce", 32, 4, "NVLSTree", 25.0 + 2 * 2 * 20.9),
        # 8.0, log2(8) hops of 14 x 2 / 7, and 2.8 for each of 8 ranks
        ("all_gather", 8, 8, "PAT", 8.0 + 3 * 4.0 + 8 * 2.8),
    ],
)
def test_latencies_of_switches_and_of_pat_are_sums_of_hops(
    kind: str, ranks: int, nodes: int, algorithm: str, latency: float
) -> None:
    """As NCCL 2.30.7 adds them up on Hopper [us]."""
    made = {choice.algorithm: choice for choice in candidates(kind, group("hopper", ranks, nodes))}
    assert made[algorithm].latency * 1e6 == pytest.approx(latency, rel=1e-5)
