"""Axes of the device mesh that a compiled module shows: which neighbours its groups of devices
join, and what they are called.

A compiled module states no mesh, only groups of device numbers. Groups that step regularly through
the devices (0, 4, 8 ...) show an axis by its stride and its size; all of them together cut the
devices into axes, the slowest first, as XLA's own ``axis_0``, ``axis_1``. Names of a mesh spelling
count where somebody gave them.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Sequence

import numpy as np

from mpsim import structs

Groups = Sequence[Sequence[int]]
_GENERATED = re.compile(r"axis_\d+")


@structs.dataclass(frozen=True, slots=True)
class DeviceAxes:
    """Axes of a mesh of devices."""

    names: tuple[str, ...]
    sizes: tuple[int, ...]  # the slowest first; they multiply to the number of devices

    def along(self, groups: Groups) -> str:
        """Names of the axes along which groups extend, such as ``data`` or ``axis_0+axis_1``;
        ``devices`` where they are no mesh's.

        `groups`: members of every group, or pairs of a sender and a receiver.

        Examples
        --------
        >>> DeviceAxes(("data", "tensor"), (2, 4)).along([[0, 4], [1, 5]])
        'data'
        """
        moved = np.zeros(len(self.sizes), dtype=bool)
        for group in groups:
            places = np.array(np.unravel_index(np.array(group, dtype=np.int64), self.sizes))
            moved |= (places != places[:, :1]).any(axis=1)
        return "+".join(itertools.compress(self.names, moved)) or "devices"


def device_axes(
    groupings: Iterable[Groups],
    devices: int,
    *,
    pairs: Iterable[Groups] = (),
    named: Iterable[Sequence[tuple[str, int]]] = (),
) -> DeviceAxes:
    """Find the axes that groups show.

    `pairs`: senders and receivers of messages, which show how far apart neighbours are but not how
    many there are. `named`: meshes that the text spells out: names and sizes of their axes, the
    slowest first.

    Examples
    --------
    >>> device_axes([[[0, 1, 2, 3], [4, 5, 6, 7]], [[0, 4], [1, 5], [2, 6], [3, 7]]], 8).sizes
    (2, 4)
    """
    cuts = {1, devices}
    for groups in groupings:
        for group in list(groups)[:2]:
            cuts |= _cuts(sorted(group), devices)
    for messages in pairs:
        cuts.add(math.gcd(*(pair[-1] - pair[0] for pair in messages if pair)) or 1)
    named = list(named)
    for mesh in named:
        if math.prod(size for _, size in mesh) == devices and not _generated(mesh):
            reach = devices
            for _, size in mesh:
                reach //= max(1, size)
                cuts.add(max(1, reach))
    chain = [1]
    for cut in sorted(cuts):
        if cut > chain[-1] and cut % chain[-1] == 0 and devices % cut == 0:
            chain.append(cut)
    sizes = tuple(above // below for below, above in itertools.pairwise(chain))[::-1]
    sizes = sizes or (1,)
    for mesh in named:
        kept = [(name, size) for name, size in mesh if size > 1]
        if tuple(size for _, size in kept) == sizes and not _generated(mesh):
            return DeviceAxes(tuple(name for name, _ in kept), sizes)
    return DeviceAxes(tuple(f"axis_{place}" for place in range(len(sizes))), sizes)


def _generated(mesh: Sequence[tuple[str, int]]) -> bool:
    """Whether XLA made the names up: then they differ from group to group."""
    return all(_GENERATED.fullmatch(name) for name, _ in mesh)


def _cuts(group: Sequence[int], devices: int) -> set[int]:
    """Strides at which a regular group begins and ends axes; empty where it is not regular."""
    offsets = [member - group[0] for member in group]
    found: set[int] = set()
    covered = 1
    while covered < len(offsets):
        stride = offsets[covered]
        size = 1
        while size * covered < len(offsets) and offsets[size * covered] == size * stride:
            size += 1
        block = offsets[:covered]
        whole = [at * stride + inner for at in range(size) for inner in block]
        if (
            stride < 1
            or size < 2
            or offsets[: size * covered] != whole
            or devices % (stride * size)
        ):
            return found
        found |= {stride, stride * size}
        covered *= size
    return found
