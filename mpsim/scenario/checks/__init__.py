"""Checks across sections: one function for each mistake, run together by `check`.

Each takes a scenario whose sections are well-formed and gives the problems it finds, keyed so that
`Scenario.locate` can say on which line they were written.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator
from types import ModuleType
from typing import TYPE_CHECKING, Final, TypeAlias

from mpsim.errors import MpsimError, Problem
from mpsim.scenario.checks import common, layer, step
from mpsim.scenario.checks.common import wrong_values
from mpsim.scenario.checks.step import absent_parts

if TYPE_CHECKING:
    from mpsim.scenario.written import Written

__all__ = ["CHECKS", "absent_parts", "check", "wrong_values"]

Check: TypeAlias = "Callable[[Written], list[Problem]]"


def _listing(find: Callable[[Written], Iterator[Problem]]) -> Check:
    @functools.wraps(find)
    def check(scenario: Written) -> list[Problem]:
        return list(find(scenario))

    return check


def _checks_of(module: ModuleType) -> tuple[Check, ...]:
    """All that a module calls ``check_...``, in its order."""
    return tuple(_listing(find) for name, find in vars(module).items() if name.startswith("check_"))


_COMMON: Final = _checks_of(common)
CHECKS: Final = (
    *_COMMON,
    *itertools.chain(*map(_checks_of, (step, layer))),
)
"""Those of a scenario that trains."""


def _serving_checks() -> tuple[Check, ...]:
    """Checks of a scenario that serves, which a training does without."""
    from mpsim.scenario.checks import serving

    common = (check for check in _COMMON if check.__name__ != "check_framework")
    return (*_checks_of(serving), *common)


def check(scenario: Written, rules: Iterable[Check] | None = None) -> list[Problem]:
    """Run every check, or `rules`; what can be simulated has no problems that show unplanned."""
    problems: list[Problem] = []
    for rule in rules or (_serving_checks() if scenario.serves else CHECKS):
        try:
            problems += rule(scenario)
        except MpsimError:  # a preset that check_model, check_cluster or check_framework reports
            continue
    return scenario.locate(problems)
