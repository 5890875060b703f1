"""Tensors to measure with: formats, random data, sets larger than caches, comparisons."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from typing import Literal, TypeAlias, TypeVar

import torch

from mpsim.errors import CalibrationError
from mpsim.measure.plan import Work, load_grid
from mpsim.measure.world import World
from mpsim.memo import remembered

T = TypeVar("T")
Tensors: TypeAlias = list[torch.Tensor]
_CAPABILITY: Mapping[str, float] = {
    "float32": 0.0,
    "tf32": 8.0,
    "float16": 7.0,
    "bfloat16": 8.0,
    "float8_e4m3fn": 8.9,
}
"""Least compute capability with a format in its tensor cores (CUDA C++ Programming Guide)."""


def has_dtype(name: str, world: World) -> bool:
    """Whether the device multiplies matrices in this format."""
    if world.kind == "cpu":
        return name in ("float32", "float64", "bfloat16")
    major, minor = torch.cuda.get_device_capability(world.device)
    return major + minor / 10 >= _CAPABILITY[name]


def training_dtype(world: World) -> str:
    """The format that layers and training steps are measured in."""
    return "float32" if world.kind == "cpu" or not has_dtype("bfloat16", world) else "bfloat16"


def dtype_of(name: str) -> torch.dtype:
    """Number format of the tensors; tf32 is a way to multiply float32."""
    dtype: torch.dtype = getattr(torch, "float32" if name == "tf32" else name)
    return dtype


def element_bytes(name: str) -> int:
    """Bytes of one element."""
    return dtype_of(name).itemsize


def set_tf32(wanted: bool) -> None:
    """Whether float32 products on a GPU round their factors to tf32."""
    torch.backends.cuda.matmul.allow_tf32 = wanted
    torch.backends.cudnn.allow_tf32 = wanted


def random(world: World, name: str, *shape: int, grad: bool = False) -> torch.Tensor:
    """Normal random numbers: a GPU's power, and so its clock, depend on the data."""
    pool = _pool(world.device, dtype_of(name))
    count = math.prod(shape)
    whole = pool if count <= len(pool) else pool.repeat(-(-count // len(pool)))
    tensor = whole[:count].clone() if whole is pool else whole[:count]
    return tensor.view(shape).requires_grad_(grad)


@remembered(16)
def _pool(device: torch.device, dtype: torch.dtype) -> torch.Tensor:
    """Random numbers that are copied: drawing them would take longer than measuring."""
    count = load_grid()["timing"]["pool_numbers"]
    return torch.randn(count, device=device, dtype=torch.float32).to(dtype)


def rotated(world: World, each: float, make: Callable[[], T]) -> Callable[[], T]:
    """Working sets in turn, together larger than every cache. `each`: of one set [B]."""
    rules = load_grid()["timing"]
    count = math.ceil(rules["rotate_bytes"][world.kind] / max(each, 1.0))
    sets = [make() for _ in range(max(1, min(count, rules["rotate_most"])))]
    turn = itertools.cycle(sets)
    return lambda: next(turn)


def agrees(
    got: torch.Tensor,
    wanted: torch.Tensor,
    name: str,
    what: str,
    *,
    rule: Literal["tolerance", "loss_tolerance"] = "tolerance",
) -> str:
    """Say how far `got` is from `wanted`. CalibrationError if it is further than the format allows:
    a kernel whose result is wrong has no time worth recording.
    """
    allowed = float(load_grid()[rule]["float16" if name == "tf32" else name])
    # compared where it lies: copies to the host would take longer than measuring
    reference = wanted.detach().to(got.device, torch.float64)
    difference = (got.detach().to(torch.float64) - reference).abs().max().item()
    scale = max(reference.abs().max().item(), 1e-30)
    if not difference / scale <= allowed:
        raise CalibrationError(
            f"the result differs from {what} by {difference / scale:.2g}; allowed {allowed:g}"
        )
    return f"within {difference / scale:.1e} of {what}"


def pass_work(
    world: World,
    kind: str,
    each: float,
    make: Callable[[], Tensors],
    call: Callable[..., torch.Tensor],
    dtype: str,
    reference: Callable[..., torch.Tensor] | None,
) -> Work:
    """Work of `call` on rotated inputs, or of its gradient, checked once against `reference` in
    float64. `kind`: ``forward`` or ``backward``. `each`: of one working set [B].
    """
    check = ""
    if reference is not None:
        given = [tensor.detach() for tensor in make()]
        wanted = reference(*(tensor.double() for tensor in given))
        check = agrees(call(*given), wanted, dtype, "float64")
    if kind == "forward":
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
