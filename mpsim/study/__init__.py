"""Studies: more than one simulation, and what the difference between them is."""

from mpsim.study.comparison import Comparison, compare
from mpsim.study.grid import Row, Sweep, sweep
from mpsim.study.schedules import (
    ScheduleChoice,
    SynthesisedSchedule,
    TimedSchedule,
    Times,
    compare_schedules,
    named_orders,
    synthesise_schedule,
    time_schedule,
)

__all__ = [
    "Comparison",
    "Row",
    "ScheduleChoice",
    "Sweep",
    "SynthesisedSchedule",
    "TimedSchedule",
    "Times",
    "compare",
    "compare_schedules",
    "named_orders",
    "sweep",
    "synthesise_schedule",
    "time_schedule",
]
