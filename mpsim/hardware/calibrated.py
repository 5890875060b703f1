"""Calibration of a machine: constants, measured curves and habits of software, as values.

Hardware only carries them: `mpsim.cost` reads constants and curves in place of its own.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from mpsim import structs


@structs.dataclass(frozen=True, slots=True)
class Fitted:
    """One constant with its uncertainty."""

    value: float
    low: float  # low, high: between which it lies with a probability of 95 %
    high: float
    unit: str  # SI unit; ``1`` for a ratio


@structs.dataclass(frozen=True, slots=True)
class MeasuredCurve:
    """Seconds by bytes of one kind of work."""

    kind: str  # of a kernel (``norm``), or a collective (``all_reduce``)
    phase: str  # of a kernel: ``forward`` or ``input_gradient``; empty for a collective
    ranks: int  # ranks, domains: of a collective's group; 0 for a kernel
    domains: int
    sizes: tuple[float, ...]  # sizes, times: [B], [s]; sizes rise
    times: tuple[float, ...]


@structs.dataclass(frozen=True, slots=True)
class Calibration:
    """Everything `mpsim calibrate` found out about one machine."""

    name: str  # of the machine
    source: str  # source, as_of: what was measured, with what, and when
    as_of: str
    # by dotted name: data file of the cost model, group, leaf
    # (``kernels.gemm.bf16_sustained_fraction``)
    constants: Mapping[str, Fitted]
    # kernels, collectives: where a form with constants does not hold
    kernels: tuple[MeasuredCurve, ...]
    collectives: tuple[MeasuredCurve, ...]
    library: str  # communication library that was measured; empty where none was
    # fields of a framework that belong to this machine; a scenario's own fields win
    framework: Mapping[str, object]
    # the file they were read from, as plain data
    document: Mapping[str, Any] = structs.field(default_factory=dict, repr=False)

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
        """The curve of a kind of kernel in a phase; the forward's where only that was measured."""
        curves = {(curve.kind, curve.phase): curve for curve in self.kernels}
        return curves.get((kind, phase), curves.get((kind, "forward")))
