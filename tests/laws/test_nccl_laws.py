"""Laws of NCCL's times outside the measured grid: any group size, any number of nodes, 1 B to 16 GiB."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpsim.cost import CollectiveModel
from mpsim.hardware.cluster import Cluster
from mpsim.hardware.components import Link
from mpsim.hardware.lookup import system
from mpsim.parallel.crossing import GroupShape
from tests.nightly import examples

KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce")
CLUSTERS = {
    "dgx-a100-80gb": system("dgx-a100-80gb", nodes=256),
    "dgx-h100": system("dgx-h100", nodes=1024),
    "aws-p6-b200": system("aws-p6-b200", nodes=256),
    "gb200-nvl72": system("gb200-nvl72", nodes=18 * 20),
    "l40s-pcie": system("l40s-pcie", nodes=1),
}
GIB = 2.0**30
SIZES = 2.0 ** np.arange(0, 34.25, 0.25)

kinds = st.sampled_from(KINDS)
sizes = st.floats(1, 16 * GIB)


@st.composite
def placed(draw: st.DrawFn) -> tuple[Cluster, GroupShape, bool]:
    cluster = CLUSTERS[draw(st.sampled_from(sorted(CLUSTERS)))]
    inside = draw(st.integers(1, min(cluster.node.domain, cluster.accelerators)))
    domains = draw(st.integers(1, cluster.domains))
    return cluster, GroupShape(inside * domains, inside, domains), draw(st.booleans())


@given(
    where=placed(),
    kind=kinds,
    size=sizes,
    factor=st.floats(1, 10),
    link=st.sampled_from(("nic", "scale_up")),
)
@settings(max_examples=examples(20, 50), deadline=None)
def test_a_longer_hop_is_never_faster(
    where: tuple[Cluster, GroupShape, bool], kind: str, size: float, factor: float, link: str
) -> None:
    """Time grows with the latency of NICs and of scale-up links."""
    cluster, group, loaded = where
    part = getattr(cluster.node, link)
    slower = dataclasses.replace(part, latency=part.latency * factor)
    node = dataclasses.replace(cluster.node, **{link: slower})
    worse = CollectiveModel(dataclasses.replace(cluster, node=node), loaded=loaded)
    before = CollectiveModel(cluster, loaded=loaded).seconds(kind, size, group)
    assert worse.seconds(kind, size, group) >= before


@given(where=placed(), kind=kinds)
@settings(max_examples=examples(20, 50), deadline=None)
def test_time_grows_with_size_without_jumps_and_bandwidth_never_falls(
    where: tuple[Cluster, GroupShape, bool], kind: str
) -> None:
    """A fifth more bytes take at most a fifth more time; the rate of a larger collective is not below a smaller one's."""
    cluster, group, loaded = where
    times = CollectiveModel(cluster, loaded=loaded).seconds(kind, SIZES, group)
    assert np.all(np.diff(times) >= 0)
    assert np.all(np.diff(times / SIZES) <= 1e-12 * (times / SIZES)[1:])


@pytest.mark.parametrize("name", ["dgx-h100", "aws-p6-b200", "dgx-a100-80gb", "l40s-pcie"])
@pytest.mark.parametrize("kind", ["all_gather", "reduce_scatter", "all_to_all"])
@pytest.mark.parametrize(("members", "low", "high"), [(3, 2, 4), (5, 4, 8), (6, 4, 8), (7, 4, 8)])
def test_a_group_size_between_measured_ones_takes_a_time_between_theirs(
    name: str, kind: str, members: int, low: int, high: int
) -> None:
    """For as many bytes a rank sends; an all-to-all's own copy shrinks with the members and is left a tenth."""
    model = CollectiveModel(CLUSTERS[name], loaded=False)
    sent = 2.0 ** np.arange(9, 34)
    times = {
        n: model.seconds(kind, sent * n / (n - 1), GroupShape(n, n, 1))
        for n in (low, members, high)
    }
    ends = np.array([times[low], times[high]])
    assert np.all(times[members] >= 0.9 * ends.min(axis=0))
    assert np.all(times[members] <= 1.1 * ends.max(axis=0))


@pytest.mark.parametrize(
    ("name", "ring", "switch"), [("dgx-h100", 365, 478), ("aws-p6-b200", 645, 790)]
)
def test_switches_take_over_an_all_reduce_above_four_gpus(
    name: str, ring: float, switch: float
) -> None:
    """Bus bandwidth of 16 GiB, GB/s: a ring up to 4 GPUs; from 5 on one time for any number, as the switches sum (seen from 5 on H200)."""
    model = CollectiveModel(CLUSTERS[name], loaded=False)
    size = 16 * GIB
    times = {n: model.seconds("all_reduce", size, GroupShape(n, n, 1)) for n in (4, 5, 6, 7, 8)}
    assert 1.5 * size / times[4] / 1e9 == pytest.approx(ring, rel=0.05)
    assert 1.75 * size / times[8] / 1e9 == pytest.approx(switch, rel=0.05)
    for n in (5, 6, 7):
        assert times[n] == pytest.approx(times[8], rel=0.01)


def test_all_reduce_over_racks_leaves_by_eight_nics() -> None:
    """GB200 NVL72, GB/s of bus bandwidth published: 846 in a rack, 820 over two, 406 over twenty (NVIDIA; the rate of the NICs is taken as 400G)."""
    model = CollectiveModel(CLUSTERS["gb200-nvl72"], loaded=False)
    size = 16 * GIB
    for racks, published in ((1, 846), (2, 820), (20, 406)):
        group = GroupShape(72 * racks, 72, racks)
        rate = 2 * (group.ranks - 1) / group.ranks * size / model.seconds("all_reduce", size, group)
        assert rate / 1e9 == pytest.approx(published, rel=0.15)


@pytest.mark.parametrize(
    ("kind", "group", "basis"),
    [
        ("all_reduce", GroupShape(8, 8, 1), "model"),
        ("all_reduce", GroupShape(6, 6, 1), "model, between fits of 4 and 8 ranks"),
        ("all_gather", GroupShape(72, 72, 1), "model, beyond fits of 8 ranks"),
        ("all_reduce", GroupShape(144, 72, 2), "model"),
        ("all_gather", GroupShape(144, 72, 2), "model, across domains as fitted on all-reduces"),
    ],
)
def test_an_answer_says_how_far_it_is_from_what_was_measured(
    kind: str, group: GroupShape, basis: str
) -> None:
    """Group sizes between and beyond the measured ones, and collectives that nobody measured across nodes."""
    model = CollectiveModel(CLUSTERS["gb200-nvl72"])
    assert model.answer(kind, 2.0**20, group).basis == basis


def test_an_all_to_all_copies_a_ranks_own_part_at_the_rate_of_its_memory() -> None:
    """512 MiB among two GPUs took 966 us on H100 and 898 us on H200, whose memory is 1.43 times as fast (aiconfigurator)."""
    pair, size = GroupShape(2, 2, 1), 2.0**29
    times = [
        CollectiveModel(system(name), loaded=False).seconds("all_to_all", size, pair)
        for name in ("dgx-h100", "dgx-h200")
    ]
    assert times == pytest.approx([966e-6, 898e-6], rel=0.04)


@pytest.mark.parametrize(
    ("kind", "ranks", "hops"), [("all_gather", 8, 7), ("all_reduce", 4, 6), ("all_reduce", 8, 1)]
)
@pytest.mark.parametrize("key", ["latency", "switch_latency"])
def test_a_given_latency_counts_for_every_hop_of_a_domain(
    kind: str, ranks: int, hops: int, key: str
) -> None:
    """A microsecond more a hop: n - 1 hops of a ring, twice for an all-reduce, one where switches sum."""
    cluster = CLUSTERS["dgx-h100"]
    link = cluster.node.scale_up
    slower = _joined_by(dataclasses.replace(link, **{key: getattr(link, key) + 1e-6}))
    group = GroupShape(ranks, ranks, 1)
    before, after = (CollectiveModel(each).seconds(kind, 1e6, group) for each in (cluster, slower))
    assert after - before == pytest.approx(hops * 1e-6)


def test_a_given_efficiency_scales_the_rate_of_a_large_collective() -> None:
    """Half the share of the bandwidth: twice the time of 16 GiB, less latencies."""
    cluster, group = CLUSTERS["dgx-h100"], GroupShape(8, 8, 1)
    link = cluster.node.scale_up
    halved = _joined_by(dataclasses.replace(link, efficiency=link.efficiency / 2))
    before, after = (
        CollectiveModel(each).seconds("all_gather", 16 * GIB, group) for each in (cluster, halved)
    )
    assert after / before == pytest.approx(2.0, rel=0.01)


def _joined_by(link: Link) -> Cluster:
    """The cluster of H100 with another link in its domains."""
    cluster = CLUSTERS["dgx-h100"]
    return dataclasses.replace(cluster, node=dataclasses.replace(cluster.node, scale_up=link))
