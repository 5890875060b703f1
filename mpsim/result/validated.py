"""Validated: how far a scenario is from what was measured and predicted, and how far off predictions were there."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from mpsim.framework import framework_aliases
from mpsim.hardware import Accelerator, accelerator
from mpsim.memo import remembered
from mpsim.shipped import load_catalog

__all__ = ["Validated", "nearest_validated"]

_PACKAGE, _FILE = "mpsim.result.data", "validated"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Validated:
    """Measured runs of one accelerator under one framework, predicted.

    Parameters
    ----------
    accelerator, framework : str
        Catalog names.
    smallest, largest : int
        Accelerators of the runs.
    rows : int
    mean_abs_error, bias : float
        Of predicted step times, as fractions; the bias with its sign.
    """

    accelerator: str
    framework: str
    smallest: int
    largest: int
    rows: int
    mean_abs_error: float
    bias: float

    def scale(self, accelerators: int) -> float:
        """Factor by which a job is larger (above 1) or smaller (below 1) than any of these runs; 1 within."""
        return max(1.0, accelerators / self.largest) * min(1.0, accelerators / self.smallest)


def nearest_validated(chip: Accelerator, framework: str, accelerators: int) -> dict[str, Any]:
    """The runs nearest to a scenario.

    Parameters
    ----------
    chip : Accelerator
    framework : str
        Name of the preset, or an alias.
    accelerators : int

    Returns
    -------
    dict
        Fields of `Validated`, ``scale``, and ``differs``: which of accelerator, framework and scale the runs do not share.

    Notes
    -----
    The same accelerator counts before the same family of accelerators, that before the same framework, that before the scale.
    """
    preset = framework_aliases().get(framework, framework)

    def distance(entry: Validated) -> tuple[bool, bool, bool, float, int]:
        return (
            entry.accelerator != chip.name,
            _family(entry.accelerator) != chip.family,
            entry.framework != preset,
            abs(math.log(entry.scale(accelerators))),
            -entry.rows,
        )

    best = min(_runs(), key=distance)
    scale = best.scale(accelerators)
    differs = {
        "accelerator": best.accelerator != chip.name,
        "framework": best.framework != preset,
        "scale": scale != 1.0,
    }
    named = [name for name, yes in differs.items() if yes]
    return {**dataclasses.asdict(best), "scale": scale, "differs": named}


@remembered(1)
def _runs() -> tuple[Validated, ...]:
    """Written by ``python validation/accuracy.py``."""
    entries = dict(load_catalog(_PACKAGE))[_FILE]["runs"]
    return tuple(Validated(**entry) for entry in entries)


@remembered(256)
def _family(name: str) -> str:
    return accelerator(name).family
