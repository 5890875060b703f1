"""mpsim: a discrete-event simulator of model-parallel training clusters.

    >>> import mpsim
    >>> scenario = mpsim.load("scenarios/quickstart.yaml")  # doctest: +SKIP
    >>> mpsim.simulate(scenario).summary["step_time_s"]  # doctest: +SKIP

Every public name is resolved on first use, so that ``import mpsim`` costs next to nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mpsim.errors import (
        CalibrationError,
        DeadlockError,
        HardwareError,
        MissingExtraError,
        MpsimError,
        ScenarioError,
        ScheduleError,
        UnitError,
        WorkloadError,
    )
    from mpsim.result import Result, simulate
    from mpsim.scenario import Scenario, check, load
    from mpsim.study import Comparison, Sweep, compare, sweep
    from mpsim.study.search import Search, search

__version__ = "0.1.0"

__all__ = [
    "CalibrationError",
    "Comparison",
    "DeadlockError",
    "HardwareError",
    "MissingExtraError",
    "MpsimError",
    "Result",
    "Scenario",
    "ScenarioError",
    "ScheduleError",
    "Search",
    "Sweep",
    "UnitError",
    "WorkloadError",
    "check",
    "compare",
    "load",
    "search",
    "simulate",
    "sweep",
]

_HOMES = {
    "Comparison": "mpsim.study",
    "Result": "mpsim.result",
    "Scenario": "mpsim.scenario",
    "Search": "mpsim.study",
    "Sweep": "mpsim.study",
    "check": "mpsim.scenario",
    "compare": "mpsim.study",
    "load": "mpsim.scenario",
    "search": "mpsim.study",
    "simulate": "mpsim.result",
    "sweep": "mpsim.study",
}


def __getattr__(name: str) -> object:
    """Import a public name where it lives, the first time it is asked for."""
    if name not in __all__:
        raise AttributeError(f"module 'mpsim' has no attribute {name!r}")
    value: object = getattr(importlib.import_module(_HOMES.get(name, "mpsim.errors")), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
