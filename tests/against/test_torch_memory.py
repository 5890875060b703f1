"""Peak memory of the steps that `mpsim measure` runs, against what torch allocates for them on tensors without data."""

from __future__ import annotations

import dataclasses
import os
import weakref
from typing import Any

import pytest

from mpsim.calibrate.machine import Frame, document_of, link_entry, sheet_entry
from mpsim.calibrate.parts import Fit
from mpsim.hardware import accelerator, link, machine_of
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

BLOCK = 512
"""Bytes that CUDA's caching allocator rounds to (torch 2.13, c10/core/CachingDeviceAllocator.h, kMinBlockSize)."""
CLOSE = 0.005


def allocations():
    """A mode in which every storage counts from the operation that made it until it is freed."""
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_iter

    class Allocations(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()
            self.now = self.peak = 0
            self.seen: dict[int, int] = {}

        def note(self, tensor: Any) -> None:
            storage = tensor.untyped_storage()
            if storage._cdata in self.seen:
                return
            size = -(-storage.nbytes() // BLOCK) * BLOCK
            self.seen[storage._cdata] = size
            self.now += size
            self.peak = max(self.peak, self.now)
            weakref.finalize(storage, self.free, storage._cdata)

        def free(self, key: int) -> None:
            self.now -= self.seen.pop(key, 0)

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            for one in tree_iter(out):
                if isinstance(one, torch.Tensor):
                    self.note(one)
            return out

    return Allocations()


def torch_peak(sizes, *, recompute, microbatches):
    """Most that is allocated from the first forward to the last backward, weights and both moments of Adam included [B]."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    from mpsim.measure.model import Gpt, Place, loss_of

    with FakeTensorMode():
        place = Place(0, 1, None, torch.device("cpu"), torch.bfloat16)
        model, loss = Gpt(sizes, place, recompute=recompute), loss_of(place)
        ids = torch.randint(sizes.vocab, (sizes.micro_batch, sizes.sequence))
        moments = [torch.empty_like(one) for one in model.parameters() for _ in range(2)]
        counted = allocations()
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
