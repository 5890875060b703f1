"""Work of one HLO instruction: the matrix products in it with their shapes, and the bytes that it moves to and from device memory.

A fusion reads each of its operands once and writes its result; what it only takes a slice of counts by the slice, and what it updates in place by the update.

References
----------
openxla/xla, ``hlo_cost_analysis.cc`` (bytes of fusions, slices and updates), ``gpu/cublas_cudnn.h`` (names of library calls).
"""

from __future__ import annotations

import dataclasses
import math
import re
from typing import Final

from mpsim.formats.hlo.text import Instruction, Module, arrays, device_bytes
from mpsim.memo import remembered

__all__ = ["FREE", "Product", "Work", "work_of"]

FREE: Final = frozenset(
    "parameter constant tuple get-tuple-element bitcast after-all add-dependency partition-id replica-id opt-barrier "
    "domain get-dimension-size copy-done slice-done async-update".split()
)
"""Opcodes that run nothing on the device."""
_SLICES = frozenset({"slice", "dynamic-slice", "gather"})
_PASSED_ON = frozenset({"bitcast", "copy", "convert", "reshape", "transpose"})
_LIBRARIES = re.compile(
    r'custom_call_target="[^"]*(cublas|cudnn\$conv|onednn|hipblas|triton|gemm|matmul)',
    re.IGNORECASE,
)
_NOTHING_CALLED = re.compile(
    r'custom_call_target="(AllocateBuffer|Sharding|SPMD\w+|\w*Bitcast|AssumeGather\w+|\w*AnnotateDevicePlacement|AsyncCollective\w+)'
)
_ATTENTION = re.compile(r'custom_call_target="[^"]*(fmha|flash)', re.IGNORECASE)
_LARGEST_WINDOW: Final = 4096
_BACKWARD_PRODUCTS: Final = 2.5  # of fused attention: five products where the forward has two


@dataclasses.dataclass(frozen=True, slots=True)
class Product:
    """A matrix product.

    Parameters
    ----------
    m, n, k, batch : int
        (batch x) (m, k) @ (k, n).
    dtype : str
        Of its left operand, as HLO names it.
    """

    m: int
    n: int
    k: int
    batch: int
    dtype: str

    @property
    def flops(self) -> int:
        """Twice the multiplications [FLOP]."""
        return 2 * self.m * self.n * self.k * self.batch


@dataclasses.dataclass(frozen=True, slots=True)
class Work:
    """Work of one instruction on one device.

    Parameters
    ----------
    products : tuple of Product
    moved : float
        Read from and written to device memory [B].
    known : bool
        False where it is a call of somebody's code of which only the operands are known.
    """

    products: tuple[Product, ...]
    moved: float
    known: bool = True

    @property
    def flops(self) -> int:
        """FLOPs of the products [FLOP]."""
        return sum(product.flops for product in self.products)


def work_of(module: Module, computation: str, line: Instruction) -> Work:
    """Work of an instruction that runs by itself.

    Parameters
    ----------
    module : Module
    computation : str
        Where it stands.
    line : Instruction
    """
    if line.kind in FREE:
        return Work((), 0.0)
    if line.kind == "fusion":
        return _fusion(module, computation, line)
    if line.kind == "custom-call":
        return _call(module, computation, line)
    product = product_of(module, computation, line)
    return Work(() if product is None else (product,), _moved(module, computation, line))


def product_of(module: Module, computation: str, line: Instruction) -> Product | None:
    """The matrix product that a dot or a convolution is; None for anything else."""
    if line.kind not in ("dot", "convolution") or len(line.operands) < 2:
        return None
    left, right = (arrays(module.operand_type(computation, item)) for item in line.operands[:2])
    result = arrays(line.type)
    if not (left and right and result):
        return None
    if line.kind == "convolution":
        return _convolution(line, left[0], right[0][1], result[0][1])
    shape = left[0][1]
    contracted = _picked(shape, _numbers(line.rest, "lhs_contracting_dims"))
    batch = _picked(shape, _numbers(line.rest, "lhs_batch_dims"))
    return _shaped(shape, result[0][1], contracted, batch, left[0][0])


def _shaped(
    left: tuple[int, ...], result: tuple[int, ...], contracted: int, batch: int, dtype: str
) -> Product | None:
    """A product of the shapes of its left operand and of its result."""
    whole = math.prod(left)
    if not (whole and contracted and batch) or whole % (contracted * batch):
        return None
    rows = whole // (contracted * batch)
    columns = math.prod(result) // (rows * batch) if rows else 0
    return Product(rows, columns, contracted, batch, dtype) if columns else None


def _convolution(
    line: Instruction,
    left: tuple[str, tuple[int, ...]],
    kernel: tuple[int, ...],
    result: tuple[int, ...],
) -> Product | None:
    """A convolution as the product that it amounts to: outputs by output features, over input features and the window.

    Notes
    -----
    Only places of the window that meet an input count: TPUs write batched products as convolutions whose padded window meets one input at each output.
    """
    labels = re.search(r"dim_labels=(\w+)_(\w+)->(\w+)", line.rest)
    if (
        labels is None
        or any(len(set(word)) < len(word) for word in labels.groups())
        or [len(word) for word in labels.groups()] != [len(left[1]), len(kernel), len(result)]
    ):
        return None
    inputs, weights, outputs = (
        dict(zip(word, shape, strict=True))
        for word, shape in zip(labels.groups(), (left[1], kernel, result), strict=True)
    )
    if not {"i", "o"} <= weights.keys() or "f" not in outputs:
        return None
    window = _window(line.rest)
    met, places = weights["i"], 1
    for place, label in enumerate(sorted(label for label in outputs if label.isdigit())):
        if label not in inputs or label not in weights:
            return None
        sizes = {name: values[place] for name, values in window.items() if place < len(values)}
        met *= _valid_places(inputs[label], weights[label], outputs[label], **sizes)
        places *= outputs[label]
    count = math.prod(result)
    if not (met and places and count):
        return None
    summed = max(1, round(met / places))
    return Product(count // outputs["f"], outputs["f"], summed, 1, left[0])


def _window(rest: str) -> dict[str, list[int]]:
    """Stride, padding before, and dilations of a window, by spatial dimension."""
    window = re.search(r"window=\{([^}]*)\}", rest)
    words = dict(re.findall(r"(\w+)=([\d_x\-]+)", window[1])) if window else {}
    found = {
        name: [int(item) for item in words[word].split("x")]
        for word, name in (
            ("stride", "stride"),
            ("lhs_dilate", "spread"),
            ("rhs_dilate", "apart"),
        )
        if word in words and "_" not in words[word]
    }
    if "pad" in words:
        found["before"] = [int(item.partition("_")[0]) for item in words["pad"].split("x")]
    return found


@remembered(4096)
def _valid_places(
    size: int,
    window: int,
    outputs: int,
    stride: int = 1,
    before: int = 0,
    spread: int = 1,
    apart: int = 1,
) -> int:
    """Pairs of an output and a place of the window that meet an input, along one dimension.

    Parameters
    ----------
    size, window, outputs : int
        Of input, window and output.
    stride, before, spread, apart : int
        Steps of the window, padding before the input, distance of inputs, distance of places of the window.

    Examples
    --------
    >>> _valid_places(8, 8, 8, stride=7, before=0, spread=8)
    8
    """
    if min(size, window, outputs, spread, apart) < 1 or max(window, outputs) > _LARGEST_WINDOW:
        return window * outputs
    import numpy as np

    place = np.arange(outputs)[:, None] * stride - before + np.arange(window)[None, :] * apart
    inside = (place >= 0) & (place <= (size - 1) * spread) & (place % spread == 0)
    return int(inside.sum())


def _numbers(rest: str, word: str) -> list[int]:
    found = re.search(rf"{word}=\{{([\d,]*)\}}", rest)
    return [int(item) for item in found[1].split(",") if item] if found else []


def _picked(shape: tuple[int, ...], dims: list[int]) -> int:
    return math.prod(shape[dim] for dim in dims if dim < len(shape))


def _moved(module: Module, computation: str, line: Instruction) -> float:
    """Bytes that one instruction outside a fusion moves."""
    result = device_bytes(line.type)
    operands = [device_bytes(module.operand_type(computation, item)) for item in line.operands]
    if line.kind in _SLICES:
        return 2.0 * result
    if line.kind == "dynamic-update-slice":
        return 2.0 * (operands[1] if len(operands) > 1 else result)
    if line.kind == "scatter":
        return 3.0 * (operands[-1] if operands else result)
    if line.kind in (
        "copy-start",
        "slice-start",
    ):  # its type is (result, operand, context) or the like
        sizes = operands[:1] or [result]
        return float(sizes[0] if line.kind == "copy-start" else min(sizes[0], result))
    return float(result + sum(operands))


def _fusion(module: Module, computation: str, line: Instruction) -> Work:
    """Work of a fusion: products inside, operands read, result written."""
    called = next(iter(module.called(line)), "")
    lines = module.computations.get(called, {})
    products, moved = [], 0.0
    used_by: dict[str, list[Instruction]] = {}
    parameters: dict[int, Instruction] = {}
    for inner in lines.values():
        for name, _ in inner.operands:
            used_by.setdefault(name, []).append(inner)
        if inner.kind == "parameter" and (number := re.match(r"\((\d+)\)", inner.rest)):
            parameters[int(number[1])] = inner
        elif inner.kind in ("dot", "convolution"):
            product = product_of(module, called, inner)
            products += [product] if product is not None else []
        elif inner.kind == "fusion":
            products += _fusion(module, called, inner).products
    updates, written = _updates(module, called)
    for place, operand in enumerate(line.operands):
        whole = device_bytes(module.operand_type(computation, operand))
        inner_parameter = parameters.get(place)
        if inner_parameter is not None and whole:
            whole = min(whole, _read(inner_parameter.name, used_by, updates, whole))
        moved += whole
    result = device_bytes(line.type)
    moved += min(result, written) if updates and result else result
    return Work(tuple(products), moved)


def _updates(module: Module, called: str) -> tuple[frozenset[str], float]:
    """Instructions that a fusion updates in place, and bytes of the results it writes then."""
    known = module.computations.get(called, {})
    root = known.get(module.roots.get(called, ""))
    if root is None:
        return frozenset(), 0.0
    results = [root]
    if root.kind == "tuple":
        results = [known[name] for name, _ in root.operands if name in known]
    targets, written = set(), 0.0
    for result in results:
        last = result
        while last.kind in _PASSED_ON and last.operands and last.operands[0][0] in known:
            last = known[last.operands[0][0]]
        if last.kind == "dynamic-update-slice" and len(last.operands) > 1:
            targets.add(last.operands[0][0])
            written += device_bytes(module.operand_type(called, last.operands[1]))
        else:
            written += device_bytes(result.type)
    return frozenset(targets), written


def _read(
    name: str, used_by: dict[str, list[Instruction]], updates: frozenset[str], whole: int
) -> int:
    """Bytes that a fusion reads of one operand: its slices where it takes nothing else of it, nothing of what it updates in place."""
    total, pending, seen = 0, [name], set[str]()
    while pending:
        here = pending.pop()
        if here in seen:
            continue
        seen.add(here)
        for user in used_by.get(here, ()):
            if user.kind in _SLICES and user.operands[0][0] == here:
                total += device_bytes(user.type)
            elif user.kind == "dynamic-update-slice" and user.operands[0][0] == here:
                total += 0 if here in updates else whole
            elif user.kind == "bitcast":
                pending.append(user.name)
            elif user.kind != "get-tuple-element":
                return whole
    return total


def _call(module: Module, computation: str, line: Instruction) -> Work:
    """Work of a call of a library: its product where it is one, else its operands and result."""
    moved = float(
        device_bytes(line.type)
        + sum(device_bytes(module.operand_type(computation, item)) for item in line.operands)
    )
    if _NOTHING_CALLED.search(line.rest):
        return Work((), 0.0)
    if _ATTENTION.search(line.rest):
        return _attention(module, computation, line, moved)
    if _LIBRARIES.search(line.rest):
        product = library_product(module, computation, line)
        return Work(() if product is None else (product,), moved, known=product is not None)
    return Work((), moved, known=False)


def library_product(module: Module, computation: str, line: Instruction) -> Product | None:
    """The product that a call of a library for products does, by the dimensions of its configuration."""
    if len(line.operands) < 2:
        return None
    left = arrays(module.operand_type(computation, line.operands[0]))
    result = arrays(line.type)
    dims = re.search(r'"lhs_contracting_dimensions":\s*\[([^\[\]]*)\]', line.rest)
    if dims is None or not left or not result:
        return None
    shape = left[0][1]
    batch = re.search(r'"lhs_batch_dimensions":\s*\[([^\[\]]*)\]', line.rest)
    places = [int(item) for item in re.findall(r"\d+", dims[1])]
    batches = [int(item) for item in re.findall(r"\d+", batch[1])] if batch else []
    return _shaped(shape, result[0][1], _picked(shape, places), _picked(shape, batches), left[0][0])


def _attention(module: Module, computation: str, line: Instruction, moved: float) -> Work:
    """Fused attention: queries against keys and the result against values, five products of that size in two backward ones."""
    first = re.search(r'"bmm1[^"]*dot_dimension_numbers":\s*\{([^{}]*)\}', line.rest)
    if first is None or len(line.operands) < 2:
        return Work((), moved, known=False)
    queries, keys = (arrays(module.operand_type(computation, item)) for item in line.operands[:2])
    lists = dict(re.findall(r'"(\w+)":\s*\[([^\[\]]*)\]', first[1]))
    contracted, batch, other = (
        [int(item) for item in re.findall(r"\d+", lists.get(word, ""))]
        for word in ("lhs_contracting_dimensions", "lhs_batch_dimensions", "rhs_batch_dimensions")
    )
    if not queries or not keys:
        return Work((), moved, known=False)
    width, heads = _picked(queries[0][1], contracted), _picked(queries[0][1], batch)
    rows = math.prod(queries[0][1]) // max(1, width * heads)
    columns = math.prod(keys[0][1]) // max(1, width * _picked(keys[0][1], other))
    if not (width and heads and rows and columns):
        return Work((), moved, known=False)
    each = Product(rows, columns, width, heads, queries[0][0])
    backward = "backward" in line.rest.partition("backend_config")[0].lower()
    count = round(2 * _BACKWARD_PRODUCTS) if backward else 2
    return Work((each,) * count, moved)
