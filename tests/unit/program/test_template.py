"""Templates: what hides behind what inside a layer."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from mpsim.cost import Transfer
from mpsim.cost.kernels import Work
from mpsim.parallel import Communication, Compute, Synchronization, Waits
from mpsim.program import TICK, Template
from mpsim.program import template as templates
from mpsim.program.template import concatenate, exits
from mpsim.training.vocabulary import PARTS, TRAINING, part_of
from mpsim.workload import Operator, Phase, Role, make_gemm

US = 1e-6


evaluate_block = functools.partial(templates.evaluate_block, vocabulary=TRAINING, part_of=part_of)


class _Costs:
    """Kernels take their FLOPs in microseconds, collectives their size; beside those of experts kernels lose a share of their rate."""

    def __init__(self, share: float = 0.0) -> None:
        self.share = share

    def kernels(self, operators: Sequence[Operator]) -> NDArray[np.float64]:
        return np.array([one.flops * US for one in operators])

    def work(self, operators: Sequence[Operator]) -> Work:
        flops = sum(one.flops for one in operators)
        return Work(flops, flops / 2 * US, 0.0)

    def collective(self, item: Communication) -> Transfer:
        return Transfer(item.size * US, item.size, 0.0)

    def lost(self, item: Communication) -> float:
        return self.share if item.axis == "ep" else 0.0


def _kernel(name: str, microseconds: float, phase: Phase = Phase.FORWARD) -> Compute:
    operator = make_gemm(Role.KERNEL, phase, m=0, n=0, k=0, name=name)
    return Compute(dataclasses.replace(operator, flops=microseconds))


def _collective(microseconds: float, waits: Waits = Waits.ALL, axis: str = "tp") -> Communication:
    return Communication("c", axis, "all_reduce", microseconds, waits, Phase.FORWARD)


def _tagged(tag: str, microseconds: float, axis: str = "ep", *needs: str) -> Communication:
    return dataclasses.replace(
        _collective(microseconds, Waits.TAGGED, axis), name=tag, tag=tag, needs=frozenset(needs)
    )


def _needing(kernel: Compute, *tags: str) -> Compute:
    return dataclasses.replace(kernel, needs=frozenset(tags))


def _us(template: Template) -> dict[str, float]:
    return {
        name: round(ticks * TICK / US, 6)
        for name, ticks in zip(PARTS, template.parts.tolist(), strict=True)
        if ticks
    }


def test_a_blocking_collective_is_exposed_whole() -> None:
    """Kernel 3, collective 2, kernel 4: 9 in all, 2 of them exposed."""
    block = evaluate_block("b", [_kernel("a", 3), _collective(2), _kernel("b", 4)], _Costs())
    assert _us(block) == {"forward": 7.0, "exposed_tp": 2.0}


def test_kernels_lose_half_their_rate_while_tokens_travel_beside_them() -> None:
    """Tokens travel for 4 beside a kernel of 5: it does 2 in those 4 and the other 3 alone, 7 in all; the next has nothing beside it."""
    items = [_tagged("there", 4), _kernel("a", 5), _needing(_kernel("b", 1), "there")]
    assert _us(evaluate_block("b", items, _Costs(0.5))) == {"forward": 8.0}


def test_a_kernel_that_ends_beside_what_travels_takes_twice_as_long() -> None:
    """Of tokens that travel for 9 a kernel of 2 meets 4, and the one that needs them waits for the other 5; without a share 2 and 7."""
    items = [_tagged("there", 9), _kernel("a", 2), _needing(_kernel("b", 1), "there")]
    assert _us(evaluate_block("b", items, _Costs(0.5))) == {"forward": 5.0, "exposed_ep": 5.0}
    assert _us(evaluate_block("b", items, _Costs(0.5), shares=False)) == {
        "forward": 3.0,
        "exposed_ep": 7.0,
    }


def test_a_reduction_hides_behind_the_weight_gradient() -> None:
    """Input gradient 3, its reduction 5, weight gradient 4 beside it, next kernel 2: 3 + 5 + 2, 1 exposed."""
    items = [
        _kernel("i", 3, Phase.INPUT_GRADIENT),
        _collective(5, Waits.NOT_WEIGHTS),
        _kernel("w", 4, Phase.WEIGHT_GRADIENT),
        _kernel("j", 2, Phase.INPUT_GRADIENT),
    ]
    block = evaluate_block("b", items, _Costs())
    assert _us(block) == {"backward": 5.0, "weight_gradient": 4.0, "exposed_tp": 1.0}


def test_a_gather_for_the_weight_gradient_does_not_hold_up_the_input_gradient() -> None:
    """Gather 5 beside input gradient 3; the weight gradient waits for the other 2."""
    items = [
        _collective(5, Waits.NEXT_WEIGHT),
        _kernel("i", 3, Phase.INPUT_GRADIENT),
        _kernel("w", 4, Phase.WEIGHT_GRADIENT),
    ]
    block = evaluate_block("b", items, _Costs())
    assert _us(block) == {"backward": 3.0, "weight_gradient": 4.0, "exposed_tp": 2.0}


def test_a_block_ends_when_everything_in_it_has() -> None:
    """A collective that nobody waits for still ends the block."""
    block = evaluate_block("b", [_kernel("a", 1), _collective(6, Waits.NOT_WEIGHTS)], _Costs())
    assert _us(block) == {"forward": 1.0, "exposed_tp": 6.0}
    assert exits(block).tolist() == [0, 1]


def test_collectives_of_one_communicator_queue() -> None:
    """Two collectives of 4 issued together on one stream end at 8, on two streams at 4."""
    same = evaluate_block("b", [_collective(4), _collective(4)], _Costs())
    apart = evaluate_block("b", [_collective(4), _collective(4, axis="cp")], _Costs())
    assert same.parts.sum() * TICK == 8 * US
    assert apart.parts.sum() * TICK == 4 * US


def test_blocks_end_to_end_keep_their_inside() -> None:
    """The second block's starts are shifted by the length of the first, parts add."""
    block = evaluate_block("b", [_kernel("a", 3), _collective(2), _kernel("b", 4)], _Costs())
    row = concatenate("r", [(0, block), (1, block)])
    assert _us(row) == {"forward": 14.0, "exposed_tp": 4.0}
    assert (row.start[3:] - row.start[:3] == block.parts.sum()).all()
    assert row.layer.tolist() == [0, 0, 0, 1, 1, 1]
    assert row.before[row.before_ptr[3] : row.before_ptr[4]].tolist() == [1, 2]


def test_a_template_with_other_columns_counts_anew() -> None:
    """Sums that were asked for belong to the columns they were taken of."""
    block = templates.one_kernel(TRAINING, "copy", "other", 5.0)
    assert (block.ticks, block.issued) == (5.0, 0.0)
    other = block.but(parts=2 * block.parts, flops=np.array([7.0]))
    assert (other.ticks, other.issued, block.ticks) == (10.0, 7.0, 5.0)


def test_a_block_that_outruns_its_host_waits_for_it() -> None:
    """Kernels of 3 and 4, launches of 9: 2 of host time; launches of 5 are hidden."""
    items = [_kernel("a", 3), _kernel("b", 4)]
    slow = evaluate_block("b", items, _Costs(), host_seconds=9 * US)
    assert _us(slow) == {"forward": 7.0, "host": 2.0}
    assert slow.start[-1] + slow.duration[-1] == slow.parts.sum()
    hidden = evaluate_block("b", items, _Costs(), host_seconds=5 * US)
    assert _us(hidden) == {"forward": 7.0}


def test_a_tagged_collective_holds_up_only_what_needs_it() -> None:
    """Dispatch 5 beside a shared expert of 3; the routed one waits for the other 2, and is not held up again."""
    items = [
        _tagged("dispatch", 5),
        _kernel("shared", 3),
        _needing(_kernel("routed", 4), "dispatch"),
        _needing(_kernel("more", 1), "dispatch"),
    ]
    block = evaluate_block("b", items, _Costs())
    assert _us(block) == {"forward": 8.0, "exposed_ep": 2.0}
    assert block.start[2] * TICK == 5 * US
    assert block.before[block.before_ptr[2] : block.before_ptr[3]].tolist() == [0, 1]


def test_nobody_needs_a_tag_and_the_block_waits_at_its_end() -> None:
    """A collective of 5 behind a kernel of 3 leaves 2 exposed."""
    block = evaluate_block("b", [_tagged("t", 5), _kernel("a", 3)], _Costs())
    assert _us(block) == {"forward": 3.0, "exposed_ep": 2.0}


def test_a_collective_that_needs_another_follows_it_on_its_own_stream() -> None:
    """All-to-all 5, then the gather of what arrived, 3, on another communicator: a kernel that needs both starts at 8."""
    items = [
        _tagged("a2a", 5),
        _tagged("gather", 3, "etp", "a2a"),
        _needing(_kernel("experts", 1), "a2a", "gather"),
    ]
    block = evaluate_block("b", items, _Costs())
    assert _us(block) == {"forward": 1.0, "exposed_ep": 5.0, "exposed_tp": 3.0}


def test_a_ring_hides_behind_its_steps() -> None:
    """Three blocks of 4, two sends of 3 beside the first two: nothing is exposed; sends of 6 leave 2 x 2."""

    def ring(send: float) -> dict[str, float]:
        items = [
            _tagged("1", send, "cp"),
            _kernel("a", 4),
            _tagged("2", send, "cp"),
            _needing(_kernel("b", 4), "1"),
            _needing(_kernel("c", 4), "2"),
        ]
        return _us(evaluate_block("b", items, _Costs()))

    assert ring(3) == {"forward": 12.0}
    assert ring(6) == {"forward": 12.0, "exposed_cp": 4.0}


def test_a_host_that_waits_for_the_device_leaves_it_idle() -> None:
    """Two waits of 3 between kernels of 4 and 1, after the collective between them has ended."""
    items = [_kernel("a", 4), _collective(2), Synchronization(2), _kernel("b", 1)]
    block = evaluate_block("b", items, _Costs(), synchronization_seconds=3 * US)
    assert _us(block) == {"forward": 5.0, "exposed_tp": 2.0, "host": 6.0}
    free = evaluate_block("b", items, _Costs())
    assert _us(free) == {"forward": 5.0, "exposed_tp": 2.0}


def test_blocking_launches_add_up_and_hide_nothing() -> None:
    """Kernels 3 and 4, a collective of 5 that was beside the second, 9 of launches: 21."""
    items = [_kernel("a", 3), _tagged("t", 5, "tp"), _kernel("b", 4)]
    block = evaluate_block("b", items, _Costs(), host_seconds=9 * US, launch_blocking=True)
    assert _us(block) == {"forward": 7.0, "exposed_tp": 5.0, "host": 9.0}


def _queued(
    *, attention: float, experts: float, launches: int = 60, small: float = 0.0
) -> Template:
    """A layer whose host waits for counts: a kernel, small ones, the wait, three products of experts; each launch takes 10."""
    items = [
        _kernel("attention", attention),
        Synchronization(1, launches),
        *(_kernel("experts", experts) for _ in range(3)),
    ]
    return evaluate_block(
        "b",
        items,
        _Costs(),
        host_seconds=(launches + 4) * 10 * US,
        launch_seconds=10 * US,
        small_seconds=small * US,
    )


def test_long_kernels_hide_their_host_but_for_the_launch_after_its_wait() -> None:
    """Kernels of 1000 with 64 launches of 10: the host falls back at its wait and exposes one launch, whatever comes before it."""
    assert _us(_queued(attention=1000, experts=1000)) == {"forward": 4000.0, "host": 10.0}
    assert _us(_queued(attention=4000, experts=4000)) == {"forward": 16000.0, "host": 10.0}


def test_short_kernels_take_as_long_as_their_launches() -> None:
    """Kernels of 1: 60 small launches and 4 more of 10 each, layer after layer."""
    block = _queued(attention=1, experts=1)
    assert block.parts.sum() * TICK == pytest.approx(640 * US)


def test_small_kernels_run_back_to_back_where_the_host_is_ahead() -> None:
    """60 kernels of 2 take 120 of the device behind long products, and 600 of the host behind short ones."""
    long, short = (_queued(attention=time, experts=time, small=2) for time in (1000, 1))
    assert _us(long) == {"forward": 4000.0, "host": 130.0}
    assert short.parts.sum() * TICK == pytest.approx(640 * US)
