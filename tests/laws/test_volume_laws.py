"""Laws of traffic inside a layer: what is sent arrives, what is priced is what is sent, and pure layouts follow their closed forms.

Every collective of a block is played message by message between the members that the mesh gives it: rings for gathers, reductions and
their sum, one message to each peer for all-to-all, one to the next for a ring step.
"""

from __future__ import annotations

import dataclasses
import functools

import numpy as np
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from mpsim.cost.network import sent_bytes
from mpsim.framework import ContextExchange, ExpertDispatch, ExpertOverlap, TensorOverlap
from mpsim.hardware import system
from mpsim.parallel import (
    AXIS_NAMES,
    Communication,
    GroupShape,
    Item,
    Mesh,
    Sharding,
    block_backward,
    block_forward,
    spread,
)
from mpsim.training import build_program
from mpsim.training.recompute import Recompute, repeats
from mpsim.workload import Expansion, Experts, Lowering, expand_layer, model
from tests.nightly import examples
from tests.plans import routing, sharding, small_plan

TOKENS = 512  # of a sequence
BYTES = 2
GPT = model("gpt-1.7b")
MOE = dataclasses.replace(
    GPT,
    moe=Experts(experts=16, top_k=4, ffn_hidden=1024, shared_experts=1, shared_ffn_hidden=1024),
)
degrees = st.sampled_from([1, 2, 4])


@dataclasses.dataclass(frozen=True)
class Layout:
    """A mesh and the habits of the stack that runs on it."""

    mesh: Mesh
    sharding: Sharding
    experts: bool
    recompute: str


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    """Any legal combination of the axes inside a layer."""
    tp, cp, dp = draw(degrees), draw(degrees), draw(degrees)
    experts = draw(st.booleans())
    etp, ep = (draw(degrees), draw(degrees)) if experts else (tp, 1)
    assume(tp * cp * dp % (etp * ep) == 0)
    mesh = Mesh(
        tp=tp, cp=cp, dp=dp, ep=ep, etp=etp, order=draw(st.permutations(AXIS_NAMES).map(tuple))
    )
    way = routing(
        top_k=4,
        expert_dispatch=draw(st.sampled_from(ExpertDispatch)),
        expert_overlap=draw(st.sampled_from([ExpertOverlap.NONE, ExpertOverlap.SHARED_EXPERT])),
        grouped_gemm=draw(st.booleans()),
    )
    shares = sharding(
        tp=tp,
        cp=cp,
        ep=ep,
        etp=etp,
        tokens=TOKENS // cp,
        hidden=GPT.hidden,
        sequence_parallel=tp > 1 and (experts or draw(st.booleans())),
        tensor_overlap=draw(st.sampled_from(TensorOverlap)),
        context_exchange=draw(st.sampled_from(ContextExchange)),
        context_inside=draw(st.sampled_from([n for n in (1, 2, 4) if cp % n == 0])),
        routing=way if experts else None,
    )
    return Layout(mesh, shares, experts, draw(st.sampled_from(["none", "selective", "full"])))


@functools.cache
def _expansion(kind: str, context: int) -> Expansion:
    shape = {"sequences": 1, "sequence_length": TOKENS, "context": context}
    return expand_layer(MOE if kind == "moe" else GPT, Lowering(), kind=kind, **shape)


def _items(layout: Layout) -> list[Item]:
    layer = _expansion("moe" if layout.experts else "dense", layout.sharding.cp)
    return block_forward(layer, layout.sharding) + block_backward(
        layer, layout.sharding, again=repeats(layer, layout.sharding, Recompute(layout.recompute))
    )


def _sent(items: list[Item], *axes: str) -> float:
    """Bytes that one rank sends, summed over collectives on `axes`."""
    group = GroupShape(4, 4, 1)
    return sum(
        _priced(one, group) for one in items if isinstance(one, Communication) and one.axis in axes
    )


def _priced(one: Communication, group: GroupShape) -> float:
    if group.ranks == 1:
        return 0.0
    inside, outside = sent_bytes("send_recv" if one.kind == "send" else one.kind, one.size, group)
    return float(inside + outside)


def _groups(mesh: Mesh, axis: str, inside: int) -> NDArray[np.int64]:
    if axis in ("tp", "cp"):
        return mesh.groups((axis,), 0)
    if axis == "cp-inside":
        return mesh.groups(("cp",), 0).reshape(-1, inside)
    if axis == "cp-across":
        whole = mesh.groups(("cp",), 0)
        return whole.reshape(len(whole), -1, inside).swapaxes(1, 2).reshape(-1, mesh.cp // inside)
    return mesh.groups(tuple(axis.split("-")), 0)


def _play(one: Communication, groups: NDArray[np.int64], ledger: NDArray[np.float64]) -> None:
    """Add what every member sends (row 0) and receives (row 1)."""
    n = groups.shape[1]
    if one.kind == "all_to_all":
        for shift in range(1, n):
            _message(groups, np.roll(groups, -shift, axis=1), one.size / n, ledger)
        return
    steps = {"all_reduce": 2 * (n - 1), "send": n if n > 1 else 0}.get(one.kind, n - 1)
    each = one.size if one.kind == "send" else one.size / n
    for _ in range(1 if one.kind == "send" else steps):
        _message(groups, np.roll(groups, -1, axis=1), each, ledger)


def _message(
    senders: NDArray[np.int64],
    receivers: NDArray[np.int64],
    size: float,
    ledger: NDArray[np.float64],
) -> None:
    np.add.at(ledger[0], senders.ravel(), size)
    np.add.at(ledger[1], receivers.ravel(), size)


CLUSTER = system("dgx-a100-80gb", nodes=8)


@settings(max_examples=examples(100, 500), deadline=None)
@given(layouts())
def test_every_byte_sent_is_received_and_priced(layout: Layout) -> None:
    """Rank by rank sent equals received; all ranks together send what the cost model counts."""
    ledger = np.zeros((2, layout.mesh.world))
    priced = 0.0
    for one in _items(layout):
        if isinstance(one, Communication):
            groups = _groups(layout.mesh, one.axis, layout.sharding.context_inside)
            assert sorted(groups.ravel().tolist()) == list(range(layout.mesh.world))
            _play(one, groups, ledger)
            shape = spread(CLUSTER.domain_of(groups))
            priced += _priced(one, shape) * layout.mesh.world
    np.testing.assert_allclose(ledger[0], ledger[1], rtol=1e-12)
    np.testing.assert_allclose(ledger[0].sum(), priced, rtol=1e-9)


def _layer(**changes: object) -> Layout:
    mesh = {axis: changes[axis] for axis in ("tp", "cp", "ep", "etp") if axis in changes}
    cp = int(changes.get("cp", 1))  # type: ignore[call-overload]
    shares = sharding(**{"tokens": TOKENS // cp, "hidden": GPT.hidden, **changes})
    return Layout(Mesh(**mesh, dp=4), shares, "routing" in changes, "none")  # type: ignore[arg-type]


def test_tensor_parallelism_sends_four_all_reduces_a_layer() -> None:
    """Each ``2 (t-1)/t`` of tokens x hidden; with sequence parallelism 4 halves forward, 6 backward (inputs are gathered again)."""
    whole = TOKENS * GPT.hidden * BYTES
    assert _sent(_items(_layer(tp=4)), "tp") == 4 * 2 * 3 / 4 * whole
    apart = _items(_layer(tp=4, sequence_parallel=True))
    assert _sent(apart, "tp") == 10 * 3 / 4 * whole


def test_overlap_of_tensor_parallelism_moves_no_byte_more() -> None:
    """Ring steps beside the chunks of a product send what one collective would."""
    sent = [
        _sent(_items(_layer(tp=4, sequence_parallel=True, tensor_overlap=overlap)), "tp")
        for overlap in TensorOverlap
    ]
    assert len({round(one) for one in sent}) == 1


def test_a_ring_passes_every_block_once_forward_and_twice_backward() -> None:
    """Forward c - 1 blocks of keys and values; backward as many again, and as many of their gradients."""
    block = 2 * (TOKENS // 4) * GPT.hidden * BYTES
    assert _sent(_items(_layer(cp=4)), "cp") == 3 * (4 - 1) * block


def test_all_gather_sends_what_a_ring_does() -> None:
    """Gather, gather again and reduce-scatter are ``(c-1)/c`` of all blocks each."""
    ring, gathered = (
        _sent(_items(_layer(cp=4, context_exchange=exchange)), "cp")
        for exchange in (ContextExchange.RING, ContextExchange.ALL_GATHER)
    )
    assert ring == gathered


def test_a_gathered_ring_sends_what_a_ring_does() -> None:
    """The same blocks by one gather, forward and backward, and the same gradients after them; these are twice as wide in float32."""
    block = 2 * (TOKENS // 4) * GPT.hidden * BYTES
    exchange = ContextExchange.GATHERED_RING
    assert _sent(_items(_layer(cp=4, context_exchange=exchange)), "cp") == 3 * (4 - 1) * block
    wide = _items(_layer(cp=4, context_exchange=exchange, eager_context_sums=True))
    assert _sent(wide, "cp") == (2 + 2) * (4 - 1) * block


def test_ulysses_sends_four_tensors_each_way() -> None:
    """q, k, v and output, each ``(c-1)/c`` of a rank's tokens x hidden, forward and backward."""
    items = _items(_layer(cp=4, context_exchange=ContextExchange.ULYSSES))
    assert _sent(items, "cp") == 2 * 4 * 3 / 4 * (TOKENS // 4) * GPT.hidden * BYTES


def test_experts_send_tokens_four_times() -> None:
    """Dispatch and combine, forward and backward: each tokens x top_k x hidden x ``(ep-1)/ep``."""
    items = _items(_layer(ep=4, routing=routing(top_k=4)))
    assert _sent(items, "ep") == 4 * TOKENS * 4 * GPT.hidden * BYTES * 3 / 4


def test_the_busiest_rank_sends_more() -> None:
    """Imbalance 1.5: half as much again; a fused kernel sends each token once a rank, 4 x (1 - C(12,4)/C(16,4)) of them."""
    plain, busy, fused = (
        _sent(_items(_layer(ep=4, routing=routing(top_k=4, **more))), "ep")
        for more in ({}, {"load": 1.5}, {"expert_dispatch": ExpertDispatch.FUSED})
    )
    assert busy == 1.5 * plain
    np.testing.assert_allclose(fused, plain * (1 - 495 / 1820))


def test_gathering_all_tokens_sends_every_rank_everything() -> None:
    """All-gather and reduce-scatter of tokens x hidden x ep, forward and backward, whatever top_k is."""
    way = routing(top_k=4, expert_dispatch=ExpertDispatch.ALL_GATHER)
    items = _items(_layer(ep=4, routing=way))
    assert _sent(items, "etp-ep") == 4 * (4 - 1) * TOKENS * GPT.hidden * BYTES


def test_a_step_sends_what_its_layers_and_ends_do() -> None:
    """tp 4, 4 microbatches: 24 layers of 4 all-reduces, embedding, head and three statistics a token."""
    plan = small_plan(tp=4, pp=1, dp=1, microbatches=4, recompute="none")
    program = build_program(plan)
    tokens, hidden = plan.sequence_length, plan.layout.model.hidden
    activations = (4 * plan.layout.model.layers + 2) * tokens * hidden * 2
    sent = 4 * 2 * 3 / 4 * (activations + 3 * 4 * tokens)
    inside = program.template >= 0
    total = float((program.up_bytes + program.out_bytes)[inside].sum())
    np.testing.assert_allclose(total, sent)
