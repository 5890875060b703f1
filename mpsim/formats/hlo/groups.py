"""Groups of collectives in XLA's HLO text, in three spellings: lists, iota tiles, mesh axes.

References
----------
openxla/xla, ``hlo_parser.cc``, ``hlo_sharding.cc``; text of jax 0.10.2 for CPU, H100 and TPU v5e.
"""

from __future__ import annotations

import math
import re
from typing import Final

import numpy as np

from mpsim.arrays import Ints
from mpsim.errors import FormatError

MOST_DEVICES: Final = 1_000_000
_PAIRS = re.compile(r"source_target_pairs=\{((?:\{\d+,\d+\},?)*)\}")
_LISTS = re.compile(r"replica_groups=\{((?:\{[\d,]*\},?)*)\}")
_IOTA = re.compile(r"replica_groups=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")
_MESH = re.compile(
    r"replica_groups=(?:@?\w*)?mesh\[([^\]]*)\]"
    r"\s*(?:,?\s*device_ids=\(?\[([\d,]+)\](?:T\(([\d,]+)\))?\)?)?\s*,?\s*\{([^}]*)\}"
)


def groups_of(rest: str, devices: int, file: str = "") -> list[list[int]]:
    """Groups of a collective, expanded, of any of the three spellings.

    `rest`: its attributes. `devices`: of the module; ``{}`` means all of them. `file`: what
    complaints call it. FormatError if there are groups and they are in none of the spellings.

    Examples
    --------
    >>> groups_of("replica_groups=[4,2]<=[2,4]T(1,0)", 8)
    [[0, 4], [1, 5], [2, 6], [3, 7]]
    >>> groups_of("replica_groups=mesh['a'=2,'b'=1,'c'=4] {'a'}", 8)
    [[0, 4], [1, 5], [2, 6], [3, 7]]
    """
    if pairs := _PAIRS.search(rest):
        return [_wholes(pair, file) for pair in re.findall(r"\{(\d+,\d+)\}", pairs[1])]
    if "source_target_pairs={{" in rest:
        raise FormatError(f"{file}: source_target_pairs that are no pairs; the file is damaged")
    if lists := _LISTS.search(rest):
        groups = re.findall(r"\{([\d,]*)\}", lists[1])
        return [_wholes(group.strip(","), file) for group in groups] or [list(range(devices))]
    if tiles := _IOTA.search(rest):
        rows, columns = [*_wholes(tiles[1], file), 1][:2]
        ids = _tiled(rows * columns, tiles[2], tiles[3], file, f"replica_groups=[{tiles[1]}]<=")
        return _listed(ids.reshape(-1, columns))
    if mesh := _MESH.search(rest):
        return _along_mesh(mesh, file)
    if "replica_groups=" in rest:
        raise FormatError(
            f"{file}: replica_groups in a spelling that is not known:"
            f" {rest[rest.find('replica_groups=') :][:60]!r}"
        )
    return [list(range(devices))]


def _wholes(text: str, file: str) -> list[int]:
    """Whole numbers between commas."""
    items = text.split(",") if text else []
    if not all(re.fullmatch(r"\d{1,9}", item) for item in items):
        raise FormatError(f"{file}: groups of {text[:60]!r}; needed numbers of devices")
    return [int(item) for item in items]


def _listed(groups: Ints) -> list[list[int]]:
    listed: list[list[int]] = groups.tolist()
    return listed


def _tiled(total: int, tile: str, order: str | None, file: str, what: str) -> Ints:
    """Numbers from 0 on as an array of a tile's sizes, its axes in another order, row-major."""
    sizes = _wholes(tile, file)
    axes = _wholes(order, file) if order else list(range(len(sizes)))
    if (
        math.prod(sizes) != total
        or sorted(axes) != list(range(len(sizes)))
        or not 0 < total <= MOST_DEVICES
    ):
        raise FormatError(f"{file}: {what}[{tile}] do not multiply to {total} devices")
    return np.arange(total).reshape(sizes).transpose(axes).ravel()


def named_meshes(rest: str) -> list[list[tuple[str, int]]]:
    """Meshes that attributes spell out, devices in order: axes' names and sizes, slowest first.

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


def _along_mesh(mesh: re.Match[str], file: str) -> list[list[int]]:
    """Groups along some axes of a mesh, whose devices may lie in another order."""
    axes = _axes(mesh[1])
    names, sizes = [name for name, _ in axes], [size for _, size in axes]
    total = math.prod(sizes)
    wanted = [name.strip("'\" ") for name in mesh[4].split(",") if name.strip()]
    if not 0 < total <= MOST_DEVICES or any(name not in names for name in wanted):
        raise FormatError(
            f"{file}: replica_groups of mesh [{mesh[1][:60]}] along {mesh[4][:60]}: needed axes of"
            " the mesh"
        )
    ids = _tiled(total, mesh[2], mesh[3], file, "device_ids ") if mesh[2] else np.arange(total)
    inner = [names.index(name) for name in wanted]
    outer = [place for place in range(len(names)) if place not in inner]
    columns = math.prod(sizes[place] for place in inner)
    return _listed(ids.reshape(sizes).transpose([*outer, *inner]).reshape(-1, columns))
