"""Calibration of a machine: fitted constants, measured curves and habits of its software, as plain values.

The hardware layer only carries them: `mpsim.cost` reads the constants and curves in place of its own, a scenario the habits.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any


@dataclasses.dataclass(frozen=True, slots=True)
class Fitted:
    """One constant with its uncertainty.

    Parameters
    ----------
    low, high : float
        Between which it lies with a probability of 95 %.
    unit : str
        SI unit; ``1`` for a ratio.
    """

    value: float
    low: float
    high: float
    unit: str


@dataclasses.dataclass(frozen=True, slots=True)
class MeasuredCurve:
    """Seconds by bytes of one kind of work.

    Parameters
    ----------
    kind : str
        Of a kernel (``norm``), or a collective (``all_reduce``).
    phase : str
        Of a kernel: ``forward`` or ``input_gradient``; empty for a collective.
    ranks, domains : int
        Of a collective's group; 0 for a kernel.
    sizes, times : tuple of float
        [B], [s]; sizes rise.
    """

    kind: str
    phase: str
    ranks: int
    domains: int
    sizes: tuple[float, ...]
    times: tuple[float, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Calibration:
    """Everything `mpsim calibrate` found out about one machine.

    Parameters
    ----------
    name : str
        Of the machine.
    source, as_of : str
        What was measured, with what, and when.
    constants : mapping of str to Fitted
        By dotted name: data file of the cost model, group, leaf (``kernels.gemm.bf16_sustained_fraction``).
    kernels, collectives : tuple of MeasuredCurve
        Where a form with constants does not hold.
    library : str
        Communication library that was measured; empty where none was.
    framework : mapping
        Fields of a framework that belong to this machine, such as the cost of a launch; a scenario's own fields win.
    document : mapping
        The file they were read from, as plain data.
    """

    name: str
    source: str
    as_of: str
    constants: Mapping[str, Fitted]
    kernels: tuple[MeasuredCurve, ...]
    collectives: tuple[MeasuredCurve, ...]
    library: str
    framework: Mapping[str, object]
    document: Mapping[str, Any] = dataclasses.field(default_factory=dict, repr=False)

    def under(self, prefix: str) -> Iterator[tuple[str, Fitted]]:
        """Leaf and constant of every constant called ``prefix.leaf``."""
        head = f"{prefix}."
        for name, fitted in self.constants.items():
            if name.startswith(head) and "." not in name.removeprefix(head):
                yield name.removeprefix(head), fitted

    def value(self, name: str) -> float | None:
        """The constant called `name`; None where it was not fitted."""
        constant = self.constants.get(name)
        return None if constant is None else constant.value

    def kernel_curve(self, kind: str, phase: str) -> MeasuredCurve | None:
        """The curve of a kind of kernel in a phase; that of its forward phase where only that was measured."""
        curves = {(curve.kind, curve.phase): curve for curve in self.kernels}
        return curves.get((kind, phase), curves.get((kind, "forward")))
