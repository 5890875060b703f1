"""mpsim's orders against PyTorch's, token by token: those recorded, and those the installed PyTorch makes.

data/schedule-orders.jsonl: per-rank orders that PyTorch 2.13.0 generated, by `torch_orders` below (1F1B and GPipe: executed,
because the printed 1F1B order of the last rank is off by one microbatch). Lines with communication actions are left out:
sends and receives are not part of an order here.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from mpsim.schedule import make_orders

DATA = Path(__file__).parent / "data"
NAMES = {
    "GPipe": "gpipe",
    "1F1B": "1f1b",
    "Interleaved1F1B": "interleaved-1f1b",
    "LoopedBFS": "looped-bfs",
    "InterleavedZeroBubble": "interleaved-zb",
    "ZBVZeroBubble": "zb-v",
    "DualPipeV": "dualpipe-v",
}
LOOPS = ("Interleaved1F1B", "LoopedBFS", "InterleavedZeroBubble")
RECORDED = [
    json.loads(line)
    for line in (DATA / "schedule-orders.jsonl").read_text(encoding="utf-8").splitlines()
]
# (p, m, v); m that is no multiple of p, m < p and m < 2p - 1 are among them
LIVE = {
    "GPipe": [(1, 1, 1), (2, 5, 1), (4, 8, 1), (4, 2, 1)],
    "1F1B": [(1, 3, 1), (2, 2, 1), (4, 8, 1), (5, 7, 1), (6, 12, 1)],
    "Interleaved1F1B": [(2, 4, 2), (4, 3, 2), (4, 10, 2), (3, 9, 4), (6, 12, 1), (5, 10, 3)],
    "LoopedBFS": [(2, 4, 2), (4, 10, 3), (3, 2, 1), (6, 7, 2)],
    "InterleavedZeroBubble": [(2, 4, 1), (4, 3, 2), (4, 10, 2), (3, 9, 4), (6, 12, 1), (8, 9, 1)],
    "ZBVZeroBubble": [(1, 4, 2), (3, 2, 2), (4, 7, 2), (4, 12, 2), (6, 6, 2)],
    "DualPipeV": [(1, 2, 2), (2, 4, 2), (3, 9, 2), (4, 8, 2), (5, 13, 2)],
}


def _id(row: dict[str, Any]) -> str:
    return f"{row['schedule']}-p{row['pp']}-m{row['microbatches']}-v{row['virtual_stages']}"


def test_the_recorded_orders_cover_all_of_torchs_schedules() -> None:
    """The comparison below would pass on an empty file; it is not empty."""
    assert {row["schedule"] for row in RECORDED} == set(NAMES)
    assert {row["kind"] for row in RECORDED} == {"compute", "compute (as executed)"}
    assert len(RECORDED) == 86


@pytest.mark.parametrize("row", RECORDED, ids=_id)
def test_orders_equal_those_of_torch_token_by_token(row: dict[str, Any]) -> None:
    """Every rank does the same actions in the same order as PyTorch, on the same map of stages."""
    orders = make_orders(
        NAMES[row["schedule"]],
        pp=row["pp"],
        microbatches=row["microbatches"],
        virtual_stages=row["virtual_stages"],
    )
    assert orders.tokens() == row["orders"]
    assert orders.stage_rank.tolist() == row["stage_to_rank"]


@pytest.mark.parametrize("row", [row for row in RECORDED if row["schedule"] in LOOPS], ids=_id)
def test_one_chunk_classes_of_torch_are_schedules_of_their_own(row: dict[str, Any]) -> None:
    """With v = 1, Interleaved1F1B is eager-1f1b, InterleavedZeroBubble is zb-h1 and LoopedBFS is gpipe with lifo."""
    if row["virtual_stages"] > 1:
        return
    name, options = {
        "Interleaved1F1B": ("eager-1f1b", {}),
        "InterleavedZeroBubble": ("zb-h1", {}),
        "LoopedBFS": ("gpipe", {"lifo": True}),
    }[row["schedule"]]
    sizes = {"pp": row["pp"], "microbatches": row["microbatches"]}
    assert make_orders(name, **sizes, **options).tokens() == row["orders"]


@pytest.mark.torch
@pytest.mark.filterwarnings("ignore")  # of torch
@pytest.mark.parametrize(
    ("schedule", "sizes"),
    [(schedule, sizes) for schedule, all_sizes in LIVE.items() for sizes in all_sizes],
)
def test_orders_equal_those_the_installed_torch_makes(
    schedule: str, sizes: tuple[int, int, int]
) -> None:
    """PyTorch's own classes, driven without a process group, give the same tokens."""
    pytest.importorskip("torch.distributed.pipelining.schedules", reason="torch is not installed")
    pp, microbatches, virtual = sizes
    orders = make_orders(NAMES[schedule], pp=pp, microbatches=microbatches, virtual_stages=virtual)
    assert orders.tokens() == torch_orders(schedule, pp, microbatches, virtual)


@pytest.mark.torch
@pytest.mark.filterwarnings("ignore")  # of torch
def test_torch_refuses_what_mpsim_refuses() -> None:
    """9 microbatches on 4 ranks cannot be grouped; DualPipeV needs 2p microbatches."""
    pytest.importorskip("torch.distributed.pipelining.schedules", reason="torch is not installed")
    for schedule, sizes in (
        ("Interleaved1F1B", (4, 9, 2)),
        ("InterleavedZeroBubble", (4, 9, 2)),
        ("DualPipeV", (4, 7, 2)),
    ):
        pp, microbatches, virtual = sizes
        with pytest.raises(ValueError, match="microbatches"):
            torch_orders(schedule, *sizes)
        with pytest.raises(ValueError, match="got microbatches = "):
            make_orders(NAMES[schedule], pp=pp, microbatches=microbatches, virtual_stages=virtual)


def torch_orders(schedule: str, pp: int, microbatches: int, virtual: int) -> list[list[str]]:
    """Tokens of each rank: from ``pipeline_order``, or for GPipe and 1F1B from running the loop."""
    if schedule in ("GPipe", "1F1B"):
        return [_executed(schedule, pp, microbatches, rank) for rank in range(pp)]
    from torch.distributed.pipelining.schedules import get_schedule_class

    stage = _fake_stage(pp, 0, pp * virtual)
    order = get_schedule_class(schedule)([stage] * virtual, microbatches).pipeline_order
    return [[str(action) for action in order[rank] if action is not None] for rank in range(pp)]


def _fake_stage(pp: int, rank: int, stages: int) -> mock.Mock:
    from torch.distributed.pipelining.stage import PipelineStage

    stage = mock.create_autospec(PipelineStage, instance=True)
    stage.group_rank, stage.group_size, stage.num_stages, stage.submod = rank, pp, stages, None
    stage.stage_index = rank
    stage.is_first, stage.is_last = rank == 0, rank == pp - 1
    return stage


def _executed(schedule: str, pp: int, microbatches: int, rank: int) -> list[str]:
    """What the loop of a single-stage schedule calls, with sends and receives stubbed."""
    from torch.distributed.pipelining import schedules

    stage, done = _fake_stage(pp, rank, pp), []
    stage.has_backward = True
    stage.forward_one_chunk.side_effect = lambda index, *_, **__: done.append(f"{rank}F{index}")
    stage.backward_one_chunk.side_effect = lambda index, *_, **__: done.append(f"{rank}B{index}")
    for name in ("get_fwd_recv_ops", "get_fwd_send_ops", "get_bwd_recv_ops", "get_bwd_send_ops"):
        getattr(stage, name).return_value = []
    runner = schedules.get_schedule_class(schedule)(stage, microbatches, loss_fn=lambda *_: None)
    with mock.patch.object(runner, "_initialize_stage", create=True):
        runner._step_microbatches([()] * microbatches, [{}] * microbatches, [None] * microbatches)
    return done
