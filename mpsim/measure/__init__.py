"""Benchmarks of this machine with torch, which this package alone imports, when it measures."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from mpsim import structs
from mpsim.errors import MissingExtraError
from mpsim.measured.records import FAMILIES, Measured

__all__ = ["Settings", "measure"]


@structs.dataclass(frozen=True, slots=True)
class Settings:
    """Settings of `mpsim measure`."""

    out: Path
    budget: float  # how long to measure at most, starting and loading excluded [s]
    families: tuple[str, ...] = FAMILIES
    resume: bool = False  # go on with what an earlier run left in `out`
    device: str = "auto"  # ``auto``, ``cpu`` or ``cuda``
    seed: int = 0


def measure(settings: Settings, *, say: Callable[[str], None]) -> Measured | None:
    """Measure, and write the file.

    `say`: takes a line of progress; called on the first rank only. MissingExtraError if torch is
    not installed; CalibrationError if the file to go on with was measured elsewhere, or the
    launcher's variables contradict each other.

    Returns
    -------
    Measured or None
        What the file holds; None on every rank but the first.
    """
    try:
        import torch  # noqa: F401
    except ImportError as error:
        raise MissingExtraError("torch", "validate") from error
    from mpsim.measure.runner import run

    return run(settings, say)
