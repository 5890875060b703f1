"""Kernels that memory bounds: norms, elementwise, softmax, loss, optimizer, copies, launches."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence

import torch
from torch.nn import functional

from mpsim.measure.case import Case, Work
from mpsim.measure.plan import PASSES, Grid, best_first
from mpsim.measure.tensors import Tensors, agrees, element_bytes, pass_work, random, rotated
from mpsim.measure.world import World


@dataclasses.dataclass(frozen=True, slots=True)
class Kernel:
    """A memory-bound kernel on (tokens, features)."""

    name: str
    tensors: int  # tensors, weights: inputs of (tokens, features), and of features alone
    weights: int
    call: Callable[..., torch.Tensor]
    # tensors (tokens, features) that one forward moves; a backward moves at least one more
    reads: float
    backward: bool = True  # whether its backward is measured too


def _layer_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return functional.layer_norm(x, x.shape[-1:], weight, bias)


def _rms_norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return functional.rms_norm(x, x.shape[-1:], weight)


KERNELS = (
    Kernel("layer_norm", 1, 2, _layer_norm, 2),
    Kernel("gelu", 1, 0, functools.partial(functional.gelu, approximate="tanh"), 2),
    Kernel("add", 2, 0, torch.add, 3, backward=False),
    Kernel("rms_norm", 1, 1, _rms_norm, 2),
    Kernel("silu_mul", 2, 0, lambda gate, up: functional.silu(gate) * up, 5),
    Kernel("dropout", 1, 0, lambda x: functional.dropout(x, 0.1), 2.5),
    Kernel("softmax", 1, 0, lambda x: functional.softmax(x, -1), 2),
)


def memory_bound_cases(world: World, grid: Grid, dtypes: Sequence[str]) -> list[list[Case]]:
    """Cases of every memory-bound kernel, a list for each kind."""
    rows, vocabularies = best_first(grid["rows"]), best_first(grid["vocabulary"])
    width, copies = grid["rows"][0][1], best_first(grid["copy"])
    series = []
    for dtype in dtypes:
        series += [
            [_row_case(world, kernel, kind, shape, dtype) for shape in rows]
            for kernel in KERNELS
            for kind in PASSES[: 1 + kernel.backward]
        ]
        series += [
            [case(world, kind, (*sizes, width), dtype) for sizes in vocabularies]
            for case in (_embedding_case, _loss_case)
            for kind in PASSES
        ]
        series.append([_adam_case(world, count, dtype) for count in best_first(grid["adam"])])
    series.append([_copy_case(world, size, "device") for size in copies])
    series.append([_copy_case(world, max(copies), "device", phase="sustained")])
    if world.kind == "cuda":
        series += [
            [_copy_case(world, size, way) for size in copies] for way in ("to_device", "to_host")
        ]
    return [*series, _launch_cases(world)]


def _row_case(world: World, kernel: Kernel, kind: str, shape: Sequence[int], dtype: str) -> Case:
    tokens, features = shape
    tensor = float(tokens * features * element_bytes(dtype))
    moved = tensor * (kernel.reads + (kind == "backward"))
    shapes = kernel.tensors * [(tokens, features)] + kernel.weights * [(features,)]

    def prepare(world: World) -> Work:
        make = _maker(world, dtype, kind, *shapes)
        reference = None if kernel.name == "dropout" else kernel.call
        return pass_work(world, kind, moved, make, kernel.call, dtype, reference)

    return Case(
        family="kernels",
        op=kernel.name,
        shape={"tokens": tokens, "features": features},
        variant={"pass": kind},
        dtype=dtype,
        group=world.everyone,
        bytes=moved,
        memory=tensor * 8,
        prepare=prepare,
    )


def _embedding_case(world: World, kind: str, shape: Sequence[int], dtype: str) -> Case:
    tokens, vocabulary, width = shape
    moved = 2.0 * tokens * width * element_bytes(dtype)
    table = float(vocabulary * width * element_bytes(dtype))

    def prepare(world: World) -> Work:
        ids = torch.randint(vocabulary, (tokens,), device=world.device)
        make = _maker(world, dtype, kind, (vocabulary, width))
        call = functools.partial(functional.embedding, ids)
        return pass_work(world, kind, table, make, call, dtype, call)

    return Case(
        family="kernels",
        op="embedding",
        shape={"tokens": tokens, "vocabulary": vocabulary, "features": width},
        variant={"pass": kind},
        dtype=dtype,
        group=world.everyone,
        bytes=moved + (table if kind == "backward" else 0.0),
        memory=4 * moved + 4 * table,
        prepare=prepare,
    )


def _loss_case(world: World, kind: str, shape: Sequence[int], dtype: str) -> Case:
    tokens, vocabulary, _ = shape
    logits = float(tokens * vocabulary * element_bytes(dtype))

    def prepare(world: World) -> Work:
        ids = torch.randint(vocabulary, (tokens,), device=world.device)
        make = _maker(world, dtype, kind, (tokens, vocabulary))

        def call(given: torch.Tensor) -> torch.Tensor:
            wide = given if given.dtype == torch.float64 else given.float()
            return functional.cross_entropy(wide, ids)  # in 32 bits at least, as training runs it

        return pass_work(world, kind, logits, make, call, dtype, call)

    return Case(
        family="kernels",
        op="cross_entropy",
        shape={"tokens": tokens, "vocabulary": vocabulary},
        variant={"pass": kind},
        dtype=dtype,
        group=world.everyone,
        bytes=2 * logits,
        memory=8 * logits,
        prepare=prepare,
    )


def _maker(world: World, dtype: str, kind: str, *shapes: tuple[int, ...]) -> Callable[[], Tensors]:
    return lambda: [random(world, dtype, *shape, grad=kind == "backward") for shape in shapes]


def _adam_case(world: World, count: int, dtype: str) -> Case:
    element, rate = element_bytes(dtype), 1.0  # large enough to be seen in a narrow format

    def prepare(world: World) -> Work:
        def make() -> tuple[torch.optim.Optimizer, torch.Tensor, torch.Tensor]:
            weight = random(world, dtype, count).clone()
            weight.grad = random(world, dtype, count)
            before = weight.clone()
            optimizer = torch.optim.Adam([weight], lr=rate, fused=True)
            optimizer.step()
            return optimizer, weight, before

        _, weight, before = make()
        assert weight.grad is not None
        # Adam's first step is the rate times the gradient's sign (Kingma and Ba 2015, algorithm 1)
        small = weight.grad.abs() < 1e-4  # where epsilon counts
        moved = (weight - before).masked_fill(small, 0.0) / rate
        wanted = -weight.grad.sign().masked_fill(small, 0.0)
        check = agrees(moved, wanted, dtype, "the first step of Adam")
        turn = rotated(world, 4.0 * count * element, lambda: make()[0])
        return Work(run=lambda: turn().step(), check=check)

    return Case(
        family="kernels",
        op="adam",
        shape={"parameters": count},
        variant={"fused": True},
        dtype=dtype,
        group=world.everyone,
        bytes=7.0 * count * element,  # reads weight, gradient and two moments, writes three of them
        memory=4.0 * count * element,
        prepare=prepare,
    )


def _copy_case(world: World, size: int, way: str, *, phase: str = "burst") -> Case:
    def prepare(world: World) -> Work:
        def make() -> tuple[torch.Tensor, torch.Tensor]:
            source = random(world, "float32", max(size // 4, 1)).view(torch.uint8)
            if way == "device":
                return torch.empty_like(source), source
            host = torch.empty(source.numel(), dtype=torch.uint8, pin_memory=True)
            return (host, source) if way == "to_host" else (source, host)

        turn = rotated(world, 2.0 * size, make)
        target, source = turn()
        target.copy_(source)
        check = agrees(target[:1024], source[:1024], "float64", "the source")

        def run() -> None:
            target, source = turn()
            target.copy_(source, non_blocking=True)

        return Work(run=run, check=check, capturable=way == "device")

    return Case(
        family="kernels",
        op="copy",
        shape={"bytes": size},
        variant={"way": way},
        dtype="uint8",
        group=world.everyone,
        phase=phase,
        bytes=2.0 * size if way == "device" else float(size),
        memory=2.0 * size,
        prepare=prepare,
    )


def _launch_cases(world: World) -> list[Case]:
    """An addition of one number: nothing but its launch."""

    def work(world: World, way: str) -> Work:
        number = torch.zeros(1, device=world.device)
        return Work(run=lambda: number.add_(1.0), capturable=way == "graph", host=way == "host")

    return [
        Case(
            family="kernels",
            op="launch",
            shape={},
            variant={"way": way},
            dtype="float32",
            group=world.everyone,
            prepare=functools.partial(work, way=way),
        )
        for way in (["host"] if world.kind == "cpu" else ["host", "stream", "graph"])
    ]
