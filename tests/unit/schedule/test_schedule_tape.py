"""Tapes, stage maps and small whole orders, solved by hand."""

from __future__ import annotations

import numpy as np
import pytest

from mpsim.schedule import Action, make_orders
from mpsim.schedule.stages import TwoWay
from mpsim.schedule.tape import Tape, from_tapes


def _tokens(tape: Tape) -> list[str]:
    rows = zip(tape.stage, tape.kind, tape.microbatch, strict=True)
    return [f"{stage}{kind.name}{microbatch}" for stage, kind, microbatch in rows]


def test_each_stage_and_kind_counts_its_own_microbatches() -> None:
    """A full backward and an input gradient share one count; forwards have their own."""
    tape = Tape()
    tape.run(0, "FF")
    tape.run(3, "FB")
    tape.run(0, "BI")
    assert _tokens(tape) == ["0F0", "0F1", "3F0", "3B0", "0B0", "0I1"]


def test_weight_gradients_wait_in_the_order_of_their_input_gradients() -> None:
    """The oldest of all goes first, or the oldest of one stage."""
    tape = Tape()
    tape.run(0, "FFII")
    tape.run(1, "FI")
    tape.run(1, "W")
    assert (tape.waiting(0), tape.waiting(1)) == (2, 0)
    tape.weight()
    assert _tokens(tape)[-2:] == ["1W0", "0W0"]


def test_a_block_is_one_forward_and_one_full_backward() -> None:
    """`overlap` marks the forward as fused with what follows."""
    tape = Tape()
    tape.run(0, "F")
    tape.overlap(0, 0)
    tape.run(0, "B")
    orders = from_tapes("own", [tape], microbatches=2, stage_rank=np.zeros(1, np.int32))
    assert orders.validate().tokens() == [["0F0", "(0F1;0B0)OVERLAP_F_B", "0B1"]]


def test_actions_beyond_the_last_microbatch_are_left_out() -> None:
    """A tape of three microbatches cut to one."""
    tape = Tape()
    tape.run(0, "FFFBBB")
    orders = from_tapes("own", [tape], microbatches=1, stage_rank=np.zeros(1, np.int32))
    assert orders.validate().tokens() == [["0F0", "0B0"]]


def test_two_ways_hold_the_model_twice() -> None:
    """At p = 4 rank 1 holds part 1 of both directions' 4: stages 1 and 6."""
    ways = TwoWay(pp=4, microbatches=8)
    assert ways.stage_rank.tolist() == [0, 1, 2, 3, 3, 2, 1, 0]
    assert ways.model_stage.tolist() == [0, 1, 2, 3, 0, 1, 2, 3]
    assert ways.stages_of(1) == (1, 6)
    assert ways.first_microbatch.tolist() == [0] * 4 + [4] * 4


@pytest.mark.parametrize(("name", "microbatches"), [("dualpipe", 8), ("chimera", 8)])
def test_two_way_schedules_send_half_of_the_microbatches_each_way(
    name: str, microbatches: int
) -> None:
    """Microbatches 0 to 3 run in chain 0 alone, 4 to 7 in chain 1 alone."""
    orders = make_orders(name, pp=4, microbatches=microbatches)
    chain = orders.chain[orders.stage]
    assert np.array_equal(chain, orders.microbatch // (microbatches // 2))


def test_zb_h2_at_p_2_m_4() -> None:
    """Rank 0: three forwards, then I W F while there are any; rank 1: weight gradients two rounds behind."""
    assert make_orders("zb-h2", pp=2, microbatches=4).tokens() == [
        ["0F0", "0F1", "0F2", "0I0", "0W0", "0F3", "0I1", "0W1", "0I2", "0W2", "0I3", "0W3"],
        ["1F0", "1I0", "1F1", "1I1", "1F2", "1I2", "1W0", "1F3", "1I3", "1W1", "1W2", "1W3"],
    ]


def test_zb_v_with_few_microbatches_is_the_long_order_cut_short() -> None:
    """At m = 2 < 2p - 1 = 5 the order is that of five microbatches without the last three."""
    few, many = (make_orders("zb-v", pp=3, microbatches=m).tokens() for m in (2, 5))
    assert few == [[token for token in rank if token[-1] in "01"] for rank in many]


def test_gpipe_lifo_reverses_the_backwards() -> None:
    """As the paper draws it."""
    orders = make_orders("gpipe", pp=1, microbatches=3, lifo=True)
    assert orders.tokens() == [["0F0", "0F1", "0F2", "0B2", "0B1", "0B0"]]


def test_forward_only_takes_chunks_in_groups() -> None:
    """Two chunks, groups of p = 2: chunk 0 of both, chunk 1 of both, then the next group; no backward."""
    orders = make_orders("forward-only", pp=2, microbatches=4, virtual_stages=2).validate()
    assert orders.forward_only
    assert set(orders.kind.tolist()) == {Action.F}
    assert orders.tokens()[1] == ["1F0", "1F1", "3F0", "3F1", "1F2", "1F3", "3F2", "3F3"]


def test_an_extra_warm_up_parts_each_forward_from_its_backward() -> None:
    """On the last rank a steady pair is then of two microbatches: F1 B0 instead of F0 B0."""
    orders = make_orders(
        "interleaved-1f1b", pp=2, microbatches=4, virtual_stages=1, extra_warmup=1
    ).validate()
    assert orders.tokens()[1] == ["1F0", "1F1", "1B0", "1F2", "1B1", "1F3", "1B2", "1B3"]
