"""Bounds of fits and physical ranges, from ``data.yaml``."""

from __future__ import annotations

import fnmatch
import functools
from collections.abc import Iterator, Mapping
from typing import Any

from mpsim.calibrate.robust import Unknown
from mpsim.hardware import Fitted
from mpsim.shipped import read_shipped

__all__ = ["limit", "range_warnings", "unknown"]

_PERCENT = 100.0


@functools.cache
def _data() -> Mapping[str, Any]:
    data: Mapping[str, Any] = read_shipped(__package__ or "", "data.yaml")
    return data


def unknown(leaf: str, *, name: str = "", scale: float = 1.0) -> Unknown:
    """A constant to be found, with the bounds of `leaf` times `scale`."""
    *figures, prior = map(float, _data()["bounds"][leaf])
    start, low, high = (scale * x for x in figures)
    return Unknown(name or leaf, start, low, high, prior)


def limit(name: str) -> float:
    """A limit by name."""
    return float(_data()["limits"][name])


def range_warnings(constants: Mapping[str, Fitted]) -> Iterator[str]:
    """A line for each constant that is outside its physical range, or that the measurements did not fix."""
    for name, one in constants.items():
        if ".burst_" in name and name.replace(".burst_", ".") in constants:
            continue  # the same number under another name
        leaf = name.rpartition(".")[2]
        for pattern, bounds in _data()["physical"].items():
            low, high = map(float, bounds)
            if fnmatch.fnmatchcase(leaf, pattern) and not low <= one.value <= high:
                yield (
                    f"{name} is {one.value:.4g} {one.unit}, outside its physical range of {low:g} to {high:g}; "
                    "something else is in these times"
                )
                break
        if one.high - one.low > 2 * limit("unidentified") * one.value:
            yield (
                f"{name} is {one.value:.4g} {one.unit}, but anything from {one.low:.3g} to {one.high:.3g} fits: the "
                "measurements say little about it"
            )
