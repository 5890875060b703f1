"""Clusters: where ranks sit, what makes one, and what is refused."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpsim.errors import HardwareError
from mpsim.hardware import (
    Accelerator,
    accelerator,
    build_cluster,
    link,
    source_of,
    system,
    system_names,
    with_overrides,
)

H100 = {"accelerator": "h100-sxm", "accelerators_per_node": 8, "nic": "ib-ndr"}


def test_a_dgx_is_one_scale_up_domain_a_node():
    """Eight ranks share a node and a domain; the ninth starts the next."""
    cluster = system("dgx-a100-80gb", nodes=4)
    ranks = np.array([0, 7, 8, 31])
    assert cluster.domain_of(ranks).tolist() == [0, 0, 1, 3]
    assert cluster.node_of(ranks).tolist() == [0, 0, 1, 3]


def test_an_nvl72_rack_is_one_domain_of_eighteen_nodes():
    """Ranks 0 to 71 share a domain though they sit in 18 trays; rank 72 is in the next rack."""
    cluster = system("gb200-nvl72", nodes=36)
    assert cluster.domain_of([0, 71, 72, 143]).tolist() == [0, 0, 1, 1]
    assert cluster.node_of([0, 71, 72, 143]).tolist() == [0, 17, 18, 35]
    assert (cluster.domains, cluster.domain_size) == (2, 72)


def test_part_of_a_rack_is_a_domain_of_its_own_size():
    """Four trays of an NVL72 are one domain of 16, and remember that they could be 72."""
    cluster = system("gb200-nvl72", nodes=4)
    assert (cluster.domains, cluster.domain_size, cluster.node.domain) == (1, 16, 72)


def test_domain_of_keeps_the_shape_of_its_argument():
    """Arrays of any shape go in and come out."""
    ranks = np.arange(16).reshape(2, 2, 4)
    assert system("dgx-h100", nodes=2).domain_of(ranks).shape == (2, 2, 4)


@pytest.mark.parametrize("rank", [-1, 16])
def test_a_rank_that_does_not_exist_is_refused(rank):
    """Asking where accelerator 16 of 16 sits is a mistake, not node 2."""
    with pytest.raises(HardwareError, match=f"no accelerator {rank}; they are numbered 0 to 15"):
        system("dgx-h100", nodes=2).node_of([0, rank])


def test_the_nics_of_a_node_are_shared_by_its_accelerators():
    """p4d: four 100 Gb/s NICs for eight accelerators are 6.25 GB/s each (systems table)."""
    assert system("aws-p4d").node.nic_bandwidth_per_accelerator == 6.25e9


def test_a_machine_that_exists_once_has_no_more_nodes():
    """Selene has 560 nodes."""
    with pytest.raises(HardwareError, match="selene: nodes is 561, but it has at most 560"):
        system("selene", nodes=561)


@pytest.mark.parametrize("name", system_names())
def test_every_system_says_what_it_is_in_five_lines(name):
    """str(cluster) is a summary of five lines with units."""
    lines = str(system(name)).splitlines()
    assert len(lines) == 5
    assert "FLOP/s" in lines[1]
    assert "B/s" in lines[2]


def test_a_cluster_of_parts_equals_the_preset_made_of_them():
    """dgx-h100 is what build_cluster makes of the same words, sources and power aside."""
    built = build_cluster(**H100, nodes=16)
    preset = system("dgx-h100", nodes=16)
    assert built.fabric == preset.fabric
    assert built.node.scale_up == preset.node.scale_up
    assert (built.node.nics, built.node.nic, built.node.domain) == (8, preset.node.nic, 8)


def test_a_nic_given_by_bandwidth_has_that_bandwidth():
    """nic: 200 Gb/s is 25 GB/s per direction, said to be given by the user."""
    nic = build_cluster(**H100 | {"nic": 25e9}, nodes=2).node.nic
    assert nic.bandwidth == 25e9
    assert source_of(nic, "bandwidth") == "given by the user"


def test_a_torus_without_nics_is_a_cluster():
    """Chips of one pod need no NIC: the torus reaches all of them."""
    pod = build_cluster(
        accelerator="tpu-v4", accelerators_per_node=4, nodes=64, fabric_kind="torus"
    )
    assert (pod.domain_size, pod.node.nics) == (256, 0)


def test_a_price_and_a_chip_of_ones_own_are_used():
    """Objects are taken as well as names."""
    chip = accelerator("h100-sxm")
    cluster = build_cluster(**H100 | {"accelerator": chip}, nodes=2, price_per_hour=2.5)
    assert cluster.accelerator.price_per_hour == 2.5
    assert source_of(cluster.accelerator, "price_per_hour") == "given by the user"
    assert chip.price_per_hour != 2.5


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"accelerator": "h100"}, "no accelerator named 'h100'; did you mean"),
        ({"nic": "ib-ndx"}, "no link named 'ib-ndx'; did you mean"),
        ({"nic": "nvlink4"}, "nvlink4 is a switch link, not a NIC"),
        ({"scale_up": "ib-ndr"}, "ib-ndr is a NIC, not a scale-up link"),
        ({"fabric_kind": "fat-three"}, "fabric kind is 'fat-three'; did you mean 'fat-tree'"),
        ({"nic": None}, "span 4 scale-up domains of 8 but nodes have no NIC"),
        ({"nic": None, "nics_per_node": 8}, "8 NICs a node, but no nic"),
        ({"nics_per_node": 0}, "span 4 scale-up domains of 8 but nodes have no NIC"),
        ({"domain": 12}, "domain of 12 does not hold whole nodes of 8"),
        ({"domain": 4}, "domain of 4 does not hold whole nodes of 8"),
        ({"scale_up": "nvlink4-bridge"}, "joins at most 2 accelerators, got a domain of 8"),
        ({"oversubscription": 0.5}, "oversubscription is 0.5, needed 1"),
        ({"oversubscription": math.nan}, "oversubscription is nan"),
        ({"price_per_hour": -1.0}, "price_per_hour is -1"),
    ],
)
def test_parts_that_make_no_cluster_are_refused_with_the_mend(change, message):
    """Every mistake says what was got and what is needed."""
    with pytest.raises(HardwareError, match=message):
        build_cluster(**({**H100, "nodes": 4} | change))


@settings(max_examples=50)
@given(
    key=st.sampled_from(["accelerators_per_node", "nodes", "domain", "nics_per_node"]),
    value=st.integers(max_value=-1),
)
def test_negative_counts_are_refused(key, value):
    """No negative count of anything makes a cluster."""
    with pytest.raises(HardwareError):
        build_cluster(**{**H100, "nodes": 2} | {key: value})


@settings(max_examples=50)
@given(st.floats(max_value=0.0) | st.just(math.nan) | st.just(math.inf))
def test_bandwidths_that_are_no_bandwidth_are_refused(bandwidth):
    """Zero, negative, infinite and undefined NIC bandwidths raise."""
    with pytest.raises(HardwareError, match="bandwidth"):
        build_cluster(**H100 | {"nic": bandwidth}, nodes=2)


@settings(max_examples=50)
@given(nodes=st.integers(min_value=65, max_value=10**9))
def test_more_chips_than_a_pod_need_a_network(nodes):
    """A v5e torus joins 256 chips; hosts of 4 beyond the 64th have nothing to talk over."""
    with pytest.raises(HardwareError, match="have no NIC"):
        build_cluster(accelerator="tpu-v5e", accelerators_per_node=4, nodes=nodes)


@settings(max_examples=50)
@given(
    per_node=st.integers(1, 16),
    nodes=st.integers(1, 300),
    kind=st.sampled_from(["rail-optimized", "fat-tree", "dragonfly+", "torus", "single-switch"]),
    over=st.floats(1, 8),
)
def test_every_rank_has_one_node_and_one_domain(per_node, nodes, kind, over):
    """Nodes and domains partition the ranks in order, whatever the shape of the cluster."""
    cluster = build_cluster(
        accelerator="a100-sxm-80",
        accelerators_per_node=per_node,
        nodes=nodes,
        nic="ib-hdr",
        fabric_kind=kind,
        oversubscription=over,
    )
    node = cluster.node_of(np.arange(cluster.accelerators))
    assert np.array_equal(np.bincount(node), np.full(nodes, per_node))
    assert np.array_equal(node, cluster.domain_of(np.arange(cluster.accelerators)))


def test_overrides_change_what_they_name_and_nothing_else():
    """Slower NICs in an oversubscribed fabric leave node, accelerator and size alone."""
    before = system("dgx-h100", nodes=32)
    after = with_overrides(before, nic=25e9, oversubscription=2.0)
    assert after.node.nic.bandwidth == 25e9
    assert after.fabric.oversubscription == 2.0
    assert (after.nodes, after.accelerator, after.node.nics) == (32, before.accelerator, 8)
    assert source_of(after, "nic") == "given by the user"


def test_no_override_is_the_same_cluster():
    """with_overrides without overrides changes nothing."""
    for name in ("dgx-h100", "gb200-nvl72", "tpu-v4-pod", "frontier"):
        assert with_overrides(system(name)) == system(name)


def test_another_accelerator_brings_its_usual_link_unless_it_was_chosen():
    """A DGX A100 with H100s gets NVLink 4; one whose link was set by hand keeps it."""
    dgx = system("dgx-a100-80gb", nodes=2)
    assert with_overrides(dgx, accelerator="h100-sxm").node.scale_up.name == "nvlink4"
    by_hand = with_overrides(dgx, scale_up="pcie4-x16")
    assert with_overrides(by_hand, accelerator="h100-sxm").node.scale_up.name == "pcie4-x16"


def test_fewer_accelerators_a_node_shrink_the_domain_with_it():
    """Half a DGX is a domain of four."""
    half = with_overrides(system("dgx-h100", nodes=2), accelerators_per_node=4)
    assert (half.node.accelerators, half.node.domain) == (4, 4)


def test_a_part_of_a_node_has_its_part_of_nics_and_power():
    """Half a DGX H100: four of eight NICs and half of 10.2 kW, so that an accelerator's share stays; NICs that are given stay."""
    whole = system("dgx-h100", nodes=2)
    half = with_overrides(whole, accelerators_per_node=4)
    assert (half.node.nics, half.node.power_w) == (4, 5100.0)
    assert half.node.nic_bandwidth_per_accelerator == whole.node.nic_bandwidth_per_accelerator
    assert with_overrides(whole, accelerators_per_node=4, nics_per_node=8).node.nics == 8


@pytest.mark.parametrize(
    ("parts", "watts"),
    [
        ({"accelerator": "b200-sxm"}, 10_200 + 8 * 300),
        ({"accelerator": "l40s"}, 10_200 - 8 * 350),
        ({"accelerator": "l40s", "accelerators_per_node": 4}, 5_100 - 4 * 350),
        ({"accelerators_per_node": 16}, 10_200 + 8 * 700),
    ],
)
def test_a_node_draws_what_its_boards_do(parts, watts):
    """Boards of 1,000 W in place of 700, or eight more of them, add what they draw to the 10.2 kW of a DGX H100."""
    assert with_overrides(system("dgx-h100"), **parts).node.power_w == watts


def test_nics_for_nodes_that_had_none_need_a_kind():
    """A count of NICs alone does not say how fast they are."""
    pod = build_cluster(accelerator="tpu-v4", accelerators_per_node=4, nodes=4)
    with pytest.raises(HardwareError, match="2 NICs a node, but no nic"):
        with_overrides(pod, nics_per_node=2)
    assert with_overrides(pod, nic="dcn-200").node.nics == 4


def test_impossible_overrides_are_refused():
    """An override is checked like anything else."""
    with pytest.raises(HardwareError, match="nodes is 0"):
        with_overrides(system("dgx-h100"), nodes=0)
    with pytest.raises(HardwareError, match="accelerators_per_node is 0"):
        with_overrides(system("dgx-h100"), accelerators_per_node=0)


def test_the_network_latency_grows_with_the_switches_crossed():
    """One switch in a leaf, three through a spine, five through the core, none in a node."""
    cluster = system("dgx-h100", nodes=512)
    hop, nic = cluster.fabric.hop_latency, cluster.node.nic.latency
    assert cluster.network_latency(1) == 0.0
    for span, switches in ((2, 1), (32, 1), (33, 3), (128, 3), (129, 5), (512, 5)):
        assert cluster.network_latency(span) == pytest.approx(nic + switches * hop)


def test_oversubscription_bites_only_beyond_the_leaf():
    """At 2:1 a node keeps its 400 GB/s in its leaf (42 nodes of 64 ports) and gets half beyond."""
    cluster = with_overrides(system("dgx-h100", nodes=128), oversubscription=2.0)
    assert cluster.node_bandwidth(2) == 400e9
    assert cluster.node_bandwidth(42) == 400e9
    assert cluster.node_bandwidth(43) == 200e9
    assert cluster.node_bandwidth(128) == 200e9


def test_accelerators_refuse_nonsense_figures():
    """An accelerator without memory, or one that idles at less than nothing, is no accelerator."""
    good = accelerator("h100-sxm")
    fields = {name: getattr(good, name) for name in Accelerator.__dataclass_fields__}
    for change in ({"memory_bytes": 0.0}, {"memory_bandwidth": math.inf}, {"idle_w": -1.0}):
        with pytest.raises(HardwareError, match=f"h100-sxm: {next(iter(change))}"):
            Accelerator(**fields | change)


def test_str_of_link_and_accelerator_carry_units():
    """What is printed says GB/s per direction, TFLOP/s and GB."""
    assert str(link("nvlink4")).startswith("NVLink 4 on NVSwitch gen 3: 450 GB/s per direction")
    assert "989 TFLOP/s bf16" in str(accelerator("h100-sxm"))
