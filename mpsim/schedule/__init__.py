"""Schedules: the order in which each pipeline rank runs its forwards and backwards, never when.

`schedule` gives a schedule's facts, `make_orders` builds its `Orders`; `read_csv` reads a file.
"""

from mpsim.schedule.facts import Schedule
from mpsim.schedule.orders import Action, Orders
from mpsim.schedule.registry import make_orders, schedule, schedule_names, schedules

__all__ = ["Action", "Orders", "Schedule", "make_orders", "schedule", "schedule_names", "schedules"]
