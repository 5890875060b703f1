"""Laws of fabrics: what counting says of a collective, and that the engine takes exactly as long when nothing meets."""

from __future__ import annotations

import dataclasses
import itertools
import json

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mpsim
from mpsim.cost import CollectiveModel
from mpsim.engine import run
from mpsim.errors import HardwareError, ScenarioError
from mpsim.hardware import FabricKind, Placement, Routing, build_cluster, system
from mpsim.hardware.graph import cluster_graph
from mpsim.hardware.graph_file import read_links
from mpsim.hardware.routes import routes_of
from mpsim.parallel import Mesh, placed
from mpsim.parallel.crossing import exchange, message_slowdown, ring, slowdown
from mpsim.program import Stream
from mpsim.program.links import links_of
from mpsim.program.program import TICK
from mpsim.program.rows import Rows
from mpsim.simulate import prepare
from mpsim.training.vocabulary import PARTS, TRAINING, Kind
from tests.nightly import examples, some
from tests.plans import small_plan

KINDS = [kind for kind in FabricKind if kind is not FabricKind.GRAPH]


def cluster_of(kind="fat-tree", *, nodes=16, over=1.0, placement=Placement.PACKED, **fabric):
    """DGX H100 nodes; a leaf of the fat tree holds four of them while it is not oversubscribed."""
    usual = system("dgx-h100", nodes=nodes)
    network = dataclasses.replace(
        usual.fabric, kind=FabricKind(kind), oversubscription=over, **fabric
    )
    return dataclasses.replace(usual, fabric=network, placement=placement)


def rails(cluster):
    """One group a rail: the k-th accelerator of every node."""
    return np.arange(cluster.accelerators).reshape(cluster.nodes, -1).T


@pytest.mark.parametrize("over", [1.0, 2.0, 3.0, 7.0])
def test_neighbours_in_a_ring_leave_a_leaf_once_however_many_there_are(over):
    """m nodes a leaf send one node's worth up, of m / s that fit: max(1, s / m) times as long."""
    cluster = cluster_of(over=over)
    leaf = cluster.tiers[0].nodes
    assert slowdown(cluster, ring(cluster, rails(cluster))) == pytest.approx(max(1, over / leaf))


@pytest.mark.parametrize("over", [2.0, 3.0, 7.0])
def test_a_ring_over_dealt_nodes_pays_the_whole_oversubscription(over):
    """When every neighbour is in another rack, all that nodes send goes up: s times as long."""
    cluster = cluster_of(over=over, nodes=56, placement=Placement.BY_RACK)
    assert slowdown(cluster, ring(cluster, rails(cluster))) == pytest.approx(over)


@pytest.mark.parametrize("over", [2.0, 7.0])
def test_an_exchange_sends_up_what_is_for_other_leaves(over):
    """Of n nodes, n - m are elsewhere: s (n - m) / (n - 1) times as long."""
    leaf = cluster_of(over=over).tiers[0].nodes
    cluster = cluster_of(over=over, nodes=4 * leaf)
    n = cluster.nodes
    counted = slowdown(cluster, exchange(cluster, rails(cluster)))
    assert counted == pytest.approx(over * (n - leaf) / (n - 1))


def test_tiers_thin_one_after_the_other():
    """2:1 at the leaves and 3:1 above: from beyond a spine unit comes a sixth."""
    cluster = cluster_of(over=2.0, nodes=1000, above=(3.0,))
    assert [tier.oversubscription for tier in cluster.tiers] == [2, 6, 6]
    spine = cluster.tiers[1].nodes
    far = np.arange(2 * spine * 8).reshape(2, -1).T  # pairs, one in each spine unit
    assert slowdown(cluster, ring(cluster, far)) == pytest.approx(6)


@pytest.mark.parametrize("shape", [(4, 4, 4), (8, 8), (64,), (16, 4)])
def test_a_torus_carries_rings_along_all_its_axes_at_full_rate(shape):
    """Every axis takes its share in both directions, which is all the links there are."""
    cluster = cluster_of("torus", nodes=64, shape=shape, axes=len(shape))
    assert slowdown(cluster, ring(cluster, rails(cluster))) == pytest.approx(1.0)


def test_a_group_on_one_axis_has_the_links_of_that_axis_only():
    """Three axes: a line of four gets a third; with a double-width axis it gets half."""
    line = (np.arange(4) * 8)[None, :]  # nodes 0 to 3: the last axis
    equal = cluster_of("torus", nodes=64, shape=(4, 4, 4))
    wide = cluster_of("torus", nodes=64, shape=(4, 4, 4), widths=(1.0, 1.0, 2.0))
    # one rank of eight of a node sends: an eighth of its NICs' rate
    lines = line + np.arange(8)[:, None]
    assert slowdown(equal, ring(equal, lines)) == pytest.approx(3.0)
    assert slowdown(wide, ring(wide, lines)) == pytest.approx(2.0)


def test_an_exchange_is_slower_on_a_long_torus():
    """Bisection: 64 nodes as 4x4x4 carry 4, as 8x8 16/3 and as a ring of 64 32 times less than they send (ring: n/8 times 2 links)."""
    took = [
        slowdown(cluster, exchange(cluster, rails(cluster)))
        for shape in ((4, 4, 4), (8, 8), (64,))
        for cluster in [cluster_of("torus", nodes=64, shape=shape, axes=len(shape))]
    ]
    # mean distance x share of links: 3 x 1 (4,4,4), 4 x 1 (8,8), 16 x 1 (64), over n/(n-1)
    assert took == pytest.approx([3 * 64 / 63, 4 * 64 / 63, 16 * 64 / 63])


@pytest.mark.parametrize("kind", ["fat-tree", "rail-optimized"])
@pytest.mark.parametrize("over", [1.0, 3.0])
def test_static_routes_are_never_better_than_even_ones(kind, over):
    """Flows that choose their way by destination collide; spread evenly they do not."""
    for placement in (Placement.PACKED, Placement.BY_RACK):
        even = cluster_of(kind, nodes=96, over=over, placement=placement)
        static = cluster_of(kind, nodes=96, over=over, placement=placement, routing=Routing.STATIC)
        for pattern in (ring, exchange):
            groups = rails(even)
            least = slowdown(even, pattern(even, groups))
            assert slowdown(static, pattern(static, groups)) >= least - 1e-9


def test_a_graph_from_a_file_counts_as_the_tree_it_draws(tmp_path):
    """A fat tree written out as GraphML, thinned 3:1, slows rings and exchanges as the built-in one does."""
    tree = cluster_of(over=3.0, nodes=12)
    graph = nx.Graph()
    for one, other, data in cluster_graph(tree, scale_up=False).to_undirected().edges(data=True):
        names = (" ".join(map(str, vertex)) for vertex in (one, other))
        graph.add_edge(*names, bandwidth=f"{data['capacity'] / 1e9} GB/s")
    for name, write in (
        ("tree.graphml", nx.write_graphml),
        ("tree.gml", nx.write_gml),
        ("tree.json", lambda g, path: path.write_text(json.dumps(nx.node_link_data(g, edges="links")))),
    ):  # fmt: skip
        write(graph, tmp_path / name)
        links = read_links(tmp_path / name)
        given = cluster_of("graph", nodes=12, links=links)
        for pattern in (ring, exchange):
            assert slowdown(given, pattern(given, rails(given))) == pytest.approx(
                slowdown(tree, pattern(tree, rails(tree)))
            )


def test_graphs_that_make_no_sense_are_refused(tmp_path):
    """Another format, an edge without bandwidth, a node that is not there."""
    with pytest.raises(HardwareError, match=r"needed \.graphml"):
        read_links(tmp_path / "a.txt")
    nx.write_gml(nx.path_graph(["node 0", "switch"]), tmp_path / "a.gml")
    with pytest.raises(HardwareError, match="no bandwidth"):
        read_links(tmp_path / "a.gml")
    cluster = cluster_of("graph", nodes=2, links=(("node 0", "switch", 1e9),))
    with pytest.raises(HardwareError, match="no vertex 'node 1'"):
        routes_of(cluster)


@pytest.mark.parametrize("rule", list(Placement))
@settings(max_examples=examples(8, 20), deadline=None)
@given(nodes=st.integers(1, 40))
def test_every_accelerator_gets_one_rank(rule, nodes):
    """A placement is a permutation, whatever the last rack is short of."""
    cluster = cluster_of(nodes=nodes, placement=rule)
    assert sorted(cluster.slots.tolist()) == list(range(cluster.accelerators))


def test_placements_say_what_their_names_say():
    """Two racks of four nodes of eight."""
    where = {rule: cluster_of(nodes=8, placement=rule).slots.tolist() for rule in Placement}
    assert where[Placement.PACKED][:3] == [0, 1, 2]
    assert where[Placement.STRIDED][:9] == [0, 8, 16, 24, 32, 40, 48, 56, 1]
    assert where[Placement.BY_RAIL][:6] == [0, 8, 16, 24, 1, 9]
    assert where[Placement.BY_RACK][:9] == [0, 1, 2, 3, 4, 5, 6, 7, 32]
    with pytest.raises(HardwareError, match="once"):
        _ = cluster_of(nodes=1, placement=(0, 0, 1, 2, 3, 4, 5, 6)).slots


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("library", some(["nccl", "gloo", "openmpi", "mpich"], 2))
def test_alone_every_collective_takes_its_analytic_time_on_every_fabric(kind, library):
    """Every collective and size, thinned fabric or not, neighbours or dealt nodes: one row, to the tick."""
    plan = small_plan(tp=8, dp=32, pp=1, cluster="dgx-h100")
    for over, placement in itertools.product((1.0, 7.0), (Placement.PACKED, Placement.BY_RACK)):
        cluster = cluster_of(kind, nodes=32, over=over, placement=placement)
        mine = plan.on(dataclasses.replace(plan.layout, cluster=cluster))
        model = CollectiveModel(cluster, library=library)
        group = placed(cluster, mine.layout.mesh.groups(("dp",), 0))
        for name, size in itertools.product(
            ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all"),
            (2.0**14, 2.0**24, 2.0**30),
        ):
            duration = round(model.seconds(name, size, group) / TICK)
            up, out = model.wire_bytes(name, size, group)
            rows = Rows(TRAINING)
            stream = Stream.EP if name == "all_to_all" else Stream.DP
            rows.add(1, rank=0, stream=stream, kind=Kind.COLLECTIVE, duration=duration,
                     part=PARTS.index("exposed_dp"), up_bytes=up, out_bytes=out)  # fmt: skip
            program = rows.finish(rank_name=("pp 0",), class_size=[256])
            shared = run(program, "simpy", links_of(program, mine))
            assert shared.makespan == duration


def job(cluster, over_ranks, size):
    """A reduction of `size` bytes a rank over the network, and how long it takes alone [ticks]."""
    group = placed(cluster, over_ranks)
    model = CollectiveModel(cluster)
    seconds = model.seconds("all_reduce", size, group)
    return round(seconds / TICK), *model.wire_bytes("all_reduce", size, group)


def test_two_identical_jobs_on_one_spine_take_twice_as_long():
    """Two stages, each dealt over all racks, reduce at once: the up-links they share have room for one."""
    nodes, over = 24, 3.0  # six a rack, of which each job has three
    cluster = cluster_of(nodes=nodes, over=over, placement=Placement.BY_RACK)
    plan = small_plan(tp=8, dp=nodes // 2, pp=2, cluster="dgx-h100")
    plan = plan.on(dataclasses.replace(plan.layout, cluster=cluster))
    took, up, out = job(cluster, plan.layout.mesh.groups(("dp",), 0), 2.0**32)
    ends = []
    for jobs in ((0,), (0, 1)):
        rows = Rows(TRAINING)
        for rank in jobs:
            rows.add(1, rank=rank, stream=Stream.DP, kind=Kind.COLLECTIVE, duration=took,
                     part=PARTS.index("exposed_dp"), up_bytes=up, out_bytes=out)  # fmt: skip
        program = rows.finish(rank_name=("pp 0", "pp 1"), class_size=[8 * nodes // 2] * 2)
        links = links_of(program, plan)
        ends.append(run(program, links=links).makespan)
    moving = links.work[0]
    assert ends[0] == took
    assert moving > 0.8 * took
    latency = took - moving  # paid once; all that moves takes twice as long
    assert ends[1] - latency == pytest.approx(2 * moving, rel=1e-6)


def scenario(**changes):
    """Llama 2 70B on 64 DGX H100, four stages."""
    data = {
        "schema": 1,
        "model": "llama2-70b",
        "cluster": {"preset": "dgx-h100", "nodes": 64, "fabric": {"kind": "fat-tree"}},
        "parallelism": {"tp": 8, "pp": 4, "sequence_parallel": True, "zero": 1},
        "training": {"global_batch": 64, "sequence_length": 4096},
        "framework": "megatron-core",
        "simulation": {"network": "flow"},
    }
    return mpsim.Scenario.from_mapping(data).with_values(changes)


@pytest.mark.parametrize("kind", ["fat-tree", "rail-optimized", "dragonfly+", "torus"])
def test_no_link_is_ever_above_its_capacity_and_all_bytes_arrive(kind):
    """Shares over time stay within 1, and ports carry what rows of their rank send."""
    changes = {"cluster.fabric.kind": kind, "cluster.placement": "by-rack"}
    if kind != "torus":
        changes["cluster.fabric.oversubscription"] = 7
    result = mpsim.simulate(scenario(**changes))
    used = result.links
    assert used.share.max() <= 1 + 1e-6
    program = result.timeline.program
    sends = (program.out_bytes > 0) & (program.template < 0) & (program.rank == 0)
    expected = program.out_bytes[sends].sum()
    carried = used.carried[used.names.index("pp 0 NIC out")]
    assert carried == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "zb-h1"])
@pytest.mark.parametrize("rate", ["50 Gb/s", "100 Gb/s", "200 Gb/s", "400 Gb/s"])
def test_a_step_is_replayed_exactly_where_no_two_flows_slow_each_other_down(schedule, rate):
    """Either somebody is held up, and the flows are simulated, or every time and every byte is that of the simulation."""
    changes = {"schedule": schedule, "cluster.nic": rate, "parallelism.zero": 0}
    prepared = prepare(scenario(**changes))
    links = links_of(prepared.program, prepared.plan)
    auto, simulated = (run(prepared.program, engine, links) for engine in ("auto", "simpy"))
    held_up = (simulated.program.duration != prepared.program.duration).any()
    assert auto.engine == ("simpy" if held_up else "replay")
    assert (auto.start == simulated.start).all()
    assert (auto.end == simulated.end).all()
    edges = np.linspace(0.0, auto.makespan, 50)
    assert (auto.traffic.carried(edges) == simulated.traffic.carried(edges)).all()


def test_links_of_the_same_scenario_are_the_same_bytes():
    """Determinism with flows, thin tiers and dealt nodes."""
    changes = {"cluster.fabric.oversubscription": 7, "cluster.placement": "by-rack"}
    one, other = (mpsim.simulate(scenario(**changes)) for _ in range(2))
    assert (one.timeline.end == other.timeline.end).all()
    assert (one.links.share == other.links.share).all()


def test_dealt_nodes_pay_where_neighbours_do_not():
    """The same fabric, 7:1: gradients of neighbours stay below the leaves, those of dealt nodes do not."""
    base = {"cluster.fabric.oversubscription": 7}
    packed = mpsim.simulate(scenario(**base)).timeline.makespan
    dealt = mpsim.simulate(scenario(**base, **{"cluster.placement": "by-rack"})).timeline.makespan
    assert dealt > 1.1 * packed


def test_a_fabric_without_thin_links_has_the_times_of_the_plain_run():
    """Counting changes nothing where there is nothing to count: flow and analytic, any placement that keeps nodes together."""
    plain = mpsim.simulate(scenario(**{"simulation.network": "analytic"}))
    for changes in ({}, {"cluster.placement": "by-rack"}):
        assert mpsim.simulate(scenario(**changes)).timeline.makespan == plain.timeline.makespan


def test_fabrics_that_contradict_themselves_are_reported():
    """A torus of another number of nodes, a graph without a file, a file without kind graph."""
    for fabric, message in (
        ({"kind": "torus", "shape": [3, 3]}, "9 nodes"),
        ({"kind": "graph"}, "needs a file"),
        ({"kind": "fat-tree", "graph": "a.gml"}, "kind is not graph"),
    ):
        with pytest.raises(ScenarioError, match=message):
            mpsim.simulate(scenario(**{"cluster.fabric": fabric}))


def test_resolved_scenarios_keep_fabric_and_placement():
    """Tiers, planes, routes, prices and a list of accelerators survive being spelled out."""
    order = [*range(8, 512), *range(8)]
    fabric = {"kind": "dual-plane", "oversubscription": [2, 3], "routing": "static", "planes": 4,
              "switch_price": 30000.0, "switch_power": "1 kW"}  # fmt: skip
    one = scenario(**{"cluster.fabric": fabric, "cluster.placement": order})
    again = mpsim.Scenario.from_mapping(one.resolved())
    assert again.hardware.fabric == one.hardware.fabric
    assert again.hardware.placement == tuple(order)
    assert again.digest == one.digest


def test_a_mesh_without_thin_links_is_not_counted():
    """Full bisection: shapes are what they were, so that nothing is computed twice."""
    cluster = build_cluster(accelerator="h100-sxm", accelerators_per_node=8, nodes=4, nic="ib-ndr")
    assert Mesh(tp=8, dp=4).shape(("dp",), 0, cluster).ring_slowdown is None


@pytest.mark.parametrize(("senders", "share"), [(1, 0.25), (2, 0.25), (4, 0.5), (8, 1.0)])
def test_accelerators_that_send_borrow_the_nics_of_those_that_do_not(
    senders: int, share: float
) -> None:
    """Of 8 accelerators with 2 NICs one or two have a whole NIC each, a quarter of the time of its share; all 8 no more than their share."""
    few, full = (
        build_cluster(
            accelerator="h100-sxm",
            accelerators_per_node=8,
            nodes=2,
            nic="ib-ndr",
            nics_per_node=nics,
        )
        for nics in (2, 8)
    )
    here = np.arange(senders)
    assert message_slowdown(few, here, here + 8) == pytest.approx(share)
    assert message_slowdown(full, here, here + 8) is None
