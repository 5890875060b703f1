"""Laws of the cost models: nothing beats the hardware, more work is never faster, more hardware is never slower."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpsim.cost import COLLECTIVES, CollectiveModel, KernelModel
from mpsim.cost.network import group_bandwidth, nic_bandwidth
from mpsim.hardware.cluster import Cluster
from mpsim.hardware.lookup import accelerator, accelerator_names, system
from mpsim.parallel.crossing import GroupShape
from mpsim.workload import (
    Operator,
    Phase,
    Role,
    make_attention,
    make_gemm,
)
from tests.nightly import examples

CHIPS = ("a100-sxm-80", "h100-sxm", "h200-sxm", "b200-sxm", "mi300x", "tpu-v5p", "h20", "trainium2")
SYSTEMS = {  # name: nodes, so that groups can leave their scale-up domain
    "dgx-a100-80gb": 128,
    "dgx-h100": 1024,
    "dgx-b200": 64,
    "gb200-nvl72": 18 * 20,
    "mi300x-8": 16,
    "aws-p4d": 48,
    "aws-p5": 64,
    "l40s-pcie": 8,
    "dgx-2": 16,
    "dgx-1v": 32,
    "aws-trn2": 16,
    "tpu-v5e": 96,
}
CLUSTERS = {name: system(name, nodes=nodes) for name, nodes in SYSTEMS.items()}
MODELS = {name: CollectiveModel(cluster) for name, cluster in CLUSTERS.items()}
MOVING = tuple(kind for kind in COLLECTIVES if kind != "barrier")

systems = st.sampled_from(sorted(SYSTEMS))
sizes = st.just(0.0) | st.floats(1, 1e11)  # no message is a fraction of a byte
dims = st.integers(1, 30_000)


def product(m: int, n: int, k: int, batch: int = 1, phase: Phase = Phase.FORWARD) -> Operator:
    return make_gemm(Role.KERNEL, phase, m=m, n=n, k=k, batch=batch)


@st.composite
def groups(draw: st.DrawFn, cluster: Cluster) -> GroupShape:
    """Any group that fits the cluster: inside a domain, across, one a domain, uneven."""
    inside = draw(st.integers(1, min(cluster.node.domain, cluster.accelerators)))
    most = cluster.domains if cluster.node.nics else 1
    domains = draw(st.integers(1, most))
    ranks = inside * domains
    if domains > 1 and inside < cluster.node.domain:
        ranks += draw(st.integers(0, domains - 1))  # some domains hold one more
    return GroupShape(ranks, inside, domains)


@st.composite
def placed(draw: st.DrawFn) -> tuple[str, GroupShape]:
    name = draw(systems)
    return name, draw(groups(CLUSTERS[name]))


@given(chip=st.sampled_from(CHIPS), m=dims, n=dims, k=dims, batch=st.integers(1, 64))
@settings(max_examples=examples(20, 50), deadline=None)
def test_no_product_beats_the_peak_or_the_memory(
    chip: str, m: int, n: int, k: int, batch: int
) -> None:
    """time >= FLOPs / peak and >= bytes / bandwidth, hot and in a burst."""
    board, work = accelerator(chip), product(m, n, k, batch)
    for clocks in ("sustained", "burst"):
        time = KernelModel(board, "bf16", clocks=clocks).seconds([work])[0]
        assert time >= 2.0 * m * n * k * batch / board.peak("bf16")
        assert time >= work.bytes / board.memory_bandwidth


@given(
    chip=st.sampled_from(CHIPS),
    shape=st.tuples(dims, dims, dims),
    axis=st.integers(0, 2),
    more=dims,
)
@settings(max_examples=examples(20, 50), deadline=None)
def test_a_larger_product_is_never_faster(
    chip: str, shape: tuple[int, int, int], axis: int, more: int
) -> None:
    """Monotone in m, n and k."""
    larger = list(shape)
    larger[axis] += more
    model = KernelModel(accelerator(chip), "bf16")
    small, large = model.seconds([product(*shape), product(*larger)])
    assert large >= small


@given(
    chip=st.sampled_from(CHIPS),
    kernel=st.sampled_from(("flash1", "triton", "flash2", "flash3", "cudnn")),
    sequence=st.integers(1, 200_000),
    more=st.integers(1, 1000),
    head_dim=st.integers(16, 512),
    causal=st.booleans(),
    phase=st.sampled_from((Phase.FORWARD, Phase.INPUT_GRADIENT)),
)
@settings(max_examples=examples(20, 50), deadline=None)
def test_attention_is_bounded_by_the_peak_and_grows_with_the_sequence(
    chip: str, kernel: str, sequence: int, more: int, head_dim: int, causal: bool, phase: Phase
) -> None:
    """At least the FLOPs it works on over the peak; longer sequences take longer."""
    board = accelerator(chip)

    def attend(tokens: int) -> Operator:
        return make_attention(
            phase,
            sequences=1,
            queries=tokens,
            keys=tokens,
            heads=4,
            head_dim=head_dim,
            causal=causal,
        )

    model = KernelModel(board, "bf16", attention_kernel=kernel)
    short, long = model.seconds([attend(sequence), attend(sequence + more)])
    flops = 4.0 * 4 * sequence**2 * head_dim * (0.5 if causal else 1.0)
    passes = 1.0 if phase is Phase.FORWARD else 2.5
    assert short >= passes * flops / board.peak("bf16")
    assert long >= short


@pytest.mark.parametrize("name", accelerator_names())
def test_every_precision_of_every_accelerator_has_finite_positive_times(name: str) -> None:
    """Whatever the catalog offers for training can be costed."""
    board = accelerator(name)
    for precision in set(board.peak_flops) & {"bf16", "fp16", "tf32", "fp32", "fp8"}:
        if precision == "fp8" and "bf16" not in board.peak_flops:
            continue
        times = KernelModel(board, precision).seconds([product(512, 512, 512), product(1, 1, 1)])
        assert np.all(np.isfinite(times))
        assert np.all(times > 0)


@given(where=placed(), kind=st.sampled_from(COLLECTIVES), size=sizes)
@settings(max_examples=examples(80, 200), deadline=None)
def test_no_collective_beats_its_floor(
    where: tuple[str, GroupShape], kind: str, size: float
) -> None:
    """On any cluster, for any group and size."""
    name, group = where
    time, floor = (
        method(kind, size, group) for method in (MODELS[name].seconds, MODELS[name].floor)
    )
    assert time >= floor >= 0
    assert np.isfinite(time)
    assert (time > 0) == (group.ranks > 1)


@given(where=placed(), kind=st.sampled_from(MOVING), size=sizes)
@settings(max_examples=examples(80, 200), deadline=None)
def test_no_link_carries_more_than_its_rate(
    where: tuple[str, GroupShape], kind: str, size: float
) -> None:
    """The bytes that a rank sends fit through its links in the time that the collective takes."""
    name, group = where
    cluster, model = CLUSTERS[name], MODELS[name]
    inside, outside = model.wire_bytes(kind, size, group)
    time = model.seconds(kind, size, group) * (1 + 1e-12)
    members = 2 if kind == "send_recv" else group.per_domain
    assert inside <= time * group_bandwidth(cluster, members)
    if group.crosses:
        assert outside <= time * nic_bandwidth(cluster, 1)


@given(where=placed(), kind=st.sampled_from(MOVING), size=sizes, factor=st.floats(1, 100))
@settings(max_examples=examples(40, 100), deadline=None)
def test_more_bytes_are_never_faster(
    where: tuple[str, GroupShape], kind: str, size: float, factor: float
) -> None:
    """Time and traffic are monotone in the size."""
    name, group = where
    model = MODELS[name]
    assert model.seconds(kind, size * factor, group) >= model.seconds(kind, size, group)
    before, after = (np.array(model.wire_bytes(kind, s, group)) for s in (size, size * factor))
    assert np.all(after >= before)


@given(
    where=placed(),
    kind=st.sampled_from(COLLECTIVES),
    size=sizes,
    factor=st.floats(1, 10),
    which=st.sampled_from(("nic", "scale_up")),
)
@settings(max_examples=examples(40, 100), deadline=None)
def test_more_bandwidth_is_never_slower(
    where: tuple[str, GroupShape], kind: str, size: float, factor: float, which: str
) -> None:
    """A faster NIC or scale-up link never lengthens a collective or a message."""
    name, group = where
    cluster = CLUSTERS[name]
    link = getattr(cluster.node, which)
    faster = dataclasses.replace(link, bandwidth=link.bandwidth * factor)
    node = dataclasses.replace(cluster.node, **{which: faster})
    better = CollectiveModel(dataclasses.replace(cluster, node=node))
    assert better.seconds(kind, size, group) <= MODELS[name].seconds(kind, size, group)
    crosses = group.crosses
    assert better.send(size, crosses=crosses) <= MODELS[name].send(size, crosses=crosses)


@given(
    where=placed(), kind=st.sampled_from(COLLECTIVES), many=st.lists(sizes, min_size=1, max_size=6)
)
@settings(max_examples=examples(20, 50), deadline=None)
def test_an_array_of_sizes_equals_the_sizes_one_by_one(
    where: tuple[str, GroupShape], kind: str, many: list[float]
) -> None:
    """Vector equals scalar, for times, floors and traffic."""
    name, group = where
    model, sizes_array = MODELS[name], np.array(many)
    for method in (model.seconds, model.floor):
        assert method(kind, sizes_array, group).tolist() == [method(kind, s, group) for s in many]
    inside, outside = model.wire_bytes(kind, sizes_array, group)
    pairs = list(zip(inside.tolist(), outside.tolist(), strict=True))
    assert pairs == [model.wire_bytes(kind, s, group) for s in many]


@given(where=placed(), size=sizes)
@settings(max_examples=examples(20, 50), deadline=None)
def test_an_all_reduce_is_at_most_a_reduce_scatter_and_an_all_gather_of_traffic(
    where: tuple[str, GroupShape], size: float
) -> None:
    """Their bytes add up to at least its own: reducing first and gathering later cannot save traffic."""
    name, group = where
    model = MODELS[name]
    parts = [model.wire_bytes(kind, size, group) for kind in ("reduce_scatter", "all_gather")]
    both = sum(sum(part) for part in parts)
    assert sum(model.wire_bytes("all_reduce", size, group)) <= both * (1 + 1e-12)
