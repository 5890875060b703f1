"""Kernels: matrix products in the three shapes of a linear layer, and attention."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

import torch
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from mpsim.measure.case import Case, Work
from mpsim.measure.memory_bound import memory_bound_cases
from mpsim.measure.plan import Grid, best_first
from mpsim.measure.tensors import (
    Tensors,
    agrees,
    element_bytes,
    has_dtype,
    pass_work,
    random,
    rotated,
    set_tf32,
)
from mpsim.measure.world import World
from mpsim.workload import attention_flops, gemm_flops

BACKENDS: Final[Mapping[str, str]] = {
    "flash": "FLASH_ATTENTION",
    "cudnn": "CUDNN_ATTENTION",
    "efficient": "EFFICIENT_ATTENTION",
    "math": "MATH",
}
CHECKED_ROWS = 4  # rows of a product that are compared with float64


def kernel_series(world: World, grid: Grid) -> list[list[Case]]:
    """Cases of every kernel, a list for each kind in the order to measure them."""
    dtypes = [name for name in grid["dtypes"] if has_dtype(name, world)]
    series = [list(gemms) for gemms in _gemms(world, grid, dtypes)]
    plain = [name for name in grid["plain_dtypes"] if name in dtypes]
    series += [list(case) for case in _attentions(world, grid, plain)]
    return [*series, *memory_bound_cases(world, grid, plain)]


def _gemms(world: World, grid: Grid, dtypes: Sequence[str]) -> Iterator[Iterator[Case]]:
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
    narrow = element_bytes(dtype) == 1
    traffic = float(element_bytes(dtype) * (m * k + n * k + m * n))

    def prepare(world: World) -> Work:
        set_tf32(dtype == "tf32")

        def factors() -> tuple[torch.Tensor, torch.Tensor]:
            """Operands as a linear layer with weight (out, in) has them: x w^T, dy w, dy^T x."""
            if kind == "forward" or narrow:
                return random(world, dtype, m, k), random(world, dtype, n, k).t()
            if kind == "dgrad":
                return random(world, dtype, m, k), random(world, dtype, k, n)
            return random(world, dtype, k, m).t(), random(world, dtype, k, n)

        turn = rotated(world, traffic, factors)
        multiply = _fp8_product(world) if narrow else torch.matmul
        a, b = turn()
        part = multiply(a, b)[:CHECKED_ROWS]
        check = agrees(part, a[:CHECKED_ROWS].double() @ b.double(), dtype, "float64")
        return Work(
            run=lambda: multiply(*turn()),
            check=check,
            capturable=True,
            close=lambda: set_tf32(False),
        )

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
        prepare=prepare,
    )


def _fp8_product(world: World) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """Per-tensor scaled product with a bf16 result, as fp8 training runs it."""
    unit_scale = torch.ones((), device=world.device)

    def multiply(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch._scaled_mm(
            a, b, scale_a=unit_scale, scale_b=unit_scale, out_dtype=torch.bfloat16
        )

    return multiply


def _attentions(world: World, grid: Grid, dtypes: Sequence[str]) -> Iterator[Iterator[Case]]:
    shapes = sorted(
        grid["attention"], key=lambda shape: shape[0] * shape[1] * shape[2] ** 2 * shape[3]
    )
    for dtype in dtypes:
        for backend in grid["backends"]:
            if world.kind == "cuda" and dtype == "float32" and backend != "efficient":
                continue  # flash and cuDNN attention have no float32
            for causal, kind in ((True, "forward"), (True, "backward"), (False, "forward")):
                yield (
                    _attention_case(world, shape, dtype, backend, causal, kind)
                    for shape in best_first(shapes)
                )


def _attention_case(
    world: World, shape: Sequence[int], dtype: str, backend: str, causal: bool, kind: str
) -> Case:
    batch, heads, sequence, head_dim = shape
    element, times = element_bytes(dtype), 2 if kind == "backward" else 1
    tensor = float(batch * heads * sequence * head_dim * element)
    scores = batch * heads * sequence**2 * max(element, 4) if backend == "math" else 0

    def prepare(world: World) -> Work:
        chosen = getattr(SDPBackend, BACKENDS[backend], None)
        if chosen is None:
            raise NotImplementedError(f"torch {torch.__version__} has no {backend} attention")

        def inputs() -> Tensors:
            return [random(world, dtype, *shape, grad=kind == "backward") for _ in range(3)]

        def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            with sdpa_kernel(chosen):
                return functional.scaled_dot_product_attention(q, k, v, is_causal=causal)

        given = inputs()
        wanted = _reference_attention(*(tensor[:1, :1] for tensor in given), causal=causal)
        check = agrees(attend(*given)[:1, :1], wanted, dtype, "float64")
        work = pass_work(world, kind, 4 * times * tensor, inputs, attend, dtype, None)
        work.check = check
        return work

    return Case(
        family="kernels",
        op="attention",
        shape={"batch": batch, "heads": heads, "sequence": sequence, "head_dim": head_dim},
        variant={"pass": kind, "causal": causal, "backend": backend},
        dtype=dtype,
        group=world.everyone,
        flops=attention_flops(batch * heads * sequence**2, head_dim, head_dim) * times,
        bytes=4 * times * tensor,
        memory=tensor * 16 + 4.0 * scores,
        prepare=prepare,
    )


def _reference_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool
) -> torch.Tensor:
    q, k, v = (tensor.detach().double() for tensor in (q, k, v))
    scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
    if causal:
        masked = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
        scores = scores.masked_fill(masked, float("-inf"))
    out: torch.Tensor = scores.softmax(-1) @ v
    return out
