"""mpsim: a discrete-event simulator of model-parallel training clusters.

    >>> import mpsim
    >>> scenario = mpsim.load("scenarios/quickstart.yaml")  # doctest: +SKIP
    >>> mpsim.simulate(scenario).summary["step_time_s"]  # doctest: +SKIP

Every public name is resolved on first use, so that ``import mpsim`` costs next to nothing.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING

from mpsim.accessors import offer
from mpsim.version import __version__ as __version__

if TYPE_CHECKING:
    from mpsim.errors import (
        CalibrationError,
        DeadlockError,
        HardwareError,
        MissingExtraError,
        MpsimError,
        ScenarioError,
        ScheduleError,
        TooLargeError,
        UnitError,
        WorkloadError,
    )
    from mpsim.formats import read
    from mpsim.limits import unlimited
    from mpsim.result import Result
    from mpsim.scenario import Scenario, check, load
    from mpsim.simulate import Prepared, prepare, simulate
    from mpsim.study import Comparison, Sweep, compare, sweep
    from mpsim.study.search import Search, search

__all__ = [
    "CalibrationError",
    "Comparison",
    "DeadlockError",
    "HardwareError",
    "MissingExtraError",
    "MpsimError",
    "Prepared",
    "Result",
    "Scenario",
    "ScenarioError",
    "ScheduleError",
    "Search",
    "Sweep",
    "TooLargeError",
    "UnitError",
    "WorkloadError",
    "check",
    "compare",
    "load",
    "prepare",
    "read",
    "search",
    "simulate",
    "sweep",
    "unlimited",
]

_HOMES = {
    "Comparison": "mpsim.study",
    "Prepared": "mpsim.simulate",
    "Result": "mpsim.result",
    "Scenario": "mpsim.scenario",
    "Search": "mpsim.study",
    "Sweep": "mpsim.study",
    "check": "mpsim.scenario",
    "compare": "mpsim.study",
    "load": "mpsim.scenario",
    "prepare": "mpsim.simulate",
    "read": "mpsim.formats",
    "search": "mpsim.study",
    "simulate": "mpsim.simulate",
    "sweep": "mpsim.study",
    "unlimited": "mpsim.limits",
}


def __getattr__(name: str) -> object:
    """Import a public name where it lives, the first time it is asked for."""
    if name not in __all__:
        raise AttributeError(f"module 'mpsim' has no attribute {name!r}")
    value: object = getattr(importlib.import_module(_HOMES.get(name, "mpsim.errors")), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, "__all__", "__doc__", "__version__"])


def _offer(name: str, home: str, function: str) -> None:
    """Offer a function of a module that is imported when the function is first called."""

    def service(*arguments: object, **options: object) -> object:
        return getattr(importlib.import_module(home), function)(*arguments, **options)

    offer(name, service)


_offer("job", "mpsim.simulate", "job_class")
_offer("result.class", "mpsim.simulate", "result_class")
_offer("result.plot", "mpsim.plot", "Plots")
_offer("result.sensitivity", "mpsim.study", "measure_sensitivity")
_offer("result.variation", "mpsim.study", "simulate_variation")
_offer("result.write_trace", "mpsim.formats.step_trace", "write_step_trace")
_offer("service.plot", "mpsim.plot", "ServicePlots")
_offer("service.write_trace", "mpsim.formats.service", "write_service_trace")
_offer("timeline.plot", "mpsim.plot", "draw_timeline")
_offer("timeline.write_trace", "mpsim.formats.perfetto", "write_trace")


class _FrontDoor(ModuleType):
    """The package, whose function `simulate` keeps its name when the module `mpsim.simulate` is imported: Python would put the module there."""

    def __setattr__(self, name: str, value: object) -> None:
        if not (name in _HOMES and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _FrontDoor
