"""Schedules: the order in which each pipeline rank runs its forwards and backwards, never when.

`make_orders` builds an `Orders` by name; `read_csv` reads one from a file.
"""

from mpsim.schedule.beside import forwards_beside_backwards
from mpsim.schedule.csv_file import read_csv, write_csv
from mpsim.schedule.orders import Action, Orders
from mpsim.schedule.registry import make_orders, schedule_names, schedule_options

__all__ = [
    "Action",
    "Orders",
    "forwards_beside_backwards",
    "make_orders",
    "read_csv",
    "schedule_names",
    "schedule_options",
    "write_csv",
]
