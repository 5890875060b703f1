"""Kernels: products in the three shapes of a linear layer, attention, and what memory bounds."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

import torch
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from mpsim import structs
from mpsim.measure.plan import PASSES, Case, Grid, Work, best_first
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
from mpsim.measured.records import Words
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

    sizes, variant, flops = {"m": m, "n": n, "k": k}, {"pass": kind}, gemm_flops(m, n, k)
    case = _case(world, "gemm", sizes, variant, dtype, prepare, traffic, 2 * traffic)
    return structs.replace(case, flops=flops, phase=phase)


def _case(
    world: World,
    op: str,
    sizes: Mapping[str, int],
    variant: Words,
    dtype: str,
    prepare: Callable[[World], Work],
    moved: float = 0.0,
    held: float = 0.0,
) -> Case:
    """A kernel that every rank runs by itself, moves bytes and needs memory [B]."""
    return Case(
        "kernels", op, sizes, variant, dtype, world.everyone, prepare, bytes=moved, memory=held
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
    shapes = sorted(grid["attention"], key=lambda s: s[0] * s[1] * s[2] ** 2 * s[3])
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

    sizes = {"batch": batch, "heads": heads, "sequence": sequence, "head_dim": head_dim}
    variant: Words = {"pass": kind, "causal": causal, "backend": backend}
    moved, held = 4 * times * tensor, tensor * 16 + 4.0 * scores
    case = _case(world, "attention", sizes, variant, dtype, prepare, moved, held)
    flops = attention_flops(batch * heads * sequence**2, head_dim, head_dim) * times
    return structs.replace(case, flops=flops)


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


@structs.dataclass(frozen=True, slots=True)
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

    sizes = {"tokens": tokens, "features": features}
    return _case(world, kernel.name, sizes, {"pass": kind}, dtype, prepare, moved, tensor * 8)


def _embedding_case(world: World, kind: str, shape: Sequence[int], dtype: str) -> Case:
    tokens, vocabulary, width = shape
    moved = 2.0 * tokens * width * element_bytes(dtype)
    table = float(vocabulary * width * element_bytes(dtype))

    def prepare(world: World) -> Work:
        ids = torch.randint(vocabulary, (tokens,), device=world.device)
        make = _maker(world, dtype, kind, (vocabulary, width))
        call = functools.partial(functional.embedding, ids)
        return pass_work(world, kind, table, make, call, dtype, call)

    sizes = {"tokens": tokens, "vocabulary": vocabulary, "features": width}
    held, moved = 4 * moved + 4 * table, moved + (table if kind == "backward" else 0.0)
    return _case(world, "embedding", sizes, {"pass": kind}, dtype, prepare, moved, held)


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

    sizes, moved, held = {"tokens": tokens, "vocabulary": vocabulary}, 2 * logits, 8 * logits
    return _case(world, "cross_entropy", sizes, {"pass": kind}, dtype, prepare, moved, held)


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

    moved = 7.0 * count * element  # reads weight, gradient and two moments, writes three of them
    sizes, held = {"parameters": count}, 4.0 * count * element
    return _case(world, "adam", sizes, {"fused": True}, dtype, prepare, moved, held)


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

    moved = 2.0 * size if way == "device" else float(size)
    case = _case(world, "copy", {"bytes": size}, {"way": way}, "uint8", prepare, moved, 2.0 * size)
    return structs.replace(case, phase=phase)


def _launch_cases(world: World) -> list[Case]:
    """An addition of one number: nothing but its launch."""

    def work(world: World, way: str) -> Work:
        number = torch.zeros(1, device=world.device)
        return Work(run=lambda: number.add_(1.0), capturable=way == "graph", host=way == "host")

    ways = ["host"] if world.kind == "cpu" else ["host", "stream", "graph"]
    each = {way: functools.partial(work, way=way) for way in ways}
    return [_case(world, "launch", {}, {"way": way}, "float32", each[way]) for way in ways]
