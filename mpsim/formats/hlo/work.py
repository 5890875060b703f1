"""Work of one HLO instruction: the matrix products in it with their shapes, and the bytes that it
moves to and from device memory.

A fusion reads each of its operands once and writes its result; what it only takes a slice of counts
by the slice, and what it updates in place by the update.

References
----------
openxla/xla, ``hlo_cost_analysis.cc`` (bytes of fusions, slices), ``gpu/cublas_cudnn.h`` (calls).
"""

from __future__ import annotations

import math
import re
from typing import Final

from mpsim import structs
from mpsim.formats.hlo.text import Instruction, Module, arrays, device_bytes
from mpsim.memo import remembered

FREE: Final = frozenset(
    "parameter constant tuple get-tuple-element bitcast after-all add-dependency partition-id"
    " replica-id opt-barrier domain get-dimension-size copy-done slice-done async-update".split()
)
"""Opcodes that run nothing on the device."""
_SLICES = frozenset({"slice", "dynamic-slice", "gather"})
_PASSED_ON = frozenset({"bitcast", "copy", "convert", "reshape", "transpose"})
_LIBRARIES = re.compile(
    r'custom_call_target="[^"]*(cublas|cudnn\$conv|onednn|hipblas|triton|gemm|matmul)',
    re.IGNORECASE,
)
_NOTHING_CALLED = re.compile(
    r'custom_call_target="(AllocateBuffer|Sharding|SPMD\w+|\w*Bitcast|'
    r"AssumeGather\w+|\w*AnnotateDevicePlacement|AsyncCollective\w+)"
)
_ATTENTION = re.compile(r'custom_call_target="[^"]*(fmha|flash)', re.IGNORECASE)
_LARGEST_WINDOW: Final = 4096
_BACKWARD_PRODUCTS: Final = 2.5  # of fused attention: five products where the forward has two


@structs.dataclass(frozen=True, slots=True)
class Product:
    """A matrix product."""

    m: int  # m, n, k, batch: (batch x) (m, k) @ (k, n)
    n: int
    k: int
    batch: int
    dtype: str  # of its left operand, as HLO names it

    @property
    def flops(self) -> int:
        """Twice the multiplications [FLOP]."""
        return 2 * self.m * self.n * self.k * self.batch


@structs.dataclass(frozen=True, slots=True)
class Work:
    """Work of one instruction on one device."""

    products: tuple[Product, ...]
    moved: float  # read from and written to device memory [B]
    # false where it is a call of somebody's code of which only the operands are known
    known: bool = True

    @property
    def flops(self) -> int:
        """FLOPs of the products [FLOP]."""
        return sum(product.flops for product in self.products)


def work_of(module: Module, computation: str, line: Instruction) -> Work:
    """Work of an instruction of a computation that runs by itself."""
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
    if line.kind == "convolution":
        return _convolution(module, computation, line)
    if line.kind != "dot":
        return None
    dims = {
        word: _whole_numbers(text)
        for word, text in re.findall(r"lhs_(contracting|batch)_dims=\{([\d,]*)\}", line.rest)
    }
    return _shaped(module, computation, line, dims.get("contracting", []), dims.get("batch", []))


def _shaped(
    module: Module, computation: str, line: Instruction, contracting: list[int], batch: list[int]
) -> Product | None:
    """A product by the shapes of its left operand and its result, and the left dimensions."""
    if len(line.operands) < 2:
        return None
    left = arrays(module.operand_type(computation, line.operands[0]))
    result = arrays(line.type)
    if not left or not result:
        return None
    dtype, shape = left[0]
    k, count, whole = _picked(shape, contracting), _picked(shape, batch), math.prod(shape)
    if not (whole and k and count) or whole % (k * count):
        return None
    rows = whole // (k * count)
    columns = math.prod(result[0][1]) // (rows * count)
    return Product(rows, columns, k, count, dtype) if columns else None


def _convolution(module: Module, computation: str, line: Instruction) -> Product | None:
    """A convolution as a product: outputs by output features, over input features and window.

    Notes
    -----
    Only places of the window that meet an input count: TPUs write batched products as convolutions
    whose padded window meets one input at each output.
    """
    operands = [arrays(module.operand_type(computation, item)) for item in line.operands[:2]]
    types = [*operands, arrays(line.type)]
    labels = re.search(r"dim_labels=(\w+)_(\w+)->(\w+)", line.rest)
    if labels is None or len(types) < 3 or not all(types):
        return None
    shapes = [found[0][1] for found in types]
    words = labels.groups()
    if any(
        len(set(word)) < len(word) or len(word) != len(shape)
        for word, shape in zip(words, shapes, strict=True)
    ):
        return None
    inputs, weights, outputs = (
        dict(zip(word, shape, strict=True)) for word, shape in zip(words, shapes, strict=True)
    )
    spatial = sorted(label for label in outputs if label.isdigit())
    if not {"i", "o"} <= weights.keys() or "f" not in outputs:
        return None
    if not all(label in inputs and label in weights for label in spatial):
        return None
    met, places = weights["i"], 1
    for label, window in zip(spatial, _windows(line.rest, len(spatial)), strict=True):
        met *= _valid_places(inputs[label], weights[label], outputs[label], **window)
        places *= outputs[label]
    count = math.prod(shapes[2])
    if not (met and places and count):
        return None
    summed = max(1, round(met / places))
    return Product(count // outputs["f"], outputs["f"], summed, 1, operands[0][0][0])


_WINDOW = {"stride": "stride", "pad": "before", "lhs_dilate": "spread", "rhs_dilate": "apart"}


def _windows(rest: str, dimensions: int) -> list[dict[str, int]]:
    """Stride, padding before, and dilations of a window, of each spatial dimension."""
    window = re.search(r"window=\{([^}]*)\}", rest)
    words = dict(re.findall(r"(\w+)=([\d_x\-]+)", window[1])) if window else {}
    found: list[dict[str, int]] = [{} for _ in range(dimensions)]
    for word, name in _WINDOW.items():
        text = words.get(word, "")
        if not text or ("_" in text and word != "pad"):
            continue
        for sizes, item in zip(found, text.split("x"), strict=False):
            sizes[name] = int(item.partition("_")[0])
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

    `size`, `window` and `outputs`: of input, window and output. `before`, `spread` and `apart`:
    padding before the input, distance of inputs, distance of places of the window.

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


def _whole_numbers(text: str) -> list[int]:
    return [int(item) for item in re.findall(r"\d+", text)]


def _picked(shape: tuple[int, ...], dims: list[int]) -> int:
    return math.prod(shape[dim] for dim in dims if dim < len(shape))


def _moved(module: Module, computation: str, line: Instruction) -> float:
    """Bytes that one instruction outside a fusion moves."""
    result = device_bytes(line.type)
    operands = module.device_operands(computation, line)
    if line.kind in _SLICES:
        return 2.0 * result
    if line.kind == "dynamic-update-slice":
        return 2.0 * (operands[1] if len(operands) > 1 else result)
    if line.kind == "scatter":
        return 3.0 * (operands[-1] if operands else result)
    if line.kind == "copy-start":  # its type is (result, operand, context) or the like
        return float(operands[0] if operands else result)
    if line.kind == "slice-start":
        return float(min(operands[0], result) if operands else result)
    return float(result + sum(operands))


def _fusion(module: Module, computation: str, line: Instruction) -> Work:
    """Work of a fusion: products inside, operands read, result written."""
    called = next(iter(module.called(line)), "")
    products: list[Product] = []
    used_by: dict[str, list[Instruction]] = {}
    parameters: dict[int, str] = {}
    for inner in module.lines(called):
        for name, _ in inner.operands:
            used_by.setdefault(name, []).append(inner)
        if inner.number is not None:
            parameters[inner.number] = inner.name
        if inner.kind == "fusion":
            products += _fusion(module, called, inner).products
        elif (product := product_of(module, called, inner)) is not None:
            products.append(product)
    updates, written = _updates(module, called)
    moved = 0.0
    for place, whole in enumerate(module.device_operands(computation, line)):
        if place in parameters and whole:
            whole = min(whole, _read(parameters[place], used_by, updates, whole))
        moved += whole
    result = device_bytes(line.type)
    moved += min(result, written) if updates and result else result
    return Work(tuple(products), moved)


def _updates(module: Module, called: str) -> tuple[frozenset[str], float]:
    """Instructions that a fusion updates in place, and bytes of the results it writes then."""
    known, root = module.computations.get(called, {}), module.root(called)
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
    """Bytes that a fusion reads of an operand: its slices, or nothing if updated in place."""
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
    moved = float(device_bytes(line.type) + sum(module.device_operands(computation, line)))
    if _NOTHING_CALLED.search(line.rest):
        return Work((), 0.0)
    if _ATTENTION.search(line.rest):
        return _attention(module, computation, line, moved)
    if _LIBRARIES.search(line.rest):
        dims = _listed_dims(line.rest)
        contracting = dims.get("lhs_contracting_dimensions")
        product = None
        if contracting is not None:
            batch = dims.get("lhs_batch_dimensions", [])
            product = _shaped(module, computation, line, contracting, batch)
        return Work(() if product is None else (product,), moved, known=product is not None)
    return Work((), moved, known=False)


def _listed_dims(text: str) -> dict[str, list[int]]:
    """Dimensions by their name in the configuration of a call, of the first product in it."""
    found: dict[str, list[int]] = {}
    for name, numbers in re.findall(r'"(\w+_dimensions)":\s*\[([^\[\]]*)\]', text):
        found.setdefault(name, _whole_numbers(numbers))
    return found


def _attention(module: Module, computation: str, line: Instruction, moved: float) -> Work:
    """Fused attention: queries against keys, result against values; five products backward."""
    unknown = Work((), moved, known=False)
    first = re.search(r'"bmm1[^"]*dot_dimension_numbers":\s*\{([^{}]*)\}', line.rest)
    if first is None or len(line.operands) < 2:
        return unknown
    queries, keys = (arrays(module.operand_type(computation, item)) for item in line.operands[:2])
    if not queries or not keys:
        return unknown
    dims = _listed_dims(first[1])
    (dtype, left), right = queries[0], keys[0][1]
    width = _picked(left, dims.get("lhs_contracting_dimensions", []))
    heads = _picked(left, dims.get("lhs_batch_dimensions", []))
    others = _picked(right, dims.get("rhs_batch_dimensions", []))
    rows = math.prod(left) // max(1, width * heads)
    columns = math.prod(right) // max(1, width * others)
    if not (width and heads and rows and columns):
        return unknown
    backward = "backward" in line.rest.partition("backend_config")[0].lower()
    count = round(2 * _BACKWARD_PRODUCTS) if backward else 2
    return Work((Product(rows, columns, width, heads, dtype),) * count, moved)
