"""Studies of one step as ``mpsim run`` prints them: sensitivity and jitter."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mpsim.cli.console import print_table, print_text
from mpsim.units import Dimension, format_quantity

if TYPE_CHECKING:
    from mpsim.study import Jitter, Sensitivity

__all__ = ["print_jitter", "print_sensitivity"]


def print_sensitivity(sensitivity: Sensitivity) -> None:
    """Print elasticities as a table, the strongest first."""
    print_text("")
    print_table(
        [(row.name, row.kind, row.value, f"{row.elasticity:+.4f}") for row in sensitivity.rows],
        header=("parameter", "of the", "value", "% of step time for 1 % more"),
        title="sensitivity",
        right=(2, 3),
    )


def print_jitter(jitter: Jitter) -> None:
    """Print percentiles of the step time as a table."""
    print_text("")
    print_table(
        [
            (
                f"{percentile.percent:g} %",
                _time(percentile.seconds),
                f"{_time(percentile.low_s)} to {_time(percentile.high_s)}",
            )
            for percentile in jitter.percentiles()
        ],
        header=("steps", "up to", "95 % confidence"),
        title=(
            f"jitter of {jitter.compute:g}, {len(jitter.step_times_s)} steps drawn: "
            f"mean {_time(jitter.mean_s)}, {jitter.slowdown:.4f} of undisturbed"
        ),
        right=(0, 1),
    )


def _time(seconds: float | None) -> str:
    return "?" if seconds is None else format_quantity(seconds, Dimension.TIME)
