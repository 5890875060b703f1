"""Studies: more than one simulation, and what the difference between them is."""

from mpsim.study.blame import Blame
from mpsim.study.comparison import Comparison, compare
from mpsim.study.grid import sweep
from mpsim.study.rows import Row, Sweep
from mpsim.study.schedules import (
    ScheduleChoice,
    SynthesisedSchedule,
    TimedSchedule,
    Times,
    compare_schedules,
    named_orders,
    schedule_times,
    synthesise_schedule,
    time_schedule,
)
from mpsim.study.search import Found, Search, search
from mpsim.study.sensitivity import Elasticity, Sensitivity, measure_sensitivity
from mpsim.study.variation import Percentile, VariedSteps, simulate_variation

__all__ = ["Blame", "Comparison", "Elasticity", "Found", "Percentile", "Row", "ScheduleChoice"]
__all__ += ["Search", "Sensitivity", "Sweep", "SynthesisedSchedule", "TimedSchedule", "Times"]
__all__ += ["VariedSteps", "compare", "compare_schedules", "measure_sensitivity", "named_orders"]
__all__ += ["schedule_times", "search", "simulate_variation", "sweep", "synthesise_schedule"]
__all__ += ["time_schedule"]
