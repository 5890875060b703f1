"""Kernels that memory bounds: norms, elementwise, softmax, embedding, loss, optimizer, copies, and the cost of a launch."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.nn import functional

from mpsim.measure.case import Case, Work
from mpsim.measure.plan import best_first
from mpsim.measure.tensors import agrees, element_bytes, random, rotated
from mpsim.measure.world import World

__all__ = ["memory_bound_cases"]

Tensors = list[torch.Tensor]


@dataclasses.dataclass(frozen=True, slots=True)
class Kernel:
    """A memory-bound kernel on (tokens, features).

    Parameters
    ----------
    inputs : callable
        (world, dtype, tokens, features, whether gradients are wanted) to tensors.
    call : callable
        The kernel on them.
    reads : float
        Tensors of (tokens, features) that one forward moves; a backward moves one more than forward, at least.
    backward : bool
        Whether its backward is measured too.
    """

    name: str
    inputs: Callable[[World, str, int, int, bool], Tensors]
    call: Callable[..., torch.Tensor]
    reads: float
    backward: bool = True


def _one(world: World, dtype: str, tokens: int, features: int, grad: bool) -> Tensors:
    return [random(world, dtype, tokens, features, grad=grad)]


def _two(world: World, dtype: str, tokens: int, features: int, grad: bool) -> Tensors:
    return [random(world, dtype, tokens, features, grad=grad) for _ in range(2)]


def _norm(world: World, dtype: str, tokens: int, features: int, grad: bool) -> Tensors:
    weights = [random(world, dtype, features, grad=grad) for _ in range(2)]
    return [random(world, dtype, tokens, features, grad=grad), *weights]


def _layer_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return functional.layer_norm(x, x.shape[-1:], weight, bias)


def _rms_norm(x: torch.Tensor, weight: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    return functional.rms_norm(x, x.shape[-1:], weight)


KERNELS = (
    Kernel("layer_norm", _norm, _layer_norm, 2),
    Kernel("gelu", _one, functools.partial(functional.gelu, approximate="tanh"), 2),
    Kernel("add", _two, torch.add, 3, backward=False),
    Kernel("rms_norm", lambda *a: _norm(*a)[:2], lambda x, w: _rms_norm(x, w, w), 2),
    Kernel("silu_mul", _two, lambda gate, up: functional.silu(gate) * up, 5),
    Kernel("dropout", _one, lambda x: functional.dropout(x, 0.1), 2.5),
    Kernel("softmax", _one, lambda x: functional.softmax(x, -1), 2),
)


def memory_bound_cases(
    world: World, grid: Mapping[str, Any], dtypes: Sequence[str]
) -> list[list[Case]]:
    """Cases of every memory-bound kernel, a list for each kind."""
    series = []
    for dtype in dtypes:
        for kernel in KERNELS:
            for kind in ("forward", "backward")[: 1 + kernel.backward]:
                rows = best_first(grid["rows"])
                series.append([_row_case(world, kernel, kind, shape, dtype) for shape in rows])
        for op in ("embedding", "cross_entropy"):
            for kind in ("forward", "backward"):
                shapes = best_first(grid["vocabulary"])
                width = grid["rows"][0][1]
                series.append(
                    [_vocabulary_case(world, op, kind, shape, width, dtype) for shape in shapes]
                )
        series.append([_adam_case(world, count, dtype) for count in best_first(grid["adam"])])
    series.append([_copy_case(world, size, "device") for size in best_first(grid["copy"])])
    series.append([_copy_case(world, max(grid["copy"]), "device", phase="sustained")])
    if world.kind == "cuda":
        sizes = best_first(grid["copy"])
        series += [
            [_copy_case(world, size, way) for size in sizes] for way in ("to_device", "to_host")
        ]
    series.append(_launch_cases(world))
    return series


def _row_case(world: World, kernel: Kernel, kind: str, shape: Sequence[int], dtype: str) -> Case:
    tokens, features = shape
    tensor = float(tokens * features * element_bytes(dtype))
    backward = kind == "backward"
    return Case(
        family="kernels",
        op=kernel.name,
        shape={"tokens": tokens, "features": features},
        variant={"pass": kind},
        dtype=dtype,
        group=world.everyone,
        bytes=tensor * (kernel.reads + backward),
        memory=tensor * 8,
        prepare=functools.partial(
            _prepare_row, kernel=kernel, kind=kind, shape=(tokens, features), dtype=dtype
        ),
    )


def _prepare_row(
    world: World, *, kernel: Kernel, kind: str, shape: tuple[int, int], dtype: str
) -> Work:
    backward = kind == "backward"
    each = shape[0] * shape[1] * element_bytes(dtype) * (kernel.reads + backward)
    make = functools.partial(kernel.inputs, world, dtype, *shape, backward)
    check = ""
    if kernel.name != "dropout":
        given = [tensor.detach() for tensor in make()]
        wide = [tensor.double() for tensor in given]
        check = agrees(kernel.call(*given), kernel.call(*wide), dtype, "float64")
    return _forward_or_backward(world, backward, each, make, kernel.call, check)


def _forward_or_backward(
    world: World,
    backward: bool,
    each: float,
    make: Callable[[], Tensors],
    call: Callable[..., torch.Tensor],
    check: str,
) -> Work:
    """Work of `call` on rotated inputs, or of its gradient."""
    if not backward:
        turn = rotated(world, each, make)
        return Work(run=lambda: call(*turn()), check=check, capturable=True)

    def graph() -> tuple[torch.Tensor, Tensors, torch.Tensor]:
        given = make()
        out = call(*given)
        return out, [tensor for tensor in given if tensor.requires_grad], torch.randn_like(out)

    turned = rotated(world, each, graph)

    def run() -> object:
        out, given, grad = turned()
        return torch.autograd.grad(out, given, grad, retain_graph=True)

    return Work(run=run, check=check, capturable=True)


def _vocabulary_case(
    world: World, op: str, kind: str, shape: Sequence[int], width: int, dtype: str
) -> Case:
    tokens, vocabulary = shape
    element = element_bytes(dtype)
    features = width if op == "embedding" else vocabulary
    moved = 2.0 * tokens * features * element
    table = float(vocabulary * width * element) if op == "embedding" else 0.0
    sizes = {"tokens": tokens, "vocabulary": vocabulary}
    return Case(
        family="kernels",
        op=op,
        shape=sizes | ({"features": width} if op == "embedding" else {}),
        variant={"pass": kind},
        dtype=dtype,
        group=world.everyone,
        bytes=moved + (table if kind == "backward" else 0.0),
        memory=4 * moved + 4 * table,
        prepare=functools.partial(
            _prepare_vocabulary, op=op, kind=kind, sizes=(tokens, vocabulary, width), dtype=dtype
        ),
    )


def _prepare_vocabulary(
    world: World, *, op: str, kind: str, sizes: tuple[int, int, int], dtype: str
) -> Work:
    tokens, vocabulary, width = sizes
    backward = kind == "backward"
    ids = torch.randint(vocabulary, (tokens,), device=world.device)
    lookup = op == "embedding"
    shape = (vocabulary, width) if lookup else (tokens, vocabulary)
    each = float(shape[0] * shape[1] * element_bytes(dtype))

    def make() -> Tensors:
        return [random(world, dtype, *shape, grad=backward)]

    def call(given: torch.Tensor) -> torch.Tensor:
        if lookup:
            return functional.embedding(ids, given)
        wide = given if given.dtype == torch.float64 else given.float()
        return functional.cross_entropy(wide, ids)  # in 32 bits at least, as training runs it

    given = [tensor.detach() for tensor in make()]
    check = agrees(call(*given), call(*(tensor.double() for tensor in given)), dtype, "float64")
    return _forward_or_backward(world, backward, each, make, call, check)


def _adam_case(world: World, count: int, dtype: str) -> Case:
    element = element_bytes(dtype)
    return Case(
        family="kernels",
        op="adam",
        shape={"parameters": count},
        variant={"fused": True},
        dtype=dtype,
        group=world.everyone,
        bytes=7.0 * count * element,  # reads weight, gradient and two moments, writes three of them
        memory=4.0 * count * element,
        prepare=functools.partial(_prepare_adam, count=count, dtype=dtype),
    )


def _prepare_adam(world: World, *, count: int, dtype: str) -> Work:
    rate = 1.0  # large enough to be seen in a narrow format

    def make() -> tuple[torch.optim.Optimizer, torch.Tensor, torch.Tensor]:
        weight = random(world, dtype, count).clone()
        weight.grad = random(world, dtype, count)
        before = weight.clone()
        optimizer = torch.optim.Adam([weight], lr=rate, fused=True)
        optimizer.step()
        return optimizer, weight, before

    _, weight, before = make()
    assert weight.grad is not None
    # the first step of Adam is the learning rate times the sign of the gradient (Kingma and Ba 2015, algorithm 1)
    small = weight.grad.abs() < 1e-4  # where epsilon counts
    moved = (weight - before).masked_fill(small, 0.0) / rate
    check = agrees(
        moved, -weight.grad.sign().masked_fill(small, 0.0), dtype, "the first step of Adam"
    )
    turn = rotated(world, 4.0 * count * element_bytes(dtype), lambda: make()[0])
    return Work(run=lambda: turn().step(), check=check)


def _copy_case(world: World, size: int, way: str, *, phase: str = "burst") -> Case:
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
        prepare=functools.partial(_prepare_copy, size=size, way=way),
    )


def _prepare_copy(world: World, *, size: int, way: str) -> Work:
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


def _launch_cases(world: World) -> list[Case]:
    """An addition of one number: nothing but its launch."""
    ways = ["host"] if world.kind == "cpu" else ["host", "stream", "graph"]
    return [
        Case(
            family="kernels",
            op="launch",
            shape={},
            variant={"way": way},
            dtype="float32",
            group=world.everyone,
            prepare=functools.partial(_prepare_launch, way=way),
        )
        for way in ways
    ]


def _prepare_launch(world: World, *, way: str) -> Work:
    number = torch.zeros(1, device=world.device)
    return Work(run=lambda: number.add_(1.0), capturable=way == "graph", host=way == "host")
