"""Schedules: the order in which each pipeline rank runs its forwards and backwards, never when.

`schedule` gives a schedule's facts, `make_orders` builds its `Orders`; `read_csv` reads a file.
"""

from mpsim.schedule.orders import Action, Orders
from mpsim.schedule.registry import (
    Schedule,
    is_schedule,
    make_orders,
    schedule,
    schedule_names,
    schedules,
)

__all__ = ["Action", "Orders", "Schedule", "is_schedule", "make_orders", "schedule"]
__all__ += ["schedule_names", "schedules"]
