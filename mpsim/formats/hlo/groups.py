"""Groups of collectives in XLA's HLO text, in any of the three spellings: lists, iota tiles, and axes of a mesh.

References
----------
openxla/xla, ``hlo_parser.cc``, ``hlo_sharding.cc``; text of jax 0.10.2 for CPU, H100 and TPU v5e.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Final

from mpsim.errors import FormatError

__all__ = ["MOST_DEVICES", "groups_of", "named_meshes"]

MOST_DEVICES: Final = 1_000_000


def groups_of(rest: str, devices: int, file: str = "") -> list[list[int]]:
    """Groups of a collective, expanded, of any of the three spellings.

    Parameters
    ----------
    rest : str
        Its attributes.
    devices : int
        Of the module; ``{}`` means all of them.
    file : str
        What complaints call it.

    Raises
    ------
    FormatError
        If there are groups and they are in none of the spellings.

    Examples
    --------
    >>> groups_of("replica_groups=[4,2]<=[2,4]T(1,0)", 8)
    [[0, 4], [1, 5], [2, 6], [3, 7]]
    >>> groups_of("replica_groups=mesh['a'=2,'b'=1,'c'=4] {'a'}", 8)
    [[0, 4], [1, 5], [2, 6], [3, 7]]
    """
    if pairs := re.search(r"source_target_pairs=\{((?:\{\d+,\d+\},?)*)\}", rest):
        return [_wholes(pair, file) for pair in re.findall(r"\{(\d+,\d+)\}", pairs[1])]
    if "source_target_pairs={{" in rest:
        raise FormatError(f"{file}: source_target_pairs that are no pairs; the file is damaged")
    if listed := re.search(r"replica_groups=\{((?:\{[\d,]*\},?)*)\}", rest):
        found = [
            _wholes(group.strip(","), file) if group.strip(",") else []
            for group in re.findall(r"\{([\d,]*)\}", listed[1])
        ]
        return found or [list(range(devices))]
    if tiles := re.search(r"replica_groups=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?", rest):
        return _iota(*tiles.groups(), file=file)
    if mesh := re.search(
        r"replica_groups=(?:@?\w*)?mesh\[([^\]]*)\]\s*(?:,?\s*device_ids=\(?\[([\d,]+)\](?:T\(([\d,]+)\))?\)?)?\s*,?\s*\{([^}]*)\}",
        rest,
    ):
        return _mesh(mesh[1], mesh[2], mesh[3], mesh[4], file)
    if "replica_groups=" in rest:
        raise FormatError(
            f"{file}: replica_groups in a spelling that is not known: {rest[rest.find('replica_groups=') :][:60]!r}"
        )
    return [list(range(devices))]


def _wholes(text: str, file: str) -> list[int]:
    """Whole numbers between commas."""
    items = text.split(",")
    if not all(re.fullmatch(r"\d{1,9}", item) for item in items):
        raise FormatError(f"{file}: groups of {text[:60]!r}; needed numbers of devices")
    return [int(item) for item in items]


def _iota(shape: str, tile: str, order: str | None, *, file: str) -> list[list[int]]:
    rows, columns = [*_wholes(shape, file), 1][:2]
    sizes = _wholes(tile, file)
    axes = _wholes(order, file) if order else list(range(len(sizes)))
    if (
        math.prod(sizes) != rows * columns
        or sorted(axes) != list(range(len(sizes)))
        or rows * columns > MOST_DEVICES
    ):
        raise FormatError(f"{file}: replica_groups=[{shape}]<=[{tile}] do not multiply")
    flat = _transposed(list(range(rows * columns)), sizes, axes)
    return [flat[row * columns : (row + 1) * columns] for row in range(rows)]


def _transposed(values: Sequence[int], sizes: Sequence[int], axes: Sequence[int]) -> list[int]:
    """Values of an array of these sizes, its axes in another order, in row-major order."""
    strides = [math.prod(sizes[axis + 1 :]) for axis in range(len(sizes))]
    result = [0]
    for axis in axes:
        result = [base + index * strides[axis] for base in result for index in range(sizes[axis])]
    return [values[place] for place in result]


def named_meshes(rest: str) -> list[list[tuple[str, int]]]:
    """Meshes that attributes spell out, whose devices lie in their own order: names and sizes of axes, the slowest first.

    Examples
    --------
    >>> named_meshes("replica_groups=mesh['data'=2,'tensor'=4] {'data'}")
    [[('data', 2), ('tensor', 4)]]
    """
    return [
        _axes(match[1]) for match in re.finditer(r"mesh\[([^\[\]]*)\](?!\s*,?\s*device_ids)", rest)
    ]


def _axes(text: str) -> list[tuple[str, int]]:
    return [
        (name.strip("'\" "), int(size))
        for name, size in re.findall(r"('[^']*'|\"[^\"]*\"|(?<!\w)\w+)\s*=\s*(\d{1,9})", text)
    ]


def _mesh(
    axes_text: str, tile: str | None, order: str | None, along: str, file: str
) -> list[list[int]]:
    axes = _axes(axes_text)
    names, sizes = [name for name, _ in axes], [size for _, size in axes]
    total = math.prod(sizes)
    wanted = [name.strip("'\" ") for name in along.split(",") if name.strip()]
    if not 0 < total <= MOST_DEVICES or any(name not in names for name in wanted):
        raise FormatError(
            f"{file}: replica_groups of mesh [{axes_text[:60]}] along {along[:60]}: needed axes of the mesh"
        )
    ids = list(range(total))
    if tile is not None:
        shape = _wholes(tile, file)
        turn = _wholes(order, file) if order else list(range(len(shape)))
        if math.prod(shape) != total or sorted(turn) != list(range(len(shape))):
            raise FormatError(
                f"{file}: device_ids [{tile}] do not multiply to the {total} devices of the mesh"
            )
        ids = _transposed(ids, shape, turn)
    inner = [names.index(name) for name in wanted]
    outer = [place for place in range(len(names)) if place not in inner]
    flat = _transposed(ids, sizes, [*outer, *inner])
    each = math.prod(sizes[place] for place in inner)
    return [flat[start : start + each] for start in range(0, total, each)]
