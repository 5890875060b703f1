"""Libraries: which one runs where, what their tables choose, and their formulas by hand."""

from __future__ import annotations

import copy
import dataclasses
import itertools

import numpy as np
import pytest

from mpsim.cost import CollectiveCurves, CollectiveModel, Curve, default_library, library_names
from mpsim.cost.libraries import FittedLibrary
from mpsim.cost.libraries.algorithms import ALGORITHMS, Hop, Wires
from mpsim.cost.libraries.host import decision_table
from mpsim.cost.network import cross_rail_span
from mpsim.errors import HardwareError
from mpsim.hardware.fabric import FabricKind
from mpsim.hardware.lookup import accelerator, system
from mpsim.parallel.crossing import GroupShape

KIB, MIB, GIB = 1024.0, 2.0**20, 2.0**30
NODE = GroupShape(8, 8, 1)
FLAT = Wires(8, 8, 1, Hop(1.0, 0.5), Hop(1.0, 0.5), 0.5, 0.25, 0.0, 0.125)
"""Eight ranks on one kind of link: alpha 1 s, beta 0.5 s/B, gamma 0.25 s/B."""
TWO_BY_FOUR = dataclasses.replace(FLAT, per_domain=4, domains=2, far=Hop(10.0, 4.0), alone=1.0)


def seconds(kind: str, name: str, size: float, wires: Wires = FLAT) -> float:
    return float(ALGORITHMS[kind][name](np.asarray(size), wires))


@pytest.mark.parametrize(
    ("name", "library"),
    [
        ("dgx-h100", "nccl"),
        ("l40s-pcie", "nccl"),
        ("mi300x-8", "rccl"),
        ("tpu-v5e", "torus"),
        ("aws-trn2", "torus"),
        ("gaudi3-hlb325", "hccl"),
    ],
)
def test_each_vendor_ships_its_library(name: str, library: str) -> None:
    """NVIDIA NCCL, AMD RCCL, Intel HCCL, and rings of the torus for TPU and Trainium."""
    cluster = system(name, nodes=None)
    assert default_library(cluster) == library
    assert CollectiveModel(cluster).library.name == library


def test_hosts_without_accelerators_talk_gloo() -> None:
    """A family called cpu."""
    cluster = system("dgx-h100", nodes=2)
    chip = dataclasses.replace(cluster.accelerator, family="cpu", vendor="Intel")
    node = dataclasses.replace(cluster.node, accelerator=chip)
    assert default_library(dataclasses.replace(cluster, node=node)) == "gloo"


def test_a_library_that_cannot_run_names_those_that_can() -> None:
    """A typo gets the nearest name, RCCL on NVIDIA's the list."""
    cluster = system("dgx-h100", nodes=1)
    with pytest.raises(HardwareError, match="did you mean 'gloo'"):
        CollectiveModel(cluster, library="glo")
    with pytest.raises(HardwareError, match="these do: gloo, mpich, nccl, openmpi"):
        CollectiveModel(cluster, library="rccl")


def test_every_rule_names_an_algorithm_that_has_a_formula() -> None:
    """Tables and formulas fit, for every collective and any number of ranks."""
    for library in ("gloo", "mpich", "openmpi"):
        table = decision_table(library)
        assert set(table.bands) == set(ALGORITHMS)
        for kind in table.bands:
            for ranks in (2, 3, 7, 8, 48, 64, 100, 200, 300, 1000, 3000, 10_000):
                limits = [below for below, _ in table.regimes(kind, ranks)]
                assert limits == sorted(limits)
                assert limits[-1] == float("inf")
                assert {name for _, name in table.regimes(kind, ranks)} <= set(ALGORITHMS[kind])


@pytest.mark.parametrize(
    ("library", "kind", "size", "ranks", "algorithm"),
    [
        ("openmpi", "all_reduce", 8 * KIB - 1, 8, "recursive_doubling"),
        ("openmpi", "all_reduce", 8 * KIB, 8, "rabenseifner"),
        ("openmpi", "all_reduce", 64 * KIB, 3, "segmented_ring"),
        ("openmpi", "all_reduce", 1 * KIB, 200, "nonoverlapping"),
        ("openmpi", "all_gather", 16 * KIB, 2, "two_proc"),
        ("openmpi", "all_gather", 32 * 65536 - 1, 32, "neighbor_exchange"),  # 64 KiB a rank
        ("openmpi", "all_gather", 32 * 65536, 32, "ring"),
        ("openmpi", "all_to_all", 16 * 511, 16, "modified_bruck"),  # below 512 B a pair
        ("openmpi", "all_to_all", 64 * 262144, 64, "pairwise"),
        ("openmpi", "reduce_scatter", 256 * KIB - 1, 8, "recursive_halving"),
        ("openmpi", "reduce_scatter", 256 * KIB, 8, "ring"),
        ("mpich", "all_reduce", 8.0, 8, "recursive_doubling"),
        ("mpich", "all_reduce", 9.0, 8, "rabenseifner"),
        ("mpich", "all_gather", 512 * KIB - 1, 8, "recursive_doubling"),
        ("mpich", "all_gather", 80 * KIB - 1, 6, "bruck"),
        ("mpich", "all_gather", 80 * KIB, 6, "ring"),
        ("mpich", "all_to_all", 8 * 256, 8, "modified_bruck"),
        ("mpich", "all_to_all", 8 * 32768, 8, "linear"),
        ("mpich", "all_to_all", 8 * 32769, 8, "pairwise"),
        ("mpich", "broadcast", 12 * KIB, 8, "binomial"),
        ("mpich", "broadcast", 512 * KIB, 8, "scatter_allgather"),
        ("mpich", "broadcast", 512 * KIB + 8, 8, "scatter_allgather_ring"),
        ("gloo", "all_reduce", 1.0, 8, "ring"),
        ("gloo", "reduce_scatter", MIB, 8, "all_reduce_slice"),
    ],
)
def test_published_switch_points(
    library: str, kind: str, size: float, ranks: int, algorithm: str
) -> None:
    """Open MPI coll_tuned_decision_fixed.c and MPICH generic.json: the size below and from which each algorithm runs."""
    assert decision_table(library).algorithm(kind, size, ranks) == algorithm


@pytest.mark.parametrize(
    ("kind", "name", "expected"),
    [
        ("all_reduce", "recursive_doubling", 3 * (1 + 8 * 0.75)),
        ("all_reduce", "rabenseifner", 6 * 1 + 7 / 8 * 8 * (2 * 0.5 + 0.25)),
        ("all_reduce", "ring", 14 * 1 + 7 / 8 * 8 * (2 * 0.5 + 0.25)),
        ("all_reduce", "nonoverlapping", 3 * (1 + 8 * 0.75) + 3 * (1 + 8 * 0.5)),
        ("all_gather", "bruck", 3 * 1 + 7 / 8 * 8 * 0.5),
        ("all_gather", "ring", 7 * 1 + 7 / 8 * 8 * 0.5),
        ("all_gather", "neighbor_exchange", 4 * (1 + 2 * 0.5)),
        ("reduce_scatter", "recursive_halving", 3 * 1 + 7 / 8 * 8 * 0.75),
        ("reduce_scatter", "pairwise", 7 * (1 + 1 * 0.75)),
        ("reduce_scatter", "all_reduce_slice", 14 + 7 * 1.25 + 1 * 0.25),
        ("all_to_all", "pairwise", 7 * (1 + 1 * 0.5)),
        ("all_to_all", "modified_bruck", 3 * (1 + 4 * 0.5)),
        ("all_to_all", "linear", 1 + 6 * 0.125 + 7 * 0.5),
        ("broadcast", "binomial", 3 * (1 + 8 * 0.5)),
        ("broadcast", "chain", 7 * (1 + 8 * 0.5)),
        ("broadcast", "scatter_allgather", 3 + 3.5 + 3 + 3.5),
        ("reduce", "binomial", 3 * (1 + 8 * 0.75)),
        ("barrier", "dissemination", 3 * 1),
        ("barrier", "linear", 2 * (1 + 6 * 0.125)),
    ],
)
def test_on_one_kind_of_link_the_formulas_are_the_textbook_ones(
    kind: str, name: str, expected: float
) -> None:
    """Thakur, Rabenseifner and Gropp 2005, 8 ranks and 8 B: alpha 1, beta 0.5, gamma 0.25."""
    assert seconds(kind, name, 8.0) == pytest.approx(expected)


def test_two_domains_pay_for_what_crosses() -> None:
    """2 x 4 ranks, 8 B: doubling has two rounds inside and one across; a ring is as slow as its slowest hop."""
    doubling = 2 * (1 + 8 * 0.75) + (10 + 8 * (4 + 0.25))
    assert seconds("all_reduce", "recursive_doubling", 8.0, TWO_BY_FOUR) == pytest.approx(doubling)
    gather = 7 * max(1 + 1 * 0.5, 10 + 1 * 1.0)  # one rank of a domain sends out, alone
    assert seconds("all_gather", "ring", 8.0, TWO_BY_FOUR) == pytest.approx(gather)
    exchange = 3 * (1 + 0.5) + 4 * (10 + 4)
    assert seconds("all_to_all", "pairwise", 8.0, TWO_BY_FOUR) == pytest.approx(exchange)
    # halving from far to near: half of S across, then a quarter and an eighth inside
    halving = (10 + 4 * 4.25) + (1 + 2 * 0.75) + (1 + 1 * 0.75)
    assert seconds("reduce_scatter", "recursive_halving", 8.0, TWO_BY_FOUR) == pytest.approx(
        halving
    )


def test_ranks_beyond_a_power_of_two_cost_a_fold() -> None:
    """Six ranks do what eight do, plus handing over before and after."""
    six = dataclasses.replace(FLAT, ranks=6, per_domain=6)
    extra = (1 + 8 * 0.75) + (1 + 8 * 0.5)
    eight = seconds("all_reduce", "recursive_doubling", 8.0)
    assert seconds("all_reduce", "recursive_doubling", 8.0, six) == pytest.approx(eight + extra)


def test_reduce_scatter_of_torch_on_gloo_moves_twice_the_bytes() -> None:
    """It is an all-reduce and a slice: pytorch pull request 118911; so it costs at least an all-reduce."""
    gloo = CollectiveModel(system("dgx-h100", nodes=2), library="gloo")
    for group in (NODE, GroupShape(16, 8, 2)):
        scatter, whole = (
            gloo.seconds(kind, 64 * MIB, group) for kind in ("reduce_scatter", "all_reduce")
        )
        assert whole < scatter < 1.1 * whole
        sent, plain = (
            gloo.wire_bytes(kind, 8e6, group) for kind in ("reduce_scatter", "all_gather")
        )
        assert sent[0] == pytest.approx(2 * plain[0])
    assert gloo.answer("reduce_scatter", MIB, NODE).algorithm == "all_reduce_slice"


def test_a_step_down_of_a_table_is_not_followed() -> None:
    """Open MPI all-to-all of 64: at 256 KiB a pair it goes back to a faster algorithm; the time waits for it."""
    model = CollectiveModel(system("dgx-h100", nodes=8), library="openmpi")
    times = model.seconds("all_to_all", np.geomspace(1, 1e9, 4000), GroupShape(64, 8, 8))
    assert np.all(np.diff(times) >= 0)


def test_messages_of_every_library() -> None:
    """Latency and bytes, more when shared; a message leaves by one NIC."""
    for name in ("nccl", "gloo", "openmpi", "mpich"):
        model = CollectiveModel(system("dgx-h100", nodes=4), library=name)
        for crosses in (False, True):
            alone, shared = (model.send(1e8, crosses=crosses, share=share) for share in (1, 2))
            assert 0 < model.send(0.0, crosses=crosses) < alone < shared
        pair = GroupShape(2, 1, 2)
        assert model.seconds("send_recv", 1e7, pair) == model.send(1e7, crosses=True)


def test_rccl_names_the_protocol_that_counts() -> None:
    """MI300X: low latency for small messages, Simple for large ones; a tree for a barrier across nodes."""
    model = CollectiveModel(system("mi300x-8", nodes=4))

    def named(kind: str, size: float, group: GroupShape = NODE) -> tuple[str, str]:
        answer = model.answer(kind, size, group)
        return answer.algorithm, answer.protocol

    assert named("all_reduce", KIB) == ("Ring", "LL")
    assert named("all_reduce", 1e9) == ("Ring", "Simple")
    assert named("all_to_all", 1e9) == ("P2P", "Simple")
    assert named("send_recv", 1e9) == ("P2P", "Simple")
    across = GroupShape(32, 8, 4)
    assert named("all_reduce", 1e9, across) == ("Ring", "Simple")
    assert named("all_to_all", 1e9, across)[0] == "P2P"


def test_without_forwarding_an_all_to_all_leaves_the_rails() -> None:
    """PXN keeps messages on their rail's leaf; without, they climb where uplinks are scarce."""
    cluster = system("dgx-h100", nodes=128)
    thin = dataclasses.replace(cluster.fabric, oversubscription=4.0)
    cluster = dataclasses.replace(cluster, fabric=thin)
    assert cluster.fabric.kind is FabricKind.RAIL_OPTIMIZED
    assert cross_rail_span(cluster, 2) > cluster.tiers[0].nodes
    group = GroupShape(16, 8, 2)
    nccl = CollectiveModel(cluster)
    inside, outside = nccl.wire_bytes("all_to_all", 16e6, group)
    assert inside == pytest.approx(16e6 * 7 / 8)  # 7 MB to its own node, 7 of 8 MB handed over
    assert outside == pytest.approx(8e6)
    mesh = system("mi300x-8", nodes=128)
    rails = dataclasses.replace(mesh, fabric=thin)
    plain = dataclasses.replace(rails, fabric=dataclasses.replace(thin, oversubscription=1.0))
    times = [CollectiveModel(one).seconds("all_to_all", 1e9, group) for one in (rails, plain)]
    assert times[0] > 2 * times[1]


def test_the_answer_says_what_ran() -> None:
    """Library, algorithm, protocol, and that it is a model."""
    answer = CollectiveModel(system("dgx-h100", nodes=1), library="mpich").answer(
        "all_gather", MIB, NODE
    )
    assert (answer.library, answer.algorithm, answer.protocol) == ("mpich", "ring", "none")
    assert answer.basis == "model"
    assert answer.seconds > answer.floor > 0
    assert set(library_names()) == {"gloo", "hccl", "mpich", "nccl", "openmpi", "rccl", "torus"}


def test_constants_of_a_host_library_are_accounted_for() -> None:
    """Its messages, and its table with the version."""
    model = CollectiveModel(system("dgx-h100", nodes=1), library="openmpi")
    model.seconds("all_reduce", MIB, NODE)
    names = {one.name: one for one in model.provenance()}
    assert "libraries.host.openmpi.near_latency" in names
    assert "coll_tuned_decision_fixed.c" in names["decisions.openmpi.all_reduce.regimes"].source


SWEPT = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", "barrier")


def test_one_node_of_l40s_says_nothing_of_other_hosts() -> None:
    """Its 8 cards gather at 1.2 GB/s in the sweep; those of another board, or of a job, do as any PCIe 4 node, 0.36 of 31.5 GB/s."""
    measured = system("l40s-pcie")
    rates = []
    for board, loaded in (("l40s", False), ("l40s", True), ("rtx4090", False), ("a40", True)):
        node = dataclasses.replace(measured.node, accelerator=accelerator(board))
        model = CollectiveModel(dataclasses.replace(measured, node=node), loaded=loaded)
        rates.append(7 * GIB / float(model.seconds("all_gather", 8 * GIB, NODE)))
    assert rates == pytest.approx([1.2e9, 11.3e9, 11.3e9, 11.3e9], rel=0.03)


@pytest.mark.parametrize("name", ["dgx-a100-80gb", "dgx-h100", "mi300x-8", "tpu-v5p-pod"])
def test_the_algorithm_that_is_named_is_the_one_that_was_priced(name: str) -> None:
    """Without the named algorithm a collective across domains takes longer; inside, LL is named while Simple would be slower."""
    model = CollectiveModel(system(name, nodes=4))
    library = model.library
    assert isinstance(library, FittedLibrary)
    members = min(8, model.cluster.domain_size)
    across = GroupShape(4 * members, members, 4)
    for kind, size in itertools.product(SWEPT, (KIB, 256 * KIB, 64 * MIB, 4096 * MIB)):
        inside = model.answer(kind, size, GroupShape(members, members, 1))
        assert inside.protocol in ("LL", "Simple", "none")
        answer = model.answer(kind, size, across)
        stem = {"P2P": "pairwise", "NVLSTree": "nvls-tree"}.get(
            answer.algorithm, f"{answer.algorithm}-{answer.protocol}".lower()
        )
        poorer = copy.copy(library)
        poorer.algorithms = tuple(g for g in library.algorithms if g.name != f"algorithm.{stem}")
        assert len(poorer.algorithms) == len(library.algorithms) - 1
        if kind == "all_to_all":  # has one algorithm only
            continue
        moved = np.asarray(0.0 if kind == "barrier" else size)
        assert poorer.seconds(kind, moved, across) > library.seconds(kind, moved, across)


def test_nccl_inside_a_domain_is_named_by_its_regime() -> None:
    """H100: the low-latency regime of small collectives, the switches of a large all-reduce, a ring of four, copies of an all-to-all."""
    model = CollectiveModel(system("dgx-h100"))

    def named(kind: str, size: float, ranks: int = 8) -> tuple[str, str]:
        answer = model.answer(kind, size, GroupShape(ranks, ranks, 1))
        return answer.algorithm, answer.protocol

    assert named("all_reduce", KIB) == ("Ring", "LL")
    assert named("all_reduce", 4096 * MIB) == ("NVLS", "Simple")
    assert named("all_reduce", 4096 * MIB, 4) == ("Ring", "Simple")
    assert named("all_to_all", 4096 * MIB) == ("P2P", "Simple")
    assert named("barrier", 0.0) == ("Ring", "LL")
    torus = CollectiveModel(system("tpu-v5p-pod")).answer("all_gather", MIB, GroupShape(4, 4, 1))
    assert (torus.algorithm, torus.protocol) == ("torus rings", "none")
    alone = model.answer("all_reduce", MIB, GroupShape(1, 1, 1))
    assert (alone.algorithm, alone.protocol) == ("none", "none")


def test_what_was_measured_names_no_algorithm() -> None:
    """A curve times whatever ran."""
    curve = {("all_reduce", 8, 1): Curve((MIB,), (1e-4,))}
    curves = CollectiveCurves("ours", "us", "2026-11", curve)
    answer = CollectiveModel(system("dgx-h100"), curves=curves).answer("all_reduce", MIB, NODE)
    assert (answer.algorithm, answer.protocol) == ("measured", "none")


@pytest.mark.parametrize("library", ["nccl", "gloo", "openmpi", "mpich"])
def test_a_step_pays_what_show_collective_prints_of_its_library(library, scenarios, mpsim_cli):
    """`cluster.library` prices the collectives of a whole step: 256 MiB among 16 ranks, as the command answers for the same library."""
    from mpsim import load, prepare

    asked = mpsim_cli(
        "show",
        "collective",
        "all_reduce=256 MiB",
        "--on",
        "dgx-h100",
        "--ranks",
        16,
        "--library",
        library,
        "--json",
    ).json()
    scenario = load(scenarios / "quickstart.yaml", set=[f"cluster.library={library}"])
    model = prepare(scenario).costs.collectives
    group = GroupShape(16, 8, 2)
    assert model.library.name == library
    assert float(model.seconds("all_reduce", 256 * MIB, group)) == pytest.approx(
        asked["time_s"], rel=1e-12
    )


def test_a_step_on_a_slower_library_is_longer_by_the_collectives_alone(scenarios):
    """A library that talks through the host exposes more of tensor and data parallelism."""
    from mpsim import load, simulate

    path = scenarios / "quickstart.yaml"
    parts = [
        simulate(load(path, set=[f"cluster.library={name}"])).summary["breakdown_s"]
        for name in ("nccl", "gloo")
    ]
    assert parts[0]["exposed_tp"] < parts[1]["exposed_tp"]
    assert parts[0]["exposed_dp"] < parts[1]["exposed_dp"]


def test_a_library_of_another_vendor_is_refused_where_it_was_asked_for(scenarios, mpsim_cli):
    """RCCL runs on no accelerator of NVIDIA's; the message names those that do."""
    done = mpsim_cli("check", scenarios / "quickstart.yaml", "--set", "cluster.library=rccl")
    assert (done.code, "cluster.library: rccl does not run on" in done.err) == (2, True)


def test_every_library_but_the_torus_can_be_named_in_a_scenario():
    """The choices of `cluster.library` are the libraries that are modelled; links of a torus come with the cluster."""
    import typing

    from mpsim.scenario.cluster import ClusterChoice

    kind = typing.get_args(ClusterChoice.model_fields["library"].annotation)[0]
    assert sorted([*typing.get_args(kind), "torus"]) == list(library_names())
