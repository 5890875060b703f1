"""Schedules: the order in which each pipeline rank runs its forwards and backwards, never when.

`schedule` gives the facts of a schedule by name, `make_orders` builds its `Orders`; `read_csv` reads them from a file.
"""

from mpsim.schedule.beside import forwards_beside_backwards
from mpsim.schedule.csv_file import read_csv, write_csv
from mpsim.schedule.facts import Schedule
from mpsim.schedule.orders import Action, Orders
from mpsim.schedule.registry import make_orders, schedule, schedule_names, schedules

__all__ = [
    "Action",
    "Orders",
    "Schedule",
    "forwards_beside_backwards",
    "make_orders",
    "read_csv",
    "schedule",
    "schedule_names",
    "schedules",
    "write_csv",
]
