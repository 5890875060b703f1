"""Computing points of a sweep, wherever an executor runs them."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

from mpsim.errors import MpsimError
from mpsim.scenario import Scenario
from mpsim.study.rows import reason_of
from mpsim.study.shared import kind_of
from mpsim.study.together import Together
from mpsim.units import Dimension, format_quantity

__all__ = ["compute_rows"]


def compute_rows(
    scenario: Scenario, points: Sequence[tuple[Mapping[str, object], str | None]]
) -> list[dict[str, Any]]:
    """Simulate points of a sweep together; runs wherever an executor likes.

    Parameters
    ----------
    scenario : Scenario
    points : sequence of (mapping, str or None)
        Values of each, and why it is none if that is known.

    Returns
    -------
    list of dict
        ``summary`` and ``reason`` of each.
    """
    chosen = [values for values, wrong in points if wrong is None]
    scenarios = [scenario.with_values(values) for values in chosen]
    together = _together(scenario.digest)
    outcomes = iter(together.simulate(scenarios, [kind_of(values) for values in chosen]))
    rows: list[dict[str, Any]] = []
    for _, wrong in points:
        outcome = None if wrong is not None else next(outcomes)
        if outcome is None or isinstance(outcome, MpsimError):
            reason = wrong if outcome is None else reason_of(outcome)
            rows.append({"summary": None, "reason": reason})
        else:
            summary = _figures(outcome.summary)
            rows.append({"summary": summary, "reason": _does_not_fit(summary)})
    return rows


class _Own(threading.local):
    """Work that a thread shares among points of the scenario it computes."""

    digest = ""
    together = Together()


_OWN = _Own()


def _together(digest: str) -> Together:
    """Work that this thread shares among points of the scenario with this digest."""
    if _OWN.digest != digest:
        _OWN.digest, _OWN.together = digest, Together()
    return _OWN.together


def _figures(summary: Mapping[str, Any]) -> dict[str, Any]:
    """A summary without the sources of its constants: nine tenths of its size, and the same in most rows."""
    calibration = {key: one for key, one in summary["calibration"].items() if key != "constants"}
    return {**summary, "calibration": calibration}


def _does_not_fit(summary: Mapping[str, object]) -> str | None:
    if summary["fits_memory"]:
        return None
    memory = summary["memory"]
    assert isinstance(memory, Mapping)
    needed, capacity = (
        format_quantity(memory[key], Dimension.BYTES) for key in ("total", "capacity")
    )
    return f"does not fit: rank {memory['rank']} needs {needed} of {capacity}"
