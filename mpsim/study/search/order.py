"""The order of actions of a layout, and what is known of it without writing it out.

Orders of 1F1B and its interleaved form repeat themselves in the middle, so a few rounds of microbatches show every moment of many.
"""

from __future__ import annotations

import dataclasses

from mpsim.errors import ScheduleError
from mpsim.memo import remembered
from mpsim.schedule import Orders, schedule
from mpsim.training.memory import Flight
from mpsim.training.planning import step_orders

__all__ = ["Order"]


@dataclasses.dataclass(frozen=True, slots=True)
class Order:
    """The order of actions that ranks follow.

    Parameters
    ----------
    beside : bool
        Whether the framework makes blocks of forwards and backwards, to hide exchanges of experts.
    """

    schedule: str
    pp: int
    microbatches: int
    virtual_stages: int | None
    beside: bool = False

    @property
    def _repeats(self) -> bool:
        """Whether the order repeats itself in the middle, so that few rounds of microbatches show all its moments."""
        return schedule(self.schedule).rounds is not None and self.microbatches % self.pp == 0

    def of(self, microbatches: int) -> Order:
        """The same with another number of microbatches."""
        return dataclasses.replace(self, microbatches=microbatches)

    def flight(self) -> Flight:
        """Distinct moments of the order.

        Raises
        ------
        ScheduleError
            If the schedule cannot run so many microbatches.
        """
        shortest = (schedule(self.schedule).rounds or 0) * self.pp
        shorter = self._repeats and self.microbatches > shortest
        return _flight(self.of(shortest) if shorter else self)

    def orders(self) -> Orders:
        """The order itself."""
        return _orders(self)

    def stage_map(self) -> Orders:
        """An order with the same stages, of as few microbatches as there can be."""
        return _orders(self.of(self.pp) if self._repeats else self)

    def runs(self) -> bool:
        """Whether the schedule can run so many microbatches."""
        if self._repeats:
            return True
        try:
            orders = _orders(self)
        except ScheduleError:
            return False
        return not orders.forward_only and orders.microbatches == self.microbatches


@remembered(4096)
def _flight(order: Order) -> Flight:
    return Flight.of(_orders(order))


@remembered(256)
def _orders(order: Order) -> Orders:
    return step_orders(
        order.schedule,
        pp=order.pp,
        microbatches=order.microbatches,
        virtual_stages=order.virtual_stages,
        beside=order.beside,
    )
