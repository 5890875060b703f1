"""Laws of every communication library: nothing beats the links, more is never faster, and times have no steps but those of real tables."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpsim.cost import COLLECTIVES, CollectiveModel, default_library, library_names
from mpsim.cost.libraries.host import HostLibrary, decision_table
from mpsim.cost.network import group_bandwidth, nic_bandwidth, ring_passes
from mpsim.errors import HardwareError
from mpsim.hardware.cluster import Cluster
from mpsim.hardware.lookup import system
from mpsim.parallel.crossing import GroupShape
from tests.nightly import examples

SYSTEMS = {
    "dgx-h100": 64,
    "dgx-a100-80gb": 16,
    "gb200-nvl72": 36,
    "l40s-pcie": 4,
    "mi300x-8": 16,
    "tpu-v5e": 96,
    "aws-trn2": 4,
}
CLUSTERS = {name: system(name, nodes=nodes) for name, nodes in SYSTEMS.items()}
HOSTED = ("gloo", "mpich", "openmpi")
PLACES = tuple(
    (name, library)
    for name, cluster in CLUSTERS.items()
    for library in (default_library(cluster), *HOSTED)
)
MODELS = {place: CollectiveModel(CLUSTERS[place[0]], library=place[1]) for place in PLACES}
MOVING = tuple(kind for kind in COLLECTIVES if kind != "barrier")
LONGEST = 1e11  # bytes

places = st.sampled_from(PLACES)
kinds = st.sampled_from(COLLECTIVES)
sizes = st.just(0.0) | st.floats(1, LONGEST)


@st.composite
def placed(draw: st.DrawFn) -> tuple[tuple[str, str], GroupShape]:
    """A library on a cluster, and a group that fits it evenly."""
    place = draw(places)
    cluster = CLUSTERS[place[0]]
    inside = draw(st.integers(1, min(cluster.node.domain, cluster.accelerators)))
    domains = draw(st.integers(1, cluster.domains if cluster.node.nics else 1))
    return place, GroupShape(inside * domains, inside, domains)


def changed(cluster: Cluster, which: str, **factors: float) -> Cluster:
    """The cluster with figures of its NICs or scale-up links multiplied."""
    link = getattr(cluster.node, which)
    values = {figure: getattr(link, figure) * factor for figure, factor in factors.items()}
    node = dataclasses.replace(cluster.node, **{which: dataclasses.replace(link, **values)})
    return dataclasses.replace(cluster, node=node)


def test_every_library_is_held_to_the_laws() -> None:
    """None is left out; HCCL shares RCCL's code and is only asked for by its own accelerators."""
    assert {library for _, library in PLACES} | {"hccl"} == set(library_names())


@given(where=placed(), kind=kinds, size=sizes)
@settings(max_examples=examples(80, 200), deadline=None)
def test_no_library_beats_the_floor_and_one_rank_is_free(where, kind: str, size: float) -> None:
    """Time is finite, at least the floor, and 0 only for a group of one."""
    place, group = where
    model = MODELS[place]
    time, floor = (method(kind, size, group) for method in (model.seconds, model.floor))
    assert time >= floor >= 0
    assert np.isfinite(time)
    assert (time > 0) == (group.ranks > 1)
    answer = model.answer(kind, size, group)
    assert (answer.seconds, answer.library) == (time, place[1])
    assert answer.algorithm


@given(where=placed(), kind=kinds, size=sizes)
@settings(max_examples=examples(40, 200), deadline=None)
def test_nics_change_nothing_inside_a_domain(where, kind: str, size: float) -> None:
    """So that points that differ in NICs share what a domain's collectives were found to take."""
    (name, library), group = where
    group = GroupShape(group.per_domain, group.per_domain, 1)
    faster = changed(CLUSTERS[name], "nic", bandwidth=3.0, latency=0.5, efficiency=0.5)
    model = CollectiveModel(faster, library=library, shared=False)
    for ask in ("seconds", "floor"):
        same = [getattr(one, ask)(kind, size, group) for one in (model, MODELS[name, library])]
        assert same[0] == same[1]
    message = [one.send(size, crosses=False) for one in (model, MODELS[name, library])]
    assert message[0] == message[1]


@given(where=placed(), kind=st.sampled_from(MOVING), size=sizes, factor=st.floats(1, 100))
@settings(max_examples=examples(80, 200), deadline=None)
def test_more_bytes_are_never_faster(where, kind: str, size: float, factor: float) -> None:
    """Whatever algorithms the library switches between."""
    place, group = where
    small, large = (MODELS[place].seconds(kind, s, group) for s in (size, size * factor))
    assert large >= small * (1 - 1e-12)


@given(
    where=placed(),
    kind=kinds,
    size=sizes,
    factor=st.floats(1, 10),
    which=st.sampled_from(("nic", "scale_up")),
    figure=st.sampled_from(("bandwidth", "latency")),
)
@settings(max_examples=examples(80, 200), deadline=None)
def test_better_links_are_never_slower(
    where, kind: str, size: float, factor: float, which: str, figure: str
) -> None:
    """More bandwidth or less latency never lengthens a collective or a message, with any library."""
    place, group = where
    model, cluster = MODELS[place], CLUSTERS[place[0]]
    by = factor if figure == "bandwidth" else 1 / factor
    better = CollectiveModel(changed(cluster, which, **{figure: by}), library=place[1])
    same = CollectiveModel(cluster, library=place[1])
    assert better.seconds(kind, size, group) <= same.seconds(kind, size, group) * (1 + 1e-12)
    crosses = group.crosses
    assert better.send(size, crosses=crosses) <= model.send(size, crosses=crosses) * (1 + 1e-12)


@given(where=placed(), kind=kinds, size=sizes, extra=st.floats(0, 1e-4))
@settings(max_examples=examples(20, 50), deadline=None)
def test_slower_switches_are_never_faster(where, kind: str, size: float, extra: float) -> None:
    """Latency of the fabric's hops."""
    place, group = where
    cluster = CLUSTERS[place[0]]
    fabric = dataclasses.replace(cluster.fabric, hop_latency=cluster.fabric.hop_latency + extra)
    slower = CollectiveModel(dataclasses.replace(cluster, fabric=fabric), library=place[1])
    same = CollectiveModel(cluster, library=place[1])
    assert slower.seconds(kind, size, group) >= same.seconds(kind, size, group) * (1 - 1e-12)


@given(where=placed(), kind=st.sampled_from(MOVING), size=st.floats(1, LONGEST))
@settings(max_examples=examples(80, 200), deadline=None)
def test_bus_bandwidth_is_never_above_the_links(where, kind: str, size: float) -> None:
    """busbw <= what a rank can send inside and outside; where switches sum an all-reduce, algbw is."""
    place, group = where
    if group.ranks == 1:
        return
    cluster = CLUSTERS[place[0]]
    rate = size / MODELS[place].seconds(kind, size, group)
    summed = kind == "all_reduce" and cluster.node.scale_up.in_network_reduction
    passes = 1.0 if summed else ring_passes(kind, group.ranks)
    outside = nic_bandwidth(cluster, 1) if group.crosses else 0.0
    inside = cluster.node.scale_up.bandwidth if group.per_domain > 1 else 0.0
    assert rate * passes <= (inside + outside) * (1 + 1e-9)


@given(where=placed(), kind=st.sampled_from(MOVING), size=sizes)
@settings(max_examples=examples(80, 200), deadline=None)
def test_no_link_carries_more_than_its_rate(where, kind: str, size: float) -> None:
    """What a rank is said to send fits through its links in the time that the library takes."""
    place, group = where
    model, cluster = MODELS[place], CLUSTERS[place[0]]
    inside, outside = model.wire_bytes(kind, size, group)
    time = model.seconds(kind, size, group) * (1 + 1e-9)
    members = 2 if kind == "send_recv" else group.per_domain
    assert inside <= time * group_bandwidth(cluster, members)
    if group.crosses:
        assert outside <= time * nic_bandwidth(cluster, 1)


@given(where=placed(), kind=kinds, many=st.lists(sizes, min_size=1, max_size=6))
@settings(max_examples=examples(20, 50), deadline=None)
def test_an_array_of_sizes_equals_the_sizes_one_by_one(where, kind: str, many) -> None:
    """Vector equals scalar."""
    place, group = where
    model = MODELS[place]
    together = model.seconds(kind, np.array(many), group)
    assert together.tolist() == pytest.approx([model.seconds(kind, s, group) for s in many])


def steps(model: CollectiveModel, kind: str, group: GroupShape) -> dict[float, float]:
    """Sizes at which one byte in a thousand more takes over 15 % longer, with the ratio."""
    grid = np.geomspace(1, LONGEST, 20_000)  # 0.13 % apart
    times = model.seconds(kind, grid, group)
    jumps = times[1:] / times[:-1]
    return {float(grid[i + 1]): float(jumps[i]) for i in np.flatnonzero(jumps > 1.15)}


@pytest.mark.parametrize(
    ("name", "library"), [place for place in PLACES if place[1] not in ("openmpi", "mpich")]
)
def test_no_switch_of_regime_is_a_step_of_15_per_cent(name: str, library: str) -> None:
    """NCCL, RCCL, torus and gloo: from 1 B to 100 GB, in and across domains."""
    cluster = CLUSTERS[name]
    domain = min(cluster.domain_size, cluster.node.domain)
    groups = [GroupShape(n, n, 1) for n in (2, domain) if n <= domain]
    if cluster.domains > 1 and cluster.node.nics:
        groups.append(GroupShape(2 * domain, domain, 2))
    for group in groups:
        for kind in MOVING:
            assert not steps(MODELS[name, library], kind, group), (kind, group)


@pytest.mark.parametrize("library", ["openmpi", "mpich"])
@pytest.mark.parametrize("ranks", [4, 8, 16, 128])
def test_mpi_steps_only_where_its_table_switches(library: str, ranks: int) -> None:
    """The real tables were tuned on other machines than this, so they step; nowhere else does the time."""
    model = MODELS["dgx-h100", library]
    group = GroupShape(ranks, min(8, ranks), max(1, ranks // 8))
    for kind in MOVING:
        if kind == "send_recv":
            continue
        switches = [s for s, _ in decision_table(library).regimes(kind, ranks) if math.isfinite(s)]
        for at in steps(model, kind, group):
            assert any(at == pytest.approx(s, rel=0.01, abs=1) for s in switches), (kind, at)


def test_the_steps_of_the_tables_as_they_are() -> None:
    """Four DGX H100: MPICH's all-gather goes from 5 rounds to 31 at 512 KiB, Open MPI's at 1 KiB a rank; a ring of 8 in a node hardly costs."""
    four, node = GroupShape(32, 8, 4), GroupShape(8, 8, 1)
    expected = {
        ("mpich", "all_gather", four): {512: 3.8},
        ("openmpi", "all_gather", four): {32: 4.7},
        ("mpich", "reduce_scatter", four): {512: 1.9},
        ("mpich", "all_to_all", four): {1025: 3.8},
        ("openmpi", "broadcast", node): {0: 1.4, 4: 1.2, 32: 1.9},
        ("mpich", "all_gather", node): {},
        ("openmpi", "all_reduce", four): {},
    }
    for (library, kind, group), jumps in expected.items():
        found = steps(MODELS["dgx-h100", library], kind, group)
        shown = {round(at / 1024): jump for at, jump in found.items()}
        assert shown == pytest.approx(jumps, rel=0.03), (library, kind)


@given(name=st.sampled_from(sorted(CLUSTERS)), library=st.sampled_from(library_names()))
@settings(max_examples=examples(20, 50), deadline=None)
def test_a_library_runs_where_it_can_or_says_which_do(name: str, library: str) -> None:
    """Never a wrong library in silence."""
    cluster = CLUSTERS[name]
    try:
        model = CollectiveModel(cluster, library=library)
    except HardwareError as error:
        assert default_library(cluster) in str(error)
    else:
        assert model.library.name == library
        assert isinstance(model.library, HostLibrary) == (library in HOSTED)
