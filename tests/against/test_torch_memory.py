"""Peak memory of the steps that `mpsim measure` runs, against what torch allocates for them on tensors without data."""

from __future__ import annotations

import dataclasses
import os

import pytest

from bench.torch_steps import Case, cases, parts_of
from mpsim.calibrate.machine import Frame, document_of, link_entry, sheet_entry
from mpsim.calibrate.parts import Fit
from mpsim.hardware import accelerator, link
from mpsim.hardware.machine import machine_of
from mpsim.measure.plan import load_grid
from mpsim.measured.records import Measurement
from mpsim.simulate import simulate
from mpsim.validate.step_scenarios import step_of
from mpsim.validate.steps import allocated_bytes
from tests.nightly import some

if os.environ.get("MPSIM_REQUIRE_TORCH") == "1":
    import torch  # a skipped module would pass
else:
    torch = pytest.importorskip("torch", reason="torch is not installed")
pytestmark = pytest.mark.torch

CLOSE = 0.005


def torch_peak(sizes, *, recompute, microbatches):
    """Most that is allocated from the first forward to the last backward, weights and both moments of Adam included [B]."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    from memory_torch import Allocations
    from mpsim.measure.model import Gpt, Place, loss_of

    with FakeTensorMode():
        place = Place(0, 1, None, torch.device("cpu"), torch.bfloat16)
        model, loss = Gpt(sizes, place, recompute=recompute), loss_of(place)
        ids = torch.randint(sizes.vocab, (sizes.micro_batch, sizes.sequence))
        moments = [torch.empty_like(one) for one in model.parameters() for _ in range(2)]
        counted = Allocations()
        for one in (*model.parameters(), *moments):
            counted.note(one)
        with counted:
            for _ in range(microbatches):
                loss(model(ids), ids).backward()
        return counted.peak


def machine():
    """One H200 as calibrate would describe it, with nothing fitted."""
    chip = accelerator("h200-sxm")
    frame = Frame(
        name="h200",
        source="made up",
        as_of="2026-11-21",
        datasheet=chip.name,
        accelerator=sheet_entry(chip),
        scale_up=link_entry(link(chip.scale_up), None, "2026-11-21"),
        nic=None,
        per_node=1,
        nodes=1,
        library="",
        inputs=[],
    )
    return machine_of(document_of(frame, Fit(), ()))


@pytest.mark.parametrize("microbatches", [1, 2])
@pytest.mark.parametrize("recompute", ["none", "full"])
@pytest.mark.parametrize("index", some([0, 4], 1), ids=["0.1B", "7B"])
def test_peak_memory_is_what_torch_allocates(index, recompute, microbatches):
    """GPTs of 0.1 to 7 billion parameters in bf16, within half a percent."""
    from mpsim.measure.model import Sizes

    sizes = Sizes(**load_grid()["cuda"]["models"][index])
    degrees = {"dp": 1, "tp": 1, "pp": 1, "virtual_stages": 1, "microbatches": microbatches}
    one = Measurement(
        *("x", "steps", "train_step", dataclasses.asdict(sizes) | degrees),
        {"data_parallel": "none", "schedule": "none", "recompute": recompute, "compiled": False},
        *("bfloat16", (0,), 1, False, "burst", "cuda-events", ((1.0,),)),
    )
    measured = torch_peak(sizes, recompute=recompute == "full", microbatches=microbatches)
    predicted = allocated_bytes(simulate(step_of(one, machine()).build()), one)
    assert predicted == pytest.approx(measured, rel=CLOSE)


@pytest.mark.filterwarnings("ignore:FSDP2-wrapped module")
@pytest.mark.parametrize("case", some([pytest.param(c, id=c.name) for c in cases()], 2))
def test_sharded_steps_allocate_what_torch_allocates(case: Case):
    """fully_shard, DTensor, checkpoints and optimizers of torch itself, within two percent (validation/memory.md has all three hundred)."""
    from memory_torch import allocations

    assert sum(parts_of(case).values()) == pytest.approx(allocations(case).peak, rel=0.02)
