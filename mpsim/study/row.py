"""A row of a sweep: one combination, with what it gave or why it gave nothing."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

__all__ = ["COLUMNS", "SERVICE_COLUMNS", "Row", "column_of", "figure_of"]

COLUMNS = (
    "accelerators",
    "step_time_s",
    "tokens_per_s",
    "tokens_per_s_per_accelerator",
    "mfu",
    "hfu",
    "tensor_utilisation",
    "bubble_fraction",
    "peak_memory_bytes",
    "fits_memory",
    "energy_j_per_step",
    "energy_j_per_token",
    "accelerator_power_w",
    "meter_energy_j_per_token",
    "cost_per_step",
    "engine",
)
"""What a table of results shows of each summary of a training step."""


SERVICE_COLUMNS = (
    *("accelerators", "output_tokens_per_s", "output_tokens_per_s_per_accelerator"),
    *("output_tokens_per_s_per_user", "goodput_per_s", "requests_within_slo"),
    *("ttft_s.mean", "ttft_s.p99", "tpot_s.mean", "tpot_s.p99", "itl_s.p99", "e2e_s.mean"),
    *("preemptions", "prefix_hit_share", "cache_use.mean", "utilisation"),
    *("energy_j_per_output_token", "cost_per_million_output_tokens", "engine"),
)
"""The same of a service; after a dot a figure of a latency."""


@dataclasses.dataclass(frozen=True, slots=True, repr=False)
class Row:
    """One combination of a sweep.

    Parameters
    ----------
    values : mapping of str to object
        Dotted key to the value it was given.
    summary : mapping of str to object, or None
        The result in the shape of ``mpsim run --json``, without ``calibration.constants``; None when it could not be simulated.
    reason : str or None
        Why it could not be simulated, or that it does not fit into memory; None for a good row.
    """

    values: Mapping[str, object]
    summary: Mapping[str, object] | None
    reason: str | None

    @property
    def usable(self) -> bool:
        """Whether it was simulated and fits into memory."""
        return self.summary is not None and self.reason is None

    @property
    def serves(self) -> bool:
        """Whether it is of a service."""
        return self.summary is not None and self.summary.get("job") == "serving"

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings of the result; none where there is no result."""
        known = (self.summary or {}).get("warnings")
        return tuple(map(str, known)) if isinstance(known, Sequence) else ()

    def number(self, column: str) -> float:
        """One figure of the summary as a float; NaN when there is none."""
        value = figure_of(self.summary, column) if self.summary is not None else None
        return float(value) if isinstance(value, int | float) else float("nan")

    def __repr__(self) -> str:
        what = self.reason or f"{len(self.summary or {})} figures"
        values = ", ".join(f"{key} {value}" for key, value in self.values.items())
        return f"<Row {values}: {what[:200]}>"

    def flat(self, *, serves: bool | None = None) -> dict[str, object]:
        """Values, figures and reason in one mapping, in the order of the columns: those of a service if it `serves`, which a row without a summary cannot know."""
        summary = self.summary or {}
        columns = SERVICE_COLUMNS if (self.serves if serves is None else serves) else COLUMNS
        figures = {column_of(name): figure_of(summary, name) for name in columns}
        parts = summary.get("account_s" if self.serves else "breakdown_s")
        times = (
            {f"{name}_s": part for name, part in parts.items()} if isinstance(parts, dict) else {}
        )
        warnings = "; ".join(self.warnings)
        return {**self.values, **figures, **times, "warnings": warnings, "reason": self.reason}


def figure_of(summary: Mapping[str, object], name: str) -> object:
    """A figure of a summary; after a dot one of a mapping in it."""
    value: object = summary
    for part in name.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def column_of(name: str) -> str:
    """Name of a figure as a column, its unit at the end: ``ttft_p99_s``."""
    head, dot, which = name.partition(".")
    if not dot:
        return name
    return f"{head.removesuffix('_s')}_{which}_s" if head.endswith("_s") else f"{head}_{which}"
