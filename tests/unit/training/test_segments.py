"""Which actions of a step parameters and gradients travel around."""

from __future__ import annotations

from mpsim.schedule import Action, make_orders
from mpsim.training.replicas.segments import _Around


def test_a_stage_without_such_actions_has_no_last_one() -> None:
    """Forwards alone reduce nothing: no row of theirs stands for a gradient that is not there."""
    orders = make_orders("forward-only", pp=2, microbatches=3)
    assert not _Around((Action.B,), "last").of(orders).any()
    assert _Around((Action.F,), "last").of(orders).sum() == orders.stages
