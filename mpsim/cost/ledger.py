"""Which constants a cost model has used so far."""

from __future__ import annotations

from mpsim.cost.constants import Constant, ConstantGroup, hardware_constant
from mpsim.hardware.components import Link

__all__ = ["Ledger"]


class Ledger:
    """Constants in the order of their names, each noted when it is first used."""

    def __init__(self) -> None:
        self._used: dict[str, Constant] = {}

    def note(self, constant: Constant) -> None:
        """Account for one constant."""
        self._used[constant.name] = constant

    def use(self, group: ConstantGroup, leaf: str) -> float:
        """The number called `leaf`, accounted for."""
        constant = group[leaf]
        self._used[constant.name] = constant
        return constant.value

    def note_link(self, link: Link) -> None:
        """Account for the catalog's figures of a link."""
        for figure, value, unit in (
            ("bandwidth", link.bandwidth, "B/s"),
            ("latency", link.latency, "s"),
            ("efficiency", link.efficiency, "1"),
        ):
            self.note(hardware_constant(link, figure, value, unit))

    def constants(self) -> tuple[Constant, ...]:
        """Every constant noted, by name."""
        return tuple(self._used[name] for name in sorted(self._used))
