"""Peak memory of small training steps as torch itself allocates it, on tensors without data and ranks that exist by name, against what mpsim says.

Covers: models x FSDP x tensor parallelism x recomputation x optimizers of torch 2.13 (fully_shard, DTensor, checkpoint, torch.optim).
Question: how far is the predicted peak from the most that torch's own code allocates?

Run from the repository's root, with torch: python validation/memory_torch.py [FIRST LAST]. It rewrites validation/data/torch-memory.csv (of all cases, or of some).
"""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import functools
import math
import sys
import weakref
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import distributed, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor._sharding_prop import ShardingPropagator
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

from bench.torch_steps import EAGER, MODELS, Case, cases
from mpsim.training.memory.allocator import CachingAllocator

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / "validation" / "data" / "torch-memory.csv"
SHAPES, STEPS = ShardingPropagator, 3
BLOCK = 512
"""Bytes that CUDA's caching allocator rounds to (torch 2.13, c10/core/CachingDeviceAllocator.h, kMinBlockSize)."""


# --- the model -------------------------------------------------------------------------------------------------------------------


class Norm(nn.Module):
    """Root mean square norm: of one kernel, as torch's on a GPU, or a chain of float32 ones, as Llama's own and Hugging Face's."""

    def __init__(self, width: int, *, wide: bool) -> None:
        super().__init__()
        self.weight, self.wide = nn.Parameter(torch.ones(width)), wide

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Normed."""
        if not self.wide:
            return OneNorm.apply(x, self.weight)
        wide = x.float()
        return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)).type_as(
            x
        ) * self.weight


class OneNorm(torch.autograd.Function):
    """The allocations of aten._fused_rms_norm: what came in and a number a token are kept."""

    @staticmethod
    def forward(context: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """A new tensor."""
        context.save_for_backward(x, weight, x.sum(-1, dtype=torch.float32))
        return x * weight

    @staticmethod
    def backward(context: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """A new tensor, and the gradient of the weight."""
        x, weight, _ = context.saved_tensors
        return x.neg(), torch.empty_like(weight)


class Rotate(torch.autograd.Function):
    """Rotation by one kernel, whose gradient needs nothing of what came in."""

    @staticmethod
    def forward(_: Any, x: torch.Tensor) -> torch.Tensor:
        """A new tensor."""
        return x.neg()

    @staticmethod
    def backward(_: Any, *grads: torch.Tensor) -> torch.Tensor:
        """A new tensor."""
        return grads[0].neg()


class Attention(nn.Module):
    """Grouped queries, rotation, scaled_dot_product_attention, or the kernels that Hugging Face's eager_attention_forward calls."""

    def __init__(self, sizes: Mapping[str, int], *, eager: bool) -> None:
        super().__init__()
        self.eager = eager
        hidden, self.width = sizes["hidden"], sizes["hidden"] // sizes["heads"]
        kv = sizes["kv_heads"] * self.width
        self.wq, self.wk = nn.Linear(hidden, hidden, bias=False), nn.Linear(hidden, kv, bias=False)
        self.wv, self.wo = nn.Linear(hidden, kv, bias=False), nn.Linear(hidden, hidden, bias=False)

    def forward(self, x_BSD: torch.Tensor) -> torch.Tensor:
        """Queries, keys and values of this rank's heads, and their attention."""
        q, k, v = (
            part.unflatten(-1, (-1, self.width)).transpose(1, 2)
            for part in (self.wq(x_BSD), self.wk(x_BSD), self.wv(x_BSD))
        )
        q, k = Rotate.apply(q), Rotate.apply(k)
        if self.eager:
            scores = q @ k.transpose(-1, -2) * self.width**-0.5
            scores = scores + scores.new_zeros(1, 1, *scores.shape[-2:])  # the mask
            out = functional.softmax(scores, dim=-1, dtype=torch.float32).to(q.dtype) @ v
        else:
            out = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.wo(out.transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    """SwiGLU of separate kernels."""

    def __init__(self, sizes: Mapping[str, int]) -> None:
        super().__init__()
        hidden, ffn = sizes["hidden"], sizes["ffn_hidden"]
        self.w1, self.w3 = nn.Linear(hidden, ffn, bias=False), nn.Linear(hidden, ffn, bias=False)
        self.w2 = nn.Linear(ffn, hidden, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Gate times up, down."""
        return self.w2(functional.silu(self.w1(x)) * self.w3(x))


class Block(nn.Module):
    """A layer."""

    def __init__(self, sizes: Mapping[str, int], case: Case) -> None:
        super().__init__()
        self.attention_norm = Norm(sizes["hidden"], wide=case.wide)
        self.ffn_norm = Norm(sizes["hidden"], wide=case.wide)
        self.attention = Attention(sizes, eager=case.model in EAGER)
        self.feed_forward = FeedForward(sizes)
        self.recompute = case.recompute

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The layer, run again in the backward where that is asked."""
        if self.recompute == "none":
            return self._layer(x)
        context = {"context_fn": _saves_every_second} if self.recompute == "per-op" else {}
        return checkpoint(self._layer, x, use_reentrant=False, **context)

    def _layer(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.attention_norm(x))
        return x + self.feed_forward(self.ffn_norm(x))


def _saves_every_second() -> Any:
    """Policy of torchtitan's selective checkpoint: every second product, attention, and what tensor parallelism has summed."""
    aten, sums = torch.ops.aten, torch.ops._c10d_functional.reduce_scatter_tensor.default
    kept = {aten._scaled_dot_product_flash_attention_for_cpu.default, sums}
    seen: dict[bool, int] = {}

    def policy(context: Any, func: Any, *_args: Any, **_kwargs: Any) -> CheckpointPolicy:
        if func is aten.mm.default:
            again = bool(context.is_recompute)
            seen[again] = seen.get(again, 0) + 1
            return (
                CheckpointPolicy.MUST_SAVE if seen[again] % 2 else CheckpointPolicy.PREFER_RECOMPUTE
            )
        return CheckpointPolicy.MUST_SAVE if func in kept else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)


class Llama(nn.Module):
    """Embedding, layers, norm and head."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        sizes = MODELS[case.model]
        self.embedding = nn.Embedding(sizes["vocab"], sizes["hidden"])
        self.layers = nn.ModuleList(Block(sizes, case) for _ in range(sizes["layers"]))
        self.norm = Norm(sizes["hidden"], wide=case.wide)
        self.head = nn.Linear(sizes["hidden"], sizes["vocab"], bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Logits."""
        x = self.embedding(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def loss_of(logits: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Cross entropy in float32, as training loops write it."""
    return functional.cross_entropy(logits.flatten(0, 1).float(), ids.flatten())


# --- a step on fake tensors ------------------------------------------------------------------------------------------------------


class Allocations(TorchDispatchMode):
    """A mode in which every storage counts from the operation that made it until it is freed."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self.sizes: dict[int, int] = {}
        self.events: list[tuple[int, int]] = []

    def note(self, tensor: torch.Tensor) -> None:
        """Count the storage of a tensor if it is new."""
        storage = tensor.untyped_storage()
        if storage._cdata not in self.sizes:
            self.sizes[storage._cdata] = 0
            weakref.finalize(storage, self._free, storage._cdata)
        self._set(storage._cdata, storage.nbytes())

    @property
    def reserved(self) -> int:
        """What torch's caching allocator would have taken from the driver for all of it, on one stream [B]."""
        return self._played(math.inf)

    @property
    def needed(self) -> int:
        """The smallest device on which the same runs, to 0.4 %: the allocator gives free segments back before it gives up [B]."""
        low, high = self.peak, max(self.reserved, self.peak + 1)
        while high > 1.004 * low:
            middle = (low + high) // 2
            try:
                self._played(middle)
            except MemoryError:
                low = middle
            else:
                high = middle
        return high

    def _played(self, limit: float) -> int:
        allocator, alive = CachingAllocator(limit=limit), dict[int, Any]()
        for key, size in self.events:
            if key in alive:
                allocator.free(alive.pop(key))
            if size:
                alive[key] = allocator.allocate(size)
        return allocator.reserved

    def __enter__(self) -> Any:
        """Follow storages that are resized, too: torch's FSDP frees and fills gathered parameters so; not those with which DTensor works out shapes."""
        self._resize, self._shapes = (
            torch.UntypedStorage.resize_,
            SHAPES._propagate_tensor_meta_non_cached,
        )
        self._apart = False

        def shapes(*given: Any) -> Any:
            self._apart = True
            try:
                return self._shapes(*given)
            finally:
                self._apart = False

        SHAPES._propagate_tensor_meta_non_cached = shapes

        def resize(storage: torch.UntypedStorage, size: int) -> None:
            self._resize(storage, size)
            if storage._cdata in self.sizes:
                self._set(storage._cdata, storage.size())

        torch.UntypedStorage.resize_ = resize  # type: ignore[method-assign, assignment]
        return super().__enter__()

    def __exit__(self, *exc: Any) -> None:
        """Put torch's own back."""
        torch.UntypedStorage.resize_ = self._resize  # type: ignore[method-assign]
        SHAPES._propagate_tensor_meta_non_cached = self._shapes
        super().__exit__(*exc)

    def _set(self, key: int, size: int) -> None:
        rounded = -(-size // BLOCK) * BLOCK
        if rounded != self.sizes[key]:
            self.events.append((key, rounded))
        self.now += rounded - self.sizes[key]
        self.sizes[key] = rounded
        self.peak = max(self.peak, self.now)

    def _free(self, key: int) -> None:
        self._set(key, 0)
        del self.sizes[key]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation, and count what it returns; DTensor turns its own into those of local tensors first."""
        if any(kind is DTensor for kind in types):
            return NotImplemented
        if func is torch.ops._c10d_functional.wait_tensor.default:
            return args[0]  # whose fake implementation returns a copy
        result = func(*args, **(kwargs or {}))
        for tensor in () if self._apart else tree_iter(result):
            if isinstance(tensor, torch.Tensor):
                self.note(tensor)
        return result


@dataclasses.dataclass(frozen=True, slots=True)
class World:
    """Ranks that exist by name: meshes of data and of tensor parallelism, None for a model on one device."""

    dp: DeviceMesh | None = None
    tp: DeviceMesh | None = None

    @classmethod
    def of(cls, case: Case) -> World:
        """The mesh of a case, or none."""
        ranks = case.fsdp * case.tp
        if ranks == 1:
            return cls()
        from torch.testing._internal.distributed.fake_pg import FakeStore

        distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=ranks)
        mesh = init_device_mesh("cpu", (case.fsdp, case.tp), mesh_dim_names=("dp", "tp"))
        return cls(mesh["dp"], mesh["tp"])


def _divide(model: Llama, mesh: DeviceMesh) -> None:
    """Tensor parallelism with divided sequences, as torchtitan's plan has it, but for logits, which are gathered."""
    shards = Shard(1)
    inside = {
        "attention_norm": SequenceParallel(),
        "attention": PrepareModuleInput(input_layouts=(shards,), desired_input_layouts=(Replicate(),)),
        **{f"attention.{name}": ColwiseParallel() for name in ("wq", "wk", "wv")},
        "attention.wo": RowwiseParallel(output_layouts=shards),
        "ffn_norm": SequenceParallel(),
        "feed_forward": PrepareModuleInput(input_layouts=(shards,), desired_input_layouts=(Replicate(),)),
        **{f"feed_forward.{name}": ColwiseParallel() for name in ("w1", "w3")},
        "feed_forward.w2": RowwiseParallel(output_layouts=shards),
    }  # fmt: skip
    parallelize_module(
        model,
        mesh,
        {
            "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=shards),
            "norm": SequenceParallel(),
            "head": ColwiseParallel(input_layouts=shards, output_layouts=Replicate()),
        },
    )
    for layer in model.layers:
        parallelize_module(layer, mesh, inside)


def _shard(model: Llama, mesh: DeviceMesh, case: Case) -> None:
    narrow = None if case.autocast else torch.bfloat16
    policy = MixedPrecisionPolicy(param_dtype=narrow, reduce_dtype=torch.float32)
    shard = functools.partial(fully_shard, mesh=mesh, mp_policy=policy)
    for layer in model.layers:
        shard(layer)
    if not case.root:
        shard(model.embedding)
        shard([model.norm, model.head])
    shard(model)


@contextlib.contextmanager
def torch_default(dtype: torch.dtype) -> Iterator[None]:
    """New tensors are of this kind."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _optimizer(case: Case, parameters: Iterator[nn.Parameter]) -> torch.optim.Optimizer:
    if case.optimizer == "sgd":
        return torch.optim.SGD(parameters, lr=1e-3, momentum=0.9, foreach=True)
    way = {"foreach": True} if case.optimizer == "foreach" else {"fused": True}
    return torch.optim.AdamW(parameters, lr=1e-3, **way)


def allocations(case: Case) -> Allocations:
    """Steps, of which the most of the last is its peak: the first makes the optimizer's state."""
    world, sizes = World.of(case), MODELS[case.model]
    narrow = world.dp is None and not case.autocast
    with torch_default(torch.bfloat16 if narrow else torch.float32), torch.device("meta"):
        model = Llama(case)
    if case.tp > 1:
        _divide(model, world.tp)
    if case.fsdp > 1:
        _shard(model, world.dp, case)
    with FakeTensorMode(allow_non_fake_inputs=True):
        model.to_empty(device="cpu")
        optimizer = _optimizer(case, model.parameters())
        ids = torch.zeros(sizes["micro_batch"], sizes["sequence"], dtype=torch.int64)
        counted = Allocations()
        with counted:
            for parameter in model.parameters():
                counted.note(parameter.to_local() if isinstance(parameter, DTensor) else parameter)
            for _ in range(STEPS):
                counted.peak = counted.now
                for _ in range(case.microbatches):
                    with torch.autocast("cpu", torch.bfloat16, enabled=case.autocast):
                        loss = loss_of(model(ids), ids)
                    loss.backward()
                    del loss
                optimizer.step()
                optimizer.zero_grad()
    if distributed.is_initialized():
        distributed.destroy_process_group()
    return counted


def rows(words: Sequence[str]) -> Iterator[dict[str, object]]:
    """A row of the table for each case whose name has one of these words; of all without any."""
    for case in cases():
        if words and not any(word in case.name for word in words):
            continue
        yield {
            "id": case.name,
            **dataclasses.asdict(case),
            **MODELS[case.model],
            "wide_norms": case.wide,
            "allocated_bytes": (counted := allocations(case)).peak,
            "reserved_bytes": counted.reserved,
            "needed_bytes": counted.needed,
            "torch": torch.__version__.partition("+")[0],
        }


if __name__ == "__main__":
    import warnings

    warnings.filterwarnings("ignore", message="FSDP2-wrapped module")
    with DATA.open("w", newline="", encoding="utf-8") as file:
        writer = None
        for row in rows(sys.argv[1:]):
            writer = writer or csv.DictWriter(file, list(row), lineterminator="\n")
            if not file.tell():
                writer.writeheader()
            writer.writerow(row)
            file.flush()
