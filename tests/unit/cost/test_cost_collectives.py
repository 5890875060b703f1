"""CollectiveModel: sizes, traffic, links of every shape, messages, bookkeeping."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from mpsim.cost import CollectiveModel, Status
from mpsim.cost.network import (
    group_bandwidth,
    pair_bandwidth,
    ring_passes,
    sent_bytes,
    torus_extents,
)
from mpsim.errors import HardwareError
from mpsim.hardware.cluster import Cluster
from mpsim.hardware.lookup import build_cluster, system
from mpsim.parallel.crossing import GroupShape

GB = 1e9
NODE = GroupShape(8, 8, 1)
P5 = (28.56, 43.45, 55.44, 84.29, 124, 198.6, 326.6, 592.8, 1121.4, 2165.3, 4253)
H100 = CollectiveModel(system("dgx-h100", nodes=128))
A100 = CollectiveModel(system("dgx-a100-80gb", nodes=128))


def bus_bandwidth(model: CollectiveModel, kind: str, size: float, group: GroupShape) -> float:
    return ring_passes(kind, group.ranks) * size / model.seconds(kind, size, group)


@pytest.mark.parametrize(
    ("kind", "passes"),
    [
        ("all_reduce", 2 * 7 / 8),
        ("all_gather", 7 / 8),
        ("reduce_scatter", 7 / 8),
        ("all_to_all", 7 / 8),
        ("broadcast", 1),
        ("reduce", 1),
        ("send_recv", 1),
        ("barrier", 0),
    ],
)
def test_bus_bandwidth_factors_are_those_of_nccl_tests(kind: str, passes: float) -> None:
    """2(n-1)/n, (n-1)/n, 1 and 0; a group of one moves nothing."""
    assert ring_passes(kind, 8) == pytest.approx(passes)
    assert ring_passes(kind, 1) == 0


@pytest.mark.parametrize(
    ("model", "kind", "low", "high"),
    [  # 512 MiB on 8 GPUs, NCCL 2.27-2.29 (aiconfigurator): 222, 205; 445-460, 335-337 GB/s
        (A100, "all_reduce", 210, 233),
        (A100, "all_gather", 195, 220),
        (H100, "all_reduce", 430, 475),
        (H100, "all_gather", 325, 360),
    ],
)
def test_large_collectives_on_a_node_reach_the_measured_bus_bandwidth(
    model: CollectiveModel, kind: str, low: float, high: float
) -> None:
    """Within about 6 % of nccl-tests at 512 MiB."""
    assert low < bus_bandwidth(model, kind, 512 * 2**20, NODE) / GB < high


def test_one_mebibyte_all_reduce_on_eight_h100_takes_the_measured_28_microseconds() -> None:
    """Measured 27.4-28.6 us (communication tables); the curve is within 15 %."""
    assert H100.seconds("all_reduce", 2.0**20, NODE) == pytest.approx(28e-6, rel=0.15)


def test_switches_that_reduce_help_from_five_gpus_on() -> None:
    """At 4 the ring is used; at 8 NVLS passes the wire; a link without it stays at the ring's rate."""
    size = 2.0**30
    node = H100.cluster.node
    plain = dataclasses.replace(node.scale_up, in_network_reduction=False)
    ring = CollectiveModel(
        dataclasses.replace(H100.cluster, node=dataclasses.replace(node, scale_up=plain))
    )
    four = GroupShape(4, 4, 1)
    assert bus_bandwidth(H100, "all_reduce", size, four) == bus_bandwidth(
        ring, "all_reduce", size, four
    )
    assert bus_bandwidth(H100, "all_reduce", size, NODE) > 1.2 * bus_bandwidth(
        ring, "all_reduce", size, NODE
    )
    assert bus_bandwidth(ring, "all_reduce", size, NODE) < node.scale_up.bandwidth


def test_a_group_of_one_costs_nothing() -> None:
    """No peers: no time, no traffic."""
    alone = GroupShape(1, 1, 1)
    assert H100.seconds("all_reduce", 1e9, alone) == 0
    assert H100.wire_bytes("all_reduce", 1e9, alone) == (0, 0)
    assert H100.floor("all_reduce", 1e9, alone) == 0


def test_a_barrier_is_pure_latency() -> None:
    """Its size is ignored and it moves no bytes."""
    across = GroupShape(64, 8, 8)
    assert H100.seconds("barrier", 1e9, across) == H100.seconds("barrier", 0.0, across) > 0
    assert H100.wire_bytes("barrier", 1e9, across) == (0, 0)


def test_leaving_the_node_costs_at_least_the_nic_share() -> None:
    """All-reduce of 1 GB over 4 nodes of 8 x 50 GB/s: 2 * 31/32 GB / 8 through a share that keeps 0.92, less 8 % congestion."""
    outside = 2 * 31 / 32 * 1e9 / 8
    expected = outside / (50e9 * 0.92 / 1.08)
    assert H100.seconds("all_reduce", 1e9, GroupShape(32, 8, 4)) == pytest.approx(expected, rel=0.1)


def test_a_quiet_network_is_faster_than_a_loaded_one_for_large_messages() -> None:
    """Benchmarks see a fifth of the congestion of training, on a NIC that keeps about as much."""
    quiet = CollectiveModel(H100.cluster, loaded=False)
    group = GroupShape(1024, 8, 128)
    assert quiet.seconds("all_reduce", 8e9, group) < 0.85 * H100.seconds("all_reduce", 8e9, group)


@pytest.mark.parametrize(("machine", "bus"), [("dgx-a100-80gb", 24e9), ("dgx-h100", 48e9)])
def test_an_all_to_all_between_nodes_reaches_nvidias_reference(machine: str, bus: float) -> None:
    """32 GPUs of four nodes: 24 of 31 bytes that a rank sends leave its node, at 0.743 of its NIC."""
    group = GroupShape(ranks=32, per_domain=8, domains=4)
    size = 2.0**34
    seconds = CollectiveModel(system(machine, nodes=4), loaded=False).seconds(
        "all_to_all", size, group
    )
    assert size * 31 / 32 / float(seconds) == pytest.approx(bus, rel=0.02)


def test_oversubscription_slows_what_leaves_a_leaf() -> None:
    """Up to a leaf of 32 nodes nothing changes; beyond it the rate divides by the oversubscription."""
    fabric = dataclasses.replace(H100.cluster.fabric, oversubscription=4.0)
    thin = CollectiveModel(dataclasses.replace(H100.cluster, fabric=fabric))
    near, far = GroupShape(128, 8, 16), GroupShape(1024, 8, 128)
    size = 8e9
    assert thin.seconds("all_reduce", size, near) == H100.seconds("all_reduce", size, near)
    ratio = thin.seconds("all_reduce", size, far) / H100.seconds("all_reduce", size, far)
    assert ratio == pytest.approx(4.0, rel=0.15)


def test_small_all_reduces_over_many_nodes_take_a_tree_and_not_a_ring() -> None:
    """1 KB over 1024 GPUs: a ring has 2046 steps, a tree about 20 network hops deep."""
    time = H100.seconds("all_reduce", 1024.0, GroupShape(1024, 8, 128))
    assert 50e-6 < time < 250e-6


def test_traffic_of_a_ring_through_domains() -> None:
    """8 GB all-gathered over 2 x 4 ranks: 7 GB a rank, three hops of four inside."""
    inside, outside = H100.wire_bytes("all_gather", 8e9, GroupShape(8, 4, 2))
    assert (inside, outside) == pytest.approx((7e9 * 3 / 4, 7e9 / 4))


def test_traffic_of_an_all_reduce_over_two_domains_is_an_exchange() -> None:
    """Inside a ring over 4 ranks; outside each of 4 shares sends a quarter of the tensor once."""
    inside, outside = H100.wire_bytes("all_reduce", 8e9, GroupShape(8, 4, 2))
    assert (inside, outside) == pytest.approx((8e9 * 2 * 3 / 4, 2e9))


def test_traffic_of_an_all_reduce_in_switches_is_the_tensor_and_one_reduced_part() -> None:
    """8 H100: 8 GB out to be summed, 1 GB of result written back; a ring of 8 A100 sends 14 GB."""
    assert H100.wire_bytes("all_reduce", 8e9, NODE) == pytest.approx((9e9, 0))
    assert A100.wire_bytes("all_reduce", 8e9, NODE) == pytest.approx((14e9, 0))


def test_traffic_of_all_to_all_goes_straight_to_its_peers() -> None:
    """8 GB to 8 ranks of which 4 here: 3 GB inside, 4 GB outside, 1 GB stays; PXN hands 3 of the 4 GB to the right rail."""
    group = GroupShape(8, 4, 2)
    mesh = CollectiveModel(system("mi300x-8", nodes=2))
    assert mesh.wire_bytes("all_to_all", 8e9, group) == pytest.approx((3e9, 4e9))
    assert H100.wire_bytes("all_to_all", 8e9, group) == pytest.approx((6e9, 4e9))


def test_traffic_inside_a_domain_never_leaves_it() -> None:
    """One domain: everything on scale-up links; one rank a domain: everything on NICs."""
    for kind in ("all_reduce", "all_gather", "all_to_all", "broadcast"):
        assert H100.wire_bytes(kind, 1e9, NODE)[1] == 0
        assert H100.wire_bytes(kind, 1e9, GroupShape(4, 1, 4))[0] == 0


def test_the_sum_over_ranks_of_a_broadcast_is_n_minus_one_copies() -> None:
    """Every rank but the last of a chain sends the tensor once."""
    inside, _ = sent_bytes("broadcast", 1e9, NODE)
    assert 8 * float(inside) == pytest.approx(7e9)


def test_floor_is_bytes_over_raw_rate() -> None:
    """All-gather of 8 GB in a node: 7 GB at 450 GB/s; all-reduce where switches reduce: each rank sends it once."""
    assert H100.floor("all_gather", 8e9, NODE) == pytest.approx(7e9 / 450e9)
    assert H100.floor("all_reduce", 8e9, NODE) == pytest.approx(8e9 / 450e9)
    assert A100.floor("all_reduce", 8e9, NODE) == pytest.approx(2 * 7e9 / 300e9)


def test_floor_across_domains_is_the_nic_share() -> None:
    """All-to-all of 8 GB a rank over 2 x 8: half of it leaves through 50 GB/s."""
    assert H100.floor("all_to_all", 8e9, GroupShape(16, 8, 2)) == pytest.approx(4e9 / 50e9)


def test_a_pair_of_a_mesh_has_one_link_and_all_eight_have_seven() -> None:
    """MI300X: 64 GB/s for a pair, 448 together; measured all-reduce 47.7 and 313-316 GB/s."""
    mesh = system("mi300x-8", nodes=1)
    assert pair_bandwidth(mesh) == pytest.approx(64e9)
    assert group_bandwidth(mesh, 8) == pytest.approx(448e9)
    model = CollectiveModel(mesh)
    assert bus_bandwidth(model, "all_reduce", 4 * 2.0**30, NODE) / GB == pytest.approx(
        315, rel=0.05
    )
    pair = bus_bandwidth(model, "all_reduce", 4 * 2.0**30, GroupShape(2, 2, 1))
    assert pair / GB == pytest.approx(47.7, rel=0.05)


def tpu(chips: int) -> Cluster:
    return build_cluster(
        accelerator="tpu-v5e",
        accelerators_per_node=4,
        nodes=chips // 4,
        nics_per_node=1,
        nic="dcn-100",
        scale_up="ici-v5e",
        domain=chips,
        name="slice",
    )


def test_a_full_axis_of_a_torus_is_a_ring_and_part_of_it_a_line() -> None:
    """16 of a 16 x 16 slice close the ring: twice the links of 8 on a line; all 256 use both axes."""
    pod = tpu(256)
    assert [(e.members, e.wraps) for e in torus_extents(pod, 16)] == [(16, True)]
    assert [(e.members, e.wraps) for e in torus_extents(pod, 8)] == [(8, False)]
    assert [e.members for e in torus_extents(pod, 256)] == [16, 16]
    rates = [group_bandwidth(pod, members) for members in (8, 16, 256)]
    assert rates == pytest.approx([50e9, 100e9, 200e9])


def test_all_gather_on_a_torus_follows_the_ring_formula() -> None:
    """S (k-1)/k over two links at 0.89 each, plus half the ring in hops."""
    model = CollectiveModel(tpu(256))
    expected = 1.6e9 * 15 / 16 / (2 * 50e9 * 0.89) + 3e-6 + 8 * 1e-6
    assert model.seconds("all_gather", 1.6e9, GroupShape(16, 16, 1)) == pytest.approx(expected)


def test_all_to_all_on_a_long_ring_is_limited_by_its_middle() -> None:
    """On a ring of 16 each link carries 16/8 buffers, more than a rank's own 15/16 over two links."""
    model = CollectiveModel(tpu(256))
    expected = 1e9 * 16 / 8 / (50e9 * 0.89)
    assert model.seconds("all_to_all", 1e9, GroupShape(16, 16, 1)) == pytest.approx(
        expected, rel=1e-3
    )


def test_a_message_pays_latency_and_its_share_of_the_link() -> None:
    """100 MB inside a DGX H100: 0.86 of 450 GB/s; out of it: 0.97 of one 50 GB/s NIC; sharing halves the rate."""
    assert H100.send(1e8, crosses=False) == pytest.approx(1e8 / (0.86 * 450e9), rel=0.05)
    assert H100.send(1e8, crosses=True) == pytest.approx(1e8 / (0.97 * 50e9), rel=0.02)
    alone, shared = (H100.send(1e8, crosses=True, share=k) for k in (1, 2))
    assert shared - alone == pytest.approx(1e8 / (0.97 * 50e9))
    assert H100.send_wire_bytes(5.0, crosses=True) == (0, 5)
    assert H100.send_wire_bytes(5.0, crosses=False) == (5, 0)
    with pytest.raises(HardwareError, match="share is 0"):
        H100.send(1.0, crosses=True, share=0)


def test_send_recv_is_one_message() -> None:
    """The collective of that name and the message agree, and its bytes are the message's."""
    pair = GroupShape(2, 1, 2)
    assert H100.seconds("send_recv", 1e7, pair) == H100.send(1e7, crosses=True)
    assert H100.wire_bytes("send_recv", 1e7, pair) == (0, 1e7)


def test_an_unknown_collective_is_answered_with_the_nearest() -> None:
    """A typo is an error, in every method that takes a kind."""
    for method in (H100.seconds, H100.floor, H100.wire_bytes):
        with pytest.raises(HardwareError, match="did you mean 'all_reduce'"):
            method("allreduce", 1.0, NODE)


def test_leaving_a_domain_without_nics_is_refused() -> None:
    """A torus without hosts' NICs cannot send beyond its pod."""
    node = dataclasses.replace(system("mi300x-8", nodes=1).node, nics=0)
    lonely = CollectiveModel(dataclasses.replace(system("mi300x-8", nodes=1), node=node))
    with pytest.raises(HardwareError, match="no NIC"):
        lonely.seconds("all_reduce", 1.0, GroupShape(16, 8, 2))


def test_arrays_come_back_as_arrays_and_floats_as_floats() -> None:
    """The caller's kind of number is kept."""
    sizes = np.array([1e3, 1e6])
    for kind in ("all_reduce", "barrier", "send_recv"):
        assert isinstance(H100.seconds(kind, sizes, NODE), np.ndarray)
        assert isinstance(H100.seconds(kind, 1e6, NODE), float)
    assert H100.seconds("barrier", sizes, NODE).shape == (2,)
    assert isinstance(H100.wire_bytes("all_gather", 1.0, NODE)[0], float)


def test_provenance_grows_with_use_and_labels_borrowed_links() -> None:
    """A100 curves are calibrated; NVLink 2 borrows them and says so."""
    fresh = CollectiveModel(system("dgx-a100-80gb", nodes=2))
    before = {c.name for c in fresh.provenance()}
    assert "hardware.nvlink3.bandwidth" in before
    assert not any(name.startswith("collectives.") for name in before)
    fresh.seconds("all_gather", 1e6, NODE)
    curve = {c.name: c for c in fresh.provenance()}[
        "collectives.inside.nvlink3.fraction_all_gather_8"
    ]
    assert curve.status is Status.CALIBRATED
    older = CollectiveModel(system("dgx-2", nodes=1))
    older.seconds("all_gather", 1e6, NODE)
    borrowed = [c for c in older.provenance() if c.name.startswith("collectives.")]
    assert {c.status for c in borrowed} == {Status.FAMILY_DEFAULT}


@pytest.mark.parametrize("loaded", [True, False])
@pytest.mark.parametrize("kind", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all"])
def test_no_switch_of_regime_makes_a_jump(kind: str, loaded: bool) -> None:
    """One per cent more bytes never takes more than one per cent longer, nor less long, from 64 B to 100 GB."""
    sizes = np.geomspace(64, 1e11, 2200)
    step = sizes[1] / sizes[0]
    for cluster in (A100.cluster, H100.cluster, system("mi300x-8", nodes=4)):
        model = CollectiveModel(cluster, loaded=loaded)
        for group in (GroupShape(2, 2, 1), NODE, GroupShape(16, 8, 2), GroupShape(32, 8, 4)):
            times = model.seconds(kind, sizes, group)
            ratios = times[1:] / times[:-1]
            assert np.all(ratios >= 1)
            assert np.all(ratios <= step * (1 + 1e-9))


def test_small_and_large_messages_are_in_different_regimes() -> None:
    """Low-latency protocols start sooner and end slower: 8 H100, the slope at 64 KiB is over twice that at 1 GiB."""
    slopes = [
        H100.seconds("all_gather", 2 * size, NODE) - H100.seconds("all_gather", size, NODE)
        for size in (2.0**16, 2.0**30)
    ]
    assert slopes[0] / 2**16 > 2 * slopes[1] / 2**30


def test_all_reduce_of_eight_h100_is_within_ten_per_cent_from_one_mebibyte_to_one_gibibyte() -> (
    None
):
    """nccl-tests on one AWS p5.48xlarge (aws-samples/awsome-distributed-training), us by MiB; mean error."""
    measured = dict(zip(2.0 ** np.arange(11), P5, strict=True))
    quiet = CollectiveModel(H100.cluster, loaded=False)
    errors = [
        abs(quiet.seconds("all_reduce", mib * 2.0**20, NODE) * 1e6 / time - 1)
        for mib, time in measured.items()
    ]
    assert np.mean(errors) < 0.1


@pytest.mark.parametrize(
    ("nodes", "mebibytes", "milliseconds"),
    [(4, 64, 0.5646), (4, 4096, 22.80), (64, 64, 0.8924), (1024, 64, 1.2484), (1024, 2048, 13.105)],
)
def test_all_reduce_across_h100_nodes_is_within_fifteen_per_cent(
    nodes: int, mebibytes: float, milliseconds: float
) -> None:
    """NVLSTree on NDR InfiniBand, digitised from NVIDIA's plot."""
    cluster = system("dgx-h100", nodes=1024)
    quiet = CollectiveModel(cluster, loaded=False)
    time = quiet.seconds("all_reduce", mebibytes * 2.0**20, GroupShape(8 * nodes, 8, nodes))
    assert time * 1e3 == pytest.approx(milliseconds, rel=0.15)


def test_fabrics_differ_in_their_fixed_time() -> None:
    """A small all-reduce over two nodes: 161 us measured on p4de (EFA v1), 36 to 43 us on OCI's A100 with RoCE."""
    group = GroupShape(16, 8, 2)
    efa = CollectiveModel(system("aws-p4de", nodes=2), loaded=False)
    assert efa.seconds("all_reduce", 256.0, group) == pytest.approx(161.8e-6, rel=0.1)
    assert CollectiveModel(A100.cluster, loaded=False).seconds("all_reduce", 256.0, group) < 90e-6


def test_domains_larger_than_any_measured_grow_as_nccl_expects() -> None:
    """NVL72: NCCL's least latency of 72 over 8 ranks is 2.31 for an all-gather (25 us in the switches, 10.8 in a ring), 1.67 for an all-reduce."""
    rack = CollectiveModel(system("gb200-nvl72", nodes=18))
    eight, all_of_it = NODE, GroupShape(72, 72, 1)
    gather, reduce = (
        rack.seconds(kind, 1024.0, all_of_it) / rack.seconds(kind, 1024.0, eight)
        for kind in ("all_gather", "all_reduce")
    )
    assert gather == pytest.approx(2.31, rel=0.05)
    assert reduce == pytest.approx(1.67, rel=0.05)


def test_sums_in_the_fabric_pass_each_nic_once_at_half_its_rate() -> None:
    """8 GB over 8 NICs of 25 GB/s, of which 0.931 and half: 8e9 / (0.5 x 0.931 x 200e9) = 85.9 ms, and the latency of a small one."""
    cluster = system("dgx-a100-80gb", nodes=4)
    model = CollectiveModel(cluster, loaded=False)
    group = GroupShape(32, 8, 4)
    rate = 0.5 * 0.931 * cluster.node.nics * cluster.node.nic.bandwidth
    latency = model.seconds("all_reduce", 8.0, group)
    assert model.summed_in_fabric(8e9, group) == pytest.approx(latency + 8e9 / rate)
    assert "collectives.fabric.sums.summed_share" in {c.name for c in model.provenance()}
