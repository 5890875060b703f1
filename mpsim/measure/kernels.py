"""Kernels: matrix products in the three shapes of a linear layer, and attention."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import torch
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from mpsim.measure.case import Case, Work
from mpsim.measure.memory_bound import memory_bound_cases
from mpsim.measure.plan import best_first
from mpsim.measure.tensors import (
    agrees,
    dtype_of,
    element_bytes,
    has_dtype,
    random,
    rotated,
    set_tf32,
)
from mpsim.measure.world import World
from mpsim.workload import attention_flops, gemm_flops

__all__ = ["gemm_case", "kernel_series"]

BACKENDS: Final[Mapping[str, str]] = {
    "flash": "FLASH_ATTENTION",
    "cudnn": "CUDNN_ATTENTION",
    "efficient": "EFFICIENT_ATTENTION",
    "math": "MATH",
}
CHECKED_ROWS = 4
"""Rows of a product that are compared with float64."""


def kernel_series(world: World, grid: Mapping[str, Any]) -> list[list[Case]]:
    """Cases of every kernel, a list for each kind in the order to measure them."""
    dtypes = [name for name in grid["dtypes"] if has_dtype(name, world)]
    series = [list(gemms) for gemms in _gemms(world, grid, dtypes)]
    plain = [name for name in grid["plain_dtypes"] if name in dtypes]
    series += [list(case) for case in _attentions(world, grid, plain)]
    return [*series, *memory_bound_cases(world, grid, plain)]


def _gemms(
    world: World, grid: Mapping[str, Any], dtypes: Sequence[str]
) -> Iterator[Iterator[Case]]:
    layers = sorted(grid["gemm"], key=lambda shape: shape[0] * shape[1] * shape[2])
    for dtype in dtypes:
        for kind in ("forward", "dgrad", "wgrad"):
            yield (gemm_case(world, kind, layer, dtype) for layer in best_first(layers))
        yield iter([gemm_case(world, "forward", layers[-1], dtype, phase="sustained")])


def gemm_case(
    world: World, kind: str, layer: Sequence[int], dtype: str, *, phase: str = "burst"
) -> Case:
    """One of the three products of a linear layer of (tokens, in, out)."""
    tokens, inner, outer = layer
    m, n, k = {
        "forward": (tokens, outer, inner),
        "dgrad": (tokens, inner, outer),
        "wgrad": (outer, inner, tokens),
    }[kind]
    traffic = float(element_bytes(dtype) * (m * k + n * k + m * n))
    return Case(
        family="kernels",
        op="gemm",
        shape={"m": m, "n": n, "k": k},
        variant={"pass": kind},
        dtype=dtype,
        group=world.everyone,
        phase=phase,
        flops=gemm_flops(m, n, k),
        bytes=traffic,
        memory=traffic * 2,
        prepare=functools.partial(_prepare_gemm, kind=kind, mnk=(m, n, k), dtype=dtype),
    )


def _prepare_gemm(world: World, *, kind: str, mnk: tuple[int, int, int], dtype: str) -> Work:
    m, n, k = mnk
    set_tf32(dtype == "tf32")

    def factors() -> tuple[torch.Tensor, torch.Tensor]:
        """Operands laid out as a linear layer with weight (out, in) has them: x w^T, dy w, dy^T x."""
        if kind == "forward" or element_bytes(dtype) == 1:
            return random(world, dtype, m, k), random(world, dtype, n, k).t()
        if kind == "dgrad":
            return random(world, dtype, m, k), random(world, dtype, k, n)
        return random(world, dtype, k, m).t(), random(world, dtype, k, n)

    turn = rotated(world, element_bytes(dtype) * (m * k + n * k + m * n), factors)
    multiply = _fp8_product(world) if element_bytes(dtype) == 1 else torch.matmul
    a, b = turn()
    part = multiply(a, b)[:CHECKED_ROWS]
    check = agrees(part, a[:CHECKED_ROWS].double() @ b.double(), dtype, "float64")
    return Work(
        run=lambda: multiply(*turn()), check=check, capturable=True, close=lambda: set_tf32(False)
    )


def _fp8_product(world: World) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """Per-tensor scaled product with a bf16 result, as fp8 training runs it."""
    unit_scale = torch.ones((), device=world.device)

    def multiply(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch._scaled_mm(
            a, b, scale_a=unit_scale, scale_b=unit_scale, out_dtype=torch.bfloat16
        )

    return multiply


def _attentions(
    world: World, grid: Mapping[str, Any], dtypes: Sequence[str]
) -> Iterator[Iterator[Case]]:
    shapes = sorted(
        grid["attention"], key=lambda shape: shape[0] * shape[1] * shape[2] ** 2 * shape[3]
    )
    for dtype in dtypes:
        for backend in grid["backends"]:
            if world.kind == "cuda" and dtype == "float32" and backend != "efficient":
                continue  # flash and cuDNN attention have no float32
            for causal in (True, False):
                for kind in ("forward", "backward")[: 1 + causal]:
                    yield (
                        _attention_case(world, shape, dtype, backend, causal, kind)
                        for shape in best_first(shapes)
                    )


def _attention_case(
    world: World, shape: Sequence[int], dtype: str, backend: str, causal: bool, kind: str
) -> Case:
    batch, heads, sequence, head_dim = shape
    element = element_bytes(dtype)
    tensor = float(batch * heads * sequence * head_dim * element)
    scores = batch * heads * sequence**2 * max(element, 4) if backend == "math" else 0
    backward = kind == "backward"
    return Case(
        family="kernels",
        op="attention",
        shape={"batch": batch, "heads": heads, "sequence": sequence, "head_dim": head_dim},
        variant={"pass": kind, "causal": causal, "backend": backend},
        dtype=dtype,
        group=world.everyone,
        flops=attention_flops(batch * heads * sequence**2, head_dim, head_dim)
        * (2 if backward else 1),
        bytes=tensor * (8 if backward else 4),
        memory=tensor * 16 + 4.0 * scores,
        prepare=functools.partial(
            _prepare_attention, shape=shape, dtype=dtype, backend=backend, causal=causal, kind=kind
        ),
    )


def _prepare_attention(
    world: World, *, shape: Sequence[int], dtype: str, backend: str, causal: bool, kind: str
) -> Work:
    batch, heads, sequence, head_dim = shape
    chosen = getattr(SDPBackend, BACKENDS[backend], None)
    if chosen is None:
        raise NotImplementedError(f"torch {torch.__version__} has no {backend} attention")

    def inputs() -> list[torch.Tensor]:
        return [
            random(world, dtype, batch, heads, sequence, head_dim, grad=kind == "backward")
            for _ in range(3)
        ]

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        with sdpa_kernel(chosen):
            return functional.scaled_dot_product_attention(q, k, v, is_causal=causal)

    each = 4.0 * batch * heads * sequence * head_dim * dtype_of(dtype).itemsize
    q, k, v = inputs()
    check = agrees(
        attend(q, k, v)[:1, :1],
        _reference_attention(q[:1, :1], k[:1, :1], v[:1, :1], causal),
        dtype,
        "float64",
    )
    if kind == "forward":
        turn = rotated(world, each, inputs)
        return Work(run=lambda: attend(*turn()), check=check, capturable=True)

    def graph() -> tuple[torch.Tensor, list[torch.Tensor], torch.Tensor]:
        given = inputs()
        out = attend(*given)
        return out, given, torch.randn_like(out)

    turned = rotated(world, each * 2, graph)
    return Work(run=lambda: _backward(*turned()), check=check, capturable=True)


def _backward(out: torch.Tensor, given: Sequence[torch.Tensor], grad: torch.Tensor) -> object:
    return torch.autograd.grad(out, given, grad, retain_graph=True)


def _reference_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool
) -> torch.Tensor:
    q, k, v = (tensor.detach().double() for tensor in (q, k, v))
    scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
    if causal:
        masked = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
        scores = scores.masked_fill(masked, float("-inf"))
    out: torch.Tensor = scores.softmax(-1) @ v
    return out
