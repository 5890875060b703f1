"""mpsim: a discrete-event simulator of model-parallel training clusters.

    >>> import mpsim
    >>> scenario = mpsim.load("scenarios/quickstart.yaml")  # doctest: +SKIP
    >>> mpsim.simulate(scenario).summary["step_time_s"]  # doctest: +SKIP

What a command does has the command's name here. Names are resolved on first use, so that ``import
mpsim`` costs next to nothing; what is not in ``mpsim.__all__`` is private.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING

from mpsim.accessors import offer
from mpsim.version import __version__ as __version__

if TYPE_CHECKING:
    from mpsim.calibrate.calibrate import calibrate as calibrate
    from mpsim.errors import CalibrationError as CalibrationError
    from mpsim.errors import DeadlockError as DeadlockError
    from mpsim.errors import HardwareError as HardwareError
    from mpsim.errors import MissingExtraError as MissingExtraError
    from mpsim.errors import MpsimError as MpsimError
    from mpsim.errors import ScenarioError as ScenarioError
    from mpsim.errors import ScheduleError as ScheduleError
    from mpsim.errors import TooLargeError as TooLargeError
    from mpsim.errors import UnitError as UnitError
    from mpsim.errors import WorkloadError as WorkloadError
    from mpsim.formats import export as export
    from mpsim.formats import read as read
    from mpsim.limits import unlimited as unlimited
    from mpsim.report import report as report
    from mpsim.result import JobResult as Result
    from mpsim.scenario import Scenario as Scenario
    from mpsim.scenario import check as check
    from mpsim.scenario import load as load
    from mpsim.simulate import Prepared as Prepared
    from mpsim.simulate import prepare as prepare
    from mpsim.simulate import simulate as simulate
    from mpsim.study import Comparison as Comparison
    from mpsim.study import Sweep as Sweep
    from mpsim.study import compare as compare
    from mpsim.study import schedule_times as schedule
    from mpsim.study import sweep as sweep
    from mpsim.study.design import design as design
    from mpsim.study.goodput import simulate_goodput as goodput
    from mpsim.study.plan import plan as plan
    from mpsim.study.reliability import Checkpoint as Checkpoint
    from mpsim.study.reliability import Reliability as Reliability
    from mpsim.study.scaling import scale as scale
    from mpsim.study.search import Search as Search
    from mpsim.study.search import search as search
    from mpsim.validate import validate_files as validate

_HOMES = {
    name: home
    for home, names in {
        "mpsim.calibrate": "calibrate",
        "mpsim.errors": "CalibrationError DeadlockError HardwareError MissingExtraError MpsimError"
        " ScenarioError ScheduleError TooLargeError UnitError WorkloadError",
        "mpsim.formats": "export read",
        "mpsim.limits": "unlimited",
        "mpsim.report": "report",
        "mpsim.result": "Result",
        "mpsim.scenario": "Scenario check load",
        "mpsim.simulate": "Prepared prepare simulate",
        "mpsim.study": "Comparison Search Sweep compare schedule search sweep",
        "mpsim.study.design": "design",
        "mpsim.study.goodput": "goodput",
        "mpsim.study.plan": "plan",
        "mpsim.study.reliability": "Checkpoint Reliability",
        "mpsim.study.scaling": "scale",
        "mpsim.validate": "validate",
    }.items()
    for name in names.split()
}
__all__ = sorted(_HOMES)
_AT_HOME = {"Result": "JobResult", "goodput": "simulate_goodput"}
_AT_HOME |= {"schedule": "schedule_times", "validate": "validate_files"}
"""Names that say more where they live: a Result is any job's; a step's is in `mpsim.result`."""


def __getattr__(name: str) -> object:
    """Import a public name where it lives, the first time it is asked for."""
    if name not in _HOMES:
        raise AttributeError(f"module 'mpsim' has no attribute {name!r}")
    home = importlib.import_module(_HOMES[name])
    value: object = getattr(home, _AT_HOME.get(name, name))
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, "__all__", "__doc__", "__version__"])


def _offer(name: str, home: str, function: str) -> None:
    """Offer a function of a module that is imported when the function is first called."""

    def service(*arguments: object, **options: object) -> object:
        return getattr(importlib.import_module(home), function)(*arguments, **options)

    offer(name, service)


_offer("result.class", "mpsim.simulate", "result_class")
_offer("result.plot", "mpsim.plot", "Plots")
_offer("result.sensitivity", "mpsim.study", "measure_sensitivity")
_offer("result.variation", "mpsim.study", "simulate_variation")
_offer("result.write_trace", "mpsim.formats.step_trace", "write_step_trace")
for _name in ("design", "goodput", "plan", "scaling", "sensitivity"):
    _offer(f"chart.{_name}", "mpsim.plot", f"{_name}_chart")
_offer("chart.display", "mpsim.plot.pen", "Display")
_offer("service.plot", "mpsim.plot", "ServicePlots")
_offer("service.write_trace", "mpsim.formats.step_trace", "write_service_trace")
_offer("timeline.plot", "mpsim.plot", "draw_timeline")
_offer("timeline.write_trace", "mpsim.formats.perfetto", "write_trace")


class _FrontDoor(ModuleType):
    """The package: functions keep their names where a module of the same name is imported."""

    def __setattr__(self, name: str, value: object) -> None:
        if not (name in _HOMES and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _FrontDoor
