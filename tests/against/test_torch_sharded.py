"""Bytes of a sharded parameter, against what torch's fully_shard holds on a group of eight ranks that exist by name alone."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from mpsim.training.memory.states import model_states
from tests.plans import small_plan

if os.environ.get("MPSIM_REQUIRE_TORCH") == "1":
    import torch  # a skipped module would pass
else:
    torch = pytest.importorskip("torch", reason="torch is not installed")
pytestmark = pytest.mark.torch

RANKS, WIDTH = 8, 64


@pytest.fixture
def mesh() -> Iterator[Any]:
    """A mesh of eight ranks, of which this process is the first; collectives return at once."""
    from torch import distributed
    from torch.distributed.device_mesh import init_device_mesh
    from torch.testing._internal.distributed.fake_pg import FakeStore

    distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=RANKS)
    yield init_device_mesh("cpu", (RANKS,))
    distributed.destroy_process_group()


def local_bytes(tensors: Any) -> int:
    """Bytes of this rank's part of tensors, each storage once."""
    storages = {
        part.untyped_storage().data_ptr(): part.untyped_storage().nbytes()
        for part in (t.to_local() if hasattr(t, "to_local") else t for t in tensors)
    }
    return sum(storages.values())


@pytest.mark.parametrize("reduced", ["float32", "bfloat16"])
def test_fsdp2_holds_16_bytes_a_parameter(mesh: Any, reduced: str) -> None:
    """An fp32 shard that is the master copy 4, its gradient 4 whatever it was reduced in, and two moments 8: not the 18 of a stack with bf16 weights beside a master."""
    from torch import nn
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=getattr(torch, reduced))
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3)))
    for layer in model:
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(2, WIDTH, dtype=torch.bfloat16)).sum().backward()
    optimizer.step()
    moments = [
        value
        for state in optimizer.state.values()
        for value in state.values()
        if torch.is_tensor(value) and value.dim()
    ]
    share = 3 * WIDTH * WIDTH / RANKS
    held = [
        local_bytes(tensors) / share
        for tensors in (model.parameters(), (p.grad for p in model.parameters()), moments)
    ]
    assert held == [4.0, 4.0, 8.0]
    plan = small_plan(tp=1, pp=1, dp=RANKS, zero=3, preset="torch-fsdp2", recompute="none")
    mine = {name: value[0] * RANKS for name, value in model_states(plan).items()}
    parameters = float(plan.layout.rank_parameters[0])
    assert [value / parameters for value in mine.values()] == held
